"""The repair ability: find the whole records of a run, and rewrite it as those."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Protocol, runtime_checkable

import msgspec

from surehold.core.records import Chain, Record
from surehold.errors import ConflictError, UsageError


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a stored run that are whole, and the problems with the rest."""

    run_id: str
    records: tuple[Record, ...]
    """Whole records, header and body, by seq. Whether they follow each other is not checked."""
    hidden: frozenset[int]
    problems: tuple[str, ...]
    head: int
    """The newest seq that the medium knows of."""


@runtime_checkable
class Repairable(Protocol):
    """A storage that can set damaged records aside, so that the rest can be used."""

    def check_medium(self, *, repair: bool) -> list[str]:
        """Describe damage to the medium itself, apart from what its runs hold.

        With *repair* the medium is repaired, and the list says what was done. What cannot be
        read is kept.
        """

    def known_runs(self) -> list[str]:
        """The ids of all runs, also of damaged and lost ones that are not listed."""

    def lost_runs(self) -> list[str]:
        """The ids of runs that were stored and not deleted, and are gone but for a trace."""

    def inspect(self, run_id: str) -> Inspection | None:
        """Read all that is whole of a run; None if there is no such run."""

    def rewrite(
        self, run_id: str, records: Sequence[Record], hidden: Collection[int], *, head: int
    ) -> str:
        """Make the run just these records, the newest of them its head. Its ordinal stays.

        *head* is that of the inspection the decision is based on; if the run has grown since,
        this is a `ConflictError` and changes nothing.

        Whatever else was stored of the run is kept aside; returns where. Without any record the
        run is deleted. Leases stay. A crash leaves the old run or the new one.
        """


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
