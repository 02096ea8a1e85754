"""`surehold replay RUN` without a command: the first step that other code makes differently."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold import CheckpointManager, Fleet, State, StateGraph
from surehold.agents.models import Reply
from surehold.agents.models.model import ToolCall
from surehold.doors.resume import replay_run
from surehold.testing.scripted import ScriptedModel

LIVE: list[str] = []
"""What was really called."""


def called(what: str) -> str:
    LIVE.append(what)
    return what


def graph_of(new: bool, storage: str) -> StateGraph:
    graph = StateGraph("report", storage=storage)

    async def plan(state: State) -> State:
        made = await surehold.effect("plan", called, "plan", in_doubt="retry")
        return state.merge({"plan": made})

    def write(state: State) -> State:
        return state.merge({"text": state["plan"].upper() if new else state["plan"]})

    graph.add_node("plan", plan)
    graph.add_node("write", write)
    graph.add_node("end", lambda state: state)
    graph.add_edge("plan", "write")
    graph.add_edge("write", "end")
    graph.set_entry_point("plan")
    graph.set_exit_point("end")
    return graph


def flow_of(new: bool) -> Any:
    @surehold.step
    def fetch(page: str) -> str:
        return called(page)

    @surehold.workflow(name="pages")
    def pages(names: list[str]) -> list[str]:
        found = [fetch(name) for name in names]
        return found[::-1] if new else found

    return pages


@surehold.tool
def look(name: str) -> str:
    """Look a name up."""
    return called(name)


def agent_of(new: bool, storage: str) -> surehold.Agent:
    def script(messages: Any) -> Reply:
        done = sum(one["role"] == "tool" for one in messages)
        if done == 2:
            return Reply(text="done")
        call = ToolCall(id=f"c{done}", name="look", arguments={"name": "kelp"})
        return Reply(text="", tool_calls=[call])

    tools = [] if new else [look]
    model = ScriptedModel(script)
    return surehold.Agent("curious", model=model, tools=tools, storage=storage)


def fleet_of(new: bool, storage: str) -> Fleet:
    def manage(messages: Any) -> str:
        if "Judge the work" not in str(messages[-1]["content"]):
            return "a text"
        done = any(str(one["content"]).startswith("To ") for one in messages)
        said = {
            "is_request_satisfied": done,
            "is_in_loop": False,
            "is_progress_being_made": True,
            "next_speaker": "one",
            "instruction_or_question": "work",
        }
        return json.dumps({key: {"reason": "so", "answer": value} for key, value in said.items()})

    async def one(instruction: str) -> str:
        return called("one")

    one.__doc__ = "Works harder." if new else "Works."
    return Fleet(ScriptedModel(manage), {"one": one}, storage)


async def run_graph(storage: str) -> None:
    await graph_of(False, storage).run({}, run_id="mine")


async def run_flow(storage: str) -> None:
    await asyncio.to_thread(flow_of(False).run, ["a", "b"], run_id="mine", storage=storage)


async def run_agent(storage: str) -> None:
    await agent_of(False, storage).run("work", run_id="mine")


async def run_fleet(storage: str) -> None:
    async with fleet_of(False, storage) as fleet:
        await fleet.run("work", run_id="mine")


DOORS: dict[str, tuple[Callable[[str], Any], Callable[[bool, str], Any], int, str]] = {
    "graph": (run_graph, graph_of, 2, "the state differs"),
    "function": (run_flow, lambda new, url: flow_of(new), 2, "the state differs"),
    "agent": (run_agent, agent_of, 1, "the state differs"),
    "fleet": (run_fleet, lambda new, url: fleet_of(new, url).graph, 1, "other arguments"),
}
"""How each door runs, the old and the new code, and the first step that differs."""


@pytest.mark.parametrize("door", DOORS)
def test_the_first_step_that_differs_is_named_and_nothing_is_called(
    tmp_path: Path, door: str
) -> None:
    run, code, step, detail = DOORS[door]
    storage = f"sqlite:///{tmp_path}/runs.db"
    asyncio.run(run(storage))
    LIVE.clear()
    with CheckpointManager(storage) as manager:
        before = [one.checkpoint_id for one in manager.list_checkpoints("mine")]
        same = replay_run(manager, code(False, "memory://").as_resumable(), "mine")
        assert (same.step, same.steps) == (None, same.of) and same.of > 0
        other = replay_run(manager, code(True, "memory://").as_resumable(), "mine")
        assert other.step == step and detail in other.detail
        assert [one.checkpoint_id for one in manager.list_checkpoints("mine")] == before
    assert LIVE == []


def test_a_workflow_that_has_not_ended_is_replayed_up_to_its_first_live_call(
    tmp_path: Path,
) -> None:
    @surehold.step
    def fetch(page: str) -> str:
        if page == "b":
            raise KeyboardInterrupt
        return called(page)

    def code(change: Callable[[str], str]) -> Any:
        @surehold.workflow(name="pages")
        def pages(names: list[str]) -> list[str]:
            return [fetch(change(name)) for name in names]

        return pages

    storage = f"sqlite:///{tmp_path}/runs.db"
    with pytest.raises(KeyboardInterrupt):
        code(str).run(["a", "b"], run_id="mine", storage=storage)
    LIVE.clear()
    with CheckpointManager(storage) as manager:
        assert replay_run(manager, code(str).as_resumable(), "mine").step is None
        other = replay_run(manager, code(str.upper).as_resumable(), "mine")
    assert other.step is not None and "other arguments" in other.detail
    assert LIVE == []


APP = """\
import os, httpx, surehold
from surehold import StateGraph

def plan(state):
    if "ASKS" in os.environ:
        body = {"model": "m", "messages": []}
        httpx.post("http://127.0.0.1:9/v1/chat/completions", json=body)
    return state.merge({"plan": os.environ.get("PLAN", "dive")})

graph = StateGraph("report", storage="sqlite:///runs.db")
graph.add_node("plan", plan)
graph.set_entry_point("plan")
graph.set_exit_point("plan")
if __name__ == "__main__":
    graph.run_sync({}, run_id="mine")
"""


def test_the_command_shows_the_step(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)

    def shell(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "SUREHOLD_STORAGE": "sqlite:///runs.db", **more}
        return subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    replay = ("-m", "surehold", "replay", "mine", "--yes")
    assert shell("app.py").returncode == 0
    same = shell(*replay)
    assert (same.returncode, "states are the same" in same.stdout) == (0, True), same.stderr
    other = shell(*replay, PLAN="swim")
    assert other.returncode == 8 and "mine@1 (plan): the state differs" in other.stdout
    assert 'plan "dive" -> "swim"' in other.stdout
    asks = shell(*replay, "--json", ASKS="1")
    told = json.loads(asks.stdout)
    assert (told["step"], told["node"]) == (1, "plan") and "fits no recorded call" in told["detail"]
