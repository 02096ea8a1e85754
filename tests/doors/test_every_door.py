"""Every door begins, resumes and forks runs alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.builders.agents import call, turns
from tests.builders.fleets import manager, team

import surehold
from surehold import (
    Agent,
    CheckpointManager,
    Fleet,
    MemoryStorage,
    StateGraph,
    step,
    workflow,
)
from surehold.errors import NotFoundError, UsageError
from surehold.testing.scripted import ScriptedModel

Start = Callable[[str], Awaitable[Any]]


class Door:
    """A way to begin a run, to resume one, and the work that is paid for."""

    def __init__(self, begin: Start, resume: Start, work: list[Any]) -> None:
        self.begin = begin
        self.resume = resume
        self.work = work


def functions(storage: MemoryStorage) -> Door:
    work: list[Any] = []

    @step(in_doubt="retry")
    async def pay(number: int) -> int:
        work.append(number)
        return number

    @workflow(name="pays")
    async def pays() -> list[int]:
        return [await pay(number) for number in range(3)]

    return Door(
        lambda id: pays.run(run_id=id, storage=storage),
        lambda id: pays.resume(id, storage=storage),
        work,
    )


def graph(storage: MemoryStorage) -> Door:
    work: list[Any] = []
    made = StateGraph("line", storage=storage)
    for node in "abc":
        made.add_node(node, lambda state, node=node: work.append(node))
    made.add_edge("a", "b")
    made.add_edge("b", "c")
    made.set_entry_point("a")
    made.set_exit_point("c")
    return Door(lambda id: made.run(run_id=id), made.resume, work)


def agent(storage: MemoryStorage) -> Door:
    work: list[Any] = []

    def look(query: str) -> str:
        """Look."""
        work.append(query)
        return query

    script = turns(call("look", query="a"), call("look", query="b"), "done", plan="none")

    def made() -> Agent:
        model = ScriptedModel(script)
        return Agent("a", model=model, tools=[look], storage=storage, report=lambda line: None)

    return Door(lambda id: made().run("task", run_id=id), lambda id: made().resume(id), work)


def fleet(storage: MemoryStorage) -> Door:
    work: list[Any] = []

    async def speak(instruction: str) -> str:
        work.append(instruction)
        return "done"

    crew = dict.fromkeys(team(), speak)

    async def begin(run_id: str) -> Any:
        async with Fleet(manager(2), crew, storage=storage) as made:
            return await made.run("task", run_id=run_id)

    async def resume(run_id: str) -> Any:
        async with Fleet(manager(2), crew, storage=storage) as made:
            return await made.resume(run_id)

    return Door(begin, resume, work)


DOORS = [functions, graph, agent, fleet]


@pytest.mark.parametrize("make", DOORS)
async def test_a_run_is_resumed_by_its_id(make: Callable[[MemoryStorage], Door]) -> None:
    door = make(MemoryStorage())
    with pytest.raises(NotFoundError, match="no run 'r' to resume"):
        await door.resume("r")
    assert (await door.begin("r")).status == "completed"
    done = len(door.work)
    again = await door.resume("r")
    assert (again.status, again.run_id, len(door.work)) == ("completed", "r", done)
    for wrong in ("", None):
        with pytest.raises(UsageError, match="run_id"):
            await door.resume(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", DOORS)
async def test_a_loop_does_not_take_the_run_of_another_door(
    make: Callable[[MemoryStorage], Door],
) -> None:
    storage = MemoryStorage()
    door = make(storage)
    await door.begin("r")
    with CheckpointManager(storage) as saved:
        listed = saved.list_checkpoints("r")
        begun = saved.fork_from_checkpoint(listed[-1].checkpoint_id, "begun")
        before = len(saved.list_checkpoints("begun"))
    for run_id in ("r", "begun"):
        said = f"run '{run_id}' (is of|holds)"
        with (
            pytest.raises(UsageError, match=said) as refused,
            surehold.run(run_id, storage=storage) as run,
        ):
            run.checkpoint(wrong=True)
        assert "resume it with" in refused.value.hint
    with CheckpointManager(storage) as saved:
        assert len(saved.list_checkpoints("begun")) == before
    assert begun.run_id is not None
    assert (await door.resume(begun.run_id)).status == "completed"


@pytest.mark.parametrize("make", DOORS)
async def test_a_fork_of_any_checkpoint_completes(make: Callable[[MemoryStorage], Door]) -> None:
    storage = MemoryStorage()
    door = make(storage)
    await door.begin("r")
    whole = len(door.work)
    with CheckpointManager(storage) as saved:
        listed = saved.list_checkpoints("r")
        forks = [saved.fork_from_checkpoint(one.checkpoint_id).run_id for one in listed]
    paid = []
    for fork in forks:
        assert fork is not None
        before = len(door.work)
        result = await door.resume(fork)
        assert (result.status, result.run_id) == ("completed", fork)
        paid.append(len(door.work) - before)
    assert paid[0] == 0 and paid[-1] == whole, "the newest first"
    assert paid == sorted(paid)


def test_a_fork_of_a_loop_resumes_at_its_item() -> None:
    storage, seen = MemoryStorage(), []

    def loop(run_id: str, last: int) -> None:
        with surehold.run(run_id, storage=storage) as run:
            for number in run.each(range(4)):
                seen.append(run.call(int, number))
                if number == last:
                    raise ConnectionError

    with pytest.raises(ConnectionError):
        loop("r", 2)
    with CheckpointManager(storage) as saved:
        listed = [one for one in saved.list_checkpoints("r") if one.status == "running"]
        forks = [(one.step, saved.fork_from_checkpoint(one.checkpoint_id)) for one in listed]
    for step_number, fork in forks:
        seen.clear()
        loop(str(fork.run_id), -1)
        assert seen == [*range(step_number, 4)]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"lease_seconds": 0}, "lease_seconds is 0"), ({"wait": "no"}, "wait is 'no'")],
)
def test_wrong_options_of_a_workflow_are_refused(options: dict[str, Any], said: str) -> None:
    storage = MemoryStorage()

    @workflow
    def plain() -> None:
        return None

    with pytest.raises(UsageError, match=said):
        plain.run(run_id="r", storage=storage, **options)
    assert not list(storage.runs(surehold.RunQuery()))


@pytest.mark.parametrize("task", [5, None, ["a"]])
async def test_a_task_that_is_no_text_is_refused_before_anything_is_saved(task: Any) -> None:
    storage = MemoryStorage()
    agent = Agent("a", model=ScriptedModel([]), storage=storage)
    async with Fleet(manager(1), team(), storage=storage) as fleet:
        for start in (agent.run, agent.start, fleet.run, fleet.start):
            with pytest.raises(UsageError, match="the task is"):
                await start(task)
    assert not list(storage.runs(surehold.RunQuery()))


def test_wrong_arguments_of_agents_and_fleets_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="config is"):
        Agent("a", model=ScriptedModel([]), config={"max_cycles": 3})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"tools is a function \(give a list of functions\)"):
        Agent("a", model=ScriptedModel([]), tools=manager)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the participants are list"):
        Fleet(manager(1), [len])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="limits is 5"):
        Fleet(manager(1), team(), limits=5)  # type: ignore[arg-type]


def test_a_step_that_raises_stop_iteration_is_the_same_error_on_a_replay() -> None:
    storage, seen, fails = MemoryStorage(), [], [True]

    @workflow
    def plan() -> None:
        try:
            step(in_doubt="retry")(next)(iter([]))
        except RuntimeError as error:
            seen.append(str(error))
        if fails.pop():
            fails.append(False)
            raise ConnectionError

    with pytest.raises(ConnectionError):
        plan.run(run_id="r", storage=storage)
    plan.run(run_id="r", storage=storage)
    assert seen == ["next raised StopIteration"] * 2


async def _in_a_workflow(storage: MemoryStorage, order: Callable[[str], str]) -> None:
    @workflow
    def orders() -> str:
        return step(in_doubt="retry")(order)(str(surehold.uuid4()))

    orders.run(run_id="r", storage=storage)


async def _in_an_async_workflow(storage: MemoryStorage, order: Callable[[str], str]) -> None:
    @workflow
    async def orders() -> str:
        number = str(surehold.uuid4())
        return await surehold.effect("order", order, number, in_doubt="retry")

    await orders.run(run_id="r", storage=storage)


async def _in_a_block(storage: MemoryStorage, order: Callable[[str], str]) -> None:
    with surehold.run("r", storage=storage) as run:
        run.effect("order", order, str(surehold.uuid4()), in_doubt="retry")


async def _in_a_node(storage: MemoryStorage, order: Callable[[str], str]) -> None:
    async def node(state: Any) -> None:
        await surehold.effect("order", order, str(surehold.uuid4()), in_doubt="retry")

    made = StateGraph("orders", storage=storage)
    made.add_node("order", node)
    made.set_entry_point("order")
    made.set_exit_point("order")
    await made.run(run_id="r")


@pytest.mark.parametrize("orders", [_in_a_workflow, _in_an_async_workflow, _in_a_block, _in_a_node])
async def test_a_recorded_value_is_stored_before_a_call_that_may_be_repeated(
    orders: Callable[[MemoryStorage, Callable[[str], str]], Awaitable[None]],
) -> None:
    storage, seen = MemoryStorage(), []

    def order(number: str) -> str:
        bodies = b"".join(record.body for record in storage.read("r"))
        seen.append(number.encode() in bodies)
        return number

    await orders(storage, order)
    assert seen == [True]
