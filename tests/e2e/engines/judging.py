"""Compares the journals with what the log of `tests.executors.counting` tells."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import msgspec
from tests.executors.counting import STEPS, count, expected

from surehold import RecordQuery, RunQuery, Storage


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
    """Steps that were begun, and as far as the log tells not recorded, at a fault."""
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

    def at_work(self) -> dict[str, Line]:
        """The newest line of each run that has steps left, from the process that has its lease.

        A process that lost a run may write later than the one that has it, under a lower epoch.
        """
        newest: dict[str, Line] = {}
        for line in self.lines():
            if line.run_id not in newest or line.epoch >= newest[line.run_id].epoch:
                newest[line.run_id] = line
        return {run_id: line for run_id, line in newest.items() if not line.is_last}

    def note_fault(self, pids: Iterable[int]) -> int:
        """Count the runs that processes, which are stopped, have at work.

        It is a figure and no bound: a process may be stopped after it took a run and before it
        wrote a line, and may lose its lease without a fault where the machine is busy.
        """
        stopped = set(pids)
        found = sum(line.pid in stopped for line in self.at_work().values())
        self.in_flight += found
        return found

    def judge(self, storage: Storage, seeds: dict[str, int]) -> Verdict:
        """Raise AssertionError unless every run came to what it comes to without any fault.

        A step that is recorded is never executed again under a newer epoch, and of each epoch at
        most one execution is not recorded: the one in flight when its process lost the run.
        """
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
        recorded = {run_id: _recorded(storage, run_id) for run_id in seeds}
        for run_id in seeds:
            _check_repeated(by_run[run_id], recorded[run_id])
        return Verdict(
            runs=len(seeds),
            steps=len(seeds) * STEPS,
            executions=len(executions),
            in_flight=self.in_flight,
            fenced=_fenced(lines, recorded),
        )


def _check_ends(storage: Storage, seeds: dict[str, int]) -> None:
    runs = {run.run_id: run for run in storage.runs(RunQuery())}
    lost = seeds.keys() - runs.keys()
    assert not lost, f"{len(lost)} runs are lost: {sorted(lost)[:3]}"
    for run_id, seed in seeds.items():
        assert runs[run_id].status == "completed", runs[run_id]
        found = count.result(run_id, storage=storage)
        assert found.value == expected(seed), (run_id, found)
        assert found.step == STEPS, (run_id, found)


def _recorded(storage: Storage, run_id: str) -> dict[int, int]:
    """The epoch under which each step was recorded; epochs never fall."""
    headers = [*storage.headers(RecordQuery(run_id=run_id, notes=True))][::-1]
    epochs = [header.epoch for header in headers if header.epoch]
    assert epochs == sorted(epochs), f"{run_id}: epochs {epochs}"
    found: dict[int, int] = {}
    for header in headers:
        if header.kind == "effect":
            found.setdefault(header.step, header.epoch)
    assert sorted(found) == list(range(1, STEPS + 1)), f"{run_id}: records of {sorted(found)}"
    return found


def _check_repeated(executions: list[Line], recorded: dict[int, int]) -> None:
    places = [(line.epoch, line.number) for line in executions]
    assert len(places) == len(set(places)), f"twice under one epoch: {executions}"
    missing = {(epoch, number) for number, epoch in recorded.items()} - set(places)
    assert not missing, f"recorded and not executed: {missing} of {executions}"
    again = [line for line in executions if line.epoch > recorded[line.number]]
    assert not again, f"recorded under {recorded} and executed again: {again}"
    lost = Counter(line.epoch for line in executions if line.epoch < recorded[line.number])
    assert all(number == 1 for number in lost.values()), f"went on without a record: {executions}"


def _fenced(lines: list[Line], recorded: dict[str, dict[int, int]]) -> int:
    begun: dict[tuple[str, int], int] = {}
    found = 0
    for line in lines:
        place = line.run_id, line.number
        if line.event == "begin":
            begun[place] = max(begun.get(place, 0), line.epoch)
        elif line.epoch < begun.get(place, 0):
            assert recorded[line.run_id][line.number] > line.epoch, f"a late commit: {line}"
            found += 1
    return found
