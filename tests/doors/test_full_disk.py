"""A full disk at every door: a typed error, nothing lost, and with room again the work is done."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypedDict

import pytest
from tests.builders.fleets import manager as boss
from tests.builders.fleets import team

import surehold
from surehold import (
    Agent,
    CheckpointManager,
    Fleet,
    State,
    StateGraph,
    StateManager,
    interrupt,
    step,
    workflow,
)
from surehold.errors import StorageFullError
from surehold.testing.scripted import ScriptedModel

TEXT = os.urandom(30_000).hex()
"""Does not fit, however it is compressed."""
MEDIA = {"sqlite": "sqlite:///{}/runs.db", "files": "file:{}/runs"}

Door = Callable[[str], None]


def fill(path: Path) -> None:
    """Take what room is left."""
    for size in (4096, 512, 1):
        with suppress(OSError), path.open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * size)


@step
def look_up(_: str) -> str:
    return TEXT


@workflow(name="looks-up")
def looks_up(text: str) -> int:
    return len(look_up(text))


def executed_workflow(url: str) -> None:
    result = looks_up.run("page", run_id="r", storage=url)
    assert result.value == len(TEXT)


def queued_workflow(url: str) -> None:
    looks_up.start(TEXT, run_id="r", storage=url)


def make_graph(url: str) -> StateGraph:
    graph = StateGraph("g", storage=url)
    graph.add_node("n", lambda state: {"text": TEXT})
    graph.set_entry_point("n")
    graph.set_exit_point("n")
    return graph


def executed_graph(url: str) -> None:
    graph = make_graph(url)
    try:
        assert graph.run_sync({}, run_id="r").state["text"] == TEXT
    finally:
        asyncio.run(graph.close())


def queued_graph(url: str) -> None:
    graph = make_graph(url)
    try:
        graph.start_sync({"text": TEXT}, run_id="r", entry_point="app:graph")
    finally:
        asyncio.run(graph.close())


def agent(url: str) -> None:
    async def execute() -> None:
        async with Agent("a", storage=url, model=ScriptedModel([TEXT])) as made:
            assert (await made.run("say it", run_id="r")).answer == TEXT

    asyncio.run(execute())


def fleet(url: str) -> None:
    async def execute() -> None:
        async with Fleet(boss(1), team(), storage=url, name="f") as made:
            assert (await made.run(TEXT, run_id="r")).status == "completed"

    asyncio.run(execute())


def own_loop(url: str) -> None:
    with surehold.run("r", storage=url) as run:
        run.state["text"] = run.call(lambda: TEXT)


def group(url: str) -> None:
    with CheckpointManager(url) as manager:
        crew = surehold.group("crew", ["a", "b"], storage=manager)
        states = [State.new({"text": TEXT}, run_id=run_id) for run_id in "ab"]
        try:
            crew.checkpoint(states)
        except StorageFullError:
            assert crew.latest() is None
            assert manager.resume_from_latest("a") is manager.resume_from_latest("b") is None
            raise


def fork(url: str) -> None:
    with CheckpointManager(url) as manager:
        (newest,) = manager.list_checkpoints("large")
        manager.fork_from_checkpoint(newest.checkpoint_id, "r")


def imported(url: str) -> None:
    with CheckpointManager("memory://") as other, CheckpointManager(url) as manager:
        other.save_checkpoint(State.new({"text": TEXT}, run_id="r"))
        path = Path("r.surehold")
        path.unlink(missing_ok=True)
        other.export_run("r", path)
        manager.import_run(path)
        assert manager.resume_from_latest("r")["text"] == TEXT


def exported(url: str) -> None:
    path = Path(url.partition(":")[2].removeprefix("///")).parent / "job.surehold"
    with CheckpointManager("memory://") as other:
        other.save_checkpoint(State.new({"text": TEXT}, run_id="r"))
        try:
            other.export_run("r", path)
        except StorageFullError:
            assert not [one for one in path.parent.iterdir() if "surehold" in one.name]
            raise


def langgraph(url: str) -> None:
    pytest.importorskip("langgraph")
    from langgraph.graph import END, START
    from langgraph.graph import StateGraph as TheirGraph

    from surehold.integrations.langgraph import SureholdSaver

    class Channels(TypedDict):
        text: str

    builder = TheirGraph(Channels)
    builder.add_node("n", lambda state: {"text": TEXT})
    builder.add_edge(START, "n")
    builder.add_edge("n", END)
    config: Any = {"configurable": {"thread_id": "t"}}
    with SureholdSaver(CheckpointManager(url)) as saver:
        graph = builder.compile(checkpointer=saver)
        assert graph.invoke({"text": "x"}, config, durability="sync")["text"] == TEXT


def answer(url: str) -> None:
    """Ask with room, answer without."""
    with CheckpointManager(url) as manager:
        (waiting,) = surehold.pending("asks", storage=manager)
        try:
            surehold.answer("asks", waiting.id, TEXT, storage=manager)
        except StorageFullError:
            assert [one.id for one in surehold.pending("asks", storage=manager)] == [waiting.id]
            raise


DOORS: dict[str, Door] = {
    "workflow": executed_workflow,
    "graph": executed_graph,
    "agent": agent,
    "fleet": fleet,
    "own loop": own_loop,
    "group": group,
    "fork": fork,
    "import": imported,
    "export": exported,
    "LangGraph": langgraph,
    "answer": answer,
}
QUEUES: dict[str, Door] = {"queued workflow": queued_workflow, "queued graph": queued_graph}
CASES = [(door, medium) for door in DOORS for medium in MEDIA]
CASES += [(door, "sqlite") for door in QUEUES]


def asks(url: str) -> None:
    async def ask(state: State) -> dict[str, Any]:
        return {"said": await interrupt("which?")}

    async def execute() -> None:
        async with StateManager(url) as manager:
            graph = StateGraph("asks", manager=manager)
            graph.add_node("n", ask)
            graph.set_entry_point("n")
            graph.set_exit_point("n")
            assert (await graph.run({}, run_id="asks")).status == "waiting"

    asyncio.run(execute())


@pytest.mark.parametrize(("door", "medium"), CASES)
def test_a_full_disk_is_reported_loses_nothing_and_the_work_continues(
    door: str,
    medium: str,
    small_disk: Callable[[int], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    disk = small_disk(400)
    url = MEDIA[medium].format(disk)
    with CheckpointManager(url) as manager:
        for number in range(1, 4):
            manager.save_checkpoint(State.new({"n": number}, run_id=f"job{number}", name="job"))
        if door == "fork":
            manager.save_checkpoint(State.new({"text": TEXT}, run_id="large"))
    if door == "answer":
        asks(url)
    fill(disk / "rest")
    enter = {**DOORS, **QUEUES}[door]
    with pytest.raises(StorageFullError):
        enter(url)
    with CheckpointManager(url) as manager:  # there is still no room
        assert all(manager.verify())
        for number in range(1, 4):
            assert manager.resume_from_latest(f"job{number}").to_dict() == {"n": number}
    (disk / "rest").unlink()
    small_disk(8_000)
    enter(url)
    with CheckpointManager(url) as manager:
        assert all(manager.verify())
