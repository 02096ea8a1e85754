"""Checks of a repair, and inspections of runs that are not listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import msgspec

from surehold.core.records import Chain, Record
from surehold.errors import ConflictError, CorruptError, UsageError
from surehold.storage.abilities import Inspection


def checked_run(run_id: str, records: Iterable[Record]) -> list[Record]:
    """The records, each verified; a `UsageError` unless they are the run's, in order."""
    opened = [record.verified() for record in records]
    chain = Chain()
    for header in (record.header for record in opened):
        if header.run_id != run_id:
            raise UsageError(f"record {header.seq} of run {header.run_id!r} is not of {run_id!r}")
        if wrong := chain.add(header):
            raise UsageError(f"record {header.seq} of run {run_id!r} {wrong}")
    return opened


def check_head(run_id: str, known: int, now: int) -> None:
    """Refuse to rewrite a run that has grown since it was inspected."""
    if now != known:
        raise ConflictError(
            f"run {run_id!r} has grown to record {now} since it was inspected",
            hint="inspect it again, then repair it",
            run_id=run_id,
            seq=known + 1,
            head=now,
        )


class Salvage:
    """The whole records of a run, collected for an `Inspection`."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.records: list[Record] = []
        self.hidden: set[int] = set()
        self.problems: list[str] = []

    def add(self, read: Callable[[], Record]) -> None:
        """Add the record that *read* gives, or the problem with it."""
        try:
            self.records.append(read())
        except CorruptError as error:
            self.problems.append(error.message)

    def ends_at(self, seq: int, digest: str) -> bool:
        """True if the newest whole record is the head; else that is a problem."""
        newest = self.records[-1].header if self.records else None
        if newest is not None and (newest.seq, newest.digest) == (seq, digest):
            return True
        self.problems.append(
            f"the newest whole record of run {self.run_id!r} is not {seq}, its head"
        )
        return False

    def inspection(self, head: int) -> Inspection:
        """The inspection of the run, whose newest known seq is *head*."""
        return Inspection(
            run_id=self.run_id,
            records=tuple(self.records),
            hidden=frozenset(self.hidden),
            problems=tuple(self.problems),
            head=head,
        )


def inspect_missing(run_id: str, problem: str) -> Inspection:
    """The inspection of a run of which nothing is left."""
    return Inspection(run_id=run_id, records=(), hidden=frozenset(), problems=(problem,), head=0)


def unlisted(inspection: Inspection) -> Inspection:
    """The inspection of a run that has records and is in no list of runs."""
    problem = (
        f"run {inspection.run_id!r} is missing in the list of runs, and"
        f" {len(inspection.records)} records of it are there"
    )
    return msgspec.structs.replace(inspection, problems=(problem, *inspection.problems))


def moment() -> str:
    """The current time, as part of a file's name."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
