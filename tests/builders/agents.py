"""Scripts and tools that the tests of agents share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from surehold import FilesystemStorage, StateManager
from surehold.agents.models.model import Message, Reply, ToolCall
from surehold.compat import AutonomousConfig, BaseAutonomousAgent
from surehold.testing.scripted import ScriptedModel

_ids = itertools.count()


def call(name: str, **arguments: Any) -> Reply:
    """A reply that wants one tool called."""
    return Reply(tool_calls=(ToolCall(f"call_{next(_ids)}", name, arguments),))


def turns(*replies: Reply | str, plan: str = '{"steps": ["look", "write"]}') -> Any:
    """A script: the plan where one is asked for, else the next of *replies*."""

    def script(messages: Sequence[Message]) -> Reply | str:
        if messages[-1]["content"].startswith("Make a plan"):
            return plan
        return replies[sum(message["role"] == "assistant" for message in messages)]

    return script


class Counted:
    """A tool's work, and how often it was done."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def search(self, query: str) -> str:
        """Search for something."""
        self.calls.append(query)
        return f"found {query}"


def build(
    script: Any,
    manager: StateManager | None = None,
    *,
    tools: Sequence[Any] = (),
    price: float | None = 100.0,
    agent: type[BaseAutonomousAgent] = BaseAutonomousAgent,
    report: Callable[[str], None] = lambda line: None,
    log: Any = None,
    more: dict[str, Any] | None = None,
    **config: Any,
) -> BaseAutonomousAgent:
    """An agent with a scripted model that resumes."""
    settings = {"resume_from_checkpoint": True, "planning_enabled": False, **config}
    return agent(
        AutonomousConfig(**settings),
        state_manager=manager,
        agent_id="researcher",
        tools=tools,
        model=ScriptedModel(script, price=price, log=log),
        report=report,
        **(more or {}),
    )


def manager_in(path: Any, **settings: Any) -> StateManager:
    """A state manager over files."""
    return StateManager(FilesystemStorage(path / "store"), **settings)
