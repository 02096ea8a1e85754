"""Messages are kept from when they are sent, and each is taken once and in order, at every door."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.builders.agents import call, turns

import surehold
from surehold import CheckpointManager, Rules, State, StateGraph, step, workflow
from surehold.errors import ConflictError, NotFoundError, UsageError
from surehold.executors import Worker, handle
from surehold.executors.serving import served_by
from surehold.storage.base import RecordQuery, RunQuery
from surehold.testing.scripted import ScriptedModel

greeted: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    greeted.clear()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as made:
        yield made


@step
def greet(name: Any) -> str:
    greeted.append(name)
    return f"Hello, {name}"


@workflow
def greeter() -> list[str]:
    found = []
    while (name := surehold.receive("greeting")) != "exit":
        found.append(greet(name))
    return found


@workflow
async def async_greeter() -> list[str]:
    found = []
    while (name := await surehold.receive("greeting")) != "exit":
        found.append(greet(name))
    return found


@pytest.mark.parametrize("definition", [greeter, async_greeter])
def test_messages_are_taken_once_and_in_order(definition: Any, manager: CheckpointManager) -> None:
    def finish(made: Any) -> Any:
        return asyncio.run(made) if asyncio.iscoroutine(made) else made

    waits = finish(definition.run(run_id="g", storage=manager, wait=False))
    assert waits.status == "waiting"
    assert [(one.kind, one.name) for one in waits.waiting] == [("message", "greeting")]
    surehold.send("g", "greeting", "Ada", storage=manager)
    assert surehold.pending("g", storage=manager) == []
    finish(definition.resume("g", storage=manager, wait=False))
    for name in ("Bo", "Cy", "exit", "late"):
        surehold.send("g", "greeting", name, storage=manager)
    result = finish(definition.resume("g", storage=manager, wait=False))
    assert result.value == ["Hello, Ada", "Hello, Bo", "Hello, Cy"]
    assert greeted == ["Ada", "Bo", "Cy"]
    assert finish(definition.run(run_id="g", storage=manager)).value == result.value


def test_a_message_is_not_taken_again_after_a_failure(manager: CheckpointManager) -> None:
    broken = [True]

    @workflow
    def job() -> list[Any]:
        taken = [surehold.receive("a"), greet("x"), surehold.receive("b"), surehold.receive("a")]
        if broken:
            raise RuntimeError("not yet")
        return taken

    for topic, value in (("b", 1), ("a", 2), ("a", 3)):
        with pytest.raises(NotFoundError, match="start_or_send"):
            surehold.send("j", topic, value, storage=manager)
    job.run(run_id="j", storage=manager, wait=False)
    for topic, value in (("b", 1), ("a", 2), ("a", 3)):
        surehold.send("j", topic, value, storage=manager)
    with pytest.raises(RuntimeError, match="not yet"):
        job.resume("j", storage=manager, wait=False)
    broken.clear()
    assert job.resume("j", storage=manager).value == [2, "Hello, x", 1, 3]
    assert greeted == ["x"]


def test_a_timeout_is_the_same_on_every_replay(manager: CheckpointManager) -> None:
    @workflow
    def job() -> Any:
        try:
            return surehold.receive("a", timeout=0.05)
        except TimeoutError:
            return surehold.receive("b"), greet("late")

    assert job.run(run_id="t", storage=manager, wait=False).status == "waiting"
    surehold.send("t", "a", "too late", storage=manager)
    surehold.send("t", "b", "in time", storage=manager)
    assert job.resume("t", storage=manager, wait=False).value == ("in time", "Hello, late")


def test_a_repeated_message_is_dropped_by_its_key(manager: CheckpointManager) -> None:
    greeter.run(run_id="g", storage=manager, wait=False)
    for _ in range(3):
        surehold.send("g", "greeting", "Ada", idempotency_key="1", storage=manager)
        greeter.resume("g", storage=manager, wait=False)
    surehold.send("g", "greeting", "exit", storage=manager)
    assert greeter.resume("g", storage=manager).value == ["Hello, Ada"]


def test_an_answer_to_a_run_that_receives_is_a_message(manager: CheckpointManager) -> None:
    greeter.run(run_id="g", storage=manager, wait=False)
    surehold.answer("g", "greeting", "Ada", storage=manager)
    surehold.send("g", "greeting", "exit", storage=manager)
    assert greeter.resume("g", storage=manager).value == ["Hello, Ada"]


def test_wrong_messages_are_refused(manager: CheckpointManager) -> None:
    with pytest.raises(UsageError, match="topic"):
        surehold.send("g", "", 1, storage=manager)
    with pytest.raises(UsageError, match="idempotency_key"):
        surehold.send("g", "a", 1, idempotency_key="", storage=manager)
    with pytest.raises(UsageError, match="needs a run"):
        surehold.receive("a")
    greeter.start_or_send("greeting", "exit", run_id="g", storage=manager)
    greeter.resume("g", storage=manager)
    with pytest.raises(ConflictError, match="completed"):
        surehold.send("g", "greeting", "Ada", storage=manager)


def test_start_or_send_begins_a_run_once(manager: CheckpointManager) -> None:
    for name in ("Ada", "Bo", "exit"):
        handle = greeter.start_or_send("greeting", name, run_id="g", storage=manager)
    worker = Worker(manager.storage, served_by([f"{__name__}:greeter"]))
    worker.run(until_idle=True)
    assert handle.result(5).value == ["Hello, Ada", "Hello, Bo"]
    assert len([*manager.storage.runs(RunQuery())]) == 1


def test_a_worker_continues_a_run_when_its_message_comes(manager: CheckpointManager) -> None:
    handle = greeter.start(run_id="g", storage=manager)
    worker = Worker(manager.storage, served_by([f"{__name__}:greeter"]))
    for name in ("Ada", "Bo"):
        worker.run(until_idle=True)
        assert handle.status() == "waiting"
        handle.send("greeting", name)
    handle.send("greeting", "exit")
    worker.run(until_idle=True)
    assert handle.result(5).value == ["Hello, Ada", "Hello, Bo"]
    assert greeted == ["Ada", "Bo"]


def test_a_run_that_waits_in_this_process_takes_a_message(manager: CheckpointManager) -> None:
    async def both() -> Any:
        await async_greeter.run(run_id="g", storage=manager, wait=False)
        made = asyncio.ensure_future(async_greeter.resume("g", storage=manager))
        for name in ("Ada", "exit"):
            await asyncio.to_thread(surehold.send, "g", "greeting", name, storage=manager)
        return await made

    assert asyncio.run(both()).value == ["Hello, Ada"]


def test_parallel_branches_take_different_messages(manager: CheckpointManager) -> None:
    @workflow
    async def job() -> list[Any]:
        return list(await surehold.gather(*(surehold.receive("a") for _ in range(5))))

    assert asyncio.run(job.run(run_id="p", storage=manager, wait=False)).status == "waiting"
    for number in range(5):
        surehold.send("p", "a", number, storage=manager)
    result = asyncio.run(job.resume("p", storage=manager, wait=False))
    assert sorted(result.value) == [0, 1, 2, 3, 4]
    assert asyncio.run(job.run(run_id="p", storage=manager)).value == result.value


def test_a_loop_keeps_messages_over_its_checkpoints(manager: CheckpointManager) -> None:
    with pytest.raises(KeyboardInterrupt), surehold.run("loop", storage=manager) as run:
        run.checkpoint(taken=[])
        for number in (0, 1, 2, 3, 3):
            key = str(number)
            surehold.send("loop", "n", number, idempotency_key=key, storage=manager)
        run.checkpoint(begun=True)
        raise KeyboardInterrupt
    for _ in range(2):  # the first start is stopped after two items
        taken: list[Any] = []
        try:
            with surehold.run("loop", storage=manager) as run:
                taken = run.state["taken"]
                for item in run.each(["a", "b", "c", "d"]):
                    greeted.append(item)
                    taken.append(surehold.receive("n"))
                    if item == "c" and greeted.count("c") == 1:
                        raise KeyboardInterrupt
        except KeyboardInterrupt:
            continue
    assert taken == [0, 1, 2, 3]
    assert greeted == ["a", "b", "c", "c", "d"]


def test_retention_keeps_messages_that_were_not_taken(tmp_path: Path) -> None:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db", retention=Rules(keep_last=1)) as kept:
        with pytest.raises(KeyboardInterrupt), surehold.run("loop", storage=kept) as run:
            run.checkpoint(n=0)
            for number in range(20):
                surehold.send("loop", "even" if number % 2 == 0 else "odd", number, storage=kept)
            for number in range(5):
                run.checkpoint(n=number, got=surehold.receive("even"))
            for number in range(5, 20):
                run.checkpoint(n=number)
            raise KeyboardInterrupt
        kept.cleanup_old_checkpoints("loop")
        left = [r.header.seq for r in kept.storage.read("loop") if r.header.kind == "message"]
        assert len(left) == 15
        with surehold.run("loop", storage=kept):
            assert [surehold.receive("even") for _ in range(5)] == [10, 12, 14, 16, 18]
            assert [surehold.receive("odd") for _ in range(10)] == [*range(1, 20, 2)]


def test_a_node_of_a_graph_waits_for_a_message(manager: CheckpointManager) -> None:
    async def ask(state: State) -> dict[str, Any]:
        return {"got": [*state.get("got", []), await surehold.receive("n")]}

    graph = StateGraph("asks", storage=manager.storage)
    graph.add_node("one", ask)
    graph.add_node("two", ask)
    graph.add_edge("one", "two")
    graph.set_entry_point("one")
    graph.set_exit_point("two")
    result = asyncio.run(graph.run({}, run_id="r"))
    assert result.status == "waiting"
    assert [one.kind for one in surehold.pending("r", storage=manager)] == ["message"]
    surehold.send("r", "n", 1, storage=manager)
    surehold.send("r", "n", 2, storage=manager)
    result = asyncio.run(graph.resume("r"))
    assert (result.status, result["got"]) == ("completed", [1, 2])


# Runs that send


def send_in_a_workflow(manager: CheckpointManager) -> None:
    @workflow(name="sends")
    def sends() -> Any:
        surehold.send("g", "greeting", "Ada", storage=manager)
        greeter.start_or_send("greeting", "Bo", run_id="g", storage=manager)
        return surehold.receive("go")

    assert sends.run(run_id="s", storage=manager, wait=False).status == "waiting"


def send_in_async_code(manager: CheckpointManager) -> None:
    @workflow(name="sends")
    async def sends() -> Any:
        await asyncio.to_thread(handle("g", storage=manager).send, "greeting", "Ada")
        await surehold.gather(beside())
        return await surehold.receive("go")

    async def beside() -> None:
        surehold.send("g", "greeting", "Bo", storage=manager)

    assert asyncio.run(sends.run(run_id="s", storage=manager, wait=False)).status == "waiting"


def send_in_a_block(manager: CheckpointManager) -> None:
    with pytest.raises(KeyboardInterrupt), surehold.run("s", storage=manager) as run:
        surehold.send("g", "greeting", "Ada", storage=manager)
        for name in run.each(["Bo"]):
            surehold.send("g", "greeting", name, storage=manager)
            run.call(greet, name)
            raise KeyboardInterrupt


def send_in_a_node(manager: CheckpointManager) -> None:
    async def sends(state: State) -> dict[str, Any]:
        surehold.send("g", "greeting", "Ada", storage=manager)
        surehold.send("g", "greeting", "Bo", storage=manager)
        return {"got": await surehold.receive("go")}

    graph = StateGraph("sends", storage=manager.storage)
    graph.add_node("one", sends)
    graph.set_entry_point("one")
    graph.set_exit_point("one")
    known = manager.reader.run("s") is not None
    asyncio.run(graph.resume("s") if known else graph.run({}, run_id="s"))


def send_in_a_tool(manager: CheckpointManager) -> None:
    @surehold.tool(idempotent=True)
    async def tell() -> str:
        """Tell both."""
        surehold.send("g", "greeting", "Ada", storage=manager)
        surehold.send("g", "greeting", "Bo", storage=manager)
        return str(await surehold.interrupt("Done?"))

    model = ScriptedModel(turns(call("tell"), "done"))
    agent = surehold.Agent("teller", model=model, tools=[tell], storage=manager.storage)
    known = manager.reader.run("s") is not None
    asyncio.run(agent.resume("s") if known else agent.run("tell", run_id="s"))


def send_in_a_step(manager: CheckpointManager) -> None:
    @step(name="tell", retries=1, backoff=0)
    def tell() -> None:
        surehold.send("g", "greeting", "Ada", storage=manager)
        surehold.send("g", "greeting", "Bo", storage=manager)
        if len(greeted) < 3:
            greeted.append("")
            raise ConnectionError

    @workflow(name="sends")
    def sends() -> None:
        tell()

    with suppress(ConnectionError):
        sends.run(run_id="s", storage=manager)


SENDERS = [
    *(send_in_a_workflow, send_in_async_code, send_in_a_block, send_in_a_node, send_in_a_tool),
    send_in_a_step,
]


@pytest.mark.parametrize("sends", SENDERS)
def test_a_run_that_is_started_again_has_sent_its_messages_once(
    sends: Callable[[CheckpointManager], None], manager: CheckpointManager
) -> None:
    greeter.run(run_id="g", storage=manager, wait=False)
    for _ in range(3):
        sends(manager)
    surehold.send("g", "greeting", "exit", storage=manager)
    sends(manager)
    assert greeter.run(run_id="g", storage=manager).value == ["Hello, Ada", "Hello, Bo"]
    sends(manager)  # the receiver has ended
    query = RecordQuery(run_id="g", kind="message", notes=True)
    assert sum(1 for _ in manager.storage.headers(query)) == 3


def test_a_message_that_is_sent_again_to_a_run_that_has_ended_is_dropped(
    manager: CheckpointManager,
) -> None:
    greeter.run(run_id="g", storage=manager, wait=False)
    for _ in range(2):
        surehold.send("g", "greeting", "exit", idempotency_key="1", storage=manager)
        greeter.run(run_id="g", storage=manager)
    with pytest.raises(ConflictError, match="completed"):
        surehold.send("g", "greeting", "exit", idempotency_key="2", storage=manager)
