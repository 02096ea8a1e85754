"""A run that another one begins is begun once, whatever happens to the other."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.crash.media import times

import surehold
from surehold import CheckpointManager, State, StateGraph, step, workflow
from surehold.doors.functions import execution
from surehold.errors import RunError, UsageError
from surehold.executors import Worker, handle
from surehold.executors.serving import served_by
from surehold.storage.base import RunQuery
from surehold.views.forks import read_tree

PLACE: list[Any] = []
broken: list[bool] = []


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as made:
        PLACE[:], broken[:] = [made], [True]
        yield made


@workflow
def double(number: int) -> int:
    return 2 * number


@step
def result_of(run_id: str) -> int:
    found: int = handle(run_id, storage=PLACE[0]).result(20).value
    return found


@workflow
def fans_out(numbers: int) -> int:
    begun = [double.start(number, storage=PLACE[0]).run_id for number in range(numbers)]
    if broken:
        raise RuntimeError("not yet")
    return sum(result_of(run_id) for run_id in begun)


@workflow
async def fans_out_async(numbers: int) -> list[str]:
    begun = [double.start(number, storage=PLACE[0]) for number in range(numbers)]
    if broken:
        raise RuntimeError("not yet")
    return [one.run_id for one in begun]


def test_a_replay_begins_no_child_again(manager: CheckpointManager) -> None:
    for _ in range(3):
        with pytest.raises(RuntimeError):
            fans_out.run(20, run_id="p", storage=manager)
    broken.clear()
    children = [*manager.storage.runs(RunQuery(name="double"))]
    assert len(children) == 20
    assert all(run.run_id.startswith("p.double-") for run in children)
    Worker(manager.storage, served_by([f"{__name__}:double"])).run(until_idle=True)
    assert fans_out.resume("p", storage=manager).value == 2 * sum(range(20))


async def test_children_of_async_code_are_begun_once(manager: CheckpointManager) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await fans_out_async.run(5, run_id="p", storage=manager)
    broken.clear()
    result = await fans_out_async.resume("p", storage=manager)
    assert len({*result.value}) == 5
    runs = await asyncio.to_thread(lambda: [*manager.storage.runs(RunQuery(name="double"))])
    assert {run.run_id for run in runs} == {*result.value}


def test_elsewhere_each_start_is_a_run_of_its_own(manager: CheckpointManager) -> None:
    first, second = (double.start(1, storage=manager) for _ in range(2))
    assert first.run_id != second.run_id
    assert surehold.pending(storage=manager) == []


# Waiting for them


@workflow
def sums(numbers: int) -> int:
    begun = [double.start(number) for number in range(numbers)]
    return sum(child.result().value for child in begun)


@workflow
async def sums_awaited(numbers: int) -> int:
    begun = [double.start(number) for number in range(numbers)]  # plain ones, in async code
    results = await surehold.gather(*(child.result() for child in begun))
    return sum(result.value for result in results)


@workflow
async def triple(number: int) -> int:
    return 3 * number


@workflow
async def awaits_async(numbers: int) -> int:
    begun = [await triple.start(number) for number in range(numbers)]
    return sum([(await child.result()).value for child in begun])


@workflow
def asks() -> str:
    return str(surehold.receive("go"))


@workflow
def fails() -> None:
    raise ConnectionError("no network")


def work(manager: CheckpointManager) -> None:
    Worker(manager.storage, served_by([__name__])).run(until_idle=True)


@pytest.mark.parametrize("parent", [sums, sums_awaited, awaits_async])
def test_a_run_waits_for_its_children_without_a_process(
    manager: CheckpointManager, parent: Any
) -> None:
    begun = parent.start(4, run_id="p", storage=manager)
    if asyncio.iscoroutine(begun):
        asyncio.run(begun)
    Worker(manager.storage, served_by([f"{__name__}:{parent.name}"])).run(until_idle=True)
    assert handle("p", storage=manager).status() == "waiting"
    work(manager)
    result = handle("p", storage=manager).result(0)
    assert result.value == (3 if parent is awaits_async else 2) * 6


@pytest.mark.parametrize("parent", [sums, awaits_async])
def test_a_resumed_run_finds_a_child_that_was_killed_before_it_told_of_its_end(
    manager: CheckpointManager, parent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = parent.start(2, run_id="p", storage=manager)
    if asyncio.iscoroutine(begun):
        asyncio.run(begun)
    monkeypatch.setattr(execution, "tell_end", lambda *end: None)
    for name in (parent.name, "triple" if parent is awaits_async else "double"):
        Worker(manager.storage, served_by([f"{__name__}:{name}"])).run(until_idle=True)
    assert handle("p", storage=manager).status() == "waiting"
    resumed = parent.resume("p", storage=manager, wait=False)
    result = asyncio.run(resumed) if asyncio.iscoroutine(resumed) else resumed
    assert result.value == (3 if parent is awaits_async else 2)


def test_a_fan_out_of_many_children(manager: CheckpointManager, finding: Any) -> None:
    number = times(40, 1000)
    sums.start(number, run_id="p", storage=manager)
    work(manager)
    assert handle("p", storage=manager).result(0).value == number * (number - 1)
    finding("children of one run", number, "each begun once, each awaited in the journal")


def test_a_child_that_was_cancelled_is_an_error_of_its_parent_on_every_replay(
    manager: CheckpointManager,
) -> None:
    told: list[str] = []

    @workflow
    def parent() -> str:
        try:
            asks.start(run_id="kid").result()
        except RunError as error:
            told.append(str(error))
        return str(surehold.receive("more"))

    assert parent.run(run_id="p", storage=manager, wait=False).status == "waiting"
    handle("kid", storage=manager).cancel()
    work(manager)
    for _ in range(2):
        assert parent.resume("p", storage=manager, wait=False).status == "waiting"
    manager.storage.delete("kid")
    surehold.send("p", "more", 1, storage=manager)
    assert parent.resume("p", storage=manager).value == "1"
    assert len(told) == 3 and len(set(told)) == 1
    assert "was cancelled" in told[0]


def test_a_child_that_is_late_is_a_timeout(manager: CheckpointManager) -> None:
    @workflow
    def parent() -> str:
        try:
            asks.start(run_id="kid").result(timeout=0.01)
        except TimeoutError as error:
            return str(error)
        return "ended"

    told = "run 'kid' has not ended after 0.01 s"
    assert parent.run(run_id="p", storage=manager).value == told
    assert parent.run(run_id="p", storage=manager).value == told


def test_a_loop_and_a_node_wait_for_a_child(manager: CheckpointManager) -> None:
    with surehold.run("loop", storage=manager) as run:
        child = double.start(4)
        work(manager)
        run.state["value"] = child.result().value
    assert run.state == {"value": 8}

    async def node(state: State) -> dict[str, Any]:
        begun = double.start(5)
        return {"value": (await begun.result()).value}

    graph = StateGraph("nodes", storage=manager.storage)
    graph.add_node("one", node)
    graph.set_entry_point("one")
    graph.set_exit_point("one")
    assert asyncio.run(graph.run({}, run_id="graph")).status == "waiting"
    work(manager)
    assert asyncio.run(graph.resume("graph"))["value"] == 10
    assert len([*manager.storage.runs(RunQuery(name="double"))]) == 2


# Ending with them


@workflow
def closes(policy: Any, waits: bool) -> str:
    asks.start(run_id="kid", parent_close=policy)
    if waits:
        surehold.receive("never")
    return "done"


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("policy", ["leave", "cancel", "wait"])
def test_a_child_is_left_cancelled_or_awaited(
    manager: CheckpointManager, policy: str, is_cancelled: bool
) -> None:
    parent = closes.start(policy, is_cancelled, run_id="p", storage=manager)
    work(manager)
    child = handle("kid", storage=manager)
    if is_cancelled:
        parent.cancel()
        work(manager)
        wanted = ("cancelled", "cancelled" if policy == "cancel" else "waiting")
        assert (parent.status(), child.status()) == wanted
        return
    wanted = {"leave": "waiting", "cancel": "cancelled", "wait": "waiting"}[policy]
    assert child.status() == wanted
    assert parent.status() == ("waiting" if policy == "wait" else "completed")
    if policy == "wait":
        child.send("go", "home")
        work(manager)
        assert (parent.status(), child.status()) == ("completed", "completed")


@workflow
def outlives(policy: Any, kid: str | None) -> str:
    double.start(1, run_id=kid, parent_close=policy)
    surehold.receive("go")
    return "done"


@workflow
async def outlives_async(policy: Any, kid: str | None) -> str:
    double.start(1, run_id=kid, parent_close=policy)
    await surehold.receive("go")
    return "done"


@pytest.mark.parametrize("kid", [None, "kid"])
@pytest.mark.parametrize("policy", ["leave", "cancel", "wait"])
@pytest.mark.parametrize("parent", [outlives, outlives_async])
def test_a_child_that_was_removed_is_not_begun_anew(
    manager: CheckpointManager, parent: Any, policy: str, kid: str | None
) -> None:
    def finish(made: Any) -> Any:
        return asyncio.run(made) if asyncio.iscoroutine(made) else made

    finish(parent.run(policy, kid, run_id="p", storage=manager, wait=False))
    (child,) = manager.storage.runs(RunQuery(name="double"))
    work(manager)
    manager.delete_run(child.run_id)
    surehold.send("p", "go", storage=manager)
    assert finish(parent.run(policy, kid, run_id="p", storage=manager)).value == "done"
    assert [*manager.storage.runs(RunQuery(name="double"))] == []


def test_a_loop_cannot_close_children(manager: CheckpointManager) -> None:
    with (
        pytest.raises(UsageError, match="needs a workflow"),
        surehold.run("loop", storage=manager),
    ):
        asks.start(parent_close="cancel")
    with pytest.raises(UsageError, match="parent_close"):
        asks.start(parent_close="kill", storage=manager)  # type: ignore[call-overload]


def test_the_tree_shows_children_below_their_parent(manager: CheckpointManager) -> None:
    sums.start(2, run_id="p", storage=manager)
    double.start(7, run_id="alone", storage=manager)
    work(manager)
    rows = [(one.run_id[:9], one.depth, one.begun_by) for one in read_tree(manager).runs]
    children = [("p.double-", 1, "p")] * 2
    assert rows in (
        [("alone", 0, None), ("p", 0, None), *children],
        [("p", 0, None), *children, ("alone", 0, None)],
    )
