"""A run that this process holds outside a graph: its lease, ledger and saves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from surehold.core.records import Door, Header
from surehold.core.state import Lineage, Place, State
from surehold.core.values import Nature
from surehold.engine.commit import await_uncancelled, load, save_draft
from surehold.engine.journal import CheckpointDraft, Loaded, Note
from surehold.engine.managers import CheckpointManager, manager_for
from surehold.engine.runs import Ledger, Spot, Timer, line_in, read_since, taken_over
from surehold.engine.runs.leases import RunLease
from surehold.engine.runs.stop import StopRequests
from surehold.errors import ConflictError, StorageError, UsageError
from surehold.storage.base import Storage


class OpenRun:
    """Holds one run and records in it; `Run` and durable functions are built on it."""

    def __init__(
        self,
        run_id: str,
        door: Door,
        storage: CheckpointManager | Storage | str | None,
        lease_seconds: float,
    ) -> None:
        self.run_id = run_id
        self.door = door
        """What executes the run, as the next save writes it."""
        self.stop = StopRequests(of_units=False)
        self.branch = 0
        self.lineage = Lineage()
        self.ledger = Ledger(self._append, self._append_now)
        self.begin: Callable[[], object] | None = None
        """Saves the run's first checkpoint; called before a note is written without one."""
        self.manager = manager_for(storage)
        self.hook_manager = self.manager.hook_manager
        self._owns_manager = self.manager is not storage
        journal = self.manager.face.journal
        self._lease = RunLease(journal, run_id, seconds=lease_seconds)
        self._beginning = threading.Lock()
        self._open = False
        self._seen = 0
        self.loaded: Loaded | None = None
        """The checkpoint that this execution continues from; None for a new run."""
        self.newest: Header | None = None
        """The checkpoint that was loaded or saved last."""

    @property
    def epoch(self) -> int:
        """The number of starts of the run, including this one; 0 without leases."""
        return self._lease.epoch or 0

    @property
    def lost(self) -> bool:
        """True if another process has taken the run over."""
        return self._lease.lost is not None

    def stored_head(self) -> int:
        """The newest record of the run that is known to be stored."""
        return self.manager.face.journal.stored_head(self.run_id)

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
        self._open = False
        self._lease.release()
        if self._owns_manager:
            self.manager.close()

    def load(self) -> State | None:
        """The newest state, to continue from; the notes of its open step fill the ledger.

        None if there is no such run. The hooks hear of it. A run that this door may not continue is
        a `UsageError`.
        """
        manager = self.manager
        resumed = manager.perform(load.resume_run(manager.face, self._lease.head_and_newest))
        if resumed is None:
            return None
        state, tail = resumed
        newest, door = tail.loaded.header, tail.loaded.door
        door.check(self.door.kind, self.run_id, newest.name)
        if not isinstance(state, State):
            raise UsageError(
                f"run {self.run_id!r} holds an agent's state", hint="resume it with its agent"
            )
        head, self.loaded = tail.run.seq, tail.loaded
        self.newest, self.lineage, self._seen = newest, state.lineage, head
        line = line_in(manager.reader.sealer, tail.notes, newest, head)
        self.ledger.take(line.notes)
        self.branch = line.branch if line.end == head else head
        return state

    def rollback(self) -> State | None:
        """The state that was saved last, without what the code has changed since."""
        base = self.manager.face.journal.base_of(self.run_id)
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
        """Add the answers that others have written since."""
        run = self.manager.reader.run(self.run_id)
        if run is not None and run.seq > self._seen:
            notes = read_since(self.manager.reader, self.run_id, self._seen, run.seq)
            self.ledger.take(note for note in notes if note.kind == "answer")
            self._seen = run.seq

    def expire(self, timer: Timer, spot: Spot) -> bool:
        """Record that *timer* has ended; False if someone wrote to the run meanwhile."""
        note = Note(kind="timer", content=timer, scope=spot.scope, step=spot.step, node=spot.node)
        try:
            self.manager.append_notes(
                self.run_id, (note,), head=self._seen, epoch=self._lease.epoch
            )
        except ConflictError:
            self.manager.face.journal.invalidate(self.run_id)
            return False
        self.ledger.take((note,))
        return True

    def save(
        self,
        place: Place,
        values: Mapping[str, Any],
        *,
        notes: Sequence[Note] = (),
        extra: Mapping[str, Any] | None = None,
        force: bool = False,
        schema: int | None = None,
        whole: bool = False,
    ) -> str:
        """Save *values* at *place* with *notes*; "" for a failure that was only logged.

        With *whole*, as a keyframe: what lies before it need not be read to load it.
        """
        if self._lease.lost is not None or not self._open:
            self.check_held()
        draft = draft_at(
            place,
            values,
            self.lineage,
            door=self.door,
            extra=extra,
            schema=schema,
            whole=whole,
        )
        manager = self.manager
        saved = manager.perform(
            save_draft(
                manager.face,
                draft,
                force=force or bool(notes),
                notes=notes,
                epoch=self._lease.epoch,
            )
        )
        if saved is None:
            return ""
        self.newest = saved
        return saved.id

    def check_held(self) -> None:
        """Raise an error if the run is not open here any more."""
        if self._lease.lost is not None:
            raise taken_over(self.run_id) from self._lease.lost
        if not self._open:
            raise UsageError(
                f"run {self.run_id!r} is not open", hint="call it inside the run's with block"
            )

    def _append_now(self, notes: Sequence[Note]) -> None:
        if self._lease.lost is not None or not self._open:
            self.check_held()
        if self.begin is not None:
            with self._beginning:
                if self.begin is not None:
                    self.begin()
                    self.begin = None
        try:
            self.manager.append_notes(self.run_id, notes, epoch=self._lease.epoch)
        except ConflictError as error:
            raise taken_over(self.run_id, error) from error
        except StorageError as error:
            if not self.ledger.postpone(notes, error):
                raise

    async def _append(self, notes: Sequence[Note], wait: bool) -> None:
        """Append *notes*; they are durable when this returns, cancelled or not."""
        if not notes:
            return
        sent = asyncio.ensure_future(asyncio.to_thread(self._append_now, notes))
        await await_uncancelled(sent)


def draft_at(
    place: Place,
    values: Mapping[str, Any],
    lineage: Lineage,
    *,
    door: Door | None = None,
    extra: Mapping[str, Any] | None = None,
    schema: int | None = None,
    whole: bool = False,
) -> CheckpointDraft:
    """*values* at *place* as a checkpoint to save, with *extra* beside them."""
    values = dict(values)
    beside = msgspec.json.encode(extra) if extra else None
    return CheckpointDraft(
        "",
        place,
        values,
        dict.fromkeys(values, Nature.LIVE),
        lineage,
        door=door,
        schema=schema,
        force_keyframe=whole,
        extra=(lambda _: beside) if beside is not None else None,
    )
