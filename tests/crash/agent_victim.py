"""An agent of twelve cycles that is killed; run as a program, it prints what it found.

It forks, so that a kill costs milliseconds, and has no threads of its own when it does. What the
model and the tools do is counted in files that they append to themselves.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.crash.graph_victim import Killer, World
from tests.crash.media import open_medium, options_of

import surehold
from surehold import CheckpointManager, StateManager
from surehold.agents.agent.result import AgentResult
from surehold.agents.models.model import Message, Reply, ToolCall
from surehold.agents.tools.definition import tool
from surehold.compat import AutonomousConfig, BaseAutonomousAgent
from surehold.doors.events.drift_watch import DriftWatch
from surehold.storage.base import RunQuery
from surehold.testing.scripted import ScriptedModel

CYCLES = 12
FAMILY = "--family"
DRIFTING = "--drifting"
ASKING = "--asking"
STUCK_AT = 4
"""The cycle from which on an agent that drifts repeats itself, until it was taken back."""
TOOLS = ("search", "note", "charge")
MOMENTS = ("model", "before", "after")
"""During a call of the model; in a tool, before and after it has done its work."""


def outcome_of(result: AgentResult) -> dict[str, Any]:
    """A result without what differs between a run that was killed and one that was not."""
    told = result.to_dict()
    del told["saved"], told["usage"]["seconds"]
    return {**told, "run_id": ""}


class Victim:
    """The agent and its world; dies at a moment of a cycle, or at an append."""

    def __init__(self, base: Path, medium: str, moment: str, at: int) -> None:
        self.base = base
        self.world = World(base / "world")
        self.medium = medium
        self.moment = moment
        self.at = at
        self.storage = open_medium(medium, base)
        appends = moment.removesuffix("-append") if moment.endswith("-append") else "never"
        self.killer = Killer(self.storage, at, appends)

    def reached(self, moment: str, cycle: int) -> None:
        if moment == self.moment and cycle == self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def script(self, messages: Sequence[Message]) -> Reply | str:
        if messages[-1]["content"].startswith("Make a plan"):
            self.world.note("model", "plan")
            self.reached("model", 0)
            return '{"steps": ["look", "pay", "write"]}'
        cycle = sum(message["role"] == "assistant" for message in messages) + 1
        self.world.note("model", cycle)
        self.reached("model", cycle)
        if cycle == CYCLES:
            return f"done after {len(messages) - 2} messages"
        calls = [ToolCall(f"c{cycle}", TOOLS[cycle % 3], {"cycle": cycle})]
        if cycle in (4, 8):
            calls.append(ToolCall(f"f{cycle}", "finish_step", {}))
        return Reply(text=f"cycle {cycle}", tool_calls=tuple(calls))

    def work(self, name: str, cycle: int) -> str:
        self.reached("before", cycle)
        self.world.note(name, cycle)
        self.reached("after", cycle)
        return f"{name} {cycle}"

    def agent(self) -> BaseAutonomousAgent:
        @tool(read_only=True)
        def search(cycle: int) -> str:
            return self.work("search", cycle)

        @tool(idempotent=True)
        def note(cycle: int, idempotency_key: str) -> str:
            self.world.note("key", cycle, idempotency_key)
            return self.work("note", cycle)

        @tool
        def charge(cycle: int) -> str:
            return self.work("charge", cycle)

        return BaseAutonomousAgent(
            AutonomousConfig(max_cycles=CYCLES, resume_from_checkpoint=True),
            state_manager=StateManager(self.storage, **options_of(self.medium)),
            agent_id="victim",
            tools=[search, note, charge],
            model=ScriptedModel(self.script, price=1.0),
            report=lambda line: self.world.note("resumed", line),
        )

    def resolve(self, waiting: Any) -> None:
        """Look whether it happened, and say so."""
        assert (waiting.kind, waiting.name) == ("effect", "charge")
        cycle = waiting.step - 1  # the plan is the first step
        self.world.note("parked", cycle)
        happened = f"charge {cycle}" in self.world.lines()
        said: dict[str, Any] = {"value": f"charge {cycle}"} if happened else {"repeat": True}
        with CheckpointManager(self.storage, **options_of(self.medium)) as outside:
            surehold.answer(waiting.run_id, waiting.id, storage=outside, **said)

    async def run(self) -> dict[str, Any]:
        while True:
            agent = self.agent()
            result = await agent.run("get it done")
            if not result.waiting:
                break
            self.resolve(result.waiting[0])
        assert agent.state_manager is not None
        problems = [text for one in await agent.state_manager.verify() for text in one.problems]
        await agent.state_manager.close()
        state = agent.state
        return {
            "result": {
                **outcome_of(result),
                "conversation": [dict(message) for message in state.conversation_history],
                "counts": state.tool_usage_counts,
                "results": state.tool_results_cache,
            },
            "problems": problems,
            "appends": self.killer.count,
        }


class Family(Victim):
    """The same agent, as a tool of another."""

    def parent_script(self, messages: Sequence[Message]) -> Reply | str:
        turn = sum(message["role"] == "assistant" for message in messages)
        self.world.note("model", "parent", turn)
        if turn == 0:
            return Reply(tool_calls=(ToolCall("p", "victim", {"task": "get it done"}),))
        return f"the child said: {messages[-1]['content']}"

    def agent(self) -> BaseAutonomousAgent:
        child = super().agent()
        return BaseAutonomousAgent(
            AutonomousConfig(planning_enabled=False, resume_from_checkpoint=True),
            state_manager=child.state_manager,
            agent_id="parent",
            tools=[child.as_tool()],
            model=ScriptedModel(self.parent_script, price=1.0),
            report=lambda line: None,
        )


class Drifting(Victim):
    """The same agent, which repeats itself until it is taken back by a watch."""

    def script(self, messages: Sequence[Message]) -> Reply | str:
        told = super().script(messages)
        cycle = sum(message["role"] == "assistant" for message in messages) + 1
        if not isinstance(told, Reply) or cycle < STUCK_AT or "back" in self.world.lines():
            return told
        return Reply(tool_calls=(ToolCall(f"c{cycle}", "note", {"cycle": STUCK_AT}),))

    async def run(self) -> dict[str, Any]:
        watch = DriftWatch(policy="restore")
        agent = self.agent()
        agent.observer = watch
        agent.config = dataclasses.replace(agent.config, max_cycles=40, checkpoint_frequency=2)
        manager = agent.state_manager
        assert manager is not None

        async def go_back(checkpoint_id: str) -> AgentResult:
            self.world.note("back")
            return await agent.run(checkpoint=checkpoint_id)

        while True:
            result = await watch.guard(lambda: agent.run("get it done"), go_back, manager)
            if not result.waiting:
                break
            self.resolve(result.waiting[0])
        problems = [text for one in await manager.verify() for text in one.problems]
        await manager.close()
        told = {"result": outcome_of(result), "problems": problems}
        return {**told, "appends": self.killer.count}


class Asking(Victim):
    """Three agents inside each other: the last asks people, who answer through the first."""

    def asking_script(self, messages: Sequence[Message]) -> Reply | str:
        turn = sum(message["role"] == "assistant" for message in messages)
        self.world.note("model", "last", turn)
        calls = (ToolCall("c0", "charge", {}), ToolCall("c1", "ask_person", {}))
        return Reply(tool_calls=(calls[turn],)) if turn < 2 else str(messages[-1]["content"])

    def agent(self) -> BaseAutonomousAgent:
        @tool(approval=True)
        def charge() -> str:
            return self.work("charge", 1)

        @tool(read_only=True)
        async def ask_person() -> str:
            said: str = await surehold.interrupt("what now?", schema=str)
            self.world.note("told", said)
            return said

        manager = StateManager(self.storage, **options_of(self.medium))
        script, tools = self.asking_script, [charge, ask_person]
        for agent_id in ("last", "middle", "top"):
            agent = BaseAutonomousAgent(
                AutonomousConfig(planning_enabled=False, resume_from_checkpoint=True),
                state_manager=manager if agent_id == "top" else None,
                agent_id=agent_id,
                tools=tools,
                model=ScriptedModel(script),
                report=lambda line: None,
            )
            tools, script = [agent.as_tool()], _delegating(agent_id)
        return agent

    def answer(self, waiting: Any) -> dict[str, Any]:
        """What to go on with. Each time another text is said, of which the first kept counts."""
        if waiting.kind == "effect":
            self.world.note("parked", waiting.id)
            happened = "charge 1" in self.world.lines()
            said: dict[str, Any] = {"value": "charge 1"} if happened else {"repeat": True}
            with CheckpointManager(self.storage, **options_of(self.medium)) as outside:
                surehold.answer(waiting.run_id, waiting.id, storage=outside, **said)
            return {}
        self.world.note("answered", waiting.id)
        count = sum(line.startswith("answered") for line in self.world.lines())
        return {"answer": f"answer {count}" if waiting.question == "what now?" else True}

    async def run(self) -> dict[str, Any]:
        agent = self.agent()
        result = await agent.run("get it done")
        while result.waiting:
            agent = self.agent()
            result = await agent.run(**self.answer(result.waiting[0]))
        assert agent.state_manager is not None
        problems = [text for one in await agent.state_manager.verify() for text in one.problems]
        await agent.state_manager.close()
        told = {"result": outcome_of(result), "problems": problems}
        return {**told, "appends": self.killer.count}


def _delegating(agent_id: str) -> Any:
    def script(messages: Sequence[Message]) -> Reply | str:
        if messages[-1]["role"] != "tool":
            return Reply(tool_calls=(ToolCall("d", agent_id, {"task": "do it"}),))
        return str(messages[-1]["content"])

    return script


def in_a_child(base: Path, medium: str, moment: str, at: int) -> tuple[bool, dict[str, Any] | None]:
    """Run, or go on, in a forked process: whether it was killed, else what it came to."""
    out = base / "out"
    out.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            kinds = {FAMILY: Family, DRIFTING: Drifting, ASKING: Asking}
            kind = next((kinds[word] for word in sys.argv if word in kinds), Victim)
            out.write_text(json.dumps(asyncio.run(kind(base, medium, moment, at).run())))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True, None
    assert status == 0, "the victim failed"
    return False, json.loads(out.read_text())


def _completed(base: Path, medium: str) -> bool:
    """Whether all that there is was completed when the process was killed."""
    with open_medium(medium, base) as storage:
        statuses = {run.status for run in storage.runs(RunQuery())}
    return statuses == {"completed"}


def killed_at(base: Path, medium: str, kills: list[tuple[str, int]]) -> dict[str, Any] | None:
    """Kill at each of these in turn, then let it end.

    None if a kill came after everything was completed, as the next start would begin another run:
    how many appends there are depends on which of them shared a commit.
    """
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    count, end = 0, None
    for moment, at in [*kills, ("never", 0)]:
        killed, end = in_a_child(base, medium, moment, at)
        count += killed
        if end is not None:
            break
        if _completed(base, medium):
            return None
    assert end is not None
    return {"kills": count, "end": end, "counts": Counter(World(base / "world").lines())}


def main() -> None:
    base, medium, what, stride = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    whole = killed_at(base, medium, [])
    assert whole is not None
    if what == "cycles":
        kills = [
            [("model", cycle) for cycle in range(CYCLES + 1)],  # from the plan to the answer
            [("before", cycle) for cycle in range(1, CYCLES)],
            [("after", cycle) for cycle in range(1, CYCLES)],
        ]
    else:
        # After the last append the run is completed, and the next start would begin another.
        last = whole["end"]["appends"] - (what == "after-append")
        numbers = range(1, last + 1, stride)
        kills = [[(what, number)] for number in numbers]
    rounds = [one for kill in kills if (one := killed_at(base, medium, kill)) is not None]
    print(json.dumps({"whole": whole, "rounds": rounds}))


if __name__ == "__main__":
    main()
