"""Agents that are asked to stop: when they do, and what their checkpoint says of it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.builders.agents import build, call, manager_in, turns

from surehold import AgentState, HookEvent, HookManager, HookResult, StateManager
from surehold.agents.tools.definition import tool
from surehold.errors import Drained, VetoError


@pytest.fixture
def manager(tmp_path: Path) -> StateManager:
    return manager_in(tmp_path)


class World:
    """Steps that can do something to the agent that takes them."""

    def __init__(self, act: Any = None, at: int = 1) -> None:
        self.agent: Any = None
        self.done: list[int] = []
        self.began: list[int] = []
        self.act = act
        self.at = at

    @tool(idempotent=True)
    async def step(self, number: int) -> str:
        """Take a step."""
        self.began.append(number)
        if number == self.at and self.act is not None:
            act, self.act = self.act, None
            await act(self.agent)
        self.done.append(number)
        return f"step {number}"

    def build(self, manager: StateManager | None, **config: Any) -> Any:
        replies = [call("step", number=number) for number in range(4)]
        more = config.pop("more", {})
        self.agent = build(turns(*replies, "done"), manager, tools=[self.step], more=more, **config)
        return self.agent


async def reason_in(manager: StateManager) -> tuple[str, Any]:
    newest = (await manager.list_checkpoints("researcher"))[0]
    state = await manager.load_checkpoint(newest.checkpoint_id)
    assert isinstance(state, AgentState)
    return state.status, state.metadata.get("interrupt", {})


async def by_user(agent: Any) -> None:
    agent.interrupt("enough for today")


async def by_thread(agent: Any) -> None:
    thread = threading.Thread(target=agent.interrupt, args=("from a thread",))
    thread.start()
    await asyncio.to_thread(thread.join)
    await asyncio.sleep(0)


async def by_sigterm(agent: Any) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.03)  # two within 20 ms count as one


async def by_sigint(agent: Any) -> None:
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("act", "source", "message"),
    [
        (by_user, "user", "enough for today"),
        (by_thread, "user", "from a thread"),
        (by_sigterm, "signal", "SIGTERM"),
        (by_sigint, "signal", "SIGINT"),
    ],
)
async def test_a_graceful_interrupt_finishes_the_cycle_and_no_more(
    act: Any, source: str, message: str, manager: StateManager
) -> None:
    world = World(act)
    if source == "signal":  # raised too, as Python and the shell expect
        expected = KeyboardInterrupt if act is by_sigint else SystemExit
        with pytest.raises(expected) as caught:
            await world.build(manager).run("go")
        assert isinstance(caught.value, Drained)
    else:
        result = await world.build(manager).run("go")
        assert (result.status, result.cycles_used) == ("interrupted", 2)
    assert world.done == [0, 1]
    run_id = world.agent.state.run_id
    status, reason = await reason_in(manager)
    assert (status, reason["source"], reason["message"]) == ("interrupted", source, message)
    assert reason["mode"] == "graceful"
    again = await world.build(manager).run()
    assert (again.status, again.run_id, world.done) == ("completed", run_id, [0, 1, 2, 3])
    assert "interrupt" not in world.agent.state.metadata


async def test_signals_are_put_back_after_a_run(manager: StateManager) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    await World().build(manager).run("go")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_an_immediate_interrupt_cuts_the_cycle_short_and_saves(
    manager: StateManager,
) -> None:
    async def act(agent: Any) -> None:
        agent.interrupt("now", mode="immediate")
        await asyncio.sleep(60)

    world = World(act)
    result = await world.build(manager).run("go")
    assert (result.status, result.cycles_used) == ("interrupted", 1)
    status, reason = await reason_in(manager)
    assert (status, reason["mode"]) == ("interrupted", "immediate")
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    again = await world.build(manager).run()
    assert again.status == "completed"
    assert (world.began, world.done) == ([0, 1, 1, 2, 3], [0, 1, 2, 3])


async def test_a_second_signal_does_not_wait_for_the_cycle(manager: StateManager) -> None:
    async def act(agent: Any) -> None:
        await by_sigterm(agent)
        await by_sigterm(agent)
        await asyncio.sleep(60)

    world = World(act)
    with pytest.raises(SystemExit):
        await world.build(manager).run("go")
    assert ((await reason_in(manager))[0], world.done) == ("interrupted", [0])


async def test_a_cycle_that_does_not_finish_in_time_is_cut_short(manager: StateManager) -> None:
    async def act(agent: Any) -> None:
        agent.interrupt("please")
        await asyncio.sleep(60)

    world = World(act)
    result = await world.build(manager, graceful_shutdown_timeout=0.05).run("go")
    assert (result.status, world.done) == ("interrupted", [0])
    assert (await reason_in(manager))[1]["message"] == "please"


async def test_a_timeout_interrupts_and_the_next_run_has_its_own(manager: StateManager) -> None:
    async def act(agent: Any) -> None:
        while agent.interrupts.reason is None:
            await asyncio.sleep(0.01)

    world = World(act)
    result = await world.build(manager, timeout_seconds=3).run("go")
    assert (result.status, world.done) == ("interrupted", [0, 1])
    assert (await reason_in(manager))[1]["source"] == "timeout"
    assert (await world.build(manager, timeout_seconds=500).run()).status == "completed"


async def test_an_interrupt_that_is_not_to_be_saved_leaves_the_newest_checkpoint(
    manager: StateManager,
) -> None:
    world = World(by_user)
    result = await world.build(manager, checkpoint_on_interrupt=False).run("go")
    assert result.status == "interrupted"
    assert [one.step_number for one in await manager.list_checkpoints("researcher")] == [0]
    assert (await world.build(manager).run()).status == "completed"
    assert world.done == [0, 1, 2, 3]


async def test_without_a_state_manager_an_interrupt_just_ends_the_run() -> None:
    world = World(by_user)
    assert (await world.build(None).run("go")).status == "interrupted"


async def test_hooks_are_told_of_an_interrupt(manager: StateManager) -> None:
    hooks, heard = HookManager(), []
    for event in (HookEvent.PRE_INTERRUPT, HookEvent.POST_INTERRUPT):
        hooks.register(event, lambda context: heard.append(context.data["reason"]["source"]))
    world = World(by_user)
    await world.build(manager, more={"hook_manager": hooks}).run("go")
    assert heard == ["user", "user"]


async def test_a_hook_can_forbid_an_interrupt_and_a_run(manager: StateManager) -> None:
    hooks = HookManager()
    refuse = {"data": None, "error": "not now", "veto": True}
    hooks.register(HookEvent.PRE_INTERRUPT, lambda context: HookResult(False, **refuse))
    world = World(by_user)
    more = {"hook_manager": hooks}
    result = await world.build(manager, graceful_shutdown_timeout=0.2, more=more).run("go")
    assert (result.status, world.done) == ("completed", [0, 1, 2, 3])
    hooks.register(HookEvent.PRE_AGENT_LOOP, lambda context: HookResult(False, **refuse))
    with pytest.raises(VetoError, match="refused the run: not now"):
        await world.build(manager, more=more).run("go")


async def test_a_cancellation_by_the_program_itself_is_a_cancellation(
    manager: StateManager,
) -> None:
    begun = asyncio.Event()

    async def act(agent: Any) -> None:
        begun.set()
        await asyncio.sleep(10**6)

    world = World(act)
    task = asyncio.create_task(world.build(manager).run("go"))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await manager.list_checkpoints("researcher"))[0].status == "interrupted"
    assert (await world.build(manager).run()).status == "completed"
