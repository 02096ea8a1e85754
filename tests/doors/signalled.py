"""A run of one door with a slow part, for tests that send signals to it.

    python -m tests.doors.signalled DOOR STORAGE PART SECONDS [OPTION...]

It prints ``begun`` and ``finished`` around its slow part, which is inside a recorded unit or
outside of one, and ``last`` in the part after that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from typing import Any

from tests.builders.agents import call as call_tool
from tests.builders.agents import turns
from tests.builders.fleets import manager, team

import surehold
from surehold import Agent, AgentConfig, Fleet, StateGraph, workflow
from surehold.engine.runs import stop
from surehold.testing.scripted import ScriptedModel

DOOR, STORAGE, PART, SECONDS, *OPTIONS = sys.argv[1:]
SIGNALS = False if "deaf" in OPTIONS else None
if "twice" in OPTIONS:  # a second signal comes while the first is being handled
    exec("def _say(text): os.kill(os.getpid(), signal.SIGTERM)", vars(stop))
pay = surehold.step(in_doubt="ask")
"""For what must not happen twice."""


def say(word: str) -> None:
    os.write(1, f"{word}\n".encode())


def slow() -> str:
    say("begun")
    until = time.monotonic() + float(SECONDS)
    while time.monotonic() < until:
        time.sleep(0.01)
    say("finished")
    return "slow"


async def slow_async() -> str:
    say("begun")
    await asyncio.sleep(float(SECONDS))
    say("finished")
    return "slow"


def last() -> str:
    say("last")
    return "last"


async def last_async() -> str:
    return last()


def loop() -> None:
    with surehold.run("r", storage=STORAGE, signals=SIGNALS) as run:
        run.effect("slow", slow) if PART == "inside" else slow()
        run.call(last)


async def async_loop() -> None:
    async with surehold.run("r", storage=STORAGE, signals=SIGNALS) as run:
        await (run.effect("slow", slow_async) if PART == "inside" else slow_async())
        await run.call(last_async)


@workflow
def plain() -> None:
    pay(slow)() if PART == "inside" else slow()
    surehold.step(last)()


@workflow
async def awaited() -> None:
    await (pay(slow_async)() if PART == "inside" else slow_async())
    await surehold.step(last_async)()


def function() -> None:
    plain.run(run_id="r", storage=STORAGE, signals=SIGNALS)


async def async_function() -> None:
    await awaited.run(run_id="r", storage=STORAGE, signals=SIGNALS)


@workflow
async def blocking() -> None:
    slow()


async def blocked() -> None:
    await blocking.run(run_id="r", storage=STORAGE)


@workflow
async def gathered() -> None:
    await asyncio.gather(surehold.step(slow_async)(), surehold.step(quick)())
    await surehold.step(last_async)()


async def quick() -> str:
    await asyncio.sleep(float(SECONDS) / 2)
    return "quick"


async def gather() -> None:
    await gathered.run(run_id="r", storage=STORAGE)


@workflow
async def grouped() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(surehold.step(slow_async)())
        group.create_task(surehold.step(quick)())
    await surehold.step(last_async)()


async def task_group() -> None:
    await grouped.run(run_id="r", storage=STORAGE)


@workflow
async def left() -> None:
    async def goes_on() -> None:
        while True:
            await surehold.step(asyncio.sleep)(0.05)

    await surehold.gather(pay(slow_async)(), goes_on())


async def sibling_left() -> None:
    await left.run(run_id="r", storage=STORAGE)


async def graph() -> None:
    await _graph(slow_async)


async def plain_graph() -> None:
    await _graph(slow)


async def _graph(slow: Any) -> None:
    config = surehold.GraphConfig(
        name="g",
        signals=SIGNALS,
        checkpoint=surehold.CheckpointConfig(store=STORAGE, interval=1, preserve=True),
    )
    async with StateGraph(config) as made:

        async def slow_node(state: Any) -> None:
            await slow()

        made.add_node("slow", slow_node if slow is slow_async else lambda state: slow() and None)
        made.add_node("last", lambda state: last() and None)
        made.add_edge("slow", "last")
        made.set_entry_point("slow")
        made.set_exit_point("last")
        await made.run(run_id="r")


async def agent() -> None:
    config = AgentConfig(planning_enabled=False, enable_interrupts=SIGNALS is None)
    script = turns(call_tool("slow_tool"), call_tool("last_tool"), "done")

    async def slow_tool() -> str:
        """Slow."""
        return await slow_async()

    def last_tool() -> str:
        """Last."""
        return last()

    made = Agent(
        "a",
        model=ScriptedModel(script),
        tools=[slow_tool, last_tool],
        storage=STORAGE,
        config=config,
        report=lambda line: None,
    )
    await made.run("task", run_id="r")


async def fleet() -> None:
    rounds: list[str] = []

    async def speak(instruction: str) -> str:
        rounds.append(instruction)
        if instruction.endswith("1"):
            return await slow_async()
        return last()

    crew = dict.fromkeys(team(), speak)
    async with Fleet(manager(2), crew, storage=STORAGE, signals=SIGNALS) as made:
        await made.run("task", run_id="r")


@workflow
def outer() -> None:
    """A step that must not be repeated, and a graph inside of it."""
    pay(inner)()
    surehold.step(last)()


def inner() -> str:
    made = StateGraph("inner", storage=STORAGE)
    made.add_node("slow", lambda state: slow() and None)
    made.add_node("end", lambda state: None)
    made.add_edge("slow", "end")
    made.set_entry_point("slow")
    made.set_exit_point("end")
    return str(made.run_sync().status)


def nested() -> None:
    outer.run(run_id="r", storage=STORAGE)


if __name__ == "__main__":
    if "own" in OPTIONS:
        signal.signal(signal.SIGINT, lambda number, frame: say("own"))
    run = globals()[DOOR]
    asyncio.run(run()) if asyncio.iscoroutinefunction(run) else run()
    say("done")
