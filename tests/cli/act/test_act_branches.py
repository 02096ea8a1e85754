"""`surehold resume` of a run that has left a branch: the checkpoint that is named, and no other."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.conftest import Result, call

from surehold import State
from surehold.doors.resume.entry_points import load_resumable
from surehold.errors import StepError

PROGRAM = """
import os
from surehold import CheckpointConfig, GraphConfig, State, StateGraph


def look(state):
    step = state.step + 1
    if str(step) == os.environ["STOP"]:
        raise RuntimeError("stop")
    return {"way": [*state["way"], f"{os.environ['WAY']}{step}"]}


def end(state):
    if os.environ["STOP"] == "inside":
        raise RuntimeError("stop")


inner = StateGraph(GraphConfig(name="inner"))
inner.add_node("calm", lambda state: None)
inner.add_node("end", end)
inner.add_edge("calm", "end")
inner.set_entry_point("calm")
inner.set_exit_point("end")

config = CheckpointConfig(store="sqlite:///app.db", interval=1, preserve=True)
graph = StateGraph(GraphConfig(name="walk", checkpoint=config))
graph.add_node("look", look)
graph.add_node("in", inner)
graph.add_edge("look", "in", lambda state: state.step >= 8)
graph.add_edge("look", "look")
graph.set_entry_point("look")
graph.set_exit_point("in")
"""


class Walk:
    """The graph, executed each time until the step at which it is to fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._set = monkeypatch.setenv
        self._graph: Any = load_resumable("walk_app:graph")

    def set(self, way: str, stop: str) -> None:
        self._set("WAY", way)
        self._set("STOP", stop)

    def begin(self, stop: str) -> None:
        self.set("one", stop)
        with pytest.raises(StepError):
            self._graph.execute_sync(State.new({"way": []}, run_id="r"))

    def leave_at_2(self, stop: str) -> None:
        self.set("two", stop)
        with pytest.raises(StepError):
            self._graph.resume_sync("r", step=2)


@pytest.fixture
def walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Walk:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "walk_app.py").write_text(PROGRAM)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "walk_app", raising=False)
    return Walk(monkeypatch)


def on_app(*words: str) -> Result:
    return call("-s", "sqlite:///app.db", *words)


def resumed(address: str, *words: str) -> Result:
    return on_app("resume", address, "--entry", "walk_app:graph", *words)


def listed(*words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = on_app("log", "r", "--all", *words, "--json").json()["checkpoints"]
    return rows


def walked() -> Any:
    return msgspec.json.decode(on_app("cat", "r:state.way").out)


@pytest.mark.parametrize("stop", ["4", "7"])
@pytest.mark.parametrize("address", ["{id}", "tag:mine", "r~{back}"])
def test_a_run_goes_on_from_the_very_checkpoint_that_is_named(
    walk: Walk, stop: str, address: str
) -> None:
    walk.begin(stop="7")
    named = next(row["checkpoint_id"] for row in listed() if row["step"] == 5)
    assert on_app("tag", named, "mine").code == 0
    walk.leave_at_2(stop)
    back = next(n for n, row in enumerate(listed()) if row["checkpoint_id"] == named)
    address = address.format(id=named, back=back)
    walk.set("three", stop="never")
    dry = resumed(address, "--dry-run")
    assert (
        "would resume from the checkpoint of step 5, on a branch that the run had left" in dry.err
    )
    done = resumed(address)
    assert done.code == 0, done.err
    assert "resumes from the checkpoint of step 5, on a branch that the run had left" in done.err
    assert walked() == ["one1", "one2", "one3", "one4", "one5", "three6", "three7", "three8"]


def test_a_run_that_came_back_to_a_way_is_taken_back_along_it(walk: Walk) -> None:
    walk.begin(stop="7")
    fourth, fifth = (
        next(row["checkpoint_id"] for row in listed() if row["step"] == step) for step in (4, 5)
    )
    walk.leave_at_2(stop="4")
    walk.set("three", stop="never")
    assert resumed(fifth).code == 0
    assert "rewound from step 9 to step 4" in resumed(fourth, "--dry-run").err


def test_a_checkpoint_at_which_the_run_was_completed_has_nothing_to_run(walk: Walk) -> None:
    walk.begin(stop="7")
    walk.set("one", stop="never")
    assert resumed("r").code == 0
    done = listed()[0]["checkpoint_id"]
    walk.leave_at_2(stop="4")
    before = listed()
    again = resumed(done)
    assert (
        again.code == 0 and "was completed at that checkpoint, of step 9: nothing runs" in again.err
    )
    assert listed() == before


def test_a_run_is_not_resumed_from_a_checkpoint_of_a_graph_inside_it(walk: Walk) -> None:
    walk.begin(stop="inside")
    inner = listed("--scope", "in@9")[0]["checkpoint_id"]
    before = listed()
    for words in ((), ("--dry-run",)):
        wrong = resumed(inner, *words)
        assert wrong.code == 2 and "is of the nested scope 'in@9' of run 'r'" in wrong.err
    assert listed() == before


def test_a_step_that_only_a_way_that_was_left_came_to_is_not_said_never_to_have_been(
    walk: Walk,
) -> None:
    walk.begin(stop="7")
    walk.leave_at_2(stop="4")
    wrong = on_app("show", "r@5")
    assert wrong.code == 4 and "run 'r' is at step 3, not 5" in wrong.err
