"""Journals in memory: the reference of what a `Storage` does, for tests and throw-away runs."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from datetime import datetime

import msgspec

from holdfast.core.records import (
    Header,
    Record,
    check_run_id,
    open_header,
    open_record,
    released,
    renewed,
    taken,
)
from holdfast.errors import ConflictError, CorruptError, UsageError
from holdfast.storage.base import (
    Batch,
    Lease,
    Owner,
    Page,
    RecordQuery,
    RunInfo,
    RunQuery,
    Storage,
    about_run,
    matches,
    only_one,
)
from holdfast.storage.memory.index import (
    Entry,
    Ids,
    NameAndStatus,
    RunIndex,
    Visible,
    remove,
    wants_status,
)
from holdfast.storage.process import owner_is_dead
from holdfast.storage.shared import Inspection, check_head, checked_run

__all__ = ["MemoryStorage"]

_PAGE = 64
_SCAN = 1024
"""How many records a page may pass over before the lock is given back."""


class _Run(msgspec.Struct):
    """A journal and its head entry."""

    run_id: str
    ordinal: int
    started_at: datetime
    entries: dict[int, Entry] = {}
    seqs: list[int] = []
    saved_at: datetime | None = None
    seq: int = 0
    digest: str = ""
    checkpoints: int = 0
    stored: int = 0
    listed_as: NameAndStatus | None = None
    """Under which it is listed."""


class MemoryStorage(Storage):
    """Keeps journals in this process; they end with it. It can lease runs as well.

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
        self._entries: dict[int, Entry] = {}
        self._visible = Visible()
        self._ids = Ids()
        self._run_index = RunIndex()
        self._leases: dict[str, Lease] = {}
        self._last_place = 0
        self._last_ordinal = 0
        self.quarantine: dict[str, list[Entry]] = {}
        """What `rewrite` has put aside, by run."""

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        checked = [(batch, batch.opened()) for batch in batches]
        with self._lock:
            self._check_open()
            return [self._append(batch, records) for batch, records in checked]

    def read(
        self, run_id: str, *, first: int | None = None, last: int | None = None
    ) -> Iterator[Record]:
        with self._lock:
            self._check_open()
            run = self._runs.get(run_id)
            end = 0 if run is None else run.seq
        return self._read(run, first or 0, end if last is None else min(last, end))

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
        return self._infos(query, bound if query.before is None else min(bound, query.before))

    def head_and_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        with self._lock:
            self._check_open()
            run = self._runs.get(run_id)
            if run is None:
                return None
            newest = self._newest_checkpoint(run, scope)
            return self._info(run), None if newest is None else _opened(newest)

    def page(
        self, query: RecordQuery, *, about: str | None = None, notes: Collection[str] = ()
    ) -> Page:
        with self._lock:
            self._check_open()
            if about is not None:
                query = about_run(query, about, is_run=about in self._runs)
            bound = self._last_place + 1 if query.before is None else self._place_of(query)
        headers = tuple(self._headers(query, bound))
        with self._lock:
            found = [
                _opened(entry)
                for run_id in sorted({header.run_id for header in headers} & self._runs.keys())
                for entry in self._runs[run_id].entries.values()
                if entry.header.frame == "note" and entry.header.kind in notes and not entry.hidden
            ]
        return Page(headers, tuple(found))

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
            if run.seq in erased:
                raise UsageError(
                    f"record {run.seq} is the newest of run {run_id!r} and cannot be erased",
                    hint="hide it, or delete the whole run",
                    run_id=run_id,
                    seq=run.seq,
                )
            hidden = self._hide(run, set(hide or ()) - erased)
            self._erase(run, erased)
            self._list(run)
            return hidden + len(erased)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._runs, self._by_ordinal, self._entries, self._leases = {}, {}, {}, {}
            self._visible, self._ids, self._run_index = Visible(), Ids(), RunIndex()

    def take_lease(self, run_id: str, owner: Owner, *, now: float, ttl: float) -> Lease:
        check_run_id(run_id)
        with self._lock:
            self._check_open()
            held = self._leases.get(run_id)
            dead = owner_is_dead(held)
            lease = taken(held, run_id, owner, now=now, ttl=ttl, owner_is_dead=dead)
            self._leases[run_id] = lease
            return lease

    def renew_lease(self, lease: Lease, *, now: float, ttl: float) -> Lease:
        with self._lock:
            self._check_open()
            newest = renewed(self._leases.get(lease.run_id), lease, now=now, ttl=ttl)
            self._leases[lease.run_id] = newest
            return newest

    def release_lease(self, lease: Lease) -> None:
        with self._lock:
            self._check_open()
            left = released(self._leases.get(lease.run_id), lease)
            if left is not None:
                self._leases[lease.run_id] = left

    def lease_of(self, run_id: str) -> Lease | None:
        with self._lock:
            self._check_open()
            return self._leases.get(run_id)

    def check_medium(self, *, repair: bool) -> list[str]:
        return []

    def known_runs(self) -> list[str]:
        with self._lock:
            self._check_open()
            return [*self._runs]

    def inspect(self, run_id: str) -> Inspection | None:
        with self._lock:
            self._check_open()
            run = self._runs.get(run_id)
            entries = [] if run is None else [run.entries[seq] for seq in run.seqs]
        if run is None:
            return None
        records, problems = [], []
        for entry in entries:
            try:
                header = _opened(entry)
                records.append(open_record(entry.text, header.digest, entry.body))
            except CorruptError as error:
                problems.append(f"record {entry.header.seq} of run {run_id!r}: {error.message}")
        return Inspection(
            run_id=run_id,
            records=tuple(records),
            hidden=frozenset(entry.header.seq for entry in entries if entry.hidden),
            problems=tuple(problems),
            head=run.seq,
        )

    def rewrite(
        self, run_id: str, records: Sequence[Record], hidden: Collection[int], *, head: int
    ) -> str:
        opened = {record.header.seq: record for record in checked_run(run_id, records)}
        with self._lock:
            self._check_open()
            run = self._runs.get(run_id)
            if run is None:
                raise UsageError(f"there is no run {run_id!r} to rewrite", run_id=run_id)
            check_head(run_id, head, run.seq)
            aside = [e for seq, e in run.entries.items() if not _is_whole(e, opened.get(seq))]
            self.quarantine.setdefault(run_id, []).extend(map(copy, aside))
            self._rebuild(run, opened)
            if run.seqs:
                self._hide(run, set(hidden))
                self._list(run)
        return f"quarantine of this MemoryStorage, {run_id!r}"

    def _rebuild(self, run: _Run, records: dict[int, Record]) -> None:
        if not records:
            self._delete_run(run)
            return
        same = {
            seq
            for seq, entry in run.entries.items()
            if seq in records and entry.header.digest == records[seq].header.digest
        }
        new = records.keys() - same
        if same and new and min(new) < max(same):
            # What comes back has no place of its own any more; the order within the run counts.
            same, new = set(), set(records)
        self._erase(run, run.entries.keys() - same)
        for seq in same:
            run.entries[seq].text, run.entries[seq].body = records[seq].text, records[seq].body
        for seq in sorted(new):
            self._store(run, records[seq])
        last = records[max(records)].header
        run.seq, run.digest, run.saved_at = last.seq, last.digest, last.saved_at

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("this MemoryStorage is closed", hint="open a new one")

    def _append(self, batch: Batch, records: list[Record]) -> ConflictError | None:
        run = self._runs.get(batch.run_id)
        if not records:
            if run:
                self._hide(run, set(batch.hide))
                self._list(run)
            return None
        seq, digest = (run.seq, run.digest) if run else (0, "")
        first = records[0].header
        if run and all(_same_record(run, record.header) for record in records):
            return None
        if not batch.follows(first, seq, digest):
            if first.seq != seq + 1:
                return _conflict(batch, seq, f"seq {first.seq} does not follow its newest, {seq}")
            return _conflict(batch, seq, f"seq {first.seq} was sealed on another record than {seq}")
        lease = self._leases.get(batch.run_id)
        if lease and batch.epoch is not None and batch.epoch < lease.epoch:
            return _conflict(batch, seq, f"epoch {batch.epoch} was followed by {lease.epoch}")
        if run is None:
            self._last_ordinal += 1
            run = _Run(batch.run_id, self._last_ordinal, first.saved_at)
            self._runs[batch.run_id] = self._by_ordinal[run.ordinal] = run
        for record in records:
            self._store(run, record)
        self._hide(run, set(batch.hide))
        self._list(run)
        return None

    def _store(self, run: _Run, record: Record) -> None:
        # Read from its text: the header of a record is the caller's, and can be changed.
        header = open_header(record.text, record.header.digest)
        self._last_place += 1
        entry = Entry(self._last_place, header, record.text, record.body)
        self._entries[entry.place] = run.entries[header.seq] = entry
        run.seqs.append(header.seq)
        run.seq, run.digest, run.saved_at = header.seq, header.digest, header.saved_at
        run.stored += header.stored
        run.checkpoints += header.frame != "note"
        self._visible.add(entry)
        self._ids.add(header.id, entry.place)

    def _hide(self, run: _Run, seqs: set[int]) -> int:
        gone = [run.entries[seq] for seq in seqs & run.entries.keys()]
        gone = [entry for entry in gone if not entry.hidden]
        self._visible.drop(gone)
        for entry in gone:
            entry.hidden = True
            run.checkpoints -= entry.header.frame != "note"
        return len(gone)

    def _erase(self, run: _Run, seqs: Collection[int]) -> None:
        self._hide(run, set(seqs))
        for seq in seqs:
            entry = run.entries.pop(seq)
            del self._entries[entry.place]
            self._ids.drop(entry.header.id, entry.place)
            run.stored -= entry.header.stored
        remove(run.seqs, seqs)

    def _delete_run(self, run: _Run) -> int:
        count = len(run.seqs)
        self._erase(run, set(run.seqs))
        self._run_index.move(run.ordinal, run.listed_as, None)
        del self._runs[run.run_id], self._by_ordinal[run.ordinal]
        return count

    def _list(self, run: _Run) -> None:
        """List the run under the name and status that it has now."""
        newest = self._checkpoint_of(run)
        name = run.entries[run.seq].header.name if newest is None else newest.name
        listed_as = (name, "running" if newest is None else newest.status)
        self._run_index.move(run.ordinal, run.listed_as, listed_as)
        run.listed_as = listed_as

    def _newest_checkpoint(self, run: _Run, scope: str) -> Entry | None:
        places = self._visible.of(RecordQuery(run_id=run.run_id, scope=scope))
        return self._entries[places[-1]] if places else None

    def _checkpoint_of(self, run: _Run) -> Header | None:
        newest = self._newest_checkpoint(run, "")
        return None if newest is None else newest.header

    def _read(self, run: _Run | None, first: int, last: int) -> Iterator[Record]:
        while run is not None:
            with self._lock:
                self._check_open()
                start = bisect_left(run.seqs, first)
                seqs = [seq for seq in run.seqs[start : start + _PAGE] if seq <= last]
                page = [(seq, run.entries[seq]) for seq in seqs]
            for seq, entry in page:
                record = open_record(entry.text, entry.header.digest, entry.body)
                if (record.header.run_id, record.header.seq) != (run.run_id, seq):
                    raise CorruptError(
                        f"another record stands at seq {seq} of run {run.run_id!r}",
                        run_id=run.run_id,
                        seq=seq,
                    )
                yield record
            if len(page) < _PAGE:
                return
            first = seqs[-1] + 1

    def _headers(self, query: RecordQuery, bound: int) -> Iterator[Header]:
        left = query.limit
        while bound and (left is None or left > 0):
            with self._lock:
                self._check_open()
                page, bound = self._page(query, bound, _PAGE if left is None else min(left, _PAGE))
            for entry in page:
                yield _opened(entry)
            left = None if left is None else left - len(page)

    def _page(self, query: RecordQuery, bound: int, size: int) -> tuple[list[Entry], int]:
        """Up to *size* wanted entries placed before *bound*, and the bound of what follows."""
        places = self._visible.of(query)
        end = bisect_left(places, bound)
        page: list[Entry] = []
        for index in range(end - 1, max(end - 1 - _SCAN, -1), -1):
            entry = self._entries[places[index]]
            bound = entry.place
            if matches(entry.header, query):
                page.append(entry)
                if len(page) == size:
                    return page, bound
        return page, bound if end > _SCAN else 0

    def _place_of(self, query: RecordQuery) -> int:
        """Where the record that *query* calls `before` stands."""
        found: dict[tuple[str, str], int] = {}
        for place in self._ids.places(query.before or ""):
            header = self._entries[place].header
            if (
                query.run_id in (None, header.run_id)
                and query.name in (None, header.name)
                and query.scope in (None, header.scope)
            ):
                found[header.run_id, header.scope] = place
        return only_one(found, query.before)

    def _newest_of(self, ids: Iterable[str]) -> list[Entry]:
        """The visible checkpoints with these ids that no later one supersedes, newest first."""
        found: dict[tuple[str, str, str], Entry] = {}
        for id_ in ids:
            for place in self._ids.places(id_):
                entry = self._entries[place]
                if entry.header.frame != "note" and not entry.hidden:
                    found[id_, entry.header.run_id, entry.header.scope] = entry
        return sorted(found.values(), key=lambda entry: entry.place, reverse=True)

    def _infos(self, query: RunQuery, bound: int) -> Iterator[RunInfo]:
        left = query.limit
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            with self._lock:
                self._check_open()
                page = [self._info(run) for run in self._listed(query, bound, size)]
            yield from page
            if len(page) < size:
                return
            bound = page[-1].ordinal
            left = None if left is None else left - len(page)

    def _listed(self, query: RunQuery, bound: int, size: int) -> list[_Run]:
        if query.run_id is None:
            ordinals = self._run_index.below(query, bound, size)
            return [self._by_ordinal[ordinal] for ordinal in ordinals]
        run = self._runs.get(query.run_id)
        if run is None or run.ordinal >= bound or run.listed_as is None:
            return []
        name, status = run.listed_as
        wanted = query.name in (None, name) and wants_status(query, status)
        return [run] if wanted else []

    def _info(self, run: _Run) -> RunInfo:
        newest = self._checkpoint_of(run)
        name, status = run.listed_as or ("", "running")
        return RunInfo(
            run_id=run.run_id,
            name=name,
            ordinal=run.ordinal,
            seq=run.seq,
            digest=run.digest,
            checkpoints=run.checkpoints,
            stored=run.stored,
            step=newest.step if newest else 0,
            node=newest.node if newest else None,
            kind=newest.kind if newest else "routine",
            status=status,
            started_at=run.started_at,
            saved_at=run.saved_at or run.started_at,
        )


def _opened(entry: Entry) -> Header:
    """The entry's header, read from its own text and at its own place."""
    header = open_header(entry.text, entry.header.digest)
    if header != entry.header:
        raise CorruptError(
            f"record {header.seq} of run {header.run_id!r} stands in another's place",
            run_id=entry.header.run_id,
            seq=entry.header.seq,
        )
    return header


def _is_whole(entry: Entry, record: Record | None) -> bool:
    return record is not None and (entry.text, entry.body) == (record.text, record.body)


def _same_record(run: _Run, header: Header) -> bool:
    entry = run.entries.get(header.seq)
    return (
        entry is not None and entry.header.id == header.id and entry.header.digest == header.digest
    )


def _conflict(batch: Batch, head: int, why: str) -> ConflictError:
    seq = batch.records[0].header.seq
    return ConflictError(f"run {batch.run_id!r}: {why}", run_id=batch.run_id, seq=seq, head=head)
