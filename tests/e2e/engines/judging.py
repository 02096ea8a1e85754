"""Compares the journals with what the log of `tests.executors.counting` tells."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec
from tests.executors.counting import STEPS, count, expected

from holdfast import RecordQuery, RunQuery, Storage


class Line(msgspec.Struct, frozen=True, array_like=True):
    """One event of one execution of a step."""

    event: str
    run_id: str
    number: int
    epoch: int
    pid: int

    @property
    def is_last(self) -> bool:
        """True for the end of a run's last step."""
        return self.event == "end" and self.number == STEPS


class Verdict(msgspec.Struct, frozen=True):
    """The counts of a trial that was judged to be sound."""

    runs: int
    steps: int
    executions: int
    in_flight: int
    """Steps that were in flight at a fault."""
    fenced: int
    """Executions that ended after another process had begun the same step under a newer epoch."""

    @property
    def repeated(self) -> int:
        """Executions beyond one for each step."""
        return self.executions - self.steps


class Log:
    """The log, while processes still write to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.in_flight = 0

    def lines(self) -> list[Line]:
        """All lines so far."""
        if not self.path.exists():
            return []
        text = self.path.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        return [msgspec.convert(json.loads(line), Line) for line in whole.splitlines()]

    def note_fault(self, pids: Iterable[int]) -> int:
        """Count the steps in flight in processes that are stopped and will not end them.

        A run has one step at a time. The one that a process wrote about last may or may not have
        been committed, so each run whose newest line is from such a process counts once.
        """
        newest = {line.run_id: line for line in self.lines()}
        stopped = set(pids)
        found = sum(line.pid in stopped for line in newest.values() if not line.is_last)
        self.in_flight += found
        return found

    def judge(self, storage: Storage, seeds: dict[str, int]) -> Verdict:
        """Raise AssertionError unless every run came to what it comes to without any fault."""
        lines = self.lines()
        executions = [line for line in lines if line.event == "begin"]
        by_run: dict[str, list[Line]] = defaultdict(list)
        for line in executions:
            by_run[line.run_id].append(line)
        _check_ends(storage, seeds)
        for run_id in seeds:
            numbers = [line.number for line in by_run[run_id]]
            first = list(dict.fromkeys(numbers))
            assert first == list(range(1, STEPS + 1)), f"{run_id}: steps in the order {numbers}"
            assert by_run[run_id][0].epoch >= 1
        epochs = _journal_epochs(storage, seeds)
        verdict = Verdict(
            runs=len(seeds),
            steps=len(seeds) * STEPS,
            executions=len(executions),
            in_flight=self.in_flight,
            fenced=_fenced(lines, epochs),
        )
        assert verdict.repeated <= verdict.in_flight, verdict
        return verdict


def _check_ends(storage: Storage, seeds: dict[str, int]) -> None:
    runs = {run.run_id: run for run in storage.runs(RunQuery())}
    lost = seeds.keys() - runs.keys()
    assert not lost, f"{len(lost)} runs are lost: {sorted(lost)[:3]}"
    for run_id, seed in seeds.items():
        assert runs[run_id].status == "completed", runs[run_id]
        found = count.result(run_id, storage=storage)
        assert found.value == expected(seed), (run_id, found)
        assert found.step == STEPS, (run_id, found)


def _journal_epochs(storage: Storage, seeds: dict[str, int]) -> dict[str, list[int]]:
    """The epochs of each run's records by seq, which never fall."""
    made = {}
    for run_id in seeds:
        headers = [*storage.headers(RecordQuery(run_id=run_id, notes=True))][::-1]
        epochs = [header.epoch for header in headers if header.epoch]
        assert epochs == sorted(epochs), f"{run_id}: epochs {epochs}"
        made[run_id] = epochs
    return made


def _fenced(lines: list[Line], epochs: dict[str, list[int]]) -> int:
    begun: dict[tuple[str, int], int] = {}
    found = 0
    for line in lines:
        place = line.run_id, line.number
        if line.event == "begin":
            begun[place] = max(begun.get(place, 0), line.epoch)
        elif line.epoch < begun.get(place, 0):
            assert begun[place] in epochs[line.run_id], f"{place}: the newer epoch wrote nothing"
            found += 1
    return found
