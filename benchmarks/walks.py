"""Length of the paths: functions that a warm save enters, and storage calls per operation."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

import surehold
from benchmarks.report import Line
from benchmarks.worker_jobs import nothing, one_step
from benchmarks.workload import message
from surehold import (
    CheckpointConfig,
    CheckpointManager,
    GraphConfig,
    SQLiteStorage,
    State,
    StateGraph,
)
from surehold.engine.leases import Moment
from surehold.executors import Worker, served_by
from surehold.storage.base import Storage

__all__ = ["measure"]

_WARM = 20
"""Saves before the one that is watched."""
_OURS = str(Path(surehold.__file__).parent)
_FUNCTIONS, _MODULES = 45, 15


def measure(directory: Path) -> Iterator[Line]:
    """Watch one warm save of each kind, and count the storage calls of four operations."""
    walks = {
        "run.checkpoint": _run(directory / "run.db"),
        "CheckpointManager.save_checkpoint": _manager(directory / "manager.db"),
    }
    for what, walk in walks.items():
        yield Line(f"functions of {what}", len(walk.entered), _FUNCTIONS, unit="")
        yield Line(f"modules of {what}", len(walk.modules), _MODULES, unit="")
    yield from _limited("a step", _step(directory / "step.db"), 50, 16)
    yield from _limited("a resume", _resume(directory / "resume.db"), 120, 30)
    yield from _limited("a worker's claim and drive", _drive(directory / "drive.db"), 200, 40)
    walk = _graph(directory / "graph.db")
    yield Line("functions of a graph's step", len(walk.entered), unit="")
    yield Line("modules of a graph's step", len(walk.modules), unit="")
    limits = {"save": 1, "resume": 2, "fork": 3, "list a page": 1}
    for what, calls in _calls(directory / "calls.db").items():
        note = ", ".join(calls)
        yield Line(f"storage calls: {what}", len(calls), limits[what], unit="", note=note)


def _limited(what: str, walk: _Walk, functions: int, modules: int) -> Iterator[Line]:
    yield Line(f"functions of {what}", len(walk.entered), functions, unit="")
    yield Line(f"modules of {what}", len(walk.modules), modules, unit="")


class _Walk:
    """Collects the functions of ours that are entered, on threads begun meanwhile as well.

    Comprehensions, lambdas and generated code are no functions here.
    """

    def __init__(self) -> None:
        self.entered: set[tuple[str, str]] = set()
        self.watching = False

    @property
    def modules(self) -> set[str]:
        return {module for module, _ in self.entered}

    def __enter__(self) -> _Walk:
        threading.setprofile(self._look)
        sys.setprofile(self._look)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def of(self, call: Callable[[], object]) -> None:
        """Watch one call."""
        with self:
            self.watching = True
            call()
            self.watching = False

    def _look(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(_OURS) and not code.co_name.startswith("<")
        if self.watching and event == "call" and ours:
            self.entered.add((code.co_filename, code.co_qualname))


def _run(path: Path) -> _Walk:
    walk = _Walk()
    with SQLiteStorage(path) as storage, surehold.run("walk", storage=storage) as run:
        run.state["messages"] = []
        for number in range(_WARM):
            run.state["messages"].append(message(number))
            run.checkpoint()
        storage.compact()  # its log is empty, so that the next save does not bring it in
        run.state["messages"].append(message(_WARM))
        walk.of(run.checkpoint)
    return walk


def _step(path: Path) -> _Walk:
    """A new call of a `@step` inside a workflow."""
    walk = _Walk()

    @surehold.workflow(name="walk a step")
    def steps() -> None:
        for number in range(_WARM):
            nothing(number)
        storage.compact()
        walk.of(lambda: nothing(_WARM))

    with SQLiteStorage(path) as storage:
        steps.run(run_id="walk", storage=storage)
    return walk


def _resume(path: Path) -> _Walk:
    """A workflow's resume, from the call until its own code runs."""
    walk = _Walk()
    died = [True]

    @surehold.workflow(name="walk a resume")
    def resumed() -> None:
        walk.watching = False
        nothing(1)
        if died.pop():
            raise _Died

    with SQLiteStorage(path) as storage:
        for number in range(2):  # of a run before it, so that everything is imported
            run_id = f"walk {number}"
            with suppress(_Died):
                resumed.run(run_id=run_id, storage=storage)
            died.append(False)
            with walk:
                walk.entered.clear()
                walk.watching = True
                resumed.resume(run_id, storage=storage)
            died[:] = [True]
    return walk


def _drive(path: Path) -> _Walk:
    """A worker's claim, drive and settlement of a run with one step."""
    walk = _Walk()
    with SQLiteStorage(path) as storage:
        served = [one for one in served_by(["benchmarks.worker_jobs"]) if "one_step" in one.target]
        for number in range(2):  # a run before it, so that everything is imported
            one_step.start(run_id=f"walk {number}", storage=storage)
            worker = Worker(storage, served, concurrency=1)
            claim = worker._ask
            with walk:
                walk.entered.clear()
                walk.watching = True
                for found in claim(1):
                    worker._execute(worker._begin(found, Moment.now()))
                walk.watching = False
    return walk


class _Died(BaseException):
    """Ends an execution as a kill would: nothing is saved."""


def _manager(path: Path) -> _Walk:
    walk = _Walk()
    with SQLiteStorage(path) as storage:
        manager = CheckpointManager(storage)
        state = _conversation(manager, _WARM)
        storage.compact()
        state = state.append("messages", message(_WARM)).at(step=_WARM + 1)
        walk.of(lambda: manager.save_checkpoint(state))
    return walk


def _conversation(manager: CheckpointManager, steps: int) -> State:
    state = State.new({"messages": []}, run_id="walk")
    for number in range(steps):
        state = state.append("messages", message(number)).at(step=number + 1)
        manager.save_checkpoint(state)
    return state


def _graph(path: Path) -> _Walk:
    """Watch from the end of a node to the start of the next, its checkpoint in between."""
    walk = _Walk()
    with SQLiteStorage(path) as storage:

        def node(state: State) -> State:
            walk.watching = False
            made = state.append("messages", message(state.step))
            walk.watching = state.step == _WARM
            return made

        graph = StateGraph(
            GraphConfig(
                max_iterations=_WARM + 5, checkpoint=CheckpointConfig(store=storage, interval=1)
            )
        )
        graph.add_node("work", node)
        graph.add_node("end", lambda state: None)
        graph.add_edge("work", "end", lambda state: state.step > _WARM + 1)
        graph.add_edge("work", "work")
        graph.set_entry_point("work")
        graph.set_exit_point("end")
        with walk:
            graph.execute_sync(State.new({"messages": []}))
    return walk


def _calls(path: Path) -> dict[str, list[str]]:
    """The storage calls of a save, a resume, a fork and a page of a listing."""
    made: dict[str, list[str]] = {}
    with SQLiteStorage(path) as storage:
        calls = _watched(storage)
        manager = CheckpointManager(storage)
        state = _conversation(manager, _WARM)
        newest = manager.save_checkpoint(state.at(step=_WARM + 1))
        state = state.append("messages", message(_WARM)).at(step=_WARM + 2)
        for what, call in {
            "save": lambda: manager.save_checkpoint(state),
            "resume": lambda: CheckpointManager(storage).resume_from_latest("walk"),
            "fork": lambda: CheckpointManager(storage).fork_from_checkpoint(newest, "forked"),
            "list a page": lambda: manager.list_checkpoints("walk", limit=5),
        }.items():
            calls.clear()
            call()
            made[what] = [*calls]
    return made


def _watched(storage: Storage) -> list[str]:
    """Make a storage list its calls, those within a call left out."""
    calls: list[str] = []
    depth = 0

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if not depth:
                calls.append(name)
            depth += 1
            try:
                return method(*args, **kwargs)
            finally:
                depth -= 1

        return call

    for name in vars(Storage):
        if not name.startswith("_") and callable(method := getattr(storage, name)):
            setattr(storage, name, watched(name, method))
    return calls
