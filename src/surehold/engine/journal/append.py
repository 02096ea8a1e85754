"""The writing side of the journal: drafts and notes as records, in one commit."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from surehold.core.policy import CANCEL
from surehold.core.records import MANAGER, Header, Record, compress, new_id, seal_new
from surehold.core.state import Place, migrations
from surehold.core.values import Base, Written, after_change, changes, remember, whole
from surehold.engine.crypto import CLEAR_NOTES, Sealer
from surehold.engine.journal.delta_base import Cursor, DeltaBase, delta_base_of, find_base
from surehold.engine.journal.draft import CheckpointDraft, Saveable
from surehold.engine.journal.reader import LIGHTEST_DELTA, Loaded, Reader, Tail
from surehold.engine.journal.requests import Note, Outcome, Request
from surehold.engine.journal.unconfirmed import UnconfirmedAppends
from surehold.errors import ConflictError, CorruptError, EncodeError, SureholdError
from surehold.storage.base import Atomic, Batch, Leasing, RunInfo, Storage

if TYPE_CHECKING:
    from surehold.engine.journal.redacting import Redacting

_RUNS_REMEMBERED = 1024
_SCOPES_REMEMBERED = 64
"""The number of scopes of a branching run whose last checkpoint is remembered."""
_KEYFRAME_FACTOR = 2
"""A keyframe is due when the deltas since the last weigh this many times as much as it."""
_SHORT_CHAIN = 8192
"""A chain of deltas that weighs no more than this may grow, however small the state."""
_MOST_DELTAS = 128
"""The deltas after which a keyframe is due: a damaged record costs no more checkpoints."""
_MOST_WITH_COPIES = 512
"""The same where every record has a second copy: a damaged one costs nothing."""
_MARKS = frozenset(["pin", "release", "tag"])
"""Notes about a checkpoint, which stay true whatever is written in between.

So do notes that name a checkpoint as their parent.
"""
_TRIES = 64
"""The number of times a batch is sealed again because only notes came between."""


class _Group(msgspec.Struct):
    """Requests of one journal on their way into an append."""

    requests: list[Request] = []
    outcomes: list[Outcome] = []
    together: bool = False
    """All of them are stored, or none."""
    batches: list[Batch] = []
    owners: list[int] = []
    """The request that each batch is of."""
    unsent: set[str] = set()
    """Digests of the records that are prepared and not appended yet."""
    keyframes: list[str] = []
    """The runs that a keyframe of their own scope is written to."""
    before: dict[str, Cursor] = {}
    """The cursors as they were, by run."""


Sent: TypeAlias = "tuple[Journal, Request]"
"""A request, and the journal that seals it."""


class _Content(msgspec.Struct):
    """A state that is to be saved, beside the one it came from."""

    base: DeltaBase | None
    """The checkpoint that it came from."""
    delta: DeltaBase | None
    """The same, if only the changes since then are stored."""
    state: bytes | None
    """The whole content, if every record is stored."""
    patch: bytes | None
    """The changes, if they are known and there are any."""
    after: Base
    """The values that the next state is compared with."""
    written: Written
    """The records that last changed each key, this one left out."""
    changed: Mapping[str, bool]
    """The keys that this one changes; True for a list that was only appended to."""
    is_known: bool = False
    """True if the checkpoint that it came from says the same."""


class Journal:
    """One writer's view of the runs of a storage: seals what is to be written to them."""

    def __init__(
        self,
        storage: Storage,
        sealer: Sealer,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        redacting: Redacting | None = None,
    ) -> None:
        self.storage = storage
        self.reader = Reader(storage, sealer)
        self._sealer = sealer
        self._clock = clock
        self._redacting = redacting
        self._cursors: OrderedDict[str, Cursor] = OrderedDict()
        self._known: OrderedDict[tuple[str, str], str] = OrderedDict()
        """The newest checkpoint that was saved or loaded here, by run and scope."""
        self._unconfirmed = UnconfirmedAppends(storage)
        self.cancels: dict[str, Header] = {}
        """Requests to cancel that were met while writing, by run."""
        self._most_deltas = _MOST_WITH_COPIES if storage.redundancy else _MOST_DELTAS
        self.lock = threading.RLock()

    def renew_lock(self) -> None:
        """Start with a free lock and nothing remembered, in the child of a fork."""
        self.lock = threading.RLock()
        self._cursors.clear()

    def commit(self, requests: Sequence[Request]) -> list[Outcome]:
        """Carry out requests of this journal alone: see `commit`."""
        return commit([(self, request) for request in requests])

    def commit_together(self, requests: Sequence[Request]) -> list[Outcome]:
        """Carry out all requests or none, in one append.

        Where the storage is not `Atomic`, what it stored is hidden again if something is refused.
        """
        with self.lock:
            group = _Group(together=True)
            try:
                for request in requests:
                    self._pass_notes(request)
                    self.prepare(request, group)
                refused = self._append_together(group)
                if refused is not None:
                    for request in requests:
                        self.invalidate(request.run_id)
                    return [Outcome(error=refused) for _ in requests]
                self.complete(group)
            except BaseException:
                self.abandon(group)
                raise
            return group.outcomes

    def settle(self, group: _Group, results: Sequence[ConflictError | None]) -> None:
        """Try the requests of *group* again whose batches were refused."""
        with self.lock:
            for owner, conflict in zip(group.owners, results, strict=True):
                if conflict is not None:
                    group.outcomes[owner] = self._settle(group.requests[owner], conflict, group)

    def complete(self, group: _Group) -> None:
        """Take in that the batches of *group* are stored, and tell its drafts."""
        with self.lock:
            for run_id in group.keyframes:
                self.reader.forget_damage(run_id)
            for batch in group.batches:
                cursor = self._cursors.get(batch.run_id)
                if cursor is not None:
                    cursor.stored = cursor.seq
            for request, outcome in zip(group.requests, group.outcomes, strict=True):
                draft, header = request.draft, outcome.header
                if request.epoch is None and request.run_id in self.reader.held:
                    for note in outcome.written:  # to a run that is executed here
                        if note.kind == CANCEL:
                            self.cancels[note.run_id] = note
                if draft is not None and outcome.error is None and header is not None:
                    draft.lineage.checkpoint_id = header.id
                    self._known[header.run_id, header.scope] = header.id
                    self._known.move_to_end((header.run_id, header.scope))
                    if draft.on_stored is not None:
                        draft.on_stored()
            while len(self._known) > _RUNS_REMEMBERED:
                self._known.popitem(last=False)

    def abandon(self, group: _Group) -> None:
        """Forget what was prepared: it may not be stored, or without anyone knowing it."""
        with self.lock:
            self._unconfirmed.remember(group.batches)
            for request in group.requests:
                self.invalidate(request.run_id)

    def _pass_notes(self, request: Request) -> None:
        """Move the cursor to the run's head, if others have only appended notes since.

        What is stored together is not tried again after a conflict, as a single request is.
        """
        cursor = self._cursors.get(request.run_id)
        if request.draft is not None and cursor is not None and cursor.conflict is None:
            self._move(request, _moved_on(request.run_id, cursor.seq, cursor.seq))

    def _append_together(self, group: _Group) -> SureholdError | None:
        """Append all that was prepared, or nothing; gives what stood in the way."""
        for outcome in group.outcomes:
            if outcome.error is not None:
                return outcome.error
        if isinstance(self.storage, Atomic):
            results = self.storage.append_all(group.batches)
        else:
            results = self.storage.append(group.batches)
        group.unsent.clear()
        refused = next((conflict for conflict in results if conflict is not None), None)
        if refused is not None and not isinstance(self.storage, Atomic):
            for batch, conflict in zip(group.batches, results, strict=True):
                if conflict is None:
                    seqs = [record.header.seq for record in batch.records]
                    self.storage.delete(batch.run_id, hide=seqs)
        return refused

    def _settle(self, request: Request, conflict: ConflictError, group: _Group) -> Outcome:
        """Take back what was prepared for a refused request; try again if possible."""
        if self._is_stale(request):
            # Another holder of the run, perhaps one that writes here as well, continues it.
            group.before.pop(request.run_id, None)
            self.invalidate(request.run_id)
            return Outcome(error=conflict)
        # Once a request of the run was tried again, the cursor is at the head.
        cursor = group.before.pop(request.run_id, None)
        if cursor is not None and not cursor.seq and not request.new_run:
            # It was taken for a new run: look it up.
            self.invalidate(request.run_id)
            try:
                self._cursor(request.run_id)
            except SureholdError as error:
                return Outcome(error=error)
            cursor = None
        elif cursor is not None:
            self._cursors[request.run_id] = cursor
            self._sealer.recheck_key(request.run_id)
        if request.new_run:
            self.invalidate(request.run_id)
            return Outcome(error=conflict)
        return self._again(request, conflict, group.batches, at_head=cursor is None)

    def _is_stale(self, request: Request) -> bool:
        """Return True if the run has a later lease than the one that the request names."""
        if request.epoch is None or not isinstance(self.storage, Leasing):
            return False
        lease = self.storage.lease_of(request.run_id)
        return lease is not None and lease.epoch > request.epoch

    def _again(
        self, request: Request, conflict: ConflictError, sent: list[Batch], *, at_head: bool
    ) -> Outcome:
        """Seal on the new head and try again, while what came between does not matter.

        What is tried is added to *sent*.
        """
        run_id = request.run_id
        for _ in range(_TRIES):
            if not at_head and not self._move(request, conflict):
                break
            at_head = False
            group = _Group()
            outcome = self.prepare(request, group)
            if not group.batches:
                return outcome
            sent += group.batches
            result = self._unconfirmed.append(group.batches)[0]
            if result is None:
                return outcome
            conflict = result
            self._cursors |= group.before
        cursor = self._cursor(run_id)
        if request.draft is None and not cursor.bases:
            self.invalidate(run_id)
        else:
            cursor.conflict = conflict
        return Outcome(error=conflict)

    def _cursor_for(self, request: Request, group: _Group) -> Cursor:
        """The run's cursor; after a conflict, only for a state that was read since then."""
        if request.run_id not in self._cursors and (
            request.new_run or (not group.together and self._seems_new(request))
        ):
            return self._remember(request.run_id, Cursor(0, "", "", {}))
        cursor = self._cursor(request.run_id)
        if cursor.conflict is None or self._is_independent(request):
            return cursor
        draft = request.draft
        wanted = draft.lineage.checkpoint_id if draft is not None else None
        if draft is None or wanted is None:
            raise cursor.conflict
        found = self.reader.head_and_newest(request.run_id, draft.place.scope)
        if found is None or found[1] is None or found[1].id != wanted:
            raise cursor.conflict
        del self._cursors[request.run_id]
        return self._cursor(request.run_id)

    def _seems_new(self, request: Request) -> bool:
        """Return True if the state was neither saved nor loaded; the append then decides."""
        draft = request.draft
        return (
            draft is not None
            and draft.lineage.checkpoint_id is None
            and draft.branching is None
            and request.head is None
            and (request.run_id, draft.place.scope) not in self._known
            and not self._unconfirmed.has_sent(request.run_id)
        )

    def _is_independent(self, request: Request) -> bool:
        """Return True if it holds whatever is written in between: a mark, or a branch."""
        if request.draft is not None:
            return request.draft.branching is not None
        marks_only = all(note.kind in _MARKS or note.parent for note in request.notes)
        return marks_only and request.epoch is None

    def _move(self, request: Request, conflict: ConflictError) -> bool:
        """Move the cursor to the run's head; False if a relevant checkpoint came between."""
        cursor = self._cursor(request.run_id)
        run = self.reader.run(request.run_id)
        independent = self._is_independent(request)
        if run is None or run.seq <= cursor.seq:
            if independent:
                # The run was deleted, and perhaps begun anew: nothing remembered of it is true.
                self.invalidate(request.run_id)
            return independent
        erased: list[dict[str, Any]] = []
        for record in self.reader.records(request.run_id, cursor.seq + 1, run.seq):
            if record.header.frame != "note":
                if not independent:
                    return False
                cursor.conflict = conflict if cursor.bases else None
                cursor.branches.pop(record.header.scope, None)
            elif record.header.kind == CANCEL:
                self.cancels[run.run_id] = record.header
            elif record.header.kind == "prune":
                erased += msgspec.json.decode(record.body)["erased"]
        for scope, base in [*cursor.bases.items()]:
            if any(hole["first"] <= base.key_seq <= hole["last"] for hole in erased):
                del cursor.bases[scope]
        cursor.seq, cursor.digest = run.seq, run.digest
        return True

    def prepare(self, request: Request, group: _Group) -> Outcome:
        """Seal what *request* asks for on the run's head, and add its batches to *group*.

        The caller has the lock.
        """
        owner = len(group.requests)
        group.requests.append(request)
        outcome = Outcome()
        group.outcomes.append(outcome)
        records: list[Record] = []
        hide: dict[str, list[int]] = {}
        run_id = request.run_id
        try:
            cursor = self._cursors.get(run_id)
            if cursor is None or cursor.conflict is not None:
                cursor = self._cursor_for(request, group)
            self._cursors.move_to_end(run_id)
            if run_id not in group.before:
                group.before[run_id] = Cursor(
                    cursor.seq,
                    cursor.digest,
                    cursor.name,
                    dict(cursor.bases),
                    cursor.conflict,
                    dict(cursor.branches),
                    cursor.stored,
                )
            if request.new_run and cursor.seq:
                raise _moved_on(run_id, 0, cursor.seq)
            if request.draft is not None:
                draft = request.draft
                if self._redacting is not None:
                    draft = self._redacting.draft(draft)
                self._checkpoint(cursor, draft, request, group, records, outcome, hide)
            if request.head is not None and request.head < cursor.seq:
                raise _moved_on(run_id, request.head, cursor.seq)
            if request.notes_for is not None and outcome.header is not None:
                notes = (*request.notes, *request.notes_for(outcome.header))
                request = msgspec.structs.replace(request, notes=notes)
            if request.notes:
                self._notes(cursor, request, group, records)
            if request.erases:
                kept = cursor.bases.items()
                cursor.bases = {s: base for s, base in kept if base.key_seq not in request.erases}
        except (SureholdError, RuntimeError) as error:
            self.invalidate(run_id, unless_conflict=True)
            outcome.header = None
            if isinstance(error, SureholdError):
                outcome.error = error
                return outcome
            if type(error) is not RuntimeError:
                raise
            outcome.error = EncodeError(
                f"run {run_id!r}: a value changed while it was saved: {error}",
                hint="change values on the thread that saves them, or save a copy",
                run_id=run_id,
            )
            outcome.error.__cause__ = error
            return outcome
        if not records:
            return outcome
        outcome.written = tuple([record.header for record in records])
        if request.hide is not None and outcome.header in outcome.written:
            for other, seqs in request.hide(outcome.header).items():
                hide.setdefault(other, []).extend(seqs)
        outcome.hidden = hide
        group.batches.append(
            Batch(
                run_id=run_id,
                records=tuple(records),
                epoch=request.epoch,
                hide=tuple(hide.get(run_id, ())),
            )
        )
        group.owners.append(owner)
        for other, seqs in hide.items():
            if other != run_id and seqs:
                group.batches.append(Batch(run_id=other, records=(), hide=tuple(seqs)))
                group.owners.append(owner)
        return outcome

    def _checkpoint(
        self,
        cursor: Cursor,
        draft: CheckpointDraft,
        request: Request,
        group: _Group,
        records: list[Record],
        outcome: Outcome,
        hide: dict[str, list[int]],
    ) -> None:
        """Seal a checkpoint as a delta or a keyframe, unless it says nothing new."""
        place, branching, reused = draft.place, draft.branching, draft.id is not None
        run_id, scope = place.run_id, place.scope
        if branching is not None:
            place, reused = branching.place(cursor, draft, self.reader)
        content = self._content(cursor, draft, request, group)
        base, delta, state = content.base, content.delta, content.state
        if base is not None and content.is_known:
            outcome.header = base.header
            cursor.bases[scope] = base
            return
        if self._sealer.keys is not None:
            self._give_key(cursor, request, place.name, group, records)
        name = place.name or cursor.name
        extra = draft.extra(state is not None) if draft.extra is not None else None
        text = checkpoint_body(draft.form, state, content.patch, extra, content.written)
        schema = draft.schema
        if schema is None:
            schema = migrations.latest(name) if name in migrations.by_name else 0
        door = None
        if not scope:
            door = base.door if base is not None else None
            if draft.door is not None and draft.door != door:
                door = draft.door.after(door)
            door = door or MANAGER
        header = Header(
            run_id=run_id,
            seq=cursor.seq + 1,
            id=draft.id or new_id(time.time_ns(), os.urandom(8)),
            frame="delta" if delta is not None else "key",
            saved_at=self._clock(),
            name=name,
            scope=scope,
            parent=base.header.id if base and not branching else draft.lineage.checkpoint_id,
            base_seq=delta.header.seq if delta is not None else None,
            key_seq=delta.key_seq if delta is not None else None,
            step=place.step,
            node=place.node,
            kind=place.kind,
            status=place.status,
            metadata=place.metadata or {},
            tags=place.tags,
            door=door,
            fingerprint=draft.fingerprint,
            schema=schema,
            size=content.after.size,
            epoch=request.epoch or 0,
            prev=cursor.digest,
        )
        header = self._write(cursor, group, records, header, text)
        if branching is not None:
            cursor.bases.pop(scope, None)
            if len(cursor.bases) >= _SCOPES_REMEMBERED:
                del cursor.bases[next(iter(cursor.bases))]
        cursor.name = name
        if delta is not None:
            weight = delta.chain_weight + max(len(text), LIGHTEST_DELTA)
            chain = delta.key_seq, delta.key_weight, weight, delta.deltas + 1
        else:
            chain = header.seq, len(state or b"") + len(extra or b""), 0, 0
        written = after_change(content.written, content.changed, header.seq)
        cursor.bases[scope] = DeltaBase(
            header, draft.form, door, content.after, *chain, written, draft.lineage
        )
        if delta is None and not scope:
            group.keyframes.append(run_id)
        outcome.header = header
        if reused and header.seq > 1:
            hide[header.run_id] = [
                old.seq
                for old in self.storage.find(header.id)
                if (old.run_id, old.scope, old.id) == (header.run_id, scope, header.id)
            ]

    def _content(
        self, cursor: Cursor, draft: CheckpointDraft, request: Request, group: _Group
    ) -> _Content:
        """Compare a state with the one it came from; choose delta or keyframe."""
        branching, values = draft.branching, draft.values
        run_id, scope = draft.place.run_id, draft.place.scope
        if branching is not None:
            base = branching.base(cursor, draft, self.reader)
        else:
            base = cursor.bases.get(scope)
            if base is None or draft.lineage.checkpoint_id not in (None, base.header.id):
                base = find_base(
                    cursor,
                    draft,
                    self.reader,
                    self._unconfirmed,
                    group.unsent,
                    known_id=self._known.get((run_id, scope)),
                    held=request.epoch is not None,
                )
        if base is None or base.form != draft.form or draft.force_keyframe:
            state, after = whole(values, draft.natures)
            return _Content(base, None, state, None, after, {}, dict.fromkeys(values, False))
        if branching is not None:
            # Where keys come and go, those that stay must not move: it would be a new state.
            values = {key: values[key] for key in base.base.values if key in values} | values
        patch, after = changes(base.base, values, draft.natures)
        same = patch is None and not request.force and _same_place(base.header, draft)
        if same and self._is_there(base.header, group):
            return _Content(base, base, None, None, after, {}, {}, is_known=True)
        weight = base.chain_weight + max(len(patch or b""), LIGHTEST_DELTA)
        long = weight > _SHORT_CHAIN and weight > _KEYFRAME_FACTOR * base.key_weight
        if long or base.deltas >= self._most_deltas - 1 or run_id in self.reader.damaged_runs:
            changed = after.changed
            state, after = whole(values, draft.natures)
            return _Content(base, None, state, patch, after, base.written, changed)
        return _Content(base, base, None, patch, after, base.written, after.changed)

    def _notes(
        self, cursor: Cursor, request: Request, group: _Group, records: list[Record]
    ) -> None:
        run_id, notes = request.run_id, request.notes
        encrypts = request.draft is None and self._sealer.keys is not None
        if encrypts and any(note.kind not in CLEAR_NOTES for note in notes):
            self._give_key(cursor, request, notes[0].name, group, records)
        for note in notes:
            text = msgspec.json.encode(note.content)
            if self._redacting is not None:
                note, text = self._redacting.note(run_id, note, text)  # noqa: PLW2901
            self._note(cursor, request, note, group, records, text)

    def _note(
        self,
        cursor: Cursor,
        request: Request,
        note: Note,
        group: _Group,
        records: list[Record],
        text: bytes,
    ) -> None:
        header = Header(
            run_id=request.run_id,
            seq=cursor.seq + 1,
            id=new_id(time.time_ns(), os.urandom(8)),
            frame="note",
            saved_at=self._clock(),
            name=note.name or cursor.name,
            scope=note.scope,
            parent=note.parent,
            step=note.step,
            node=note.node,
            kind=note.kind,
            tags=note.tags,
            metadata=note.metadata,
            epoch=request.epoch or 0,
            prev=cursor.digest,
        )
        self._write(cursor, group, records, header, text)

    def _give_key(
        self, cursor: Cursor, request: Request, name: str, group: _Group, records: list[Record]
    ) -> None:
        """Begin with the note that keeps the run's key, if it is to have one and has none."""
        text = self._sealer.new_key(request.run_id)
        if text is not None:
            key = Note(kind="key", content=None, name=name)
            self._note(cursor, request, key, group, records, text)

    def _write(
        self, cursor: Cursor, group: _Group, records: list[Record], header: Header, text: bytes
    ) -> Header:
        """Seal a body under a new header after the cursor, and move the cursor to it."""
        if self._sealer.keys is None and header.kind not in CLEAR_NOTES:
            body = compress(text, self.storage.body_compression)
        else:
            body = self._sealer.close(header, text)
        record = seal_new(header, body)
        cursor.seq, cursor.digest = record.header.seq, record.header.digest
        group.unsent.add(cursor.digest)
        records.append(record)
        return record.header

    def _is_there(self, header: Header, group: _Group) -> bool:
        """Return whether that checkpoint has not been deleted meanwhile."""
        return header.digest in group.unsent or any(
            found.digest == header.digest for found in self.storage.find(header.id)
        )

    def _cursor(self, run_id: str) -> Cursor:
        cursor = self._cursors.get(run_id)
        if cursor is not None:
            self._cursors.move_to_end(run_id)
            return cursor
        run = self.reader.run(run_id)
        self._unconfirmed.resolve(run_id, run.seq if run is not None else 0)
        if run is None:
            return self._remember(run_id, Cursor(0, "", "", {}))
        return self._remember(run_id, Cursor(run.seq, run.digest, run.name, {}))

    def _remember(self, run_id: str, cursor: Cursor) -> Cursor:
        remember(self._cursors, run_id, cursor, most=_RUNS_REMEMBERED)
        return cursor

    def resume_from(
        self, loaded: Loaded, state: Saveable | None, run: RunInfo | None = None
    ) -> None:
        """Make a checkpoint that was just read the base of the next save in its scope.

        *state* is the object decoded from it; None if a migration changed its values. *run* is the
        head at which the checkpoint was the newest: if someone has saved since, the next save is a
        conflict. Without *run* the next save is a branch, whatever has been saved since.
        """
        with self.lock:
            try:
                run = run or self.reader.run(loaded.header.run_id)
            except CorruptError:
                self.invalidate(loaded.header.run_id)  # its end is damaged; the next save says so
                return
            if run is None:
                return
            cursor = self._cursors.get(run.run_id)
            if cursor is None or cursor.digest != run.digest or cursor.conflict is not None:
                cursor = self._remember(run.run_id, Cursor(run.seq, run.digest, run.name, {}))
            cursor.bases[loaded.header.scope] = delta_base_of(loaded, state)
            self._known[run.run_id, loaded.header.scope] = loaded.header.id

    def branch_at(self, loaded: Loaded) -> None:
        """Let the next save in a held run branch from that checkpoint."""
        with self.lock:
            header = loaded.header
            self._cursor(header.run_id).bases[header.scope] = delta_base_of(loaded, None)
            self._known[header.run_id, header.scope] = header.id

    def branch_from(self, tail: Tail, branch: Any) -> None:
        """Let a scope branch from its newest checkpoint, if nothing is known of the run.

        *branch* is what its `Branching` remembers of the scope.
        """
        run, loaded = tail.run, tail.loaded
        with self.lock:
            if run.run_id not in self._cursors:
                self._unconfirmed.resolve(run.run_id, run.seq)
                scope = loaded.header.scope
                bases, branches = {scope: delta_base_of(loaded, None)}, {scope: branch}
                cursor = Cursor(run.seq, run.digest, run.name, bases, branches=branches)
                self._remember(run.run_id, cursor)

    def base_of(self, run_id: str) -> DeltaBase | None:
        """The checkpoint that was saved or loaded last, of the run itself, if it is known."""
        cursor = self._cursors.get(run_id)
        return cursor.bases.get("") if cursor is not None and cursor.conflict is None else None

    def stored_head(self, run_id: str) -> int:
        """The newest record of a run that is known here to be stored; 0 if none is."""
        cursor = self._cursors.get(run_id)
        return cursor.stored or cursor.seq if cursor is not None else 0

    def end_scopes(self, run_id: str, scopes: Iterable[str]) -> None:
        """Forget the last checkpoints of scopes that have ended."""
        with self.lock:
            cursor = self._cursors.get(run_id)
            if cursor is not None:
                for scope in scopes:
                    cursor.bases.pop(scope, None)

    def invalidate_all(self) -> None:
        """Look every run up in the storage again before its next save."""
        with self.lock:
            for run_id in [*self._cursors]:
                self.invalidate(run_id)

    def invalidate(self, run_id: str, *, unless_conflict: bool = False) -> None:
        """Look the run up in the storage again before its next save."""
        with self.lock:
            cursor = self._cursors.get(run_id)
            if cursor is None or (unless_conflict and cursor.conflict is not None):
                return
            del self._cursors[run_id]
            self._sealer.forget_key(run_id)


def commit(sent: Sequence[Sent]) -> list[Outcome]:
    """Carry out requests of journals of one storage in one append, each alone.

    The journals' locks are free while the storage works. The caller sees to it that no run of a
    journal is in two commits at once. A `StorageError` is raised: nothing was acknowledged, and
    all may be tried again.
    """
    groups: dict[Journal, _Group] = {}
    try:
        outcomes: list[tuple[_Group, int]] = []
        for journal, request in sent:
            group = groups.get(journal)
            if group is None:
                groups[journal] = group = _Group()
            outcomes.append((group, len(group.outcomes)))
            with journal.lock:
                journal.prepare(request, group)
        # No comprehension: what a tracer raises in one passes `except` in Python 3.12 and later.
        batches = [*chain.from_iterable(group.batches for group in groups.values())]
        if batches:
            results = iter(sent[0][0].storage.append(batches))
            for journal, group in groups.items():
                its = [*islice(results, len(group.batches))]
                if any(its):
                    journal.settle(group, its)
        for journal, group in groups.items():
            journal.complete(group)
    except BaseException:
        for journal, group in groups.items():
            journal.abandon(group)
        raise
    return [group.outcomes[number] for group, number in outcomes]


def checkpoint_body(
    form: str,
    state: bytes | None,
    patch: bytes | None,
    extra: bytes | None = None,
    written: Written | None = None,
) -> bytes:
    """The text of a checkpoint's body; `read_body` reads it."""
    parts = []
    if form:
        parts.append(b'"form":"%b"' % form.encode())
    if state is not None:
        parts.append(b'"state":%b' % state)
    parts.append(b'"patch":%b' % (patch or b"[]"))
    if extra is not None:
        parts.append(b'"extra":%b' % extra)
    if state is not None and written:
        parts.append(b'"written":%b' % msgspec.json.encode(written))
    return b"{%b}" % b",".join(parts)


def _same_place(header: Header, draft: CheckpointDraft) -> bool:
    place: Place = draft.place
    return (
        (header.step, header.node, header.kind, header.status, header.tags)
        == (place.step, place.node, place.kind, place.status, place.tags)
        and header.metadata == place.metadata
        and header.fingerprint == draft.fingerprint
        and draft.id is None
    )


def _moved_on(run_id: str, seq: int, head: int) -> ConflictError:
    return ConflictError(
        f"run {run_id!r} was continued to record {head} since then",
        run_id=run_id,
        seq=seq + 1,
        head=head,
    )
