"""What a durable agent of Pydantic AI does in every kind of run, and what it refuses."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, DeferredToolRequests, ModelRetry
from pydantic_ai.exceptions import ModelHTTPError, UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import FunctionToolset

import surehold
from surehold import CheckpointConfig, GraphConfig, State, StateGraph
from surehold.errors import DecodeError, EncodeError, InDoubtError, StepError, UsageError
from surehold.integrations.pydantic_ai import SureholdDurability, idempotency_key


class Script:
    """A model that calls tools by turns, then tells what they returned; it counts its calls."""

    def __init__(self, *turns: list[tuple[str, dict[str, Any]]]) -> None:
        self.turns = turns
        self.calls = 0
        self.fails: dict[int, Exception] = {}

    def __call__(self, messages: list[ModelMessage], _: Any) -> ModelResponse:
        self.calls += 1
        if (error := self.fails.pop(self.calls, None)) is not None:
            raise error
        turn = sum(isinstance(one, ModelResponse) for one in messages)
        if turn < len(self.turns):
            # The same ids in every turn and run, as servers of small models give them.
            parts = [
                ToolCallPart(name, given, tool_call_id=f"call_{at}")
                for at, (name, given) in enumerate(self.turns[turn])
            ]
            return ModelResponse(parts=parts)
        told = [
            str(part.content)
            for message in messages
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]
        return ModelResponse(parts=[TextPart(", ".join(told) or "nothing")])


def agent_of(script: Script, **options: Any) -> Agent[None, str]:
    made = options.pop("durability", None) or SureholdDurability(**options)
    return Agent(FunctionModel(script), name="helper", capabilities=[made])


def paying(agent: Agent[None, Any], paid: list[int], **options: Any) -> None:
    @agent.tool_plain(**options)
    async def pay(order: int) -> str:
        paid.append(order)
        await asyncio.sleep(0)
        return f"paid {order}"


class Broken(Exception):
    """Ends an execution, as a crash would."""


PAY_TWICE = Script([("pay", {"order": 1}), ("pay", {"order": 2})], [("pay", {"order": 3})])


async def in_workflow(work: Callable[[], Any], storage: str) -> Any:
    @surehold.workflow(name="work")
    async def workflow() -> Any:
        return await work()

    return (await workflow.run(run_id="r", storage=storage)).value


async def in_loop(work: Callable[[], Any], storage: str) -> Any:
    said = None
    async with surehold.run("r", storage=storage) as run:
        async for _ in run.each(["one"]):
            said = await work()
    return said


async def in_graph(work: Callable[[], Any], storage: str) -> Any:
    there = Path(storage.removeprefix("sqlite:///")).exists()

    async def node(state: State) -> dict[str, Any]:
        return {"said": await work()}

    graph = StateGraph(GraphConfig(checkpoint=CheckpointConfig(store=storage, interval=1)))
    graph.add_node("node", node)
    graph.set_entry_point("node")
    graph.set_exit_point("node")
    try:
        final = await (graph.resume("r") if there else graph.execute(State.new({}, run_id="r")))
        return final["said"]
    finally:
        await graph.close()


@pytest.mark.parametrize("door", [in_workflow, in_loop, in_graph])
async def test_in_every_run_a_failure_after_the_agent_repeats_none_of_its_calls(
    door: Any, tmp_path: Path
) -> None:
    storage, paid = f"sqlite:///{tmp_path}/runs.db", list[int]()
    script = Script(*PAY_TWICE.turns)
    agent = agent_of(script)
    paying(agent, paid)
    breaks = iter([True, False])

    async def work() -> str:
        done = await agent.run("pay")
        if next(breaks):
            raise Broken
        return done.output

    with pytest.raises((Broken, StepError)):
        await door(work, storage)
    assert await door(work, storage) == "paid 1, paid 2, paid 3"
    assert paid == [1, 2, 3] and script.calls == 3


async def test_outside_a_run_the_agent_is_as_it_was() -> None:
    paid = list[int]()
    agent = agent_of(Script(*PAY_TWICE.turns))
    paying(agent, paid)
    assert (await agent.run("pay")).output == "paid 1, paid 2, paid 3"
    assert idempotency_key() is None


async def test_a_second_agent_run_in_the_run_has_calls_of_its_own(tmp_path: Path) -> None:
    storage, paid = f"sqlite:///{tmp_path}/runs.db", list[int]()
    agent = agent_of(Script([("pay", {"order": 1})]))
    paying(agent, paid)

    async def twice() -> list[str]:
        given = [await agent.run("pay", run_id="mine") for _ in range(2)]
        return [one.output for one in given]

    assert await in_workflow(twice, storage) == ["paid 1", "paid 1"]
    assert paid == [1, 1]


async def test_agents_that_run_at_once_get_their_own_outcomes_back(tmp_path: Path) -> None:
    storage, order = f"sqlite:///{tmp_path}/runs.db", list[int]()
    breaks = iter([True, False])

    def one(number: int, pauses: int) -> Agent[None, str]:
        agent = agent_of(Script([("look", {})], [("look", {})]))

        @agent.tool_plain
        async def look() -> int:
            for _ in range(pauses):
                await asyncio.sleep(0)
            order.append(number)
            return number

        return agent

    async def work() -> list[str]:
        # The second life takes its turns in another order than the first.
        first = next(breaks)
        agents = [one(1, 40 if first else 0), one(2, 0 if first else 40)]
        done = await asyncio.gather(*(agent.run("look") for agent in agents))
        if first:
            raise Broken
        return [each.output for each in done]

    with pytest.raises(Broken):
        await in_workflow(work, storage)
    assert await in_workflow(work, storage) == ["1, 1", "2, 2"]
    assert len(order) == 4


async def test_two_agents_at_once_cannot_have_one_run_id(tmp_path: Path) -> None:
    agent = agent_of(Script())

    async def work() -> None:
        await surehold.gather(*(agent.run("x", run_id="same") for _ in range(2)))

    with pytest.raises(UsageError, match="another that runs meanwhile"):
        await in_workflow(work, f"sqlite:///{tmp_path}/runs.db")


async def test_a_model_that_fails_is_called_again_by_a_resume(tmp_path: Path) -> None:
    storage, paid = f"sqlite:///{tmp_path}/runs.db", list[int]()
    script = Script([("pay", {"order": 1})])
    script.fails[2] = ModelHTTPError(503, "model", "overloaded")
    agent = agent_of(script)
    paying(agent, paid)

    async def work() -> str:
        return (await agent.run("pay")).output

    with pytest.raises(ModelHTTPError):
        await in_workflow(work, storage)
    assert await in_workflow(work, storage) == "paid 1"
    assert paid == [1] and script.calls == 3


async def test_retries_of_the_model_are_those_of_a_step(tmp_path: Path) -> None:
    script = Script()
    script.fails[1] = ModelHTTPError(503, "model", "overloaded")
    agent = agent_of(script, model={"retries": 2, "backoff": 0.001})

    async def work() -> str:
        return (await agent.run("x")).output

    assert await in_workflow(work, f"sqlite:///{tmp_path}/runs.db") == "nothing"
    assert script.calls == 2


async def test_what_a_tool_tells_the_model_to_do_again_is_replayed_as_that(tmp_path: Path) -> None:
    storage, asked = f"sqlite:///{tmp_path}/runs.db", list[str | None]()
    agent = agent_of(Script([("look", {})], [("look", {})]))
    breaks = iter([True, False])

    @agent.tool_plain(retries=2)
    async def look() -> dict[str, str]:
        asked.append(idempotency_key())
        if len(asked) == 1:
            raise ModelRetry("look harder")
        return {"kind": "bird"}

    async def work() -> str:
        done = await agent.run("look")
        if next(breaks):
            raise Broken
        return done.output

    with pytest.raises(Broken):
        await in_workflow(work, storage)
    assert await in_workflow(work, storage) == "look harder, {'kind': 'bird'}"
    assert len(asked) == 2 and None not in asked and asked[0] != asked[1]


async def test_a_step_inside_a_tool_is_not_repeated_by_another_attempt_of_the_tool(
    tmp_path: Path,
) -> None:
    made, attempts = list[str](), iter([True, False])
    agent = agent_of(Script([("order", {})]), tools={"in_doubt": "retry", "retries": 1})

    @surehold.step
    def book() -> str:
        made.append("book")
        return "booked"

    @agent.tool_plain
    def order() -> str:
        booked = book()
        if next(attempts):
            raise ConnectionError
        return booked

    async def work() -> str:
        return (await agent.run("order")).output

    assert await in_workflow(work, f"sqlite:///{tmp_path}/runs.db") == "booked"
    assert made == ["book"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(True, [1, 2]), (False, []), ({"approved": True, "arguments": {"order": 9}}, [9, 9])],
)
async def test_a_tool_that_requires_approval_makes_the_run_wait(
    answer: Any, expected: list[int], tmp_path: Path
) -> None:
    storage, paid = f"sqlite:///{tmp_path}/runs.db", list[int]()
    script = Script([("pay", {"order": 1}), ("pay", {"order": 2})])
    agent = agent_of(script)
    paying(agent, paid, requires_approval=True)

    @surehold.workflow
    async def work() -> str:
        return (await agent.run("pay")).output

    waits = await work.run(run_id="r", storage=storage)
    assert waits.status == "waiting" and not paid
    asked = sorted(surehold.pending(storage=storage), key=lambda one: one.id)
    assert [one.question["arguments"] for one in asked] == [{"order": 1}, {"order": 2}]
    for one in asked:
        surehold.answer("r", one.id, answer, storage=storage)
    done = await work.run(run_id="r", storage=storage)
    assert done.status == "completed" and script.calls == 2
    assert paid == {True: [1, 2], False: []}.get(
        answer if answer in (True, False) else None, [9, 9]
    )


async def test_without_approvals_the_agent_returns_its_requests(tmp_path: Path) -> None:
    script = Script([("pay", {"order": 1})])
    agent: Agent[None, Any] = Agent(
        FunctionModel(script),
        name="helper",
        output_type=[str, DeferredToolRequests],
        capabilities=[SureholdDurability(approvals=False)],
    )
    paying(agent, [], requires_approval=True)

    async def work() -> list[str]:
        return [one.tool_name for one in (await agent.run("pay")).output.approvals]

    assert await in_workflow(work, f"sqlite:///{tmp_path}/runs.db") == ["pay"]


async def test_a_recorded_outcome_that_no_longer_fits_is_non_retryable_of_the_tool(
    tmp_path: Path,
) -> None:
    storage, paid = f"sqlite:///{tmp_path}/runs.db", list[int]()
    script = Script([("pay", {"order": 1})])
    agent = agent_of(script)

    @agent.tool_plain
    async def pay(order: int) -> str:
        paid.append(order)
        raise InDoubtError("the line broke")

    @surehold.workflow
    async def work() -> str:
        return (await agent.run("pay")).output

    with pytest.raises(InDoubtError):
        await work.run(run_id="r", storage=storage)
    (asked,) = surehold.pending(storage=storage)
    surehold.answer("r", asked.id, {"kind": "of no version"}, storage=storage)
    for _ in range(2):
        with pytest.raises(DecodeError, match="does not fit this version of pydantic-ai"):
            await work.run(run_id="r", storage=storage)
    assert paid == [1] and script.calls == 1


async def test_a_person_answers_for_a_tool_in_doubt_with_what_it_returned(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    agent = agent_of(Script([("pay", {"order": 1})]))

    @agent.tool_plain
    async def pay(order: int) -> str:
        raise InDoubtError("the line broke")

    @surehold.workflow
    async def work() -> str:
        return (await agent.run("pay")).output

    with pytest.raises(InDoubtError):
        await work.run(run_id="r", storage=storage)
    assert [one.id for one in surehold.pending(storage=storage)] == ["pay@[1.1.call_0]"]
    surehold.answer("r", "pay@[1.1.call_0]", "paid by hand", storage=storage)
    assert (await work.run(run_id="r", storage=storage)).value == "paid by hand"


async def test_a_tool_marked_false_is_called_by_every_execution(tmp_path: Path) -> None:
    storage, paid = f"sqlite:///{tmp_path}/runs.db", list[int]()
    agent = agent_of(Script([("pay", {"order": 1})]))
    paying(agent, paid, metadata={"surehold": False})
    breaks = iter([True, False])

    async def work() -> None:
        await agent.run("pay")
        if next(breaks):
            raise Broken

    with pytest.raises(Broken):
        await in_workflow(work, storage)
    await in_workflow(work, storage)
    assert paid == [1, 1]


async def test_a_recorded_turn_stands_whatever_another_model_would_say(tmp_path: Path) -> None:
    storage, paid = f"sqlite:///{tmp_path}/runs.db", list[int]()
    orders = iter([1, 6])

    @surehold.workflow(name="work")
    async def work() -> str:
        agent = agent_of(Script([("pay", {"order": next(orders)})]))
        paying(agent, paid)
        await agent.run("pay")
        raise Broken

    for _ in range(2):
        with pytest.raises(Broken):
            await work.run(run_id="r", storage=storage)
    assert paid == [1]


@dataclass
class Point:
    x: int


async def test_a_tool_returns_the_same_in_the_first_life_and_on_a_replay(tmp_path: Path) -> None:
    storage, said = f"sqlite:///{tmp_path}/runs.db", list[str]()
    agent = agent_of(Script([("where", {})]))
    breaks = iter([True, False])

    @agent.tool_plain
    def where() -> Point:
        return Point(4)

    async def work() -> None:
        said.append((await agent.run("where")).output)
        if next(breaks):
            raise Broken

    with pytest.raises(Broken):
        await in_workflow(work, storage)
    await in_workflow(work, storage)
    assert said == ["{'x': 4}", "{'x': 4}"]


async def test_an_outcome_without_a_json_form_is_an_error_that_says_so(tmp_path: Path) -> None:
    agent = agent_of(Script([("where", {})]))

    @agent.tool_plain
    def where() -> Any:
        return object()

    async def work() -> None:
        await agent.run("where")

    with pytest.raises(EncodeError, match="has no JSON form"):
        await in_workflow(work, f"sqlite:///{tmp_path}/runs.db")


def test_run_sync_in_a_plain_workflow_says_what_to_write(tmp_path: Path) -> None:
    agent = agent_of(Script())

    @surehold.workflow
    def work() -> str:
        return agent.run_sync("x").output

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        with pytest.raises(UsageError, match="make the workflow async and await"):
            work.run(run_id="r", storage=f"sqlite:///{tmp_path}/runs.db")
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def test_a_toolset_that_comes_with_the_call_is_refused_in_a_run(tmp_path: Path) -> None:
    agent = agent_of(Script())

    async def work() -> None:
        await agent.run("x", toolsets=[FunctionToolset(id="late")])

    with pytest.raises(UserError, match="Surehold"):
        await in_workflow(work, f"sqlite:///{tmp_path}/runs.db")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"model": {"retry": 3}}, "did you mean retries"),
        ({"tools": {"in_doubt": "maybe"}}, "in_doubt is 'maybe'"),
        ({"tools": {"in_doubt": "probe"}}, "no probe"),
    ],
)
def test_wrong_options_are_refused_when_the_agent_is_made(options: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        SureholdDurability(**options)


async def test_wrong_metadata_of_a_tool_is_refused_before_the_tool_is_called(
    tmp_path: Path,
) -> None:
    paid = list[int]()
    agent = agent_of(Script([("pay", {"order": 1})]))
    paying(agent, paid, metadata={"surehold": {"in_doubt": "perhaps"}})

    async def work() -> None:
        await agent.run("pay")

    with pytest.raises(UsageError, match="in_doubt is 'perhaps'"):
        await in_workflow(work, f"sqlite:///{tmp_path}/runs.db")
    assert not paid


def test_without_the_package_the_import_is_a_pip_line() -> None:
    code = (
        "import sys; sys.modules['pydantic_ai'] = None\n"
        "try:\n    import surehold.integrations.pydantic_ai\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'surehold[pydantic-ai]'" in done.stdout
