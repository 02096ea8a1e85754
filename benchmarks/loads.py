"""Loads of a large state: all of it, one value of it, and the same again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.report import Line
from benchmarks.workload import message
from surehold import CheckpointManager, SQLiteStorage, State

__all__ = ["measure"]

_STEPS = 1000
_ROUNDS = 15


def measure(directory: Path) -> Iterator[Line]:
    """Compare, in turns on one database, loads that differ in what is asked for."""
    with SQLiteStorage(directory / "runs.db") as storage:
        manager = CheckpointManager(storage)
        state = State.new({"messages": [], "done": 0}, run_id="run")
        for step in range(1, _STEPS + 1):
            state = state.append("messages", message(step)).set("done", step).at(step=step)
            newest = manager.save_checkpoint(state)
        whole, part, again, part_again = [], [], [], []
        for _ in range(_ROUNDS):
            fresh, other = CheckpointManager(storage), CheckpointManager(storage)
            whole.append(_seconds(partial(_messages, fresh, newest)))
            again.append(_seconds(partial(_messages, fresh, newest)))
            part.append(_seconds(partial(_done, other, newest)))
            part_again.append(_seconds(partial(_done, fresh, newest)))
    what = f"a state of {_STEPS:,} messages of 1 KB"
    yield Line(f"one value of {what}: time / the whole", median(part) / median(whole), 0.9)
    yield Line(f"{what} loaded again: time / the first", median(again) / median(whole), 0.9)
    yield Line("one value of it again: time / the whole", median(part_again) / median(whole), 0.1)


def _messages(manager: CheckpointManager, checkpoint_id: str) -> None:
    loaded = manager.load_checkpoint(checkpoint_id)
    assert isinstance(loaded, State) and len(list(loaded["messages"])) == _STEPS


def _done(manager: CheckpointManager, checkpoint_id: str) -> None:
    assert manager.load_checkpoint(checkpoint_id, keys=["done"]) == {"done": _STEPS}


def _seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
