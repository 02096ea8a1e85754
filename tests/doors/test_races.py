"""The first of several calls and waits wins, its outcome is recorded, and the others are over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold import CheckpointManager, State, StateGraph, effect, step, workflow
from surehold.engine.runs.positions import CallOrder, Race
from surehold.errors import UsageError
from surehold.executors import Worker
from surehold.executors.serving import served_by

begun: list[str] = []
ended: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    begun.clear()
    ended.clear()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as made:
        yield made


@step
async def slow(name: str = "work", seconds: float = 0.2, after: str = "") -> str:
    begun.append(name)
    while after and after not in ended:
        await asyncio.sleep(0.01)
    await asyncio.sleep(seconds)
    ended.append(name)
    return name


@workflow
async def work_or_stop(seconds: float) -> Any:
    name, value = await surehold.select(work=slow("work", seconds), stop=surehold.receive("stop"))
    await slow("after", 0)
    return [name, value]


@pytest.mark.parametrize("wait", [True, False])
async def test_a_step_wins_against_an_event(manager: CheckpointManager, wait: bool) -> None:
    @workflow
    async def race() -> Any:
        return await surehold.race(slow(), surehold.wait_for("stop"))

    result = await race.run(run_id="r", storage=manager, wait=wait)
    assert (result.status, result.returned) == ("completed", "work")
    assert begun == ended == ["work"]
    assert surehold.pending(storage=manager) == []


@pytest.mark.parametrize("wait", [True, False])
async def test_a_wait_in_a_task_stays_while_a_step_is_in_progress(
    manager: CheckpointManager, wait: bool
) -> None:
    @workflow
    async def first_of() -> Any:
        tasks = [asyncio.ensure_future(slow()), asyncio.ensure_future(surehold.wait_for("stop"))]
        done, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for one in rest:
            one.cancel()
        if not retried:
            retried.append(True)
            raise RuntimeError("not yet")
        return [one.result() for one in done]

    retried: list[bool] = []
    with pytest.raises(RuntimeError):
        await first_of.run(run_id="r", storage=manager, wait=wait)
    result = await first_of.resume("r", storage=manager, wait=wait)
    assert (result.status, result.returned) == ("completed", ["work"])
    assert begun == ended == ["work"]


async def test_waits_in_tasks_leave_the_run_once_nothing_is_in_progress(
    manager: CheckpointManager,
) -> None:
    @workflow
    async def all_of() -> Any:
        tasks = asyncio.ensure_future(slow()), asyncio.ensure_future(surehold.receive("mail"))
        return list(await asyncio.gather(*tasks))

    result = await all_of.run(run_id="r", storage=manager, wait=False)
    assert (result.status, ended) == ("waiting", ["work"])
    await asyncio.to_thread(surehold.send, "r", "mail", "one", storage=manager)
    result = await all_of.resume("r", storage=manager, wait=False)
    assert result.value == ["work", "one"]
    assert begun == ["work"]


@pytest.mark.parametrize("wait", [True, False])
async def test_a_message_wins_against_a_step_that_lasts(
    manager: CheckpointManager, wait: bool
) -> None:
    made = asyncio.ensure_future(work_or_stop.run(60, run_id="r", storage=manager, wait=wait))
    while not begun:
        await asyncio.sleep(0.01)
    await asyncio.to_thread(surehold.send, "r", "stop", "enough", storage=manager)
    result = await asyncio.wait_for(made, 300)
    assert result.value == ["stop", "enough"]
    assert (begun, ended) == (["work", "after"], ["after"])


async def test_a_race_of_waits_holds_no_process_and_leaves_no_wait(
    manager: CheckpointManager,
) -> None:
    @workflow
    async def first_of() -> Any:
        name, value = await surehold.select(
            approval=surehold.wait_for("approval"),
            later=surehold.sleep(3600),
            mail=surehold.receive("mail"),
        )
        last = await surehold.receive("mail")
        return [name, value, last]

    result = await first_of.run(run_id="r", storage=manager, wait=False)
    assert result.status == "waiting"
    assert {one.kind for one in result.waiting} == {"event", "timer", "message"}
    await asyncio.to_thread(surehold.send, "r", "mail", "one", storage=manager)
    result = await first_of.resume("r", storage=manager, wait=False)
    assert [(one.kind, one.name) for one in result.waiting] == [("message", "mail")]
    await asyncio.to_thread(surehold.send, "r", "mail", "two", storage=manager)
    result = await first_of.resume("r", storage=manager, wait=False)
    assert result.value == ["mail", "one", "two"]


async def test_a_message_that_lost_a_race_is_taken_by_the_next_receive(
    manager: CheckpointManager,
) -> None:
    @workflow
    async def job() -> Any:
        first = await surehold.select(
            a=surehold.receive("a"), b=surehold.receive("b"), c=surehold.receive("a")
        )
        return [first.name, first.value, await surehold.receive("b"), await surehold.receive("a")]

    await job.run(run_id="r", storage=manager, wait=False)
    for topic, value in (("a", 1), ("b", 2), ("a", 3)):
        await asyncio.to_thread(surehold.send, "r", topic, value, storage=manager)
    result = await job.resume("r", storage=manager, wait=False)
    assert result.status == "completed"
    assert sorted(result.value[1:]) == [1, 2, 3]


async def test_a_branch_that_wins_after_another_has_left_goes_on(
    manager: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave, sent = CallOrder.leave, []

    def sends_first(order: CallOrder, error: BaseException) -> BaseException:
        if not sent:
            sent.append("a" if "'b'" in str(error) else "b")
            surehold.send("r", sent[0], "one", storage=manager)
        return leave(order, error)

    async def late(received: Any) -> Any:
        await asyncio.sleep(0.1)
        return await received

    @workflow
    async def job() -> Any:
        won = await surehold.select(a=surehold.receive("a"), b=late(surehold.receive("b")))
        return [*won, await slow("after", 0)]

    monkeypatch.setattr(CallOrder, "leave", sends_first)
    result = await job.run(run_id="r", storage=manager, wait=False)
    if result.waiting:  # both looked before it was sent
        result = await job.resume("r", storage=manager, wait=False)
    assert (result.status, result.returned) == ("completed", [*sent, "one", "after"])


async def test_a_branch_that_has_ended_keeps_the_others_from_leaving() -> None:
    race = Race(2)
    first, second = race.branches
    first.waiting, second.ended = 1, True
    assert not race.waits, "the second one is about to win"
    race.winner = second
    assert race.waits, "the loser is to be awaited"


async def test_losers_that_wait_and_are_to_finish_are_awaited_without_a_process(
    manager: CheckpointManager,
) -> None:
    @workflow
    async def job() -> Any:
        won = await surehold.race(slow(seconds=0), surehold.receive("end"), losers="finish")
        return [won, await slow("after", 0)]

    for _ in range(2):
        result = await job.run(run_id="r", storage=manager, wait=False)
        assert [(one.kind, one.name) for one in result.waiting] == [("message", "end")]
    await asyncio.to_thread(surehold.send, "r", "end", 1, storage=manager)
    result = await job.resume("r", storage=manager, wait=False)
    assert (result.returned, begun) == (["work", "after"], ["work", "after"])


async def test_a_replay_awaits_the_winner_alone(manager: CheckpointManager) -> None:
    broken = [True]

    async def both(name: str, seconds: float) -> list[str]:
        return [await slow(f"{name}1", seconds), await slow(f"{name}2", seconds)]

    @workflow
    async def job() -> Any:
        won = await surehold.race(both("a", 0.01), both("b", 30))
        if broken:
            raise RuntimeError("not yet")
        return won

    with pytest.raises(RuntimeError):
        await job.run(run_id="r", storage=manager)
    broken.clear()
    result = await job.resume("r", storage=manager)
    assert result.value == ["a1", "a2"]
    assert sorted(begun) == ["a1", "a2", "b1"]
    assert (await job.run(run_id="r", storage=manager)).value == ["a1", "a2"]


async def test_a_failure_that_ends_first_wins(manager: CheckpointManager) -> None:
    @step
    async def fails() -> None:
        raise ValueError("no")

    @workflow
    async def job() -> str:
        try:
            await surehold.race(fails(), slow("long", 30))
        except ValueError as error:
            return f"{error} {await slow('after', 0)}"
        return ""

    assert (await job.run(run_id="r", storage=manager)).value == "no after"
    assert (await job.run(run_id="r", storage=manager)).value == "no after"
    assert begun == ["long", "after"]


async def test_losers_that_finish_are_awaited(manager: CheckpointManager) -> None:
    @workflow
    async def job() -> str:
        return await surehold.race(slow("a", 0.01), slow("b", 0.1, "a"), losers="finish")

    assert (await job.run(run_id="r", storage=manager)).value == "a"
    assert ended == ["a", "b"]


async def test_an_effect_that_loses_is_finished_and_leaves_nothing_in_doubt(
    manager: CheckpointManager,
) -> None:
    async def pay() -> str:
        begun.append("pay")
        while "fast" not in ended:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        ended.append("pay")
        return "paid"

    @workflow
    async def job() -> Any:
        async def paying() -> str:
            await effect("pay", pay)
            return await slow("never", 0)

        return await surehold.race(paying(), slow("fast", 0.05))

    assert (await job.run(run_id="r", storage=manager)).value == "fast"
    assert ended == ["fast", "pay"]
    assert "never" not in begun
    assert surehold.pending(storage=manager) == []


async def test_races_within_races_and_gathers(manager: CheckpointManager) -> None:
    @workflow
    async def job() -> Any:
        inner = surehold.race(surehold.receive("x"), surehold.sleep(3600))
        outer = surehold.race(inner, slow("work", 0.3))
        return list(await surehold.gather(outer, slow("beside", 0)))

    result = await job.run(run_id="r", storage=manager, wait=False)
    assert result.value == ["work", "beside"]


async def test_a_race_in_a_node(manager: CheckpointManager) -> None:
    async def node(state: State) -> dict[str, Any]:
        name, value = await surehold.select(work=slow(), stop=surehold.receive("stop"))
        return {"won": [name, value]}

    graph = StateGraph("races", storage=manager.storage)
    graph.add_node("one", node)
    graph.set_entry_point("one")
    graph.set_exit_point("one")
    result = await graph.run({}, run_id="r")
    assert (result.status, result["won"]) == ("completed", ["work", "work"])


async def test_outside_a_run_a_race_is_a_race() -> None:
    assert await surehold.race(slow("a", 0.01), slow("b", 10)) == "a"


async def test_wrong_races_are_refused(manager: CheckpointManager) -> None:
    with pytest.raises(UsageError, match="nothing to await"):
        surehold.race()
    wait = asyncio.sleep(0)
    with pytest.raises(UsageError, match="losers"):
        surehold.race(wait, losers="kill")  # type: ignore[arg-type]
    await wait
    with pytest.raises(UsageError, match="cannot await 5"):
        surehold.race(5)  # type: ignore[arg-type]


def test_a_worker_decides_a_race(manager: CheckpointManager) -> None:
    handles = [
        work_or_stop.start(seconds, run_id=f"r{seconds}", storage=manager) for seconds in (0, 0.3)
    ]
    handle = [asyncio.run(_awaited(one)) for one in handles]
    Worker(manager.storage, served_by([f"{__name__}:work_or_stop"])).run(until_idle=True)
    for one in handle:
        assert asyncio.run(one.result(300)).value == ["work", "work"]
    assert begun.count("work") == 2


async def _awaited(one: Any) -> Any:
    return await one
