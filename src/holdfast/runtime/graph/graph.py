"""`StateGraph`: nodes, edges, and one loop that can always be resumed."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import logging
import os
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.checkpoint.manager import StateManager
from holdfast.core.policy import Rules
from holdfast.core.state import State
from holdfast.errors import UsageError
from holdfast.runtime.graph.compiled import Plan, problems
from holdfast.runtime.graph.config import CheckpointConfig, GraphConfig
from holdfast.runtime.graph.edges import Edge, Predicate
from holdfast.runtime.graph.mermaid import draw
from holdfast.runtime.graph.node_result import NodeFunction
from holdfast.runtime.graph.runner import NOTHING, Resume, Runner
from holdfast.runtime.graph.shape import Shape
from holdfast.runtime.graph.subgraph import run_nested
from holdfast.runtime.resume import (
    Parting,
    ResumePlan,
    entry_point_of,
    explain,
    fork,
    module_of_caller,
    part,
)
from holdfast.runtime.stop import signals_to
from holdfast.runtime.watch import Observer, resolve_observers
from holdfast.storage.base import open_storage
from holdfast.storage.memory import MemoryStorage

__all__ = ["StateGraph"]

logger = logging.getLogger("holdfast.graph")
T = TypeVar("T")
_said: set[str] = set()


class StateGraph:
    """Nodes that change a state, edges that say which comes next, checkpoints in between.

    >>> graph = StateGraph(GraphConfig(name="count"))
    >>> graph.add_node("up", lambda state: {"n": state["n"] + 1})
    >>> graph.add_node("done", lambda state: None)
    >>> graph.add_edge("up", "done", lambda state: state["n"] >= 3)
    >>> graph.add_edge("up", "up")
    >>> graph.set_entry_point("up"); graph.set_exit_point("done")
    >>> graph.execute_sync(State.new({"n": 0}))["n"]
    3

    *manager* saves in place of one over the configured store: to bring hooks, a retention or an
    encryption key along.
    """

    form = ""
    """Which class managers give its checkpoints out as: "" for `State`."""

    def __init__(
        self, config: GraphConfig | None = None, *, manager: StateManager | None = None
    ) -> None:
        self.config = config or GraphConfig()
        self._observers = resolve_observers(self.config.observer)
        self._owns_manager = manager is None
        self._manager = None
        if self.config.checkpoint.enabled:
            self._manager = manager or _manager_for(self.config.checkpoint)
        elif manager is not None:
            raise UsageError(
                "a manager is given, and checkpointing is off",
                hint="set CheckpointConfig(interval=1) or another trigger",
            )
        self._nodes: dict[str, NodeFunction] = {}
        self._nested: dict[str, StateGraph] = {}
        self._edges: list[Edge] = []
        self._entry: str | None = None
        self._exits: list[str] = []
        self._plan: Plan | None = None
        self._module = module_of_caller(1)
        self._known_as: object = self
        """What its module's variable is, of which this may be a copy."""

    # Building

    @property
    def name(self) -> str:
        """What its runs share."""
        return self.config.name

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Who is told what its runs do."""
        return self._observers

    @property
    def manager(self) -> StateManager:
        """What its runs are saved through; a `UsageError` if nothing is saved."""
        if self._manager is None:
            raise UsageError(
                f"checkpointing is off for graph {self.name!r}",
                hint="set CheckpointConfig(interval=1) or another trigger",
            )
        return self._manager

    def add_node(self, name: str, node: NodeFunction | StateGraph, *, thread: bool = False) -> None:
        """Add a node: a function of the state, async or plain, or another graph.

        It returns a state, a mapping of the keys that change, or None. A plain function is called
        on the event loop's thread; with *thread*, on one of its own, for what blocks.
        """
        if not name:
            raise UsageError("a node needs a name")
        if name in self._nodes:
            raise UsageError(f"there is a node {name!r} already", hint="choose another name")
        if isinstance(node, StateGraph):
            if node is self:
                raise UsageError("a graph cannot be a node of itself")
            self._nested[name] = node
            self._nodes[name] = functools.partial(run_nested, node)
        elif not callable(node):
            raise UsageError(f"node {name!r} is a {type(node).__name__}", hint="give a function")
        else:
            if thread and inspect.iscoroutinefunction(node):
                raise UsageError(f"node {name!r} is async, and needs no thread")
            self._nodes[name] = functools.partial(_in_a_thread, node) if thread else node
        self._plan = None

    def add_edge(
        self, source: str, target: str, predicate: Predicate | None = None, *, name: str = ""
    ) -> None:
        """Lead from one node to another if *predicate* says yes; edges are tried in order."""
        if predicate is not None and not callable(predicate):
            raise UsageError(
                f"the predicate of {source!r} -> {target!r} is a {type(predicate).__name__}",
                hint="give a function of the state; name= is the edge's name",
            )
        self._edges.append(Edge(source, target, predicate, name))
        self._plan = None

    def set_entry_point(self, node: str) -> None:
        """Begin with *node*. There is one entry point."""
        if self._entry is not None and self._entry != node:
            raise UsageError(f"the entry point is {self._entry!r} already")
        self._entry = node
        self._plan = None

    def set_exit_point(self, *nodes: str) -> None:
        """End after any of these nodes, whatever edges leave them."""
        self._exits += [node for node in nodes if node not in self._exits]
        self._plan = None

    def validate(self) -> None:
        """Raise a `UsageError` that lists all that is wrong, if anything is."""
        found = list(problems(self._nodes, self._edges, self._entry, self._exits))
        known = {*self.config.checkpoint.nodes, *self.config.checkpoint.before}
        found += [
            f"checkpoints are wanted at {node!r}, which is no node"
            for node in sorted(known - {*self._nodes})
        ]
        for name, nested in self._nested.items():
            if self in nested.nested_graphs():
                found.append(f"the graph of node {name!r} holds this one")
            else:
                found += [f"in node {name!r}: {one}" for one in nested.problems()]
        if found:
            raise UsageError(
                f"graph {self.name!r} cannot be executed: {'; '.join(found)}",
                problems=tuple(found),
            )

    def problems(self) -> tuple[str, ...]:
        """What `validate` would complain of."""
        try:
            self.validate()
        except UsageError as error:
            return error.problems  # type: ignore[no-any-return]
        return ()

    def nested_graphs(self) -> list[StateGraph]:
        """The graphs that are nodes of this one, and theirs, itself included."""
        found: list[StateGraph] = [self]
        for graph in found:
            found += [one for one in graph._nested.values() if one not in found]
        return found

    def plan(self) -> Plan:
        """The graph, checked and ready to be executed."""
        if self._plan is None:
            self.validate()
            assert self._entry is not None
            edges: dict[str, list[Edge]] = {}
            for edge in self._edges:
                edges.setdefault(edge.source, []).append(edge)
            shape = self.shape()
            self._plan = Plan(
                name=self.name,
                nodes=dict(self._nodes),
                edges=edges,
                entry=self._entry,
                exits=frozenset(self._exits),
                before=self.config.checkpoint.before,
                max_iterations=self.config.max_iterations,
                version=self.config.version,
                snapshots=self.config.snapshots,
                shape=shape,
                fingerprint=shape.digest(),
                form=self.form,
                entry_point=entry_point_of(self._known_as, self._module),
            )
        return self._plan

    def shape(self) -> Shape:
        """Nodes and edges as the journal knows them."""
        return Shape(
            tuple(sorted(self._nodes)),
            tuple((edge.source, edge.target, edge.name) for edge in self._edges),
            self._entry or "",
            tuple(sorted(self._exits)),
            {name: graph.shape().digest() for name, graph in sorted(self._nested.items())},
        )

    # Executing

    async def execute(
        self,
        state: State | Mapping[str, Any] | None = None,
        *,
        secrets: Mapping[str, Any] | None = None,
    ) -> State:
        """Run from the entry point to an exit point and return the final state.

        If the state's run is in the store already, it goes on where it was, with the values that
        were saved; a completed one gives its stored result. *secrets* are put on the state.

        `StepError` is a node or a decision that failed, `BudgetError` the limit of iterations.
        `Interrupted` is raised when the run is parked for an answer, `Drained` when it was asked
        to stop; in both cases it can be resumed.
        """
        return await self._execute(state, secrets, alone=False)

    async def resume(
        self,
        run_id: str,
        *,
        checkpoint_id: str | None = None,
        step: int | None = None,
        answer: Any = NOTHING,
        answers: Mapping[str, Any] | None = None,
        secrets: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> State:
        """Go on with a run after its newest checkpoint, with the node that was decided on then.

        *run_id* may be a name: then it is the newest run of that name that is not completed. With
        *checkpoint_id* or *step* the run is taken back to that checkpoint, or to the newest one at
        or before that step; effects recorded after it are not repeated. *answer* is for the
        question that the run waits for, *answers* for several, by their ids. A completed run gives
        its stored result. Secrets are not stored: give them again.

        Errors: `UsageError` if checkpointing is off, `NotFoundError` if there is no such run,
        `ShapeError` if the graph has changed (*force* goes on all the same), `LeaseHeldError` if
        a live process executes the run.
        """
        wanted = Resume(run_id, checkpoint_id, step, answer, answers or {}, secrets or {}, force)
        return await self._resume(wanted, alone=False)

    def execute_sync(
        self,
        state: State | Mapping[str, Any] | None = None,
        *,
        secrets: Mapping[str, Any] | None = None,
    ) -> State:
        """`execute`, for scripts: in an event loop of its own, minding SIGINT and SIGTERM."""
        return _in_a_loop(self._execute(state, secrets, alone=True))

    def resume_sync(
        self,
        run_id: str,
        *,
        checkpoint_id: str | None = None,
        step: int | None = None,
        answer: Any = NOTHING,
        answers: Mapping[str, Any] | None = None,
        secrets: Mapping[str, Any] | None = None,
        force: bool = False,
    ) -> State:
        """`resume`, for scripts: in an event loop of its own, minding SIGINT and SIGTERM."""
        wanted = Resume(run_id, checkpoint_id, step, answer, answers or {}, secrets or {}, force)
        return _in_a_loop(self._resume(wanted, alone=True))

    async def checkpoint(
        self,
        run_id: str,
        edit: Mapping[str, Any] | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
    ) -> State:
        """Save a run that is not being executed once more, as ``manual``, some keys changed.

        What was recorded stays. If nothing of the next node was, *edit* has it decided anew. A run
        that is not there is begun with *edit*, and nothing is executed yet. The state's
        `checkpoint_id` is the new checkpoint's.
        """
        self.manager  # noqa: B018 - raises if checkpointing is off
        return await self._runner(self.plan(), False).checkpoint(run_id, edit or {}, metadata or {})

    async def _execute(
        self,
        state: State | Mapping[str, Any] | None,
        secrets: Mapping[str, Any] | None,
        *,
        alone: bool,
    ) -> State:
        plan = self.plan()
        if not isinstance(state, State):
            state = State.new(state)
        if secrets:
            state = state.with_secrets(secrets)
        runner = self._runner(plan, alone)
        with signals_to(runner.control, self._wants_signals(alone)):
            return await runner.execute(state)

    async def _resume(self, wanted: Resume, *, alone: bool) -> State:
        plan = self.plan()
        self.manager  # noqa: B018 - raises if checkpointing is off
        runner = self._runner(plan, alone)
        with signals_to(runner.control, self._wants_signals(alone)):
            return await runner.resume(wanted)

    def _runner(self, plan: Plan, alone: bool) -> Runner:
        return Runner(plan, self._manager, self.config.checkpoint, self._observers, alone)

    def _wants_signals(self, alone: bool) -> bool:
        return alone if self.config.signals is None else self.config.signals

    # Looking and branching

    def over(self, manager: StateManager) -> StateGraph:
        """The same graph, saving through *manager*, which stays the caller's to close."""
        other = copy.copy(self)
        other._manager, other._owns_manager = manager, False
        return other

    def explain_resume(self, run_id: str) -> ResumePlan:
        """What `resume` would do, without doing any of it."""
        return explain(self.manager.reader, self.plan(), run_id)

    async def fork(
        self, checkpoint_id: str, edit: Mapping[str, Any] | None = None, run_id: str | None = None
    ) -> State:
        """Begin a new run with the state of a checkpoint, some keys changed; the source stays.

        It is run with ``resume(state.run_id)``. If *edit* is given, the node that comes next is
        decided anew. A fork inherits no effects.
        """
        return await fork(self.manager, checkpoint_id, dict(edit or {}), run_id)

    def compare(self, run_id: str, other: str) -> Parting:
        """Where two runs of this graph part: the first step at which path or state differ."""
        return part(self.manager.reader, run_id, other)

    def to_mermaid(self, run_id: str | None = None) -> str:
        """The graph as a Mermaid flowchart; with a run, its path, counts, and where it stopped."""
        return draw(
            self.shape(),
            self._edges,
            self.manager.reader if run_id is not None else None,
            run_id,
        )

    # Closing

    async def close(self) -> None:
        """Finish what is being saved, and close the store if this graph opened it."""
        if self._owns_manager and self._manager is not None:
            await self._manager.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _in_a_loop(self.close())

    def __repr__(self) -> str:
        return f"<StateGraph {self.name} of {len(self._nodes)} nodes>"


def _manager_for(config: CheckpointConfig) -> StateManager:
    """A manager over the configured store, which is opened now, so that a wrong one fails now."""
    rules = Rules(keep_last=config.keep) if config.keep is not None else None
    store = config.store
    if isinstance(store, str) and ":" not in store:
        store = open_storage(store)  # a registered one is shared, and not this graph's to close
    manager = StateManager(
        store,
        retention=rules,
        on_save_failure=config.on_save_failure,
        on_corrupt=config.on_corrupt,
    )
    if isinstance(manager.storage, MemoryStorage) and "memory" not in _said:
        _said.add("memory")
        logger.warning("the store memory does not survive the process (pid %d)", os.getpid())
    return manager


def _in_a_thread(node: NodeFunction, state: State) -> Coroutine[Any, Any, Any]:
    return asyncio.to_thread(node, state)


def _in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    work.close()
    raise UsageError("this is for code without an event loop", hint="await execute or resume")
