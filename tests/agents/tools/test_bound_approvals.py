"""An approval is bound to the exact call: tool, arguments and code."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import agents
import pytest
from agents.testing import ScriptedModel, assistant_message, function_call
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from tests.builders.agents import build, call, turns

import surehold
from surehold import StateManager
from surehold.agents.tools.approval import ask_approval, code_version
from surehold.agents.tools.definition import tool
from surehold.integrations.openai_agents import SureholdRunner
from surehold.integrations.pydantic_ai import SureholdDurability
from surehold.storage.registry import open_storage

DONE: list[str] = []


@pytest.fixture(autouse=True, scope="module")
def _no_tracing() -> None:
    agents.set_tracing_disabled(True)


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


def pay(order: int) -> str:
    """Pay."""
    DONE.append(f"paid {order}")
    return "paid"


def pay_twice(order: int) -> str:
    """Pay."""
    DONE.append(f"paid {order} twice")
    return "paid"


pay_twice.__name__ = "pay"


def surehold_door(function: Any, storage: str) -> Any:
    agent = build(
        turns(call("pay", order=3), "done"),
        StateManager(open_storage(storage)),
        tools=[tool(function, approval=True)],
    )
    return agent.run("buy", run_id="r")


def openai_door(function: Any, storage: str) -> Any:
    made = agents.function_tool(function, needs_approval=True)
    steps: list[Any] = [[function_call("pay", {"order": 3}, call_id="c")]]
    steps.append([assistant_message("done", item_id="m")])
    model = ScriptedModel(steps)
    agent = agents.Agent("shop", model=model, tools=[made])

    @surehold.workflow(name="shop")
    async def work() -> str:
        return str((await SureholdRunner().run(agent, "buy")).final_output)

    return work.run(run_id="r", storage=storage)


def pydantic_door(function: Any, storage: str) -> Any:
    def model(messages: Any, _: Any) -> ModelResponse:
        if any(isinstance(one, ModelResponse) for one in messages):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("pay", {"order": 3}, tool_call_id="c")])

    agent: PydanticAgent[None, str] = PydanticAgent(
        FunctionModel(model), name="shop", capabilities=[SureholdDurability()]
    )
    agent.tool_plain(name="pay", requires_approval=True)(function)

    @surehold.workflow(name="shop")
    async def work() -> str:
        return (await agent.run("buy")).output

    return work.run(run_id="r", storage=storage)


@pytest.mark.parametrize("door", [surehold_door, openai_door, pydantic_door])
async def test_an_approval_of_other_code_is_refused_and_asked_again(
    door: Any, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    assert (await door(pay, storage)).status == "waiting"
    (asked,) = surehold.pending(storage=storage)
    surehold.approve(asked.run_id, asked.id, storage=storage)
    for _ in range(2):  # the old answer is not taken by a later start either
        assert (await door(pay_twice, storage)).status == "waiting"
        assert DONE == []
        (again,) = surehold.pending(storage=storage)
        before, after = code_version(pay), code_version(pay_twice)
        assert before != after
        assert again.id == asked.id and "code " in again.problem and " now" in again.problem
    surehold.approve(again.run_id, again.id, storage=storage)
    assert (await door(pay_twice, storage)).status == "completed"
    assert DONE == ["paid 3 twice"]


@pytest.mark.parametrize("door", [openai_door, pydantic_door])
async def test_what_was_approved_and_done_stays_so_whatever_the_code_is(
    door: Any, tmp_path: Path
) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    await door(pay, storage)
    surehold.approve("r", storage=storage)
    assert (await door(pay, storage)).status == "completed"
    assert (await door(pay_twice, storage)).status == "completed"
    assert DONE == ["paid 3"]


async def test_an_answer_to_other_arguments_is_refused_with_both_sides(tmp_path: Path) -> None:
    storage, amount = f"sqlite:///{tmp_path}/runs.db", [100]

    @surehold.workflow
    async def work() -> bool:
        return (await ask_approval("pay", {"amount": amount[0]})).approved

    await work.run(run_id="r", storage=storage)
    surehold.approve("r", storage=storage)
    amount[0] = 9000
    assert (await work.run(run_id="r", storage=storage)).status == "waiting"
    (again,) = surehold.pending(storage=storage)
    assert '"amount":100' in again.problem and '"amount":9000' in again.problem
    assert again.question["arguments"] == {"amount": 9000}
    surehold.approve("r", storage=storage)
    assert (await work.run(run_id="r", storage=storage)).value is True


def test_the_version_of_code_is_that_of_the_function_itself() -> None:
    def within(values: Any) -> bool:
        return values in {"a", "b", "c"}

    assert code_version(partial(pay, 1)) == code_version(pay) != ""
    assert code_version(within) == code_version(within)
    assert code_version(print) == code_version(None) == ""
