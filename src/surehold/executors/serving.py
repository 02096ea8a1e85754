"""The code that a worker serves: entry points with the versions that are there."""

from __future__ import annotations

import importlib
from collections.abc import Iterable

import msgspec

from surehold.agents.agent import Agent
from surehold.agents.fleet import Fleet
from surehold.core.policy import target_of
from surehold.doors.functions import AsyncWorkflow, Workflow
from surehold.doors.graph import StateGraph
from surehold.doors.resume import load_module, load_object, load_resumable
from surehold.errors import NotFoundError, UsageError
from surehold.executors.schedules import Schedule
from surehold.storage.addresses import nearest


class Served(msgspec.Struct, frozen=True):
    """An entry point and a version of it that this process can execute."""

    entry_point: str
    version: int

    @property
    def target(self) -> str:
        """The name by which entries of queues ask for it."""
        return target_of(self.entry_point, self.version)


def served_by(names: Iterable[str]) -> list[Served]:
    """Import modules, or objects named ``module:name``; return what they execute.

    Of a module these are the workflows, graphs, agents and fleets that are its variables. An object
    may also be a function that makes one.
    """
    found: dict[Served, None] = {}
    for name in names:
        some = _of_object(name) if ":" in name else _of_module(name)
        if not some:
            raise UsageError(
                f"{name} has no workflow, graph, agent or fleet", hint="name one: module:name"
            )
        found |= dict.fromkeys(some)
    return [*found]


def schedules_in(names: Iterable[str]) -> list[Schedule]:
    """The schedules that are variables of modules, those of ``module:name`` included."""
    modules = dict.fromkeys(name.partition(":")[0] for name in names)
    found = (value for name in modules for value in vars(importlib.import_module(name)).values())
    return [*dict.fromkeys(value for value in found if isinstance(value, Schedule))]


def _of_module(name: str) -> list[Served]:
    module = load_module(name, f"module {name}")
    return [
        one
        for variable, value in [*vars(module).items()]
        if isinstance(value, Workflow | AsyncWorkflow | StateGraph | Agent | Fleet)
        for one in _versions(value, f"{name}:{variable}")
    ]


def _of_object(name: str) -> list[Served]:
    found = load_object(name)
    if found is None:
        module, _, variable = name.partition(":")
        known = [*dict.fromkeys(one.entry_point.partition(":")[2] for one in _of_module(module))]
        near = nearest(variable, known)
        hint = f"{near}it has: {', '.join(known)}" if known else "it has nothing to serve"
        raise NotFoundError(f"module {module} has no {variable!r}", hint=hint)
    if isinstance(found, Schedule):
        module = name.partition(":")[0]
        raise UsageError(
            f"{name} is a schedule", hint=f"serve its module: surehold worker {module}"
        )
    if isinstance(found, Workflow | AsyncWorkflow | StateGraph | Agent | Fleet):
        return _versions(found, name)
    made = load_resumable(name)
    version = made.config.version if isinstance(made, StateGraph) else _AGENT_VERSION
    return [Served(name, version)]


_AGENT_VERSION = 0
"""The version of an agent's graph: its nodes always fit."""


def _versions(found: object, name: str) -> list[Served]:
    """The versions of an object, under the given name and the recorded one."""
    if isinstance(found, Workflow | AsyncWorkflow):
        names = dict.fromkeys((name, found.entry_point or name))
        return [Served(one, version) for one in names for version in found.versions]
    if isinstance(found, Fleet):
        found = found.graph
    if isinstance(found, StateGraph):
        names = dict.fromkeys((name, found.plan().door.entry_point or name))
        return [Served(one, found.config.version) for one in names]
    return [Served(name, _AGENT_VERSION)]
