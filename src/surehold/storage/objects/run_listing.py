"""Listings over all runs: the index, then the newest object of each active run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heapreplace

from surehold.core.records import Header
from surehold.storage.base import RecordQuery, RunInfo, RunQuery, only_one
from surehold.storage.objects.bucket import Bucket
from surehold.storage.objects.log_reader import LogReader, damaged
from surehold.storage.objects.run_log import RunLogs, tip_of
from surehold.storage.objects.run_names import NamedRun, RunNames, RunTip
from surehold.storage.objects.segments import LogRow, header_of
from surehold.storage.objects.zones import Wanted, with_id, with_query
from surehold.storage.shared import Sparing, passed_over

NEWEST = (1 << 63) - 1
"""Higher than any ordinal."""

_Key = tuple[int, int, int]
"""The order of records between runs: time of commit, ordinal of the run, seq."""


class RunListing:
    """Answers what is asked of many runs at once."""

    def __init__(self, bucket: Bucket, logs: RunLogs, index: RunNames, reading: LogReader) -> None:
        self._bucket = bucket
        self._logs = logs
        self._index = index
        self._reading = reading

    def tips(self, *, with_damaged: bool = False) -> list[RunTip]:
        """All runs as their newest changes have left them, the newest run first.

        Of a damaged run it is the newest that can be read, if *with_damaged*.
        """
        found = []
        for one, tip, whole in self._known(self._index.all()):
            if not whole and not with_damaged:
                passed_over(tip.run_id, damaged(tip.run_id))
            elif tip.info is not None and tip.info.ordinal == one.ordinal:
                found.append(tip)
        return found

    def info(self, run_id: str) -> RunInfo | None:
        """The head of a run as callers see it; None if there is no run."""
        with self._logs.lock(run_id):
            return tip_of(self._logs.view(run_id)).info

    def infos(self, query: RunQuery, bound: int, size: int) -> tuple[list[RunInfo], int | None]:
        """The wanted ones of the *size* newest runs below *bound*, and the next bound."""
        indexed = self._index.below(bound, size)
        found = []
        for one, tip, whole in self._known(indexed):
            if tip.info is None or tip.info.ordinal != one.ordinal:
                continue
            if not whole and query.name == tip.info.name:
                raise damaged(tip.run_id)
            if wants(query, tip.info):
                found.append(tip.info)
        return found, indexed[-1].ordinal if len(indexed) == size else None

    def _known(self, indexed: list[NamedRun]) -> Iterator[tuple[NamedRun, RunTip, bool]]:
        """The runs of a part of the index with their facts, and True if those are whole."""
        resting = self._index.resting(indexed)
        others = [one.name for one in indexed if one not in resting]
        tips = self._logs.tips(others, few=len(others) < len(resting))
        for one in indexed:
            if one in resting:
                yield one, resting[one], True
                continue
            if one.name not in tips:
                continue  # it is about to begin
            tip = tips[one.name]
            if tip is not None:
                yield one, tip, True
            elif (older := self._logs.last_whole(one.name)) is not None:
                yield one, older, False

    def headers(self, query: RecordQuery) -> Iterator[Header]:
        """The visible headers of all runs that *query* wants, newest first."""
        bound = None if query.before is None else self.bound(query)
        streams = [_Stream(self._reading, tip, query, bound) for tip in self.tips()]
        heapify(streams)
        while streams:
            header = streams[0].take()
            if streams[0].is_at_end:
                heappop(streams)
            else:
                heapreplace(streams, streams[0])
            if header is not None:
                yield header

    def find(self, prefix: str) -> list[Header]:
        """Visible checkpoints whose id starts so, newest first; an exact id its own."""

        def matching(tip: RunTip) -> list[tuple[_Key, Header]]:
            newest: dict[tuple[str, str], tuple[_Key, Header]] = {}
            fits = lambda row: not row.note and row.id.startswith(prefix)  # noqa: E731
            with Sparing(tip.run_id):
                for key, header in self._rows(tip, fits, with_id(prefix)):
                    newest.setdefault((header.id, header.scope), (key, header))
            return list(newest.values())

        parts = self._bucket.apart(matching, self.tips())
        found = sorted((pair for part in parts for pair in part), key=_place, reverse=True)
        exact = [header for _, header in found if header.id == prefix]
        return exact or [header for _, header in found]

    def bound(self, query: RecordQuery) -> _Key:
        """The place of the record that *query* calls `before`."""
        assert query.before is not None
        found: dict[tuple[str, str], _Key] = {}
        if query.run_id is None:
            tips = self.tips()
        else:
            with self._logs.lock(query.run_id):
                tips = [tip_of(self._logs.view(query.run_id))]
        inside = with_id(query.before, whole=True)
        for tip in tips:
            rows = self._rows(tip, lambda row: row.id == query.before, inside, hidden=True)
            for key, header in rows:
                if query.name in (None, header.name) and query.scope in (None, header.scope):
                    found.setdefault((header.run_id, header.scope), key)
        return only_one(found, query.before)

    def _rows(
        self,
        tip: RunTip,
        wanted: Callable[[LogRow], bool],
        inside: Wanted,
        *,
        hidden: bool = False,
    ) -> Iterator[tuple[_Key, Header]]:
        if tip.info is None:
            return
        fresh = self._is_behind(tip)
        for row in self._reading.rows(tip.run_id, fresh=fresh, hidden=hidden, wanted=inside):
            if wanted(row):
                yield (row.at, tip.info.ordinal, row.seq), header_of(tip.run_id, row)

    def _is_behind(self, tip: RunTip) -> bool:
        """True if what is remembered of a run is older than *tip*."""
        return self._logs.remembered(tip.run_id) < tip.pos


class _Stream:
    """The headers of one run that a query wants, read only once they are next."""

    def __init__(
        self, reading: LogReader, tip: RunTip, query: RecordQuery, bound: _Key | None
    ) -> None:
        assert tip.info is not None
        self._reading = reading
        self._run_id = tip.run_id
        self._ordinal = tip.info.ordinal
        self._query = query
        self._bound = bound
        self._rows: Iterator[LogRow] | None = None
        self._next: LogRow | None = None
        self.key: _Key = (tip.at, tip.info.ordinal, tip.info.seq)
        """The place of the next header, or of what may come before it."""
        self.is_at_end = False

    def __lt__(self, other: _Stream) -> bool:
        return self.key > other.key

    def take(self) -> Header | None:
        """The header at the place of this stream, then move on; None if it is not wanted."""
        row = self._next
        if self._rows is None:
            self._rows = self._reading.rows(
                self._run_id,
                self.key[2] + 1,
                wanted=with_query(self._query),
                limit=self._query.limit,
            )
        header = None
        with Sparing(self._run_id):
            header = None if row is None else header_of(self._run_id, row)
        self.is_at_end = True
        with Sparing(self._run_id):
            self.is_at_end = not self._advance(self._rows)
        return header if header is not None and self._query.matches(header) else None

    def _advance(self, rows: Iterator[LogRow]) -> bool:
        for row in rows:
            key = (row.at, self._ordinal, row.seq)
            below = self._bound is None or key < self._bound
            if below and (self._query.notes or not row.note):
                self._next, self.key = row, key
                return True
        return False


def wants(query: RunQuery, info: RunInfo) -> bool:
    """True if *query* wants this run; its `limit` is left to the caller."""
    return query.matches(info) and (query.before is None or info.ordinal < query.before)


def _place(pair: tuple[_Key, Header]) -> _Key:
    return pair[0]
