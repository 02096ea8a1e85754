"""Savings of resumes and replays: calls, money and time, by run, name and day."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from surehold.engine.managers import CheckpointManager
from surehold.integrations.recorder.shelves import SAVED
from surehold.storage.base import RecordQuery, RunInfo, RunQuery


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """The calls, money and time that one run, name or day did not pay again."""

    group: str
    runs: int = 1
    starts: int = 0
    """Starts that were answered from a journal."""
    calls: int = 0
    dollars: float = 0.0
    seconds: float = 0.0

    def plus(self, other: Saving) -> Saving:
        """Both together."""
        return Saving(
            group=self.group,
            runs=self.runs + other.runs,
            starts=self.starts + other.starts,
            calls=self.calls + other.calls,
            dollars=self.dollars + other.dollars,
            seconds=self.seconds + other.seconds,
        )


GROUPS: dict[str, Callable[[RunInfo, str], str]] = {
    "run": lambda run, day: run.run_id,
    "name": lambda run, day: run.name or run.run_id,
    "day": lambda run, day: day,
}


def read_savings(manager: CheckpointManager, by: str = "run") -> tuple[list[Saving], Saving]:
    """The savings of all runs of a storage, the largest first, and their total."""
    group = GROUPS[by]
    found: dict[str, Saving] = {}
    seen: set[tuple[str, str]] = set()
    for run in manager.storage.runs(RunQuery()):
        for day, one in _of_run(manager, run):
            name = group(run, day)
            made = msgspec.structs.replace(
                one, group=name, runs=int((name, run.run_id) not in seen)
            )
            seen.add((name, run.run_id))
            found[name] = found[name].plus(made) if name in found else made
    rows = sorted(found.values(), key=lambda one: (-one.dollars, -one.calls, one.group))
    total = Saving(group="", runs=0)
    for row in rows:
        total = total.plus(row)
    return rows, total


def _of_run(manager: CheckpointManager, run: RunInfo) -> Iterator[tuple[str, Saving]]:
    """Day and saving of a run's starts, which their records tell."""
    starts: dict[int, tuple[str, dict[str, Any]]] = {}
    for header in manager.storage.headers(RecordQuery(run_id=run.run_id, notes=True)):
        told: Any = header.metadata.get(SAVED)
        if isinstance(told, dict) and told.get("start") not in starts:  # the newest comes first
            starts[told["start"]] = (f"{header.saved_at:%Y-%m-%d}", told)
    for day, told in starts.values():
        one = Saving(
            group=day,
            starts=1,
            calls=int(told["calls"]),
            dollars=float(told["dollars"]),
            seconds=float(told["seconds"]),
        )
        yield day, one
