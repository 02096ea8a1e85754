"""An agent on a real model that is killed; run as a program, it prints what each start came to.

It forks before the model is loaded, so that each start pays for loading it and for nothing else.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, Literal

from tests.crash.graph_victim import Killer

import surehold.agents.models.local
import surehold.agents.models.pydantic_ai  # noqa: F401 - before forking
from surehold import SQLiteStorage, StateManager
from surehold.agents.models.model import open_model
from surehold.agents.tools.definition import tool
from surehold.compat import AutonomousConfig, BaseAutonomousAgent

KILLS = [("after", 2), ("after", 1), ("before", 1)]
"""After the plan is recorded, after the first reply, and before anything else is saved."""
FACTS = {
    "kelp": "Kelp is a brown alga that grows in forests.",
    "coral": "Corals are animals that build reefs.",
    "sponge": "Sponges filter water.",
}


class Counted:
    """A real model whose calls are counted in a file; offers no tools after three results.

    Small models do not always find the end by themselves.
    """

    def __init__(self, spec: str, log: Path) -> None:
        settings = {"force_schema": True, "temperature": 0.0} if spec != "local" else {}
        self._model = open_model(spec, **settings)
        self._log = log
        self.name = self._model.name

    async def respond(self, messages: Any, *, tools: Any = (), **how: Any) -> Any:
        with self._log.open("a") as file:
            file.write(f"{len(messages)}\n")
        if sum(message["role"] == "tool" for message in messages) >= 3:
            tools = ()
        return await self._model.respond(messages, tools=tools, **how)


@tool(read_only=True)
def look_up(topic: Literal["kelp", "coral", "sponge"]) -> str:
    """Look up facts about an animal or plant of the sea."""
    return FACTS[topic]


async def run(base: Path, spec: str, when: str, number: int) -> dict[str, Any]:
    with SQLiteStorage(base / "runs.db") as storage:
        Killer(storage, number, when)
        said: list[str] = []
        agent = BaseAutonomousAgent(
            AutonomousConfig(max_cycles=8, resume_from_checkpoint=True, checkpoint_frequency=2),
            state_manager=StateManager(storage),
            agent_id="reader",
            tools=[look_up],
            instructions="You answer questions about the sea.",
            model=Counted(spec, base / "calls"),
            report=said.append,
        )
        result = await agent.run("What is kelp?")
        return {
            "status": result.status,
            "answer": result.answer,
            "cycles": result.cycles_used,
            "tokens": result.budget.tokens,
            "plan": [item["task"] for item in result.plan],
            "conversation": [dict(message) for message in agent.state.conversation_history],
            "said": said,
        }


def start(base: Path, spec: str, when: str, number: int) -> dict[str, Any] | None:
    """Run, or go on, in a forked process; None if it was killed."""
    child = os.fork()
    if child == 0:
        try:
            (base / "out").write_text(json.dumps(asyncio.run(run(base, spec, when, number))))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    assert status == 0, "the agent failed"
    found: dict[str, Any] = json.loads((base / "out").read_text())
    return found


def rounds(base: Path, spec: str, kills: list[tuple[str, int]]) -> dict[str, Any]:
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    ends = [start(base, spec, when, number) for when, number in [*kills, ("never", 0)]]
    calls = len((base / "calls").read_text().splitlines())
    return {"killed": ends.count(None), "end": ends[-1], "calls": calls}


def main() -> None:
    base, spec = Path(sys.argv[1]), sys.argv[2]
    print(json.dumps({"whole": rounds(base, spec, []), "killed": rounds(base, spec, KILLS)}))


if __name__ == "__main__":
    main()
