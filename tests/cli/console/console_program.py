"""The console with models that follow a script; run as a program by its tests.

The manager is satisfied after three rounds. A task with "slow" in it has a researcher that takes
its time, one with "broken" a coder that fails the first time, one with "shell" a coder that calls
a tool.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.builders.fleets import TEAM, ledger, manager, worker

from surehold.agents.models.model import Message, Reply, ToolCall, register_provider
from surehold.cli.console.repl import main
from surehold.testing.scripted import ScriptedModel

LOG = Path("calls")


def shell(command: str) -> str:
    """Runs a command."""
    return f"ran {command}"


def judge(done: int, messages: Sequence[Message]) -> str:
    more = any("One more" in str(one["content"]) for one in messages)
    return ledger(TEAM[done % 3], f"do part {done + 1}", satisfied=done >= 3 + more)


class Hand:
    """A participant's model."""

    name = "hand"

    def __init__(self) -> None:
        self._usual = worker("hand", log=LOG)

    async def respond(self, messages: Sequence[Message], **more: Any) -> Reply:
        told = str(messages[-1]["content"])
        if "slow" in told and not Path("quick").exists():
            Path("waiting").touch()
            await asyncio.sleep(60)
        if "broken" in told and "do part 2" in told and not Path("mended").exists():
            raise ConnectionError("no network")
        if "shell" in told and messages[-1]["role"] == "user" and "part 2" in told:
            return Reply(tool_calls=(ToolCall("1", "shell", {"command": "rm -r kelp"}),))
        reply: Reply = await self._usual.respond(messages, **more)
        return reply


def open_scripted(name: str, **settings: Any) -> Any:
    if name == "boss":
        model: ScriptedModel = manager(3, judge=judge, log=LOG)
        return model
    return Hand()


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "120")
    register_provider("test", open_scripted)
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
