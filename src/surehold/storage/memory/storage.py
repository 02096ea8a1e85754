"""Journals in memory: the reference of a `Storage`, for tests and short runs."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import islice
from typing import Literal, TypeVar

from surehold.core.policy import change_of
from surehold.core.records import MANAGER, Header, Record, open_header, open_record
from surehold.errors import ConflictError, CorruptError, UsageError
from surehold.storage import shared
from surehold.storage.abilities import Inspection
from surehold.storage.base import Batch, Lease, RecordQuery, RunInfo, RunQuery, RunTally, Storage
from surehold.storage.memory.index import Ids, RunIndex, StoredRecord, Visible, remove
from surehold.storage.memory.queue import MemoryQueues

T = TypeVar("T")

_SCAN = 1024
"""Records that a page may pass over before the lock is given back."""


class _Run:
    """The records of a run and its head entry."""

    def __init__(self, head: shared.Head) -> None:
        self.head = head
        self.entries: dict[int, StoredRecord] = {}
        self.seqs: list[int] = []
        self.listed = False
        self.hiding: set[int] = set()
        """Seqs that the change under way hides."""
        self.before: tuple[shared.Head, dict[int, StoredRecord]] | None = None
        """The run before the rewrite under way."""


class MemoryStorage(shared.LeaseSlots, shared.QueueSlots, Storage):
    """Keeps journals in this process; they end with it. It can lease runs.

    What goes in and what comes out share nothing with what is kept, and every read checks the
    digests, so that a test on it tells of the other media too.

    >>> with MemoryStorage() as storage:
    ...     list(storage.runs(RunQuery()))
    []
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._runs: dict[str, _Run] = {}
        self._by_ordinal: dict[int, _Run] = {}
        self._entries: dict[int, StoredRecord] = {}
        self._visible = Visible()
        self._ids = Ids()
        self._run_index = RunIndex()
        self._leases: dict[str, Lease] = {}
        self._queues = MemoryQueues(self._leases)
        self._last_place = 0
        self._last_ordinal = 0
        self._changing: _Run | None = None
        self.quarantine: dict[str, list[StoredRecord]] = {}
        """Records that `rewrite` has set aside, by run."""

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        checked = [(batch, batch.opened()) for batch in batches]
        with self._lock:
            self._check_open()
            return [self._append(batch, records) for batch, records in checked]

    def append_all(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        checked = [(batch, batch.opened()) for batch in batches]
        with self._lock:
            self._check_open()
            decisions = [self._decide(batch, records) for batch, records in checked]
            if any(isinstance(decision, ConflictError) for decision in decisions):
                return [one if isinstance(one, ConflictError) else None for one in decisions]
            return [self._append(batch, records) for batch, records in checked]

    def read(
        self, run_id: str, *, first: int | None = None, last: int | None = None
    ) -> Iterator[Record]:
        with self._lock:
            self._check_open()
            run = self._runs.get(run_id)
        if run is None:
            return iter(())
        end = run.head.seq if last is None else min(last, run.head.seq)
        return self._read(run, first or 0, end)

    def headers(self, query: RecordQuery) -> Iterator[Header]:
        with self._lock:
            self._check_open()
            bound = self._last_place + 1 if query.before is None else self._place_of(query)
        return self._headers(query, bound)

    def find(self, id_prefix: str) -> list[Header]:
        with self._lock:
            self._check_open()
            found = self._newest_of([id_prefix]) or self._newest_of(self._ids.starting(id_prefix))
        return [_opened(entry) for entry in found]

    def runs(self, query: RunQuery) -> Iterator[RunInfo]:
        with self._lock:
            self._check_open()
            bound = self._last_ordinal + 1
        start = bound if query.before is None else min(bound, query.before)
        return islice(
            shared.paged(partial(self._infos, query), start, limit=query.limit), query.limit
        )

    def head_and_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        with self._lock:
            self._check_open()
            run = self._runs.get(run_id)
            if run is None:
                return None
            newest = self._newest_checkpoint(run, scope)
            return self._info(run), None if newest is None else _opened(newest)

    def count_runs(self, *, now: float, most: int) -> RunTally:
        with self._lock:
            self._check_open()
            counts: Counter[tuple[str, str]] = Counter()
            newest: dict[str, list[int]] = {"held": [], "ended": [], "dead": []}
            for ordinal, run in sorted(self._by_ordinal.items(), reverse=True):
                hold = self._hold(run, now) if run.head.status == "running" else ""
                counts[run.head.status, hold] += 1
                if hold in newest and len(newest[hold]) < most:
                    newest[hold].append(ordinal)
        return RunTally(dict(counts), {hold: found for hold, found in newest.items() if found})

    def has_run(self, run_id: str) -> bool:
        with self._lock:
            self._check_open()
            return run_id in self._runs

    def notes(
        self, run_ids: Sequence[str], kinds: Collection[str], *, strict: bool
    ) -> list[Header]:
        with self._lock:
            return [
                _opened(entry)
                for run_id in run_ids
                if run_id in self._runs
                for entry in self._runs[run_id].entries.values()
                if entry.header.frame == "note" and entry.header.kind in kinds and not entry.hidden
            ]

    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        with self._lock:
            self._check_open()
            run = self._runs.get(run_id)
            if run is None:
                return 0
            if hide is None and erase is None:
                return self._delete_run(run)
            erased = set(erase or ()) & run.entries.keys()
            if run.head.seq in erased:
                raise shared.cannot_erase(run_id, run.head.seq)
            run.hiding = set(hide or ()) - erased
            self._changing = run
            dropped = self._drop(run, erased)
            self._changing = None
            return dropped

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._runs, self._by_ordinal, self._entries, self._leases = {}, {}, {}, {}
            self._queues = MemoryQueues(self._leases)
            self._visible, self._ids, self._run_index = Visible(), Ids(), RunIndex()

    def change_lease(
        self, run_id: str, change: Callable[[Lease | None], Lease | None]
    ) -> Lease | None:
        with self._lock:
            self._check_open()
            lease = change(self._leases.get(run_id))
            if lease is not None:
                self._leases[run_id] = lease
            return lease

    def lease_of(self, run_id: str) -> Lease | None:
        with self._lock:
            self._check_open()
            return self._leases.get(run_id)

    def in_queues(self, work: Callable[[shared.QueueTable], T]) -> T:
        with self._lock:
            self._check_open()
            return work(self._queues)

    def check_medium(self, *, repair: bool) -> list[str]:
        return []

    def known_runs(self) -> list[str]:
        with self._lock:
            self._check_open()
            return [*self._runs]

    def lost_runs(self) -> list[str]:
        return []  # nothing else can reach the memory of this process

    def inspect(self, run_id: str) -> Inspection | None:
        with self._lock:
            self._check_open()
            run = self._runs.get(run_id)
            entries = [] if run is None else [run.entries[seq] for seq in run.seqs]
        if run is None:
            return None
        found = shared.Salvage(run_id)
        found.hidden = {entry.header.seq for entry in entries if entry.hidden}
        for entry in entries:
            found.add(partial(_whole, entry))
        return found.inspection(run.head.seq)

    def rewrite(
        self, run_id: str, records: Sequence[Record], hidden: Collection[int], *, head: int
    ) -> str:
        opened = {record.header.seq: record for record in shared.checked_run(run_id, records)}
        with self._lock:
            self._check_open()
            run = self._runs.get(run_id)
            if run is None:
                raise UsageError(f"there is no run {run_id!r} to rewrite", run_id=run_id)
            shared.check_head(run_id, head, run.head.seq)
            aside = [e for seq, e in run.entries.items() if not _is_whole(e, opened.get(seq))]
            self.quarantine.setdefault(run_id, []).extend(map(copy, aside))
            self._rebuild(run, opened, set(hidden))
        return f"quarantine of this MemoryStorage, {run_id!r}"

    def _rebuild(self, run: _Run, records: dict[int, Record], hide: set[int]) -> None:
        if not records:
            self._delete_run(run)
            return
        run.hiding = set()
        run.before = run.head, {seq: copy(entry) for seq, entry in run.entries.items()}
        self._changing = run
        same = {
            seq
            for seq, entry in run.entries.items()
            if seq in records and entry.header.digest == records[seq].header.digest
        }
        new = records.keys() - same
        if same and new and min(new) < max(same):
            # What comes back has no place of its own any more; the order within the run counts.
            same, new = set(), set(records)
        self._take_out(run, set(run.entries.keys() - same))
        for seq in same:
            run.entries[seq].text, run.entries[seq].body = records[seq].text, records[seq].body
        for seq in sorted(new):
            self._put(run, records[seq])
        self._hide(run, hide)
        hidden = {seq for seq, entry in run.entries.items() if entry.hidden}
        ordered = [records[seq] for seq in sorted(records)]
        self._set_head(run, shared.rebuilt_head(run.head, ordered, hidden))
        self._changing = run.before = None

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this MemoryStorage is closed", hint="open a new one")
        if self._changing is not None:
            self._settle(self._changing)

    def _settle(self, run: _Run) -> None:
        """Finish or undo the change of *run* that a signal handler's error interrupted."""
        if run.before is not None:
            run.head, run.entries = run.before
        entries = {seq: e for seq, e in sorted(run.entries.items()) if seq <= run.head.seq}
        for seq in run.hiding & entries.keys():
            entries[seq].hidden = True
        run.entries, run.seqs = entries, [*entries]
        if entries:
            records = [Record(e.header, e.text, e.body) for e in entries.values()]
            hidden = {seq for seq, entry in entries.items() if entry.hidden}
            run.head = shared.rebuilt_head(run.head, records, hidden)
        self._index_again()
        self._changing = run.before = None

    def _index_again(self) -> None:
        visible, ids, run_index = Visible(), Ids(), RunIndex()
        runs = self._runs.values()
        all_entries = sorted((e for r in runs for e in r.entries.values()), key=lambda e: e.place)
        for entry in all_entries:
            ids.add(entry.header.id, entry.place)
            if not entry.hidden:
                visible.add(entry)
        for run in runs:
            run_index.move(run.head.ordinal, None, (run.head.name, run.head.status))
            run.listed = True
        self._entries = {entry.place: entry for entry in all_entries}
        self._by_ordinal = {run.head.ordinal: run for run in runs}
        self._visible, self._ids, self._run_index = visible, ids, run_index

    def _decide(
        self, batch: Batch, records: list[Record]
    ) -> Literal["store", "stored"] | ConflictError:
        run = self._runs.get(batch.run_id)
        lease = self._leases.get(batch.run_id)
        entries = run.entries if run else {}
        there = [entries[r.header.seq].header for r in records if r.header.seq in entries]
        return shared.decide_append(
            batch,
            records,
            seq=run.head.seq if run else 0,
            digest=run.head.digest if run else "",
            epoch=lease.epoch if lease else 0,
            stored=((header.seq, header.digest) for header in there),
        )

    def _append(self, batch: Batch, records: list[Record]) -> ConflictError | None:
        run = self._runs.get(batch.run_id)
        decision = self._decide(batch, records)
        if isinstance(decision, ConflictError):
            return decision
        if decision == "store" and (records or run is not None):
            self._store(run or self._begin(records[0].header), records, set(batch.hide))
            change = change_of(records)
            if change is not None:
                shared.apply_change(self._queues, batch.run_id, change, now=time.time())
        return None

    def _begin(self, first: Header) -> _Run:
        self._last_ordinal += 1
        return _Run(shared.first_head(first, self._last_ordinal))

    def _store(self, run: _Run, records: list[Record], hide: set[int]) -> None:
        """Store all of it, or none if it is interrupted before the run has a new head."""
        run.hiding = set()
        self._changing = run
        for record in records:
            self._put(run, record)
        head = shared.after_append(run.head, records) if records else run.head
        before = (run.head.name, run.head.status) if run.listed else None
        run.head, run.hiding, run.listed = head, hide, True
        self._runs[head.run_id] = self._by_ordinal[head.ordinal] = run
        self._run_index.move(head.ordinal, before, (head.name, head.status))
        self._drop(run, set())
        self._changing = None

    def _put(self, run: _Run, record: Record) -> None:
        # Read from its text: the header of a record is the caller's, and can be changed.
        header = open_header(record.text, record.header.digest)
        self._last_place += 1
        entry = StoredRecord(self._last_place, header, record.text, record.body)
        self._entries[entry.place] = run.entries[header.seq] = entry
        run.seqs.append(header.seq)
        self._visible.add(entry)
        self._ids.add(header.id, entry.place)

    def _drop(self, run: _Run, erase: set[int]) -> int:
        """Hide what the run is hiding, erase other records, and account for it."""
        hidden = self._hide(run, run.hiding)
        gone = [entry for entry in (run.entries[seq] for seq in erase) if not entry.hidden]
        stored = self._take_out(run, erase)
        if hidden or erase:
            head = shared.after_removal(
                run.head,
                {entry.header.seq for entry in (*hidden, *gone)},
                lambda: (self._checkpoint_of(run), run.entries[run.head.seq].header),
                checkpoints=sum(entry.header.frame != "note" for entry in (*hidden, *gone)),
                stored=stored,
            )
            self._set_head(run, head)
        return len(hidden) + len(erase)

    def _hide(self, run: _Run, seqs: set[int]) -> list[StoredRecord]:
        """Hide records, however they are counted; returns those that were visible."""
        entries = [run.entries[seq] for seq in seqs & run.entries.keys()]
        hidden = [entry for entry in entries if not entry.hidden]
        self._visible.drop(hidden)
        for entry in hidden:
            entry.hidden = True
        return hidden

    def _take_out(self, run: _Run, seqs: Collection[int]) -> int:
        """Remove records, however they are counted; returns the bytes of their bodies."""
        gone = [run.entries.pop(seq) for seq in seqs]
        self._visible.drop(entry for entry in gone if not entry.hidden)
        for entry in gone:
            del self._entries[entry.place]
            self._ids.drop(entry.header.id, entry.place)
        remove(run.seqs, seqs)
        return sum(len(entry.body) for entry in gone)

    def _delete_run(self, run: _Run) -> int:
        count = len(run.seqs)
        self._changing = run
        del self._runs[run.head.run_id], self._by_ordinal[run.head.ordinal]
        self._take_out(run, set(run.seqs))
        self._run_index.move(run.head.ordinal, (run.head.name, run.head.status), None)
        self._queues.put(run.head.run_id, None)
        self._changing = None
        return count

    def _set_head(self, run: _Run, head: shared.Head) -> None:
        """Replace the head of a run, and list the run under its new name and status."""
        before = (run.head.name, run.head.status) if run.listed else None
        self._run_index.move(head.ordinal, before, (head.name, head.status))
        run.head, run.listed = head, True

    def _newest_checkpoint(self, run: _Run, scope: str) -> StoredRecord | None:
        places = self._visible.of(RecordQuery(run_id=run.head.run_id, scope=scope))
        return self._entries[places[-1]] if places else None

    def _checkpoint_of(self, run: _Run) -> Header | None:
        newest = self._newest_checkpoint(run, "")
        return None if newest is None else newest.header

    def _read(self, run: _Run, first: int, last: int) -> Iterator[Record]:
        def page(first: int, size: int) -> tuple[list[tuple[int, StoredRecord]], int | None]:
            with self._lock:
                self._check_open()
                start = bisect_left(run.seqs, first)
                seqs = [seq for seq in run.seqs[start : start + size] if seq <= last]
                found = [(seq, run.entries[seq]) for seq in seqs]
            return found, seqs[-1] + 1 if len(seqs) == size else None

        for seq, entry in shared.paged(page, first):
            record = open_record(entry.text, entry.header.digest, entry.body)
            if (record.header.run_id, record.header.seq) != (run.head.run_id, seq):
                raise shared.misplaced(run.head.run_id, seq)
            yield record

    def _headers(self, query: RecordQuery, bound: int) -> Iterator[Header]:
        def page(bound: int, size: int) -> tuple[list[StoredRecord], int | None]:
            with self._lock:
                self._check_open()
                return self._page(query, bound, size)

        entries = shared.paged(page, bound, limit=query.limit)
        found = entries if query.run_id is not None else filter(_is_listed, entries)
        return islice(map(_opened, found), query.limit)

    def _page(
        self, query: RecordQuery, bound: int, size: int
    ) -> tuple[list[StoredRecord], int | None]:
        """Up to *size* wanted entries placed before *bound*, and the next bound."""
        places = self._visible.of(query)
        end = bisect_left(places, bound)
        page: list[StoredRecord] = []
        for index in range(end - 1, max(end - 1 - _SCAN, -1), -1):
            entry = self._entries[places[index]]
            bound = entry.place
            if query.matches(entry.header):
                page.append(entry)
                if len(page) == size:
                    return page, bound
        return page, bound if end > _SCAN else None

    def _place_of(self, query: RecordQuery) -> int:
        """The place of the record that *query* calls `before`."""
        places = self._ids.places(query.before or "")
        return shared.bound_of(query, ((place, self._entries[place].header) for place in places))

    def _newest_of(self, ids: Iterable[str]) -> list[StoredRecord]:
        """The visible checkpoints with these ids, not superseded, newest first."""
        found: dict[tuple[str, str, str], StoredRecord] = {}
        for id_ in ids:
            for place in self._ids.places(id_):
                entry = self._entries[place]
                if entry.header.frame != "note" and not entry.hidden:
                    found[id_, entry.header.run_id, entry.header.scope] = entry
        return sorted(found.values(), key=lambda entry: entry.place, reverse=True)

    def _infos(self, query: RunQuery, bound: int, size: int) -> tuple[list[RunInfo], int | None]:
        with self._lock:
            self._check_open()
            page = [self._info(run) for run in self._listed(query, bound, size)]
            begun = [run for run in page if not query.open or self._begun(run)]
        following = page[-1].ordinal if len(page) == size else None
        return [run for run in begun if query.matches(run)], following

    def _hold(self, run: _Run, now: float) -> str:
        """The hold of a run stored as running; see `RunTally`."""
        lease, entry = self._leases.get(run.head.run_id), self._queues.get(run.head.run_id)
        if lease is not None and lease.owner is not None and lease.expires_at > now:
            return "held"
        if entry is not None and entry.state in ("ready", "waiting", "dead"):
            return entry.state
        newest = self._newest_checkpoint(run, "")
        if newest is not None and newest.header.door == MANAGER:
            return "manager"
        return "" if lease is None else "ended"

    def _begun(self, run: RunInfo) -> bool:
        return run.run_id in self._leases or self._queues.get(run.run_id) is None

    def _listed(self, query: RunQuery, bound: int, size: int) -> list[_Run]:
        if query.run_id is None:
            ordinals = self._run_index.below(query, bound, size)
            return [self._by_ordinal[ordinal] for ordinal in ordinals]
        run = self._runs.get(query.run_id)
        return [] if run is None or run.head.ordinal >= bound else [run]

    def _info(self, run: _Run) -> RunInfo:
        return shared.run_info(run.head, self._checkpoint_of(run))


def _opened(entry: StoredRecord) -> Header:
    """The entry's header, read from its own text and at its own place."""
    header = open_header(entry.text, entry.header.digest)
    if header != entry.header:
        raise shared.misplaced(entry.header.run_id, entry.header.seq)
    return header


def _whole(entry: StoredRecord) -> Record:
    try:
        return open_record(entry.text, _opened(entry).digest, entry.body)
    except CorruptError as error:
        seq, run_id = entry.header.seq, entry.header.run_id
        raise CorruptError(shared.about_record(run_id, seq, error.message)) from error


def _is_listed(entry: StoredRecord) -> bool:
    """False, and a warning, for what a listing of many runs leaves out."""
    with shared.Sparing(entry.header.run_id):
        return bool(_opened(entry))
    return False


def _is_whole(entry: StoredRecord, record: Record | None) -> bool:
    return record is not None and (entry.text, entry.body) == (record.text, record.body)
