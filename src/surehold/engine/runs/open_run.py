"""A run that this process holds: its lease, ledger and saves."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from surehold.core.policy import CANCEL, CANCELLED, QUEUED
from surehold.core.records import Door, Header, Message, Timer
from surehold.core.state import Lineage, Place, State, read_metadata
from surehold.core.values import Nature
from surehold.engine.commit import Steps, append_notes, erase, load, perform, save_draft
from surehold.engine.hooks import HookManager, RunSpans, TracingHook
from surehold.engine.journal import (
    CheckpointDraft,
    Loaded,
    Note,
    OpenNotes,
    Saveable,
    line_in,
    notes_in,
    read_line,
    read_since,
)
from surehold.engine.leases import LEASE_SECONDS, RunLease, SavedLease
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager, manager_for
from surehold.engine.runs.awaited_run import AwaitedRun
from surehold.engine.runs.effect_log import Ledger, Spot
from surehold.engine.runs.leaving import Leaving
from surehold.engine.runs.stop import StopRequests
from surehold.engine.runs.telling import is_quiet, tell_waiting
from surehold.engine.runs.waiting import waiting_of
from surehold.errors import (
    Cancelled,
    ConflictError,
    CorruptError,
    LeaseHeldError,
    NotFoundError,
    StorageError,
    SureholdError,
    UsageError,
)
from surehold.storage.base import RecordQuery, RunInfo, Storage

logger = logging.getLogger("surehold.checkpoint")
T = TypeVar("T")
_TRIES = 20
"""The number of times that a write gives way to another manager's."""


def taken_over(run_id: str, cause: BaseException | None = None) -> ConflictError:
    """The error of a process that lost its lease, to another one or a failed storage."""
    if isinstance(cause, ConflictError) and cause.facts.get("head") == 0:
        return ConflictError(cause.message, hint=cause.hint, run_id=run_id)
    if isinstance(cause, StorageError):
        return ConflictError(
            f"the lease of run {run_id!r} ended: the storage could not renew it: {cause.message}",
            hint="no other process is known to have the run; resume it when the storage works",
            run_id=run_id,
        )
    return ConflictError(
        f"run {run_id!r} was taken over by another process",
        hint="this process was away for longer than the lease; the other one continues the run",
        run_id=run_id,
    )


class OpenRun:
    """A run that this process holds; `awaited` is its async face.

    Blocking and thread-safe. Nothing else appends to a run in the name of its execution. *where*
    is a manager, or the storage for a manager of its own. *alone*: the event loop of the async
    face executes nothing else, and may be blocked by saves between two steps.

    Not *leased*: the run is a framework's, which lets several processes write to its threads.

    *between_saves*: the run is held from save to save, and needs no `open`. No thread renews its
    lease, which is timed by *now*; a save continues after what another has saved meanwhile, with a
    warning.
    """

    def __init__(
        self,
        run_id: str,
        door: Door | None,
        where: CheckpointManager | AsyncCheckpointManager | Storage | str | None,
        lease_seconds: float = LEASE_SECONDS,
        *,
        alone: bool = False,
        between_saves: bool = False,
        leased: bool = True,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.run_id = run_id
        self.door = door
        """The door that the next save writes; None to keep that of the journal."""
        self.stop = StopRequests(of_units=False)
        self.leaving = Leaving(self.stop)
        self.call_stop = None if door is None or door.has_nodes else self.stop
        """The requests that a recorded call obeys; None in a graph: its units are nodes."""
        awaited = where if isinstance(where, AsyncCheckpointManager) else None
        if isinstance(where, AsyncCheckpointManager):
            self.manager = CheckpointManager.of(where.face)
        else:
            self.manager = manager_for(where)
        self._owns_manager = awaited is None and self.manager is not where
        self.hook_manager = self.manager.hook_manager
        self.spans = _spans_of(run_id, self.hook_manager)
        """The spans of the run; None if it is not traced."""
        if self.spans is not None and not leased:
            self.spans.continued({})
        self.awaited = AwaitedRun(self, awaited, alone=alone)
        self.ledger = Ledger(self.awaited.record, self.record)
        self.lineage = Lineage()
        self.begin: Callable[[], object] | None = None
        """Saves the run's first checkpoint; called before a note is written without one."""
        self.head: RunInfo | None = None
        """The run as it was loaded; None for a new run."""
        self.loaded: Loaded | None = None
        """The checkpoint that this execution continues from; None for a new run."""
        self.newest: Header | None = None
        """The checkpoint that was loaded, or saved last without awaiting it."""
        self.floor = 0
        """Records of nested scopes up to this seq are of steps that are completed."""
        self.branch = 0
        """The record after which the run repeats earlier work; 0 if it does not. It is part of
        idempotency keys: a discarded result must not be returned."""
        self.end = 0
        """The last record of the branch that continues from the loaded checkpoint."""
        self.elsewhere: list[Note] = []
        """Notes that other branches recorded after that checkpoint."""
        self.resumed = False
        """True if the journal held records when this execution began."""
        self.scopes: set[str] = set()
        """The nested scopes of steps that are still open."""
        self.cancel: Header | None = None
        """The request to cancel the run that is not withdrawn by a requeue."""
        self.deadline: float | None = None
        """Seconds since 1970 after which the run is cancelled."""
        self.cleanup_until: float | None = None
        """Seconds since 1970 at which the cleanup of a cancelled run ends; None before it."""
        self.children: list[Any] = []
        """Handles of the runs that this execution has begun, in order."""
        self.over = False
        """True for a completed run whose code is executed again: it gets the recorded outcomes, and
        nothing is appended."""
        self.lost: SureholdError | None = None
        """The error with which this process lost the run."""
        self._journal = self.manager.face.journal
        self._between_saves = SavedLease(self._journal, run_id, now=now) if between_saves else None
        self._lease = self._between_saves or RunLease(
            self._journal, run_id, seconds=lease_seconds, on_lost=self._lose_lease
        )
        self._beginning = threading.Lock()
        self._open = between_saves or not leased
        self._pid = os.getpid()
        self._tells = leased and not between_saves and not is_quiet()
        self._stays = False
        self.expects_waits = False
        """The program asked to be left where it waits, and needs to be told of doubt only."""
        self.waits = False
        """True if the newest save of this execution says that the run waits."""
        self._loaded: dict[tuple[str, str], Any] = {}
        """The open notes as they were loaded, by kind and id."""
        self._seen = 0
        self._ended: set[str] = set()

    @property
    def epoch(self) -> int:
        """The number of starts of the run, including this one; 0 without leases.

        Outside systems can refuse a smaller one than they have seen.
        """
        return self._lease.epoch or 0

    @property
    def lease_epoch(self) -> int | None:
        """The epoch that is named with everything that is written; None without leases."""
        return self._lease.epoch

    def stored_head(self) -> int:
        """The newest record of the run that is known to be stored."""
        return self._journal.stored_head(self.run_id)

    # Holding

    @property
    def forked(self) -> bool:
        """True in a child of the process that holds the run: the run stays its parent's."""
        return self._pid != os.getpid()

    def open(self) -> None:
        """Take the run, or raise `LeaseHeldError`."""
        try:
            self._lease.acquire()
        except BaseException:
            self.close()
            raise
        self._open = True

    def close(self) -> None:
        """Let others have the run."""
        if self.forked:
            return
        if self._open and self.waits:
            self._tell_waits()
        self._open = False
        if self.spans is not None:
            self.spans.ended(self.epoch)
        self._lease.release()
        self.awaited.finish()
        if self._owns_manager:
            self.manager.close()

    def stays(self) -> None:
        """Say, once, what the run waits for in this process."""
        if not self._stays:
            self._stays = True
            self._tell_waits()

    def _tell_waits(self) -> None:
        if self._tells:
            waiting = [waiting_of(self.run_id, note) for note in self.ledger.waiting()]
            tell_waiting(self.run_id, waiting, only_doubt=self.expects_waits)

    def check(self) -> None:
        """Raise a `ConflictError` if the run is lost, or not open here any more.

        A run that is held from save to save is taken, or its lease renewed.
        """
        if self.lost is not None:
            raise taken_over(self.run_id, self.lost) from self.lost
        if self._pid != os.getpid():
            raise ConflictError(
                f"run {self.run_id!r} is held by the process that this one was forked from",
                hint="let the parent save; what a child should record belongs to a run of its own",
                run_id=self.run_id,
            )
        if not self._open:
            raise ConflictError(
                f"run {self.run_id!r} is no longer executed here",
                hint="a node must wait for everything that it starts; a block ends its run",
                run_id=self.run_id,
            )
        if self._between_saves is not None:
            self._take_between(self._between_saves)

    def check_lease(self) -> None:
        """`check`, and raise a `ConflictError` if the lease has ended.

        Called before every recorded call, item and node. A write needs no such look: the storage
        refuses those of an earlier epoch.
        """
        self.check()
        try:
            self._lease.ensure()
        except ConflictError as error:
            raise taken_over(self.run_id, error) from error

    def _take_between(self, lease: SavedLease) -> None:
        is_first = lease.epoch is None and self.lineage.checkpoint_id is None
        lease.acquire()
        if is_first:
            with suppress(StorageError):  # the save meets the same medium, and its policy decides
                run, newest = lease.head_and_newest() or (None, None)
                if run is not None and newest is not None:
                    self.lineage.checkpoint_id = newest.id
                    self._read_taken(run, newest)

    def _read_taken(self, run: RunInfo, newest: Header) -> None:
        """Read the checkpoint to continue from, the base of the next save."""
        if self.spans is not None:
            self.spans.continued(newest.metadata)
        with suppress(CorruptError):  # an earlier one may be restored
            tail = self.manager.reader.read_tail(run, newest, notes=False)
            if tail is not None:
                self.newest, self.loaded = tail.loaded.header, tail.loaded
                self._journal.resume_from(tail.loaded, None, run)

    def _write(self, write: Callable[[], Steps[T]]) -> T:
        """Carry out a write that `check` has allowed."""
        if self._pid != os.getpid():
            self.check()
        for _ in range(_TRIES):
            try:
                return perform(self.manager.face, write())
            except ConflictError as error:
                lease = self._between_saves
                if lease is None:
                    raise self.lose(error) from error
                if isinstance(error, LeaseHeldError):
                    raise
                self._follow(lease, error)
        return perform(self.manager.face, write())

    def _follow(self, lease: SavedLease, error: ConflictError) -> None:
        """Continue after what another manager has saved meanwhile."""
        lease.lose()
        lease.acquire()
        newest = self.manager.reader.newest_of(self.run_id)
        if newest is None:
            raise error
        self.lineage.checkpoint_id = newest.id
        logger.warning(
            "run %s: another manager saved %s checkpoint %s; this one continues after it"
            " (restore or load that one to take it over)",
            self.run_id,
            newest.kind,
            newest.id,
        )

    def lose(self, error: SureholdError) -> ConflictError:
        """Note that another process has the run now; return the error to raise."""
        self.lost = self.lost or error
        return taken_over(self.run_id, error)

    def _lose_lease(self, error: SureholdError) -> None:
        self.lost = error
        self.awaited.lose()

    # Loading

    def load(self) -> State | None:
        """The newest state, to continue from; the notes of its open step fill the ledger.

        None if there is no such run. The hooks hear of it; an agent tells its own of the resume. A
        run that this door may not continue is a `UsageError`.
        """
        return perform(self.manager.face, self.loading())

    def loading(self) -> Steps[State | None]:
        """The steps of `load`."""
        face = self.manager.face
        if self.door is None or not self.door.has_nodes:
            resumed = yield from load.resume_run(face, self._lease.head_and_newest)
        else:
            fires = self.door.kind != "agent"
            resumed = yield from load.resume_run(face, self._look, Loaded.graph_state, fires=fires)
        if resumed is None:
            return None
        state, tail = resumed
        if self.door is not None:
            check_door(tail.loaded, self.door)
        if self.spans is not None:
            self.spans.continued(tail.loaded.header.metadata)
        if not isinstance(state, State):
            raise UsageError(
                f"run {self.run_id!r} holds an agent's state", hint="resume it with its agent"
            )
        newest, self.head, self.loaded = tail.loaded.header, tail.run, tail.loaded
        self.newest, self.lineage, self.resumed = newest, state.lineage, True
        self._hear_cancel(record.header for record in tail.notes)
        self._take(line_in(face.reader.sealer, tail.notes, newest, tail.run.seq), tail.run.seq)
        return state

    def _look(self) -> tuple[RunInfo, Header | None] | None:
        found = self._lease.head_and_newest()
        if found is not None and found[1] is None:
            raise NotFoundError(f"run {self.run_id!r} has no checkpoint", run_id=self.run_id)
        return found

    def _take(self, line: OpenNotes, head: int) -> None:
        # A run that was rewound repeats its parts, and none of its effects.
        back = bool(self.floor) and self.floor == head
        self.ledger.take(note for note in line.notes if not (back and note.kind == "item"))
        self._loaded = {key: note.content for key, note in self.ledger.entries.items()}
        # Others send messages to the run, whichever of its branches continues.
        self.ledger.take(note for note in line.others if note.kind == "message")
        if self.door is None or self.door.kind != "function":  # that reads all its notes
            self.ledger.mail.earlier = self.earlier_messages
        self.end, self.elsewhere, self._seen = line.end, line.others, head
        self.branch = line.branch if line.end == head else head

    def load_at(
        self, header: Header, *, notes: bool = False, run: RunInfo | None = None
    ) -> tuple[Loaded, State]:
        """Load the checkpoint to continue from; with *notes*, also the ledger after it.

        *run* is the run's head, if it was read under the lease.
        """
        reader = self.manager.reader
        loaded = reader.load(header)
        if self.door is not None and not header.scope:
            check_door(loaded, self.door)
        if self.spans is not None:
            self.spans.continued(header.metadata)
        state = loaded.graph_state()
        self._journal.resume_from(loaded, state)
        if notes:
            run = run or reader.run(self.run_id)
            assert run is not None
            self._take(read_line(reader, header, run.seq), run.seq)
        return loaded, state

    def newest_in(self, scope: str) -> Header | None:
        """The newest checkpoint of a nested scope that is of a step still open."""
        reader = self.manager.reader
        run = reader.run(self.run_id)
        header = reader.newest(run, scope) if run is not None else None
        return header if header is not None and header.seq > self.floor else None

    def rollback(self) -> State | None:
        """The state that was saved last, without what the code has changed since."""
        base = self._journal.base_of(self.run_id)
        if base is not None:
            texts = {key: base.base.text_of(key) for key in base.base.values}
            loaded = Loaded(base.header, base.form, texts, 0, 0)
        else:  # a save failed, and may be stored all the same
            newest = self.manager.reader.newest_of(self.run_id)
            if newest is None:
                return None
            loaded = self.manager.reader.load(newest)
        state = loaded.upgraded()
        assert isinstance(state, State)
        return state

    def refresh(self) -> None:
        """Add the answers and messages that others have written since."""
        run = self.manager.reader.run(self.run_id)
        if run is not None and run.seq > self._seen:
            records = [*self.manager.reader.records(self.run_id, self._seen + 1, run.seq)]
            self._hear_cancel(record.header for record in records)
            notes = notes_in(self.manager.reader.sealer, records)
            self.ledger.take(note for note in notes if note.kind in ("answer", "message"))
            self._seen = run.seq

    def _hear_cancel(self, headers: Iterable[Header]) -> None:
        for header in headers:
            if header.kind == CANCEL:
                self.cancel = header
            elif header.kind == QUEUED:
                self.cancel = None

    @property
    def is_cancelled(self) -> bool:
        """True if the run is late, or is known to have been cancelled by someone.

        Whoever asks has written to the run, which its next write finds out. A worker that was told
        stops the run; such a stop is none.
        """
        if self._journal.cancels:
            self.cancel = self._journal.cancels.pop(self.run_id, self.cancel)
        reason = self.stop.reason
        if reason is not None and reason.message == CANCELLED:
            if self.cancel is None:
                self.refresh()
            if self.cancel is not None:
                self.stop.reason = None
        return self.cancel is not None or self.is_late

    @property
    def is_late(self) -> bool:
        """True if the run is past its deadline."""
        return self.deadline is not None and time.time() >= self.deadline

    def new_cleanup(self) -> float:
        """The time at which a cleanup that begins now has to end."""
        told = self.cancel.metadata if self.cancel is not None else {}
        return time.time() + float(told.get("cleanup", _CLEANUP))

    def cancelled_now(self) -> bool:
        """True, once, if the run was asked to end; it is left if the cleanup takes long."""
        if not self.is_cancelled or self.over:
            return False
        if self.cleanup_until is None:
            self.cleanup_until = self.new_cleanup()
            return True
        if time.time() > self.cleanup_until:
            late = f"run {self.run_id!r} was cancelled, and its cleanup took long"
            raise self.leaving.mark(Cancelled(late, run_id=self.run_id))
        return False

    def earlier_messages(self) -> list[Message]:
        """The messages that were there before the notes which `load` has read."""
        reader = self.manager.reader
        query = RecordQuery(run_id=self.run_id, kind="message", notes=True)
        taken = self.ledger.mail.taken
        seqs = [
            header.seq
            for header in reader.storage.headers(query)
            if header.seq > taken.get(str(header.metadata.get("topic")), 0)
        ]
        if not seqs:
            return []
        found = read_since(reader, self.run_id, min(seqs) - 1, max(seqs))
        return [note.content for note in found if note.kind == "message"]

    # Writing

    def save(
        self,
        draft: CheckpointDraft,
        *,
        notes: Sequence[Note] = (),
        notes_for: Callable[[Header], Sequence[Note]] | None = None,
        state: Saveable | None = None,
        force: bool = False,
    ) -> str:
        """Save *draft* with *notes* in one append; "" for a failure that was only logged.

        *notes_for* adds notes about the checkpoint; hooks are shown *state*, if it is given.
        """
        if self.spans is not None:
            draft = self.traced(draft)
        if self.lost is not None or not self._open or self._between_saves is not None:
            self.check()
        self.scopes |= {draft.place.scope} - {""}
        if not draft.place.scope:
            self.waits = draft.place.status == "waiting"
        if draft.place.status == "waiting" and (again := self.waits_already(draft, notes)):
            return again.id
        saved = self._write(
            lambda: save_draft(
                self.manager.face,
                draft,
                state,
                force=force or bool(notes),
                notes=notes,
                notes_for=notes_for,
                epoch=self._lease.epoch,
            )
        )
        if saved is None:
            return ""
        self.newest = saved
        return saved.id

    def traced(self, draft: CheckpointDraft) -> CheckpointDraft:
        """*draft* with the name of the run's trace, which begins with the first of them."""
        place, spans = draft.place, self.spans
        assert spans is not None
        spans.begun(place.name, "" if self.door is None else self.door.kind)
        spans.status = place.status
        metadata = read_metadata(spans.stamp(place.metadata))
        place = msgspec.structs.replace(place, metadata=metadata)
        return msgspec.structs.replace(draft, place=place)

    def waits_already(self, draft: CheckpointDraft, notes: Sequence[Note]) -> Header | None:
        """The newest checkpoint, if it says already that the run waits as *draft* does.

        So a supervisor may start a run that waits as often as it likes.
        """
        newest, head = self.newest, self.head
        if draft.place.status != "waiting" or newest is None or head is None:
            return None
        same = newest.status == "waiting" and newest.step == draft.place.step
        if not same or newest.scope != draft.place.scope or self.stored_head() != head.seq:
            return None
        known = (self._loaded.get((note.kind, note.content.id)) == note.content for note in notes)
        return newest if all(known) else None

    def failed_already(self) -> bool:
        """True if the newest record says that the run failed, compensated.

        Such a run is replayed to the same failure as often as it is started.
        """
        newest, head = self.newest, self.head
        if newest is None or head is None or self.stored_head() != head.seq:
            return False
        return newest.status == "failed" and bool(newest.metadata.get(COMPENSATED))

    def record(self, notes: Sequence[Note]) -> None:
        """Append *notes*; the run begins with a checkpoint if it has none."""
        if self.lost is not None or not self._open or self._between_saves is not None:
            self.check()
        if self.begin is not None:
            self.begin_now()
        face, lease = self.manager.face, self._lease
        try:
            self._write(lambda: append_notes(face, self.run_id, notes, None, lease.epoch))
        except StorageError as error:
            if not self.ledger.postpone(notes, error):
                raise self.leaving.mark(error) from error.__cause__

    def begin_now(self) -> None:
        """Save the run's first checkpoint, once."""
        with self._beginning:
            if self.begin is not None:
                self.begin()
                self.begin = None

    def expire(self, timer: Timer, spot: Spot) -> bool:
        """Record that *timer* has ended; False if someone wrote to the run meanwhile."""
        note = Note(kind="timer", content=timer, scope=spot.scope, step=spot.step, node=spot.node)
        try:
            self.manager.append_notes(
                self.run_id, (note,), head=self._seen, epoch=self._lease.epoch
            )
        except ConflictError:
            self._journal.invalidate(self.run_id)
            return False
        except StorageError as error:
            raise self.leaving.mark(error) from error.__cause__
        self.ledger.take((note,))
        return True

    def forget_before(self, seq: int) -> None:
        """Drop checkpoints before record *seq*, but pinned ones, and free their records."""
        face, storage = self.manager.face, self.manager.storage
        pinned = self.manager.retention.marks(self.run_id).pinned
        headers = storage.headers(RecordQuery(run_id=self.run_id))
        old = [one.seq for one in headers if one.seq < seq and one.seq not in pinned]
        if old:
            storage.delete(self.run_id, hide=old)
            self.manager.retention.forget_all()
        perform(face, erase(face, self.run_id, self._lease.epoch))

    # Nested scopes

    def end_scopes(self) -> bool:
        """End the steps with nested scopes; True if their checkpoints are to be hidden."""
        self._ended, self.scopes = self.scopes, set()
        self._journal.end_scopes(self.run_id, self._ended)
        return bool(self._ended) and self.manager.retention.active

    def hide_ended(self) -> None:
        """Hide the checkpoints of ended scopes: they go with the old ones of the run."""
        storage = self.manager.storage
        seqs = [
            header.seq
            for scope in self._ended
            for header in storage.headers(RecordQuery(run_id=self.run_id, scope=scope))
        ]
        storage.delete(self.run_id, hide=seqs)
        self.manager.retention.forget_all()


def _spans_of(run_id: str, hooks: HookManager | None) -> RunSpans | None:
    found = [one for one in (hooks.hooks if hooks is not None else ()) if type(one) is TracingHook]
    return found[0].spans_of(run_id) if found else None


COMPENSATED = "compensated"
"""In the metadata of a failed run: recorded calls followed the failure."""
_CLEANUP = 60.0
"""Seconds for the cleanup of a run that is cancelled, unless the request says otherwise."""


def check_door(loaded: Loaded, door: Door) -> None:
    """Raise a `UsageError` unless *door* may continue the run of a checkpoint.

    An agent also continues an agent's state that was saved by hand.
    """
    header = loaded.header
    if not (loaded.form and door.kind == "agent" and loaded.door.kind == "manager"):
        loaded.door.check(door.kind, header.run_id, header.name)


def draft_at(
    place: Place,
    values: dict[str, Any],
    lineage: Lineage,
    *,
    natures: Mapping[str, Nature] | None = None,
    door: Door | None = None,
    fingerprint: str | None = None,
    schema: int | None = None,
    extra: Callable[[bool], bytes] | Mapping[str, Any] | None = None,
    whole: bool = False,
) -> CheckpointDraft:
    """*values* at *place* as a checkpoint to save, with *extra* beside them.

    With *whole*, as a keyframe: what lies before it need not be read to load it.
    """
    if isinstance(extra, Mapping):
        beside = msgspec.json.encode(extra)
        extra = lambda _: beside  # noqa: E731
    if natures is None:
        values = dict(values)
        natures = dict.fromkeys(values, Nature.LIVE)
    is_agents = door is not None and door.kind == "agent"
    # What an earlier way through a step left in a nested scope is not a base for this one.
    fresh = bool(place.scope) and lineage.checkpoint_id is None
    return CheckpointDraft(
        "agent" if is_agents and not place.scope else "",
        place,
        values,
        natures,
        lineage,
        door=door,
        fingerprint=fingerprint,
        schema=schema,
        extra=extra,
        force_keyframe=whole or fresh,
    )


def draft_of_state(state: State, lineage: Lineage, **facts: Any) -> CheckpointDraft:
    """A graph's *state* as a checkpoint to save; *facts* are those of `draft_at`."""
    values, natures = state.for_saving()
    return draft_at(state.place, values, lineage, natures=natures, **facts)
