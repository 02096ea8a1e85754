"""A run that failed keeps where its error came from, at every door."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import call
from tests.executors import jobs

import surehold
from surehold import CheckpointManager, SQLiteStorage, StateGraph
from surehold.executors import Worker, served_by
from surehold.views.values import read_checkpoint

SECRET = "sk-" + "a1B2" * 12


def poison(state: Any = None) -> None:
    raise ValueError(f"poison {SECRET}")


def by_loop(storage: SQLiteStorage) -> None:
    with surehold.run("failed", storage=storage) as run:
        run.checkpoint(n=1)
        poison()


def by_function(storage: SQLiteStorage) -> None:
    @surehold.workflow
    def work() -> None:
        poison()

    work.run(run_id="failed", storage=storage)


def by_graph(storage: SQLiteStorage) -> None:
    graph = StateGraph("poisoned", storage=storage)
    graph.add_node("work", poison)
    graph.set_entry_point("work")
    graph.set_exit_point("work")
    graph.run_sync({}, run_id="failed")


@pytest.mark.parametrize("door", [by_loop, by_function, by_graph])
def test_show_says_which_line_of_user_code_raised(
    door: Callable[[SQLiteStorage], None], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        with pytest.raises(Exception, match="poison"):
            door(storage)
        manager = CheckpointManager(storage)
        newest = manager.reader.newest_of("failed")
        assert newest is not None
        shown = read_checkpoint(manager, newest)
    assert "in poison" in shown.traceback and "test_tracebacks.py" in shown.traceback
    assert "surehold/doors" not in shown.traceback
    out = call("show", "failed", "-s", url).out
    assert "raised in" in out and "in poison" in out
    assert SECRET not in out + str(newest.metadata) + shown.traceback + shown.error


def test_a_worker_logs_the_traceback(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    def log(event: str, facts: dict[str, Any]) -> None:
        if event == "run.failed":
            told.append(facts)
            worker.stop()

    with SQLiteStorage(tmp_path / "runs.db") as storage:
        jobs.fails.start(run_id="failed", storage=storage)
        worker = Worker(storage, served_by(["tests.executors.jobs"]), log=log)
        worker.run()
    assert "jobs.py" in told[0]["traceback"] and "in fails" in told[0]["traceback"]
    assert json.dumps(told[0])
