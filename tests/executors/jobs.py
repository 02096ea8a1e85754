"""Workflows, graphs and agents that the tests of executors find by entry point."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from tests.builders import fleets

import surehold
from surehold import (
    Agent,
    CheckpointConfig,
    Fleet,
    GraphConfig,
    Reply,
    StateGraph,
    ToolCall,
    step,
    tool,
    workflow,
)
from surehold.testing.scripted import ScriptedModel


@step
def double(number: int) -> int:
    return 2 * number


@step(in_doubt="retry")
def counted(number: int) -> int:
    return number + 1


@workflow
def ten_steps() -> int:
    for number in range(10):
        counted(number)
    return 10


@workflow
def doubled(numbers: list[int]) -> list[int]:
    return [double(number) for number in numbers]


@workflow
async def doubled_async(numbers: list[int]) -> list[int]:
    return [surehold.step(abs)(number) for number in numbers]


@workflow
def keyed(key: str, queue: str, *, delay: float = 0) -> str:
    return f"{key} {queue} {delay:g}"


@workflow
async def keyed_async(key: str, queue: str, *, delay: float = 0) -> str:
    return f"{key} {queue} {delay:g}"


@workflow
def rests(seconds: float) -> str:
    double(1)
    surehold.sleep(seconds)
    double(2)
    return "rested"


@workflow
def asks() -> str:
    return str(surehold.wait_for("approval"))


@workflow
async def asks_a_person() -> str:
    return str(await surehold.interrupt("Agree?"))


@step(timeout=0.01, in_doubt="ask")
def takes_too_long() -> str:
    gate.wait(60)
    return "late"


@workflow
def is_in_doubt() -> str:
    return takes_too_long()


@workflow
def rests_and_asks(seconds: float) -> str:
    surehold.sleep(seconds)
    return str(surehold.wait_for("approval"))


@workflow
def fails() -> None:
    double(1)
    raise ValueError("no luck")


allowed: list[int] = []


@step
def double_if_allowed(number: int) -> int:
    if number not in allowed:
        raise ValueError(f"{number} is not allowed yet")
    return 2 * number


@workflow
def fails_at_each(numbers: list[int]) -> list[int]:
    return [double_if_allowed(number) for number in numbers]


@workflow
async def fails_in_branches(numbers: list[int]) -> list[int]:
    async def branch(number: int) -> int:
        return double_if_allowed(number)

    return [(await surehold.gather(branch(number)))[0] for number in numbers]


def _fail(state: Any) -> None:
    raise ValueError("no luck")


keeping_one = StateGraph(
    GraphConfig(
        name="keeping_one",
        checkpoint=CheckpointConfig(store="memory://", interval=1, keep=1, preserve=True),
    )
)
keeping_one.add_node("begin", lambda state: {"begun": True})
keeping_one.add_node("fail", _fail)
keeping_one.add_edge("begin", "fail")
keeping_one.set_entry_point("begin")
keeping_one.set_exit_point("fail")


@workflow
def exits() -> None:
    raise SystemExit(3)


def local_factory() -> StateGraph:
    return counting


async def _asked(state: Any) -> dict[str, Any]:
    try:
        return {"answer": await surehold.interrupt("Agree?", timeout=0.05)}
    except TimeoutError:
        return {"answer": "none"}


asking = StateGraph("asking", storage="memory://")
asking.add_node("ask", _asked)
asking.set_entry_point("ask")
asking.set_exit_point("ask")


async def _asked_long(state: Any) -> dict[str, Any]:
    return {"answer": await surehold.interrupt("Agree?")}


asking_long = StateGraph("asking_long", storage="memory://")
asking_long.add_node("ask", _asked_long)
asking_long.set_entry_point("ask")
asking_long.set_exit_point("ask")

counting = StateGraph("counting", storage="memory://")
counting.add_node("up", lambda state: {"n": state["n"] + 1})
counting.add_node("done", lambda state: None)
counting.add_edge("up", "done", lambda state: state["n"] >= 3)
counting.add_edge("up", "up")
counting.set_entry_point("up")
counting.set_exit_point("done")


slow_steps: list[int] = []


@step
def slow_step(number: int) -> int:
    slow_steps.append(number)
    time.sleep(0.01)
    return number


@workflow
def slow(steps: int) -> int:
    return sum(slow_step(number) for number in range(steps))


gate = threading.Event()


@step
def wait_at_the_gate() -> None:
    if place := os.environ.get("SUREHOLD_TEST_GATE"):
        Path(place).touch()
    assert gate.wait(60)


@workflow
def gated() -> None:
    wait_at_the_gate()


def make_agent() -> Agent:
    return Agent("helper", model=ScriptedModel(["forty-two"]), storage=STORAGE["here"])


@tool(approval=True)
def buy(amount: int) -> str:
    """Buy."""
    return f"bought for {amount}"


def make_buyer() -> Agent:
    script = [Reply("", (ToolCall("1", "buy", {"amount": 5}),)), "bought"]
    return Agent("buyer", model=ScriptedModel(script), tools=[buy], storage=STORAGE["here"])


def make_parent() -> Agent:
    script = [Reply("", (ToolCall("1", "buy", {"amount": 5}),)), "bought"]
    child = Agent("child", model=ScriptedModel(script), tools=[buy], storage=STORAGE["here"])
    script = [Reply("", (ToolCall("1", "child", {"task": "buy it"}),)), "done"]
    tools = [child.as_tool()]
    return Agent("parent", model=ScriptedModel(script), tools=tools, storage=STORAGE["here"])


def make_fleet() -> Fleet:
    return Fleet(fleets.manager(rounds=2), fleets.team(), name="crew", storage=STORAGE["here"])


STORAGE: dict[str, Any] = {"here": "memory://"}
"""The storage of the agents and fleets that are made here."""


@workflow
def chatty(text: str) -> None:
    """Log as libraries do."""
    library = logging.getLogger("library")
    library.warning("said %s", text)
    try:
        raise ValueError(text)
    except ValueError:
        library.exception("and failed")
