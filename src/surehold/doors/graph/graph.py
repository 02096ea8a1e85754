"""`StateGraph`: nodes and edges, executed by a loop that can be resumed."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import inspect
import logging
import os
from collections.abc import Callable, Collection, Coroutine, Mapping
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

import msgspec

from surehold.core.cards import card
from surehold.core.closing import AsyncClosing
from surehold.core.policy import RetryOptions, RetryPolicy, Rules, read_policy, refuse_options
from surehold.core.records import Door, DoorKind
from surehold.core.state import State
from surehold.doors.checks import check_listener, is_async
from surehold.doors.events import Event, Observer, resolve_observers, streamed
from surehold.doors.graph.compiled import Plan, problems
from surehold.doors.graph.config import CheckpointConfig, GraphConfig, GraphOptions
from surehold.doors.graph.edges import Edge, Predicate
from surehold.doors.graph.mermaid import draw
from surehold.doors.graph.node_result import EndRun, NodeFunction
from surehold.doors.graph.runner import NOTHING, ResumeRequest, Runner, first_draft
from surehold.doors.graph.subgraph import run_nested
from surehold.doors.result import GraphResult, Spent
from surehold.doors.resume import (
    Parting,
    ResumePlan,
    RunHere,
    Shape,
    check_begun_by,
    check_input,
    entry_point_of,
    explain,
    find_run,
    fork,
    module_of_caller,
    part,
)
from surehold.doors.submit import (
    AsyncRunHandle,
    QueueOptions,
    RunHandle,
    StartOptions,
    begin_queued,
)
from surehold.engine.commit import call_beside, in_event_loop
from surehold.engine.hooks import HookManager
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager
from surehold.engine.runs import Waiting
from surehold.engine.runs.effects import args_digest
from surehold.errors import Drained, Interrupted, UsageError
from surehold.storage.base import RunInfo, Storage
from surehold.storage.memory import MemoryStorage
from surehold.storage.registry import open_storage

logger = logging.getLogger("surehold.graph")
P = ParamSpec("P")
T = TypeVar("T")
_said: set[str] = set()


def _in_a_loop(work: Coroutine[Any, Any, T]) -> T:
    if not in_event_loop():
        return asyncio.run(work)
    work.close()
    raise UsageError(
        "this is for code without an event loop",
        hint="await the method without _sync: `await graph.run(...)`",
    )


def _blocking(
    method: Callable[Concatenate[StateGraph, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[StateGraph, P], T]:
    """*method* for scripts: with its own event loop, stopping on SIGINT and SIGTERM."""

    @wraps(method)
    def blocking(graph: StateGraph, /, *args: P.args, **kwargs: P.kwargs) -> T:
        graph._opened()  # before the copy: the graph closes it
        alone = copy.copy(graph)
        alone._alone = True
        return _in_a_loop(method(alone, *args, **kwargs))

    return blocking


class StateGraph(AsyncClosing):
    """Nodes that change a state, edges that choose the next, checkpoints between.

    >>> graph = StateGraph("count", storage="memory://")
    >>> graph.add_node("up", lambda state: {"n": state["n"] + 1})
    >>> graph.add_node("done", lambda state: None)
    >>> graph.add_edge("up", "done", lambda state: state["n"] >= 3)
    >>> graph.add_edge("up", "up")
    >>> graph.set_entry_point("up"); graph.set_exit_point("done")
    >>> graph.execute_sync({"n": 0})["n"]
    3

    A graph with a name is durable: it saves after every node in *storage*, an address or a
    `Storage`, and keeps the run after it has completed. Without *storage* that is the configured
    one: ``SUREHOLD_STORAGE``, `surehold.toml`, or the default. *every* saves after that many nodes
    instead, *every_seconds* after the first node that ends so much later than the last save.
    *manager* takes the place of *storage*: to use hooks, retention or encryption.

    A `GraphConfig` in place of the name, or as *config*, sets limits and observers. If it sets
    checkpoints, it alone decides what is saved, and where.
    """

    door: DoorKind = "graph"
    """The door of its runs."""

    def __init__(
        self,
        name: str | GraphConfig | None = None,
        *,
        config: GraphConfig | None = None,
        storage: Storage | str | None = None,
        every: int | None = None,
        every_seconds: float | None = None,
        manager: AsyncCheckpointManager | None = None,
    ) -> None:
        options = GraphOptions(name, config, storage, every, every_seconds, manager)
        self.config = options.read()
        self.observers = resolve_observers(self.config.observer)
        """The observers of its runs."""
        self._owns_manager = manager is None
        self._manager = manager
        checkpoint = self.config.checkpoint
        # The configured storage is opened by the first run: a nested graph needs none.
        if manager is None and checkpoint.enabled and checkpoint.store is not None:
            self._manager = _manager_for(checkpoint)
        self._nodes: dict[str, NodeFunction] = {}
        self._nested: dict[str, StateGraph] = {}
        self._policies: dict[str, RetryPolicy] = {}
        self._edges: list[Edge] = []
        self._entry: str | None = None
        self._exits: list[str] = []
        self._plan: Plan | None = None
        self._alone = False
        """True if its runs have their event loop to themselves."""
        self._module = module_of_caller(1)
        self._known_as: object = self
        """The object that its module's variable holds, of which this may be a copy."""

    # Building

    def found_as(self, owner: object, module: str) -> None:
        """Record with its runs that *owner*, a variable of *module*, executes them."""
        self._known_as, self._module, self._plan = owner, module, None

    @property
    def name(self) -> str:
        """The name that its runs share."""
        return self.config.name

    @property
    def manager(self) -> AsyncCheckpointManager:
        """The manager that saves its runs; a `UsageError` if checkpointing is off."""
        manager = self._opened()
        if manager is None:
            raise UsageError(
                f"checkpointing is off for graph {self.name!r}",
                hint="give storage=, or CheckpointConfig(interval=1) or another trigger",
            )
        return manager

    def _opened(self) -> AsyncCheckpointManager | None:
        if self._manager is None and self.config.checkpoint.enabled:
            self._manager = _manager_for(self.config.checkpoint)
        return self._manager

    def add_node(
        self,
        name: str,
        node: NodeFunction | StateGraph,
        *,
        thread: bool = False,
        **options: Unpack[RetryOptions],
    ) -> None:
        """Add a node: a function of the state, async or plain, or another graph.

        It returns a state, a mapping of the keys that change, or None. A plain function runs on
        the event loop's thread; with *thread*, on another one, for code that blocks.

        The fields of a `RetryPolicy` (*retries*, *backoff*, *timeout*, ...) may be given, or one as
        *policy*. An attempt begins the node again; what it recorded is not
        repeated, and failed attempts are saved, so that a resume does not begin to count again.
        """
        _check_name(name, "a node's name")
        refuse_options("add_node", options, ("thread", *RetryOptions.__annotations__))
        attempts = read_policy(options)
        if name in self._nodes:
            raise UsageError(f"there is a node {name!r} already", hint="choose another name")
        if isinstance(node, StateGraph):
            if node is self:
                raise UsageError("a graph cannot be a node of itself")
            self._nested[name] = node
            self._nodes[name] = partial(run_nested, node)
        elif not callable(node):
            raise UsageError(f"node {name!r} is a {type(node).__name__}", hint="give a function")
        else:
            if thread and inspect.iscoroutinefunction(node):
                raise UsageError(f"node {name!r} is async, and needs no thread")
            if attempts.heartbeat_timeout is not None:
                raise UsageError(
                    f"node {name!r} has heartbeat_timeout=",
                    hint="a @surehold.step in it can have it",
                )
            if attempts.timeout is not None and not is_async(node):
                raise UsageError(
                    f"node {name!r} is a plain function, which cannot be stopped",
                    hint="make it async, or call a @surehold.step with timeout= in it",
                )
            self._nodes[name] = partial(_in_a_thread, node) if thread else node
        if attempts.retries or attempts.timeout or attempts.concurrency:
            self._policies[name] = attempts
        self._plan = None

    def add_edge(
        self, source: str, target: str, predicate: Predicate | None = None, *, name: str = ""
    ) -> None:
        """Lead from one node to another if *predicate* is true; edges are tried in order.

        *predicate* is a plain or async function of the state.
        """
        if predicate is not None and not callable(predicate):
            raise UsageError(
                f"the predicate of {source!r} -> {target!r} is a {type(predicate).__name__}",
                hint="give a function of the state; name= is the edge's name",
            )
        self._edges.append(Edge(source, target, predicate, name))
        self._plan = None

    def set_entry_point(self, node: str) -> None:
        """Begin with *node*. There is one entry point."""
        _check_name(node, "an entry point")
        if self._entry is not None and self._entry != node:
            raise UsageError(f"the entry point is {self._entry!r} already")
        self._entry = node
        self._plan = None

    def set_exit_point(self, *nodes: str) -> None:
        """End after any of these nodes, whatever edges leave them."""
        for node in nodes:
            _check_name(node, "an exit point")
        self._exits += [node for node in nodes if node not in self._exits]
        self._plan = None

    def validate(self) -> None:
        """Raise a `UsageError` that lists everything that is wrong with the graph."""
        found = self.problems()
        if found:
            raise UsageError(
                f"graph {self.name!r} cannot be executed: {'; '.join(found)}", problems=found
            )

    def problems(self) -> tuple[str, ...]:
        """The problems that `validate` would raise."""
        found = list(problems(self._nodes, self._edges, self._entry, self._exits))
        known = {*self.config.checkpoint.nodes, *self.config.checkpoint.before}
        found += [
            f"checkpoints are wanted at {node!r}: it is not a node"
            for node in sorted(known - {*self._nodes})
        ]
        for name, nested in self._nested.items():
            if self in nested.nested_graphs():
                found.append(f"the graph of node {name!r} holds this one")
            else:
                found += [f"in node {name!r}: {one}" for one in nested.problems()]
        return tuple(found)

    def nested_graphs(self) -> list[StateGraph]:
        """This graph, the graphs that are nodes of it, and their nested graphs."""
        found: list[StateGraph] = [self]
        for graph in found:
            found += [one for one in graph._nested.values() if one not in found]
        return found

    def plan(self) -> Plan:
        """Check the graph and prepare it for execution."""
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
                policies=dict(self._policies),
                edges=edges,
                entry=self._entry,
                exits=frozenset(self._exits),
                before=self.config.checkpoint.before,
                max_iterations=self.config.max_iterations,
                version=self.config.version,
                snapshots=self.config.snapshots,
                shape=shape,
                fingerprint=shape.digest(),
                door=Door(self.door, entry_point=entry_point_of(self._known_as, self._module)),
            )
        return self._plan

    def shape(self) -> Shape:
        """Nodes and edges as the journal keeps them."""
        return Shape(
            tuple(sorted(self._nodes)),
            tuple((edge.source, edge.target, edge.name) for edge in self._edges),
            self._entry or "",
            tuple(sorted(self._exits)),
            {name: graph.shape().digest() for name, graph in sorted(self._nested.items())},
        )

    # Executing

    async def run(
        self,
        values: State | Mapping[str, Any] | None = None,
        *,
        run_id: str | None = None,
        answer: Any = NOTHING,
        answers: Mapping[str, Any] | None = None,
        secrets: Mapping[str, Any] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> GraphResult:
        """Begin a run with *values*, or continue the run of that id; return how it ended.

        A run that waits for an answer is a result with status ``waiting``, one that was asked to
        stop is ``interrupted``. *answer* answers the question that the run waits for, *answers*
        several, by their ids. *on_event* is called with every event, see `stream`.
        Without a *run_id*, inside a run that is recorded, it is the run that this call began, on
        every replay.

        Raises what `execute` raises for failures, and a `UsageError` if the run of that id began
        with other *values*; without values it continues as it is.
        """
        answered = answer is not NOTHING or bool(answers)
        state = _first_state(values, run_id) if answered else self._begun(values, run_id)
        if secrets:
            state = state.with_secrets(secrets)
        given = state if values is not None else None
        wanted = ResumeRequest(
            state.run_id, answer=answer, answers=answers or {}, secrets=secrets or {}, given=given
        )
        if answered and run_id is None:
            raise UsageError("an answer is given, and no run_id", hint="name the run that waits")
        return await Execution(self, state, wanted if answered else None, on_event, given).result()

    run_sync = _blocking(run)

    async def start(
        self, values: State | Mapping[str, Any] | None = None, **options: Unpack[StartOptions]
    ) -> AsyncRunHandle[None]:
        """Queue a run for a worker; give a handle. See `surehold.workflow`'s ``start``."""
        wanted = QueueOptions(**options)
        return AsyncRunHandle(await asyncio.to_thread(self.submit, values, wanted))

    def start_sync(
        self, values: State | Mapping[str, Any] | None = None, **options: Unpack[StartOptions]
    ) -> RunHandle[None]:
        """`start` for scripts."""
        return self.submit(values, QueueOptions(**options))

    def submit(
        self,
        values: State | Mapping[str, Any] | None,
        options: QueueOptions,
        inputs: Collection[str] | None = None,
    ) -> RunHandle[None]:
        """Save the run's first state in a queue; blocking. `start` is for users.

        If the run is there, its *inputs*, all values unless given, must be the same; None for
        *values* takes it as it is.
        """
        plan = self.plan()
        manager = CheckpointManager.of(self.manager.face)
        named = options.run_id is not None or options.idempotency_key is not None
        run_id = options.id_for(self.name)
        if isinstance(values, State) and not named:
            run_id = values.run_id
        state = _first_state(values, run_id)
        state = state.placed(msgspec.structs.replace(state.place, name=state.name or self.name))
        if options.entry_point is not None:
            door = Door(self.door, entry_point=options.entry_point)
            plan = msgspec.structs.replace(plan, door=door)
        draft = first_draft(plan, state)
        if not begin_queued(manager, draft, plan.door.entry_point, plan.version, options):
            check_begun_by(manager.reader, state)
            if values is not None:
                check_input(manager.reader, manager.hook_manager, state, plan.version, inputs)
        return RunHandle(run_id, manager)

    stream = streamed(run)
    """`run`, as the events that happen: ``async for event in graph.stream(...)``.

    Events have sequence numbers. After the last one, `result` of the stream is that of `run`.
    """

    async def execute(
        self,
        state: State | Mapping[str, Any] | None = None,
        *,
        secrets: Mapping[str, Any] | None = None,
    ) -> State:
        """Run from the entry point to an exit point and return the final state.

        It is `run` for a caller that wants the state itself. A run that is in the store already
        continues with the values that were saved; a completed one returns its stored result.
        *secrets* are put on the state and are not stored.

        Raises `StepError` if a node or a decision failed and `BudgetError` at the limit of
        iterations. Where `run` returns a result without a final state, it raises a signal:
        `Interrupted` if the run waits, `Drained` if it was asked to stop. All of them can be
        resumed.
        """
        if not isinstance(state, State):
            state = self._begun(state, None)
        return await self._execute(state.with_secrets(secrets) if secrets else state)

    execute_sync = _blocking(execute)

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
        on_event: Callable[[Event], None] | None = None,
    ) -> GraphResult:
        """Continue a run after its newest checkpoint, with the node decided on then.

        *run_id* may be a name: then the newest unfinished run of that name continues. With
        *checkpoint_id* or *step* the run is rewound to that checkpoint, or to the newest one at or
        before that step; effects recorded after it are not repeated. *answer* answers the question
        that the run waits for, *answers* several, by their ids. A completed run returns its stored
        result, one that waits again the status ``waiting``; see `run`. Secrets are not stored:
        give them again.

        Raises `UsageError` if checkpointing is off, `NotFoundError` if there is no such run,
        `ShapeError` if the run is of another graph or the graph has changed (unless *force*), and
        `LeaseHeldError` if a live process executes the run.
        """
        wanted = ResumeRequest(
            run_id, checkpoint_id, step, answer, answers or {}, secrets or {}, force
        )
        return await Execution(self, None, wanted, on_event).result()

    resume_sync = _blocking(resume)

    async def resume_state(
        self,
        run_id: str,
        *,
        checkpoint_id: str | None = None,
        answer: Any = NOTHING,
        answers: Mapping[str, Any] | None = None,
        secrets: Mapping[str, Any] | None = None,
        force: bool = False,
        found: RunInfo | None = None,
        tell_spent: Callable[[Spent], None] | None = None,
    ) -> State:
        """`resume` for what is built on graphs: the final state, or a signal.

        *found* is the run, if the caller has looked it up; *tell_spent* is called with the cost of
        the calls that earlier executions recorded.
        """
        given = answer, answers or {}, secrets or {}
        wanted = ResumeRequest(run_id, checkpoint_id, None, *given, force, found=found)
        return await self._resume(wanted, tell_spent)

    async def checkpoint(
        self,
        run_id: str,
        edit: Mapping[str, Any] | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
    ) -> State:
        """Save an idle run, with kind ``manual`` and the changes of *edit*.

        Recorded effects stay. If the next node has recorded nothing, an *edit* makes the graph
        decide on it again. A run that the store does not hold is begun with *edit*; nothing is
        executed. The returned state has the new `checkpoint_id`.
        """
        self.manager  # noqa: B018 - raises if checkpointing is off
        return await self._runner().checkpoint(run_id, edit or {}, metadata or {})

    async def _execute(
        self,
        state: State,
        given: State | None = None,
        tell_spent: Callable[[Spent], None] | None = None,
    ) -> State:
        runner = self._runner(tell_spent)
        with runner.stop.watching(state.run_id, signals=self.config.signals):
            return await runner.execute(state, given)

    def _begun(self, values: State | Mapping[str, Any] | None, run_id: str | None) -> State:
        """The first state of a run; inside another run its id is the same on replays."""
        saves = self._manager is not None or self.config.checkpoint.enabled
        if saves and run_id is None and not isinstance(values, State):
            run_id = RunHere(self.name, args_digest((values or {},), {})).run_id
        return _first_state(values, run_id)

    async def _resume(
        self, wanted: ResumeRequest, tell_spent: Callable[[Spent], None] | None = None
    ) -> State:
        self.manager  # noqa: B018 - raises if checkpointing is off
        runner = self._runner(tell_spent)
        with runner.stop.watching(wanted.run_id, signals=self.config.signals):
            return await runner.resume(wanted)

    def _runner(self, tell_spent: Callable[[Spent], None] | None = None) -> Runner:
        plan, config = self.plan(), self.config.checkpoint
        return Runner(plan, self._opened(), config, self.observers, self._alone, tell_spent)

    # Looking and branching

    def manager_on(
        self, storage: Storage, hooks: HookManager | None = None
    ) -> AsyncCheckpointManager:
        """Make a manager over *storage* with the hooks, keys and rules of the graph's own.

        *hooks* are for a graph that names none.
        """
        if self._manager is not None:
            return AsyncCheckpointManager.on(storage, self._manager.settings.with_hooks(hooks))
        return _manager_for(dataclasses.replace(self.config.checkpoint, store=storage), hooks)

    def over(self, manager: AsyncCheckpointManager) -> StateGraph:
        """Return the same graph saving through *manager*, which the caller closes."""
        other = copy.copy(self)
        other._manager, other._owns_manager = manager, False
        return other

    def watched_by(self, observer: Observer) -> StateGraph:
        """Return the same graph with one more observer."""
        other = copy.copy(self)
        other.observers = (*self.observers, observer)
        return other

    def as_resumable(self) -> StateGraph:
        """The graph itself: its runs are resumed by their ids."""
        return self

    def explain_resume(self, run_id: str) -> ResumePlan:
        """Say what `resume` would do, without doing any of it."""
        return explain(self.manager.reader, self.plan(), run_id)

    async def fork(
        self, checkpoint_id: str, edit: Mapping[str, Any] | None = None, run_id: str | None = None
    ) -> State:
        """Begin a new run with the state of a checkpoint and the changes of *edit*.

        ``resume(state.run_id)`` executes it. With *edit* the graph decides on the next node again.
        A fork inherits no effects, and the source run stays as it is.
        """
        return await fork(self.manager, checkpoint_id, dict(edit or {}), run_id)

    def compare(self, run_id: str, other: str) -> Parting:
        """Find the first step at which the paths or states of two runs differ."""
        return part(self.manager.reader, run_id, other)

    def to_mermaid(self, run_id: str | None = None) -> str:
        """Draw the graph as a Mermaid flowchart; with a run, its path and counts."""
        reader = self.manager.reader if run_id is not None else None
        return draw(self.shape(), self._edges, reader, run_id)

    # Closing

    async def close(self) -> None:
        """Finish pending saves, and close the store if this graph opened it."""
        if self._owns_manager and self._manager is not None:
            await self._manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        _in_a_loop(self.close())

    def __repr__(self) -> str:
        return f"<StateGraph {self.name} of {len(self._nodes)} nodes>"

    def _repr_html_(self) -> str:
        """The nodes, and where each leads, as a card, in a notebook."""
        leads = {
            name: ", ".join(
                f"{edge.target} if {edge.name}" if edge.name else edge.target
                for edge in self._edges
                if edge.source == name
            )
            or "the end"
            for name in self._nodes
        }
        return card(self.name, "graph", [f"begins with {self._entry}"], leads)


def _manager_for(
    config: CheckpointConfig, hooks: HookManager | None = None
) -> AsyncCheckpointManager:
    """Open the configured store now, so that a wrong address fails now."""
    rules = Rules(keep_last=config.keep) if config.keep is not None else None
    store = config.store
    if isinstance(store, str) and ":" not in store:
        store = open_storage(store)  # a registered one is shared, and this graph must not close it
    manager = AsyncCheckpointManager(
        store,
        retention=rules,
        hook_manager=hooks,
        on_save_failure=config.on_save_failure,
        on_corrupt=config.on_corrupt,
    )
    if isinstance(manager.storage, MemoryStorage) and "memory" not in _said:
        _said.add("memory")
        logger.warning("the store memory does not survive the process (pid %d)", os.getpid())
    return manager


def _in_a_thread(node: NodeFunction, state: State) -> Coroutine[Any, Any, Any]:
    return call_beside(node, (state,))


def _first_state(values: State | Mapping[str, Any] | None, run_id: str | None) -> State:
    if isinstance(values, State):
        if run_id is not None and values.run_id != run_id:
            raise UsageError(
                f"the state is of run {values.run_id!r}, and run_id is {run_id!r}",
                hint="give one of them",
            )
        return values
    if values is not None and not isinstance(values, Mapping):
        raise UsageError(f"the state is {type(values).__name__}", hint="give a State or a mapping")
    return State.new(values, run_id=run_id)


class Execution:
    """One `run` or `resume` of a graph: counts what it spends, and gives its result."""

    def __init__(
        self,
        graph: StateGraph,
        state: State | None,
        wanted: ResumeRequest | None,
        on_event: Callable[[Event], None] | None,
        given: State | None = None,
    ) -> None:
        self._graph = graph
        self._state = state
        self._given = given
        self._wanted = wanted
        check_listener(on_event)
        self._on_event = on_event
        self._spent = self._earlier = Spent()

    def _tell(self, earlier: Spent) -> None:
        self._earlier = earlier

    def on_event(self, event: Event) -> None:
        """Count what an effect cost."""
        if event.type == "effect.complete":
            facts = {name: event.data[name] for name in ("tokens", "dollars", "seconds")}
            self._spent += Spent(calls=1, **facts)
        if self._on_event is not None:
            self._on_event(event)

    async def result(self) -> GraphResult:
        """Execute, and return how the run ended."""
        graph, wanted = self._graph, self._wanted
        manager = graph.manager if wanted is not None else graph._opened()
        graph = graph.watched_by(self)  # a copy, with the manager that the graph closes
        run_id = self._state.run_id if self._state is not None else ""
        if wanted is not None and manager is not None:
            found = await asyncio.to_thread(find_run, manager.reader, wanted.run_id)
            run_id = found.run_id
            wanted = msgspec.structs.replace(wanted, run_id=run_id, found=found)
        waiting: tuple[Waiting, ...] = ()
        state: State | None = None
        error = ""
        try:
            if wanted is not None:
                state = await graph._resume(wanted, self._tell)
            else:
                assert self._state is not None
                state = await graph._execute(self._state, self._given, self._tell)
            status = "completed"
        except (KeyboardInterrupt, SystemExit):  # also Drained, if a signal asked for it
            raise
        except Interrupted as signal:
            status, waiting = "waiting", signal.facts.get("waiting", ())
        except Drained:
            status = "interrupted"
        except EndRun as ending:
            status, state, error = ending.status, ending.state, ending.error
        if state is None and manager is not None:
            tail = await asyncio.to_thread(partial(manager.reader.tail_of, run_id, notes=False))
            state = tail.loaded.graph_state() if tail is not None else None
        return GraphResult(
            run_id=run_id,
            status=status,
            state=state,
            step=state.step if state is not None else 0,
            usage=self._earlier + self._spent,
            saved=self._earlier,
            waiting=waiting,
            error=error,
        )


def _check_name(name: object, what: str) -> None:
    if not isinstance(name, str) or not name:
        raise UsageError(f"{what} is {name!r}", hint="give a name; several as one argument each")
