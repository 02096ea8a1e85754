"""A step that says how far it has come continues there, and is given up when it is silent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold import (
    Agent,
    CheckpointManager,
    MemoryStorage,
    RetryPolicy,
    State,
    StateGraph,
    effect,
    step,
    tool,
    workflow,
)
from surehold.agents.models import Reply, ToolCall
from surehold.errors import UsageError
from surehold.testing.scripted import ScriptedModel

done: list[int] = []
began_at: list[int] = []


class Died(BaseException):
    """The process is gone."""


@pytest.fixture(autouse=True)
def fresh() -> None:
    done.clear()
    began_at.clear()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as made:
        yield made


def copy_rows(rows: int) -> int:
    first = surehold.last_heartbeat(0)
    began_at.append(first)
    for row in range(first, rows):
        done.append(row)
        surehold.heartbeat(row + 1)
        if len(done) == 3:
            raise Died
    return rows


async def copy_rows_awaited(rows: int) -> int:
    first = surehold.last_heartbeat(0)
    began_at.append(first)
    for row in range(first, rows):
        done.append(row)
        await surehold.heartbeat(row + 1)
        if len(done) == 3:
            raise Died
    return rows


async def function(storage: Any) -> Any:
    @workflow(name="copying")
    def copying() -> int:
        return step(copy_rows)(6)

    return copying.run(run_id="r", storage=storage).value


async def async_function(storage: Any) -> Any:
    @workflow(name="copying")
    async def copying() -> int:
        return await step(copy_rows_awaited)(6)

    return (await copying.run(run_id="r", storage=storage)).value


async def plain_effect_of_async(storage: Any) -> Any:
    @workflow(name="copying")
    async def copying() -> int:
        return await effect("copy", copy_rows, 6, in_doubt="retry")

    return (await copying.run(run_id="r", storage=storage)).value


async def loop(storage: Any) -> Any:
    with surehold.run("r", storage=storage) as run:
        run.state["rows"] = run.call(copy_rows, 6)
    return run.state["rows"]


async def node(storage: Any) -> Any:
    async def copying(state: State) -> dict[str, Any]:
        return {"rows": await step(copy_rows_awaited)(6)}

    graph = StateGraph("copying", storage=storage.storage)
    graph.add_node("one", copying)
    graph.set_entry_point("one")
    graph.set_exit_point("one")
    if storage.reader.run("r") is None:
        return (await graph.run({}, run_id="r"))["rows"]
    return (await graph.resume("r"))["rows"]


async def agent(storage: Any) -> Any:
    @tool(name="copy", idempotent=True)
    async def copying() -> int:
        return await copy_rows_awaited(6)

    def script(messages: Sequence[dict[str, Any]]) -> Reply | str:
        if messages[-1]["role"] == "tool":
            return str(messages[-1]["content"])
        return Reply(tool_calls=(ToolCall("c1", "copy", {}),))

    made = Agent("a", tools=[copying], model=ScriptedModel(script), storage=storage.storage)
    result = await (made.run("Go", run_id="r") if not done else made.resume("r"))
    return int(str(result.answer))


@pytest.mark.parametrize(
    "door", [function, async_function, plain_effect_of_async, loop, node, agent]
)
async def test_a_call_that_died_continues_where_it_told_last(
    manager: CheckpointManager, door: Any
) -> None:
    with pytest.raises(Died):
        await door(manager)
    assert await door(manager) == 6
    assert began_at == [0, 3]
    assert done == [*range(6)]


def test_a_retry_continues_too(manager: CheckpointManager) -> None:
    @step(retries=1, backoff=0)
    def copying() -> int:
        told = surehold.last_heartbeat(0)
        began_at.append(told)
        surehold.heartbeat(told + 7)
        if told == 0:
            raise ConnectionError("no network")
        return told

    @workflow
    def job() -> list[int]:
        return [copying(), copying()]

    assert job.run(run_id="r", storage=manager).value == [7, 7]
    assert began_at == [0, 7, 0, 7], "each call has its own progress"


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_silent_attempt_is_given_up(manager: CheckpointManager, kind: str) -> None:
    silent = threading.Event()

    @step(retries=99, backoff=0, heartbeat_timeout=0.2)
    def plain() -> str:
        began_at.append(1)
        for _ in range(3):
            surehold.heartbeat()
            threading.Event().wait(0.01)
        if len(began_at) == 1:
            silent.wait(300)
        return "ended"

    @step(retries=99, backoff=0, heartbeat_timeout=0.2)
    async def awaited() -> str:
        began_at.append(1)
        for _ in range(3):
            await surehold.heartbeat()
            await asyncio.sleep(0.01)
        if len(began_at) == 1:
            await asyncio.Event().wait()
        return "ended"

    @workflow
    def job() -> str:
        return plain()

    @workflow
    async def job_awaited() -> str:
        return await awaited()

    policy = RetryPolicy(heartbeat_timeout=0.2)
    assert policy.too_long == "had no heartbeat for 0.2 s"
    if kind == "plain":
        assert job.run(run_id="r", storage=manager).value == "ended"
    else:
        assert asyncio.run(job_awaited.run(run_id="r", storage=manager)).value == "ended"
    silent.set()
    assert len(began_at) >= 2


def test_outside_of_a_call() -> None:
    assert surehold.last_heartbeat("none") == "none"
    surehold.heartbeat(1)
    assert step(copy_rows)(2) == 2

    @workflow
    def job() -> None:
        surehold.heartbeat(1)

    with pytest.raises(UsageError, match="not called in a recorded call"):
        job.run(run_id="r", storage=MemoryStorage())
    graph = StateGraph("job", storage=MemoryStorage())
    with pytest.raises(UsageError, match="heartbeat_timeout"):
        graph.add_node("one", lambda state: None, heartbeat_timeout=1)
