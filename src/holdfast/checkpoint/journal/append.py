"""The journal's writing side: states become records, and records one durable commit."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.checkpoint.crypto import CLEAR_NOTES, Sealer, checkpoint_body
from holdfast.checkpoint.journal.delta_base import (
    SCOPES_REMEMBERED,
    Bases,
    Cursor,
    DeltaBase,
    delta_base_of,
)
from holdfast.checkpoint.journal.draft import CheckpointDraft, Saveable
from holdfast.checkpoint.journal.reader import Loaded, Reader, delta_weight
from holdfast.checkpoint.journal.requests import Note, Outcome, Request
from holdfast.checkpoint.journal.unconfirmed import UnconfirmedAppends
from holdfast.core.records import Header, Record, new_id, seal
from holdfast.core.state import Place, migrations
from holdfast.core.values import changes, whole
from holdfast.errors import ConflictError, HoldfastError
from holdfast.storage.base import Batch, RunInfo, Storage

__all__ = ["Journal"]

_RUNS_REMEMBERED = 1024
_KEYFRAME_FACTOR = 2
"""A keyframe is due when the deltas since the last weigh this many times as much as it."""
_SHORT_CHAIN = 8192
"""A chain of deltas that weighs no more than this is left to grow, however small the state."""
_MARKS = frozenset(["pin", "release", "tag"])
"""Notes about a checkpoint, which are as true after whatever came between.

So are notes that name a checkpoint as their parent.
"""
_TRIES = 64
"""How often a batch is sealed anew because only notes came between."""


class Journal:
    """Seals what is to be written and appends it, many runs in one commit."""

    def __init__(
        self,
        storage: Storage,
        sealer: Sealer,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.storage = storage
        self.reader = Reader(storage, sealer)
        self.epochs: dict[str, int] = {}
        """The leases this process holds, by run."""
        self._sealer = sealer
        self._clock = clock
        self._cursors: OrderedDict[str, Cursor] = OrderedDict()
        self._doubts = UnconfirmedAppends(storage)
        self._bases = Bases(storage, self.reader, self._doubts)
        self._lock = threading.RLock()

    def commit(self, requests: Sequence[Request]) -> list[Outcome]:
        """Carry out the requests in one append; each succeeds or fails alone.

        A `StorageError` is raised: nothing was acknowledged, and all may be tried again.
        """
        with self._lock:
            outcomes = [Outcome() for _ in requests]
            try:
                self._commit(requests, outcomes)
            except BaseException:
                # What was prepared may not be there: the next save must not build on it.
                for request in requests:
                    self.invalidate(request.run_id)
                raise
            for request, outcome in zip(requests, outcomes, strict=True):
                if outcome.error is None and request.draft and outcome.header:
                    request.draft.lineage.checkpoint_id = outcome.header.id
            return outcomes

    def _commit(self, requests: Sequence[Request], outcomes: list[Outcome]) -> None:
        self._bases.unsent.clear()
        before: dict[str, Cursor] = {}
        batches: list[Batch] = []
        places: list[int] = []
        for place, request in enumerate(requests):
            for batch in self._prepare(request, outcomes[place], before):
                batches.append(batch)
                places.append(place)
        if batches:
            results = self._doubts.append(batches)
            self._bases.unsent.clear()
            self._settle(requests, outcomes, places, results, before)

    def _settle(
        self,
        requests: Sequence[Request],
        outcomes: list[Outcome],
        places: list[int],
        results: list[ConflictError | None],
        before: dict[str, Cursor],
    ) -> None:
        for place, conflict in zip(places, results, strict=True):
            if conflict is None:
                continue
            request = requests[place]
            # Where one of the run was tried again already, the cursor stands at the head.
            cursor = before.pop(request.run_id, None)
            if cursor is not None:
                self._cursors[request.run_id] = cursor
                self._sealer.recheck_key(request.run_id)
            outcomes[place] = self._again(request, conflict, at_head=cursor is None)

    def _again(self, request: Request, conflict: ConflictError, *, at_head: bool) -> Outcome:
        """Seal on the new head and try again, as long as what came between does not matter."""
        run_id = request.run_id
        for _ in range(_TRIES):
            cursor = self._cursor(run_id) if at_head else self._moved(request, conflict)
            if cursor is None:
                break
            at_head = False
            saved: dict[str, Cursor] = {}
            outcome = Outcome()
            batches = self._prepare(request, outcome, saved)
            if not batches:
                return outcome
            result = self._doubts.append(batches)[0]
            self._bases.unsent.clear()
            if result is None:
                return outcome
            conflict = result
            self._cursors |= saved
        cursor = self._cursor(run_id)
        if request.draft is None and not cursor.bases:
            self.invalidate(run_id)
        else:
            cursor.conflict = conflict
        return Outcome(error=conflict)

    def _cursor_for(self, request: Request) -> Cursor:
        """The run's cursor; after a conflict, only for what was read since then."""
        cursor = self._cursor(request.run_id)
        if cursor.conflict is None or self._is_from_outside(request):
            return cursor
        draft = request.draft
        wanted = draft.lineage.checkpoint_id if draft is not None else None
        run = self.reader.run(request.run_id)
        if draft is None or wanted is None or run is None:
            raise cursor.conflict
        newest = self.reader.newest(run, draft.place.scope)
        if newest is None or newest.id != wanted:
            raise cursor.conflict
        del self._cursors[request.run_id]
        return self._cursor(request.run_id)

    def _is_from_outside(self, request: Request) -> bool:
        """Whether it is as true after whatever came between: a mark, or a branch."""
        if request.draft is not None:
            return request.draft.rank is not None
        marks_only = all(note.kind in _MARKS or note.parent for note in request.notes)
        return marks_only and request.run_id not in self.epochs

    def _moved(self, request: Request, conflict: ConflictError) -> Cursor | None:
        """The cursor at the run's head now; None if a checkpoint came between that matters."""
        cursor = self._cursor(request.run_id)
        run = self.reader.run(request.run_id)
        if run is None or run.seq <= cursor.seq:
            if not self._is_from_outside(request):
                return None
            # The run was deleted, and perhaps begun anew: nothing that is known of it is true.
            self.invalidate(request.run_id)
            return self._cursor(request.run_id)
        erased: list[dict[str, Any]] = []
        for record in self.reader.records(request.run_id, cursor.seq + 1, run.seq):
            if record.header.frame != "note":
                if not self._is_from_outside(request):
                    return None
                cursor.conflict = conflict if cursor.bases else None
                cursor.tops.pop(record.header.scope, None)
            elif record.header.kind == "prune":
                erased += msgspec.json.decode(record.body)["erased"]
        for scope, known in [*cursor.bases.items()]:
            if any(hole["first"] <= known.key_seq <= hole["last"] for hole in erased):
                del cursor.bases[scope]
        cursor.seq, cursor.digest = run.seq, run.digest
        return cursor

    def _prepare(
        self, request: Request, outcome: Outcome, before: dict[str, Cursor]
    ) -> list[Batch]:
        """Seal what *request* asks for on the run's head; the run's own batch comes first.

        *before* is given the cursor as it was, unless it has that of an earlier request.
        """
        try:
            cursor = self._cursor_for(request)
            before.setdefault(request.run_id, cursor.copy())
            records: list[Record] = []
            if request.draft is not None:
                self._checkpoint(cursor, request, records, outcome)
            if request.head is not None and request.head < cursor.seq:
                raise ConflictError(
                    f"run {request.run_id!r} has gone on to record {cursor.seq} since then",
                    run_id=request.run_id,
                    seq=request.head + 1,
                    head=cursor.seq,
                )
            if request.draft is None and any(n.kind not in CLEAR_NOTES for n in request.notes):
                self._give_key(cursor, request, request.notes[0].name, records)
            for note in request.notes:
                self._note(cursor, request.run_id, note, records)
            for scope in [
                s for s, known in cursor.bases.items() if known.key_seq in request.erases
            ]:
                del cursor.bases[scope]
        except HoldfastError as error:
            outcome.error = error
            self.invalidate(request.run_id, unless_conflict=True)
            return []
        if not records:
            return []
        outcome.written = tuple(record.header for record in records)
        outcome.hidden = hide = self._hidden(request, outcome)
        own = Batch(
            run_id=request.run_id,
            records=tuple(records),
            epoch=self.epochs.get(request.run_id),
            hide=tuple(hide.get(request.run_id, ())),
        )
        others = [
            Batch(run_id=run_id, records=(), hide=tuple(seqs))
            for run_id, seqs in hide.items()
            if run_id != request.run_id and seqs
        ]
        return [own, *others]

    def _hidden(self, request: Request, outcome: Outcome) -> Mapping[str, Sequence[int]]:
        """What stops being visible: what retention drops, and an earlier record of the same id."""
        header, draft = outcome.header, request.draft
        if header is None or header not in outcome.written:
            return {}
        hide = {
            run: [*seqs] for run, seqs in (request.hide(header) if request.hide else {}).items()
        }
        given = draft is not None and draft.id is not None
        if given and outcome.supersedes and header.seq > 1:
            hide.setdefault(header.run_id, []).extend(
                old.seq
                for old in self.storage.find(header.id)
                if (old.run_id, old.scope, old.id) == (header.run_id, header.scope, header.id)
            )
        return hide

    def _checkpoint(
        self, cursor: Cursor, request: Request, records: list[Record], outcome: Outcome
    ) -> None:
        draft = request.draft
        assert draft is not None
        branch = draft.rank is not None
        place = self._bases.ranked(cursor, draft, outcome) if branch else draft.place
        known = (self._bases.named if branch else self._bases.last)(cursor, draft)
        values = draft.values
        if branch and known is not None:
            # Where keys come and go, those that stay must not move: that would be a new state.
            values = {key: values[key] for key in known.base.values if key in values} | values
        if known is None or known.form != draft.form or draft.fresh:
            patch, state, base = None, *whole(values, draft.natures)
        else:
            patch, base = changes(known.base, values, draft.natures)
            same = patch is None and not request.force and _same_place(known.header, draft)
            if same and self._bases.is_there(known.header):
                outcome.header = known.header
                cursor.bases[place.scope] = known
                return
            state = None
            weight = known.chain_weight + delta_weight(patch or b"")
            if weight > max(_KEYFRAME_FACTOR * known.key_weight, _SHORT_CHAIN):
                state, base = whole(values, draft.natures)
        self._give_key(cursor, request, place.name, records)
        now = self._clock()
        name = place.name or cursor.name
        header = Header(
            run_id=place.run_id,
            seq=cursor.seq + 1,
            id=draft.id or new_id(time.time_ns(), os.urandom(8)),
            frame="delta" if state is None else "key",
            saved_at=now,
            name=name,
            scope=place.scope,
            parent=known.header.id if known and not branch else draft.lineage.checkpoint_id,
            base_seq=known.header.seq if known and state is None else None,
            key_seq=known.key_seq if known and state is None else None,
            step=place.step,
            node=place.node,
            kind=place.kind,
            status=place.status,
            metadata=place.metadata or {},
            tags=place.tags,
            fingerprint=draft.fingerprint,
            schema=migrations.latest(name) if draft.schema is None else draft.schema,
            size=base.size,
            epoch=self.epochs.get(request.run_id, 0),
        )
        extra = draft.extra(state is not None) if draft.extra is not None else None
        text = checkpoint_body(draft.form, state, patch, extra)
        record = self._append(cursor, header, text, records)
        weighs = delta_weight(text)
        key_weight = known.key_weight if known else 0
        if state is not None:
            key_weight = len(state) + len(extra or b"")
        cursor.name = record.header.name
        if branch:
            cursor.bases.pop(place.scope, None)
            if len(cursor.bases) >= SCOPES_REMEMBERED:
                del cursor.bases[next(iter(cursor.bases))]
        cursor.bases[place.scope] = DeltaBase(
            record.header,
            draft.form,
            base,
            key_seq=record.header.seq if state is not None else header.key_seq or 0,
            key_weight=key_weight,
            chain_weight=0 if state is not None else (known.chain_weight if known else 0) + weighs,
            lineage=draft.lineage,
        )
        outcome.header = record.header

    def _note(self, cursor: Cursor, run_id: str, note: Note, records: list[Record]) -> None:
        header = Header(
            run_id=run_id,
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
            epoch=self.epochs.get(run_id, 0),
        )
        self._append(cursor, header, msgspec.json.encode(note.content), records)

    def _give_key(self, cursor: Cursor, request: Request, name: str, records: list[Record]) -> None:
        """Begin with the note that keeps the run's key, if it is to have one and has none."""
        key_note = self._sealer.new_key(request.run_id)
        if key_note is None:
            return
        header = Header(
            run_id=request.run_id,
            seq=cursor.seq + 1,
            id=new_id(time.time_ns(), os.urandom(8)),
            frame="note",
            saved_at=self._clock(),
            name=name or cursor.name,
            kind="key",
            epoch=self.epochs.get(request.run_id, 0),
        )
        self._append(cursor, header, key_note, records)

    def _append(self, cursor: Cursor, header: Header, text: bytes, records: list[Record]) -> Record:
        header = msgspec.structs.replace(header, prev=cursor.digest)
        record = seal(header, self._sealer.close(header, text), prev=cursor.digest)
        cursor.seq, cursor.digest = record.header.seq, record.header.digest
        self._bases.unsent.add(cursor.digest)
        records.append(record)
        return record

    def _cursor(self, run_id: str) -> Cursor:
        cursor = self._cursors.get(run_id)
        if cursor is None:
            run = self.reader.run(run_id)
            self._doubts.resolve(run_id, run.seq if run is not None else 0)
            cursor = (
                Cursor(0, "", "", {}) if run is None else Cursor(run.seq, run.digest, run.name, {})
            )
            self._cursors[run_id] = cursor
            if len(self._cursors) > _RUNS_REMEMBERED:
                self._cursors.popitem(last=False)
        else:
            self._cursors.move_to_end(run_id)
        return cursor

    def resume_from(
        self, loaded: Loaded, state: Saveable | None, run: RunInfo | None = None
    ) -> None:
        """Go on from a checkpoint that was just read: what is saved next is a delta to it.

        *state* is what was made of it, None if its values are others by now. *run* is the head at
        which it was the newest: if someone has saved since, the next save is a conflict. Without
        it, the next save is a branch, whatever has been saved since.
        """
        with self._lock:
            run = run or self.reader.run(loaded.header.run_id)
            if run is None:
                return
            cursor = self._cursors.get(run.run_id)
            if cursor is None or cursor.digest != run.digest or cursor.conflict is not None:
                self._cursors[run.run_id] = cursor = Cursor(run.seq, run.digest, run.name, {})
            cursor.bases[loaded.header.scope] = delta_base_of(loaded, state)

    def end_scope(self, run_id: str, scope: str) -> None:
        """A scope has ended: nothing will be built on what is remembered of it."""
        with self._lock:
            cursor = self._cursors.get(run_id)
            if cursor is not None:
                cursor.bases.pop(scope, None)

    def invalidate_all(self) -> None:
        """Look every run up in the storage again before it is saved next."""
        with self._lock:
            for run_id in [*self._cursors]:
                self.invalidate(run_id)

    def invalidate(self, run_id: str, *, unless_conflict: bool = False) -> None:
        """Look the run up in the storage again before the next save."""
        with self._lock:
            cursor = self._cursors.get(run_id)
            if cursor is None or (unless_conflict and cursor.conflict is not None):
                return
            del self._cursors[run_id]
            self._sealer.forget_key(run_id)


def _same_place(header: Header, draft: CheckpointDraft) -> bool:
    place: Place = draft.place
    return (
        (header.step, header.node, header.kind, header.status, header.tags)
        == (place.step, place.node, place.kind, place.status, place.tags)
        and header.metadata == place.metadata
        and header.fingerprint == draft.fingerprint
        and draft.id is None
    )
