"""What a storage can do about damage: tell what of a run is whole, and go on with just that."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Protocol, runtime_checkable

import msgspec

from holdfast.core.records import Record, open_record
from holdfast.errors import ConflictError, UsageError

__all__ = ["Mending", "Survey", "check_head", "checked_run", "holes", "moment"]


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a run."""

    run_id: str
    records: tuple[Record, ...]
    """Those that are whole, header and body, by seq. Nothing is said of how they fit together."""
    hidden: frozenset[int]
    problems: tuple[str, ...]
    """What is not as it was stored, in words."""
    head: int
    """The newest seq that the medium knows of."""


@runtime_checkable
class Mending(Protocol):
    """A storage that can put what is damaged aside, so that the rest can be used."""

    def check_medium(self, *, mend: bool) -> list[str]:
        """What is wrong with the medium itself, apart from what its runs hold.

        With *mend* it is made right, and what is told was done. What cannot be read is kept.
        """

    def known_runs(self) -> list[str]:
        """The ids of all runs, those that cannot be listed because they are damaged too."""

    def survey(self, run_id: str) -> Survey | None:
        """What of a run is whole; None if there is no such run."""

    def mend(
        self, run_id: str, records: Sequence[Record], hidden: Collection[int], *, head: int
    ) -> str:
        """Make the run just these records, the newest of them its head. Its ordinal stays.

        *head* is that of the survey it was decided on; a run that has gone on since then is a
        `ConflictError`, and stays as it is.

        What else was stored of it is kept aside, never thrown away; returns where. Without any
        record the run is gone. Leases are not touched, and at no moment is less there than before.
        """


def checked_run(run_id: str, records: Sequence[Record]) -> list[Record]:
    """The records, read from their own bytes; refused unless they are a run's, in order."""
    opened = [open_record(r.text, r.header.digest, r.body) for r in records]
    for record in opened:
        if record.header.run_id != run_id:
            raise UsageError(f"a record of another run is no part of {run_id!r}")
    for one, two in pairwise(record.header for record in opened):
        if two.seq <= one.seq or (two.seq == one.seq + 1 and two.prev != one.digest):
            raise UsageError(f"seq {two.seq} does not follow seq {one.seq} in {run_id!r}")
    return opened


def check_head(run_id: str, known: int, now: int) -> None:
    """Refuse to mend a run that has gone on since it was surveyed."""
    if now != known:
        raise ConflictError(
            f"run {run_id!r} has gone on to record {now} since it was looked at",
            hint="look at it again, then mend it",
            run_id=run_id,
            seq=known + 1,
            head=now,
        )


def holes(seqs: Iterable[int]) -> list[tuple[int, int]]:
    """The ranges that ascending seqs pass over, from 1 on.

    >>> holes([1, 2, 5, 6, 9])
    [(3, 4), (7, 8)]
    """
    return [(one + 1, two - 1) for one, two in pairwise([0, *seqs]) if two > one + 1]


def moment() -> str:
    """Now, as part of a file's name."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
