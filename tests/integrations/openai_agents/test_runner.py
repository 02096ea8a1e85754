"""What agents of the OpenAI Agents SDK do in every kind of run, and what is refused."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agents
import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    InputGuardrail,
    InputGuardrailTripwireTriggered,
    LocalShellTool,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
)
from agents.models.interface import Model, ModelProvider
from agents.testing import ScriptedModel, assistant_message, function_call

import surehold
from surehold import CheckpointConfig, GraphConfig, State, StateGraph
from surehold.errors import StepError, UsageError
from surehold.integrations.openai_agents import SureholdRunner, SureholdSession, idempotency_key
from surehold.storage.base import RecordQuery
from surehold.storage.registry import open_storage

agents.set_tracing_disabled(True)


class Broken(Exception):
    """Ends an execution, as a crash would."""


def scripted(*turns: Any) -> ScriptedModel:
    """A model that makes these calls, a tuple each, or says these texts."""
    steps: list[Any] = []
    for at, turn in enumerate(turns):
        if isinstance(turn, str):
            steps.append([assistant_message(turn, item_id=f"message-{at}")])
        else:
            calls = turn if isinstance(turn, list) else [turn]
            steps.append(
                [
                    function_call(name, given, call_id=f"call-{at}-{number}")
                    for number, (name, given) in enumerate(calls)
                ]
            )
    return ScriptedModel(steps)


def payer(paid: list[int], **options: Any) -> Any:
    @function_tool(**options)
    async def pay(order: int) -> str:
        paid.append(order)
        await asyncio.sleep(0)
        return f"paid {order}"

    return pay


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
@pytest.mark.parametrize("streamed", [False, True])
async def test_in_every_run_a_failure_after_the_agent_repeats_none_of_its_calls(
    door: Any, streamed: bool, tmp_path: Path
) -> None:
    storage, paid = f"sqlite:///{tmp_path}/runs.db", list[int]()
    model = scripted([("pay", {"order": 1}), ("pay", {"order": 2})], ("pay", {"order": 3}), "Done.")
    agent = Agent("support", model=model, tools=[payer(paid)])
    runner, breaks = SureholdRunner(), iter([True, False])

    async def work() -> Any:
        result: Any
        with SureholdSession("customer-7", storage) as session:
            if streamed:
                result = runner.run_streamed(agent, "Pay.", session=session)
                async for _ in result.stream_events():
                    pass
            else:
                result = await runner.run(agent, "Pay.", session=session)
            if next(breaks):
                raise Broken
            return [result.final_output, result.context_wrapper.usage.requests]

    with pytest.raises((Broken, StepError)):
        await door(work, storage)
    assert list(await door(work, storage)) == ["Done.", 3]
    assert sorted(paid) == [1, 2, 3] and len(model.calls) == 3
    with SureholdSession("customer-7", storage) as session:
        assert len(await session.get_items()) == 8


async def test_outside_a_run_the_agent_is_as_it_was() -> None:
    paid = list[int]()
    agent = Agent("support", model=scripted(("pay", {"order": 1}), "Done."), tools=[payer(paid)])
    result = await SureholdRunner().run(agent, "Pay.", session=SQLiteSession("any"))
    assert result.final_output == "Done." and result.last_agent is agent
    assert idempotency_key() is None and paid == [1]


async def test_a_foreign_session_is_refused_inside_a_run_before_anything_is_called() -> None:
    model = scripted("Done.")

    async def work() -> None:
        await SureholdRunner().run(Agent("a", model=model), "Hi.", session=SQLiteSession("any"))

    with pytest.raises(UsageError, match="SQLiteSession cannot be used inside a run"):
        await in_workflow(work, "memory://")
    assert not model.calls


async def test_a_session_has_the_items_that_the_stock_class_has(tmp_path: Path) -> None:
    turns = ("pay", {"order": 1}), "Done.", "Again."
    found = []
    for run, session in (
        (Runner.run, SQLiteSession("any")),
        (SureholdRunner().run, SureholdSession("any", f"sqlite:///{tmp_path}/runs.db")),
    ):
        agent = Agent("support", model=scripted(*turns), tools=[payer([])])

        async def work(run: Any = run, session: Any = session, agent: Any = agent) -> None:
            for text in ("Pay.", "And?"):
                await run(agent, text, session=session)

        await (in_workflow(work, "memory://") if run is not Runner.run else work())
        found.append(await session.get_items())
        session.close()
    assert found[0] == found[1] and len(found[0]) == 6


async def test_a_turn_sees_the_session_as_it_was_when_it_was_first_read(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    model, breaks = scripted("One.", "Two."), iter([True, False])

    async def work() -> list[str]:
        with SureholdSession("s", storage) as session:
            runner, agent = SureholdRunner(), Agent("a", model=model)
            said = [(await runner.run(agent, "First.", session=session)).final_output]
            if next(breaks):
                await session.add_items([{"role": "user", "content": "From elsewhere."}])
                raise Broken
            said.append((await runner.run(agent, "Second.", session=session)).final_output)
            return said

    with pytest.raises(Broken):
        await in_workflow(work, storage)
    assert await in_workflow(work, storage) == ["One.", "Two."]
    contents = [one["content"] for one in model.calls[1].input]
    assert contents[0] == "First." and contents[2:] == ["From elsewhere.", "Second."]


async def test_an_agent_as_a_tool_is_recorded_call_by_call_and_its_usage_counts(
    tmp_path: Path,
) -> None:
    storage, paid = f"sqlite:///{tmp_path}/runs.db", list[int]()
    inner = scripted(("pay", {"order": 1}), "Paid.")
    outer = scripted(("ask", {"input": "pay"}), "Done.")
    bank = Agent("bank", model=inner, tools=[payer(paid)])
    agent = Agent("support", model=outer, tools=[bank.as_tool("ask", "Ask the bank.")])
    breaks = iter([True, False])

    async def work() -> list[Any]:
        result = await SureholdRunner().run(agent, "Pay.")
        if next(breaks):
            raise Broken
        return [result.final_output, result.context_wrapper.usage.requests]

    with pytest.raises(Broken):
        await in_workflow(work, storage)
    assert await in_workflow(work, storage) == ["Done.", 4]
    assert paid == [1] and len(inner.calls) == 2 and len(outer.calls) == 2


async def test_an_agent_that_a_guardrail_runs_is_recorded(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    judge_model, model = scripted("harmless", "harmful"), scripted("Done.", "Never seen.")
    judge = Agent("judge", model=judge_model)

    async def look(context: Any, agent: Any, input: Any) -> GuardrailFunctionOutput:
        said = (await Runner.run(judge, input)).final_output
        return GuardrailFunctionOutput(said, tripwire_triggered=said == "harmful")

    agent = Agent(
        "support",
        model=model,
        input_guardrails=[InputGuardrail(guardrail_function=look, run_in_parallel=False)],
    )

    async def work() -> str:
        runner = SureholdRunner()
        said = (await runner.run(agent, "Hello.")).final_output
        with pytest.raises(InputGuardrailTripwireTriggered):
            await runner.run(agent, "Evil.")
        return str(said)

    for _ in range(2):
        assert await in_workflow(work, storage) == "Done."
    assert len(judge_model.calls) == 2 and len(model.calls) == 1


async def test_effects_and_steps_inside_a_tool_are_recorded_in_the_same_run(
    tmp_path: Path,
) -> None:
    storage, charged, keys = f"sqlite:///{tmp_path}/runs.db", list[str](), set[str | None]()

    @surehold.step
    async def look_up(order: int) -> int:
        charged.append(f"looked up {order}")
        return 20

    async def charge(amount: int) -> str:
        charged.append(f"charged {amount}")
        return "charged"

    breaks = iter([True, False])

    @function_tool(failure_error_function=None)
    async def pay(order: int) -> str:
        keys.add(idempotency_key())
        said: str = await surehold.effect("charge", charge, await look_up(order))
        if next(breaks):
            raise Broken
        return said

    agent = Agent("support", model=scripted(("pay", {"order": 1}), "Done."), tools=[pay])
    runner = SureholdRunner(tools={"in_doubt": "retry"})

    async def work() -> str:
        return str((await runner.run(agent, "Pay.")).final_output)

    with pytest.raises(Exception, match="pay"):
        await in_workflow(work, storage)
    assert await in_workflow(work, storage) == "Done."
    assert charged == ["looked up 1", "charged 20"] and len(keys) == 1


async def test_an_effect_in_a_tool_outside_a_run_says_once_that_nothing_is_recorded() -> None:
    @function_tool
    async def pay(order: int) -> str:
        return str(await surehold.effect("charge outside", asyncio.sleep, 0, "charged"))

    turns = ("pay", {"order": 1}), ("pay", {"order": 2}), "Done."
    agent = Agent("support", model=scripted(*turns), tools=[pay])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        await SureholdRunner().run(agent, "Pay.")
    assert ["nothing of it is recorded" in str(one.message) for one in seen] == [True]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_person_rejects_a_call_with_a_reason_that_the_model_sees(
    streamed: bool, tmp_path: Path
) -> None:
    storage, paid = f"sqlite:///{tmp_path}/runs.db", list[int]()
    model = scripted([("pay", {"order": 1}), ("pay", {"order": 2})], "Done.")
    agent = Agent("support", model=model, tools=[payer(paid, needs_approval=True)])

    @surehold.workflow
    async def work() -> str:
        if not streamed:
            return str((await SureholdRunner().run(agent, "Pay.")).final_output)
        result = SureholdRunner().run_streamed(agent, "Pay.")
        async for _ in result.stream_events():
            pass
        return str(result.final_output)

    waiting = await work.run(run_id="r", storage=storage)
    first, second = sorted(waiting.waiting, key=lambda one: one.question["arguments"]["order"])
    surehold.approve("r", first.id, storage=storage)
    surehold.reject("r", second.id, reason="too much", storage=storage)
    result = await work.run(run_id="r", storage=storage)
    assert result.value == "Done." and paid == [1]
    outputs = [one["output"] for one in model.calls[-1].input if "output" in one]
    assert outputs == ["paid 1", "too much"]


async def test_other_arguments_in_an_approval_call_nothing_and_tell_the_model(
    tmp_path: Path,
) -> None:
    storage, paid = f"sqlite:///{tmp_path}/runs.db", list[int]()
    model = scripted(("pay", {"order": 1}), "Done.")
    agent = Agent("support", model=model, tools=[payer(paid, needs_approval=True)])

    @surehold.workflow
    async def work() -> str:
        return str((await SureholdRunner().run(agent, "Pay.")).final_output)

    await work.run(run_id="r", storage=storage)
    (asked,) = surehold.pending(storage=storage)
    answer = {"approved": True, "arguments": {"order": 9}}
    surehold.answer("r", asked.id, answer, storage=storage)
    await work.run(run_id="r", storage=storage)
    assert paid == [] and '{"order": 9}' in str(model.calls[-1].input)


async def test_a_policy_of_the_tool_still_decides_which_calls_need_approval(
    tmp_path: Path,
) -> None:
    paid = list[int]()

    async def large(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return bool(arguments["order"] > 5)

    agent = Agent(
        "support",
        model=scripted(("pay", {"order": 1}), ("pay", {"order": 9}), "Done."),
        tools=[payer(paid, needs_approval=large)],
    )

    async def work() -> int:
        return len((await SureholdRunner(approvals=False).run(agent, "Pay.")).interruptions)

    assert await in_workflow(work, f"sqlite:///{tmp_path}/runs.db") == 1
    assert paid == [1]


async def test_a_tool_that_takes_too_long_is_not_in_doubt(tmp_path: Path) -> None:
    storage, began = f"sqlite:///{tmp_path}/runs.db", list[int]()

    @function_tool(timeout=0.05)
    async def slow() -> str:
        began.append(1)
        await asyncio.sleep(30)
        return "never"

    agent = Agent("support", model=scripted(("slow", {}), "Done."), tools=[slow])
    breaks = iter([True, False])

    async def work() -> str:
        result = await SureholdRunner().run(agent, "Go.")
        if next(breaks):
            raise Broken
        return str(result.final_output)

    with pytest.raises(Broken):
        await in_workflow(work, storage)
    assert await in_workflow(work, storage) == "Done." and began == [1]


async def test_a_tool_that_acts_on_the_machine_is_refused_or_executed_by_every_replay(
    tmp_path: Path,
) -> None:
    shell = LocalShellTool(executor=lambda _: "")

    async def work(runner: SureholdRunner) -> str:
        agent = Agent("support", model=scripted("Done."), tools=[shell])
        return str((await runner.run(agent, "Go.")).final_output)

    with pytest.raises(UsageError, match="acts on this machine"):
        await in_workflow(lambda: work(SureholdRunner()), f"sqlite:///{tmp_path}/1.db")
    runner = SureholdRunner(per_tool={"local_shell": False})
    assert await in_workflow(lambda: work(runner), f"sqlite:///{tmp_path}/2.db") == "Done."


class Provider(ModelProvider):
    def __init__(self, model: Model) -> None:
        self.model = model

    def get_model(self, model_name: str | None) -> Model:
        return self.model


@pytest.mark.parametrize("where", ["provider", "config"])
async def test_models_of_the_run_config_are_recorded_too(where: str, tmp_path: Path) -> None:
    storage, model = f"sqlite:///{tmp_path}/runs.db", scripted("Done.")
    config = RunConfig(model_provider=Provider(model))
    if where == "config":
        config = RunConfig(model=model)
    breaks = iter([True, False])

    async def work() -> str:
        result = await SureholdRunner().run(Agent("a", model="any"), "Hi.", run_config=config)
        if next(breaks):
            raise Broken
        return str(result.final_output)

    with pytest.raises(Broken):
        await in_workflow(work, storage)
    assert await in_workflow(work, storage) == "Done." and len(model.calls) == 1


async def test_the_pieces_of_a_stream_come_before_the_response_is_stored(tmp_path: Path) -> None:
    agent = Agent("a", model=scripted("A long answer."))
    storage = f"sqlite:///{tmp_path}/runs.db"
    seen: list[tuple[str, bool]] = []
    recorded = RecordQuery(run_id="r", kind="effect", notes=True)
    with open_storage(storage) as reading:
        async with surehold.run("r", storage=storage):
            result = SureholdRunner().run_streamed(agent, "Hi.")
            async for event in result.stream_events():
                if event.type == "raw_response_event":
                    names = [one.node for one in reading.headers(recorded)]
                    seen.append((event.data.type, len(names) == 2))
    deltas = [stored for kind, stored in seen if kind == "response.output_text.delta"]
    assert deltas and not any(deltas)
    assert seen[-1] == ("response.completed", True)


async def test_agents_that_run_at_once_get_their_own_outcomes_back(tmp_path: Path) -> None:
    storage, breaks = f"sqlite:///{tmp_path}/runs.db", iter([True, False])
    models = [scripted("One."), scripted("Two.")]

    async def work() -> list[str]:
        runner = SureholdRunner()
        done = await asyncio.gather(
            *(runner.run(Agent("same", model=model), "Hi.") for model in models)
        )
        if next(breaks):
            raise Broken
        return [str(each.final_output) for each in done]

    with pytest.raises(Broken):
        await in_workflow(work, storage)
    assert await in_workflow(work, storage) == ["One.", "Two."]


def test_a_run_that_is_not_async_and_run_sync_inside_a_run_are_refused(tmp_path: Path) -> None:
    runner, agent = SureholdRunner(), Agent("a", model=scripted("Done."))

    @surehold.workflow
    def work() -> None:
        runner.run_sync(agent, "Hi.")

    with pytest.raises(UsageError, match="run_sync of agent 'a' is called inside a run"):
        work.run(run_id="r", storage=f"sqlite:///{tmp_path}/runs.db")
    try:
        assert runner.run_sync(agent, "Hi.").final_output == "Done."
    finally:
        asyncio.get_event_loop_policy().get_event_loop().close()  # the SDK leaves it open
        asyncio.set_event_loop(None)


def test_wrong_options_are_refused_before_anything_is_called() -> None:
    with pytest.raises(UsageError, match="in_doubt"):
        SureholdRunner(tools={"in_doubt": "perhaps"})  # type: ignore[typeddict-item]
    with pytest.raises(UsageError, match="in_doubt is 'perhaps'"):
        SureholdRunner(per_tool={"pay": {"in_doubt": "perhaps"}})  # type: ignore[typeddict-item]
