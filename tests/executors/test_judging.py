"""The judge of trials: what it accepts of a log and a journal, and what it refuses."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.engines.judging import Log, Verdict
from tests.executors.counting import STEPS, count

from surehold import SQLiteStorage
from surehold.executors import drive
from surehold.storage.base import this_process

Lines = list[list[object]]
SEEDS = {"run": 7}
FIRST, SECOND, THIRD = 101, 102, 103
"""Processes that had the run under the epochs 1, 2 and 3; the second one recorded all steps."""


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SQLiteStorage]:
    with SQLiteStorage(tmp_path_factory.mktemp("judging") / "runs.db") as storage:
        count.start(SEEDS["run"], run_id="run", storage=storage)
        storage.release_lease(storage.take_lease("run", this_process(), now=time.time(), ttl=60))
        assert drive("run", storage=storage).outcome == "completed"
        yield storage


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


def executed(number: int, epoch: int = 2, pid: int = SECOND) -> Lines:
    return [[event, "run", number, epoch, pid] for event in ("begin", "end")]


def steps(first: int = 1, last: int = STEPS) -> Lines:
    return [line for number in range(first, last + 1) for line in executed(number)]


def write(log: Log, lines: Lines) -> None:
    log.path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def judged(log: Log, storage: SQLiteStorage, lines: Lines) -> Verdict:
    write(log, lines)
    return log.judge(storage, SEEDS)


def test_without_a_fault_each_step_is_executed_once(log: Log, storage: SQLiteStorage) -> None:
    verdict = judged(log, storage, steps())
    assert (verdict.repeated, verdict.fenced) == (0, 0)


def test_a_step_in_flight_may_be_executed_again(log: Log, storage: SQLiteStorage) -> None:
    begin, end = executed(1, 1, FIRST)
    verdict = judged(log, storage, [begin, *steps(1, 3), end, *steps(4)])
    assert (verdict.repeated, verdict.fenced) == (1, 1)


def test_a_recorded_step_may_not_be_executed_again(log: Log, storage: SQLiteStorage) -> None:
    with pytest.raises(AssertionError, match="executed again"):
        judged(log, storage, [*steps(), *executed(4, 3, THIRD)])


def test_a_step_is_executed_once_under_an_epoch(log: Log, storage: SQLiteStorage) -> None:
    with pytest.raises(AssertionError, match="twice under one epoch"):
        judged(log, storage, [*steps(), *executed(4)])


def test_no_step_follows_one_without_a_record(log: Log, storage: SQLiteStorage) -> None:
    with pytest.raises(AssertionError, match="without a record"):
        judged(log, storage, [*executed(1, 1, FIRST), *executed(2, 1, FIRST), *steps()])


def test_what_is_recorded_was_executed_under_its_epoch(log: Log, storage: SQLiteStorage) -> None:
    with pytest.raises(AssertionError, match="not executed"):
        judged(log, storage, [*executed(1, 1, FIRST), *steps(2)])


def test_a_late_line_does_not_hide_who_has_the_run(log: Log) -> None:
    begin, end = executed(1, 1, FIRST)
    write(log, [begin, *steps(1, 3), end])
    assert log.note_fault([FIRST]) == 0
    assert log.note_fault([SECOND]) == 1
