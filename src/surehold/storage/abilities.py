"""Abilities that a storage may have: to be diagnosed, to be repaired."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from surehold.core.records import Record


class Fact(msgspec.Struct, frozen=True):
    """A diagnostic: a value, and a problem if there is one."""

    name: str
    value: str
    problem: str = ""
    hint: str = ""
    """The command or the setting that removes the problem."""


@runtime_checkable
class Diagnosable(Protocol):
    """A storage that can report on the server behind it."""

    def diagnose(self) -> list[Fact]:
        """Ask the server for version, durability, clock and rights, changing nothing."""


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
