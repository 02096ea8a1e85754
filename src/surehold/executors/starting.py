"""Code that a caller names: starts it with plain arguments, whichever door it is."""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Unpack

import msgspec

from surehold.agents.agent import Agent
from surehold.agents.fleet import Fleet
from surehold.core.policy import target_of
from surehold.doors.functions import AsyncWorkflow, Workflow
from surehold.doors.graph import StateGraph
from surehold.doors.resume import load_object
from surehold.doors.submit import QueueOptions, RunHandle, StartOptions
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager
from surehold.errors import UsageError
from surehold.executors.serving import served_by
from surehold.storage.base import Storage


class Startable(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow, graph, agent or fleet that can be started by its name."""

    entry_point: str
    version: int
    found: Any
    """The object itself; of a function that makes one, what it made."""

    @property
    def target(self) -> str:
        """The name by which entries of queues ask for it."""
        return target_of(self.entry_point, self.version)

    @property
    def name(self) -> str:
        """The name that its runs share."""
        return str(self.found.agent_id if self.door == "agent" else self.found.name)

    @property
    def door(self) -> str:
        """``function``, ``graph``, ``agent`` or ``fleet``."""
        for kind, door in ((StateGraph, "graph"), (Agent, "agent"), (Fleet, "fleet")):
            if isinstance(self.found, kind):
                return door
        return "function"

    @property
    def about(self) -> str:
        """The first line of its docstring, if its author wrote one."""
        text = inspect.getdoc(self.found) if self.door == "function" else None
        return (text or "").partition("\n")[0]

    def parameters(self) -> dict[str, tuple[Any, bool]] | None:
        """Its arguments by name: the annotation, and whether it is required.

        None for a graph, which takes any values as its first state.
        """
        if self.door == "graph":
            return None
        if self.door != "function":
            return {"task": (str, True)}
        function = self.found.function
        try:
            hints = typing.get_type_hints(function)
        except (NameError, TypeError):
            hints = {}
        return {
            one.name: (hints.get(one.name, Any), one.default is one.empty)
            for one in inspect.signature(function).parameters.values()
            if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        }

    def start(
        self, arguments: Mapping[str, Any], storage: Storage, **options: Unpack[StartOptions]
    ) -> RunHandle[Any]:
        """Queue a run in *storage*, and give a handle to it; blocking.

        The first record is stored when this returns. Hooks, keys and rules are those that the
        code names.
        """
        found = self.found.graph if self.door == "fleet" else self.found
        manager: AsyncCheckpointManager = found.as_resumable().manager_on(storage)
        try:
            if self.door == "function":
                face = CheckpointManager.of(manager.face)
                begun: Any = found.options(storage=face, **options).start(**arguments)
                handle = asyncio.run(begun) if inspect.iscoroutine(begun) else begun
                return RunHandle(handle.run_id, storage)
            options.setdefault("entry_point", self.entry_point)
            wanted = QueueOptions(**options)
            if self.door == "graph":
                begun = found.over(manager).submit(arguments, wanted)
            elif self.door == "agent":
                begun = found.submit(_task_in(arguments), wanted, manager)
            else:
                begun = self.found.submit(_task_in(arguments), wanted, found.over(manager))
            return RunHandle(begun.run_id, storage)
        finally:
            manager.finish()


def _task_in(arguments: Mapping[str, Any]) -> str:
    unknown = [name for name in arguments if name != "task"]
    if unknown or not isinstance(arguments.get("task"), str):
        raise UsageError("the arguments are not a task", hint='give {"task": "..."}')
    return str(arguments["task"])


def startables(names: Iterable[str]) -> dict[str, Startable]:
    """The code of modules, or of objects named ``module:name``, by entry point.

    Of a workflow with several versions it is the newest.
    """
    newest: dict[str, int] = {}
    for one in served_by(names):
        newest[one.entry_point] = max(one.version, newest.get(one.entry_point, 0))
    return {name: _startable(name, version) for name, version in newest.items()}


def _startable(entry_point: str, version: int) -> Startable:
    found = load_object(entry_point)
    if not isinstance(found, Workflow | AsyncWorkflow | StateGraph | Agent | Fleet):
        found = found()
    return Startable(entry_point=entry_point, version=version, found=found)
