"""What a run publishes is read while it works, merged by name, and not published again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import call

import surehold
from surehold import CheckpointManager, State, StateGraph, step, workflow
from surehold.errors import NotFoundError, UsageError
from surehold.executors import handle
from surehold.storage.base import RecordQuery

seen: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    seen.clear()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as made:
        yield made


def notes(manager: CheckpointManager, run_id: str = "p") -> int:
    query = RecordQuery(run_id=run_id, kind="published", notes=True)
    return len([*manager.storage.headers(query)])


def test_values_are_merged_and_read_while_the_run_works(manager: CheckpointManager) -> None:
    @step
    def look() -> None:
        seen.append(handle("p", storage=manager).status_of())

    @workflow
    def job() -> str:
        surehold.publish(status="reading", progress=0.4)
        look()
        surehold.publish(progress=1.0, url="https://example.com/1")
        return str(surehold.receive("go"))

    job.run(run_id="p", storage=manager, wait=False)
    assert seen == [{"status": "reading", "progress": 0.4}]
    whole = {"status": "reading", "progress": 1.0, "url": "https://example.com/1"}
    assert handle("p", storage=manager).status_of() == whole
    surehold.send("p", "go", "now", storage=manager)
    assert job.resume("p", storage=manager).completed
    assert handle("p", storage=manager).status_of() == whole
    assert notes(manager) == 2, "a replay publishes nothing again"


async def test_async_code_awaits_it(manager: CheckpointManager) -> None:
    @workflow
    async def job() -> None:
        await surehold.publish(status="begun")
        surehold.publish(status="forgotten")

    with pytest.raises(UsageError, match="not awaited"):
        await job.run(run_id="p", storage=manager)
    assert handle("p", storage=manager).status_of() == {"status": "begun"}


def test_a_loop_and_a_node_publish(manager: CheckpointManager, tmp_path: Path) -> None:
    with surehold.run("p", storage=manager) as run:
        for item in run.each([1, 2, 3]):
            surehold.publish(progress=item / 3)
    assert handle("p", storage=manager).status_of() == {"progress": 1.0}

    async def node(state: State) -> dict[str, Any]:
        await surehold.publish(status="in the node")
        return {}

    graph = StateGraph("publishes", storage=manager.storage)
    graph.add_node("one", node)
    graph.set_entry_point("one")
    graph.set_exit_point("one")
    asyncio.run(graph.run({}, run_id="g"))
    assert handle("g", storage=manager).status_of() == {"status": "in the node"}
    graph.run_sync({}, run_id="g") if hasattr(graph, "run_sync") else None
    shown = call("-s", f"sqlite:///{tmp_path}/runs.db", "show", "p", "--json").json()
    assert shown["published"] == {"progress": 1.0}
    assert "progress" in call("-s", f"sqlite:///{tmp_path}/runs.db", "show", "p").out


def test_nothing_published_is_nothing(manager: CheckpointManager) -> None:
    with surehold.run("p", storage=manager):
        pass
    assert handle("p", storage=manager).status_of() == {}
    with pytest.raises(NotFoundError):
        surehold.executors.handle("gone", storage=manager)
    with pytest.raises(UsageError):
        surehold.publish()
    surehold.publish(status="outside of a run")
