"""Reading one run: rows newest first, records oldest first, a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import groupby
from typing import TypeVar

from surehold.core.records import Header, Record, subtract_ranges
from surehold.errors import CorruptError
from surehold.storage.objects.log_view import LogView
from surehold.storage.objects.packs import Packs
from surehold.storage.objects.run_log import RunLogs
from surehold.storage.objects.segments import LogRow, PackRef, header_of, record_of
from surehold.storage.objects.zones import Wanted, with_scope
from surehold.storage.shared import misplaced, missing

T = TypeVar("T")

_PAGE = 256
_PAGE_BYTES = 4 << 20


class LogReader:
    """Reads runs; between two pages it holds nothing."""

    def __init__(self, logs: RunLogs, packs: Packs) -> None:
        self._logs = logs
        self._packs = packs

    def rows(
        self,
        run_id: str,
        below: int | None = None,
        *,
        fresh: bool = True,
        hidden: bool = False,
        wanted: Wanted | None = None,
        limit: int | None = None,
    ) -> Iterator[LogRow]:
        """The visible rows of a run before *below*, newest first; with *hidden*, all.

        With *wanted*, those of parts without such records may be left out. A caller that takes
        about *limit* rows gives it, so that no more are read.
        """
        size = _PAGE if limit is None else max(1, min(limit, _PAGE))
        while True:
            rows, below = self._page_down(run_id, below, size, fresh, hidden, wanted)
            yield from rows
            if below is None:
                return
            fresh, size = False, min(2 * size, _PAGE)

    def newest(self, view: LogView, scope: str) -> Header | None:
        """The newest visible checkpoint of a scope."""
        if view.head is None:
            return None
        for row in self._packs.rows_down(view, view.head.seq + 1, with_scope(scope)):
            if not row.note and row.seq not in view.hidden:
                header = header_of(view.run_id, row)
                if header.scope == scope:
                    return header
        return None

    def records(self, run_id: str, first: int, last: int | None) -> Iterator[Record]:
        """The records of a run, digests checked; one that is missing is a `CorruptError`."""
        before: Header | None = None
        following: int | None = first
        fresh = True
        while following is not None:
            page, following = self._page_up(run_id, following, last, fresh)
            for row, body in page:
                record = record_of(run_id, row, body)
                header = record.header
                if before and header.seq == before.seq + 1 and header.prev != before.digest:
                    raise misplaced(run_id, header.seq)
                before = header
                yield record
            fresh = False

    def _page_down(
        self,
        run_id: str,
        below: int | None,
        size: int,
        fresh: bool,
        hidden: bool,
        wanted: Wanted | None,
    ) -> tuple[list[LogRow], int | None]:
        def page(view: LogView, head: int) -> tuple[list[LogRow], int | None]:
            rows: list[LogRow] = []
            found = self._packs.rows_down(view, head + 1 if below is None else below, wanted)
            for number, row in enumerate(found, 1):
                if hidden or row.seq not in view.hidden:
                    rows.append(row)
                if number == size:
                    return rows, row.seq
            return rows, None

        return self._settled(run_id, fresh, page)

    def _page_up(
        self, run_id: str, first: int, last: int | None, fresh: bool
    ) -> tuple[list[tuple[LogRow, bytes | None]], int | None]:
        def page(view: LogView, head: int) -> tuple[list[tuple[LogRow, bytes | None]], int | None]:
            end = head if last is None else min(last, head)
            rows, following = self._window(view, first, end)
            return self._with_bodies(view, rows), following

        return self._settled(run_id, fresh, page)

    def _settled(
        self, run_id: str, fresh: bool, page: Callable[[LogView, int], tuple[list[T], int | None]]
    ) -> tuple[list[T], int | None]:
        """Make a page of the run's view and newest seq; again if objects went meanwhile."""

        def work() -> tuple[list[T], int | None]:
            with self._logs.lock(run_id):
                view = self._logs.view(run_id, fresh=fresh)
                return ([], None) if view.head is None else page(view, view.head.seq)

        return self._packs.again(run_id, work)

    def _window(
        self, view: LogView, first: int, end: int
    ) -> tuple[list[tuple[LogRow, PackRef | None]], int | None]:
        rows: list[tuple[LogRow, PackRef | None]] = []
        size = 0
        for row, pack in self._packs.rows_up(view, first, end):
            if rows and (len(rows) == _PAGE or size + row.size > _PAGE_BYTES):
                return rows, first
            _check_gap(view, first, row.seq - 1)
            rows.append((row, pack))
            size += row.size
            first = row.seq + 1
        _check_gap(view, first, end)
        return rows, None

    def _with_bodies(
        self, view: LogView, rows: list[tuple[LogRow, PackRef | None]]
    ) -> list[tuple[LogRow, bytes | None]]:
        found: list[tuple[LogRow, bytes | None]] = []
        for _, group in groupby(rows, key=lambda pair: pair[1] and (pair[1].key, pair[1].start)):
            part = list(group)
            pack = part[0][1]
            wanted = [row for row, _ in part]
            bodies = view.bodies if pack is None else self._packs.bodies(pack, wanted)
            found += [(row, bodies.get(row.seq)) for row in wanted]
        return found


def _check_gap(view: LogView, first: int, last: int) -> None:
    if first <= last:
        for seq, _ in subtract_ranges([(first, last)], view.erased):
            raise missing(view.run_id, seq)


def damaged(run_id: str) -> CorruptError:
    """The error for a run whose newest change cannot be read."""
    return CorruptError(
        f"the newest object of run {run_id!r} is damaged",
        hint="run: surehold repair",
        run_id=run_id,
    )
