"""The agent: a graph of a plan and cycles whose runs can be resumed."""

from __future__ import annotations

import asyncio
import copy
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Unpack
from uuid import uuid4

from surehold.agents.agent.children import (
    ForwardedAnswers,
    Parent,
    agent_tool,
    hand_out,
    pass_on_refusal,
    take_answers,
    waiting_inside_signal,
)
from surehold.agents.agent.config import AgentConfig, read_options
from surehold.agents.agent.cycle import Cycles
from surehold.agents.agent.graph import Start, build_graph, done_since, find_start, known_start
from surehold.agents.agent.result import AgentResult, result_of, resume_line
from surehold.agents.agent.state_mapping import GivenFields, copied, first_values, restored
from surehold.agents.models import Model, open_model
from surehold.agents.tools import Tool, ToolLike, read_signature, read_tool
from surehold.core.closing import AsyncClosing
from surehold.core.records import Header, check_run_id
from surehold.core.state import AgentState, State
from surehold.doors.checks import check_listener, check_task
from surehold.doors.events import Event, Listener, Observer, resolve_observers, streamed
from surehold.doors.graph import NOTHING, EndRun
from surehold.doors.result import ModelSpent, Spent
from surehold.doors.resume import Resumable, RunHere, module_that_makes, no_run
from surehold.doors.submit import AsyncRunHandle, QueueOptions, RunHandle, StartOptions
from surehold.engine.hooks import HookEvent, HookManager, pre_outcome
from surehold.engine.managers import AsyncCheckpointManager
from surehold.engine.runs import (
    InterruptMode,
    StopRequests,
    check_not_held,
    questions_of,
    tell_failed,
)
from surehold.engine.runs.positions import CURRENT_STEP
from surehold.errors import Drained, Interrupted, StepError, UsageError, VetoError
from surehold.storage.base import Storage

logger = logging.getLogger("surehold.agent")

DEFAULT_ID = "autonomous_agent"
_warned: set[str] = set()
_VIEWS: ContextVar[Mapping[int, AgentState]] = ContextVar("surehold_agent_views", default={})  # noqa: B039
"""The states that a tool sees, by the id of the agent, where several run in parallel."""


def _hooked(manager: AsyncCheckpointManager, hooks: HookManager | None) -> AsyncCheckpointManager:
    """Return *manager*, or a copy that calls *hooks* if *manager* has no hooks."""
    if hooks is None or manager.hook_manager is not None:
        return manager
    return AsyncCheckpointManager.on(manager.storage, manager.settings.with_hooks(hooks))


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr)


class Agent(AsyncClosing):
    """An agent that works on a task in cycles until it has the answer.

    A cycle is one call of the model and of the tools that it asks for.

    An agent with a name is durable: every cycle is saved in *storage*, an address or a `Storage`,
    model calls and tool results included, and ``run`` with the same task continues where an
    earlier process stopped. Without *storage* that is the configured one: ``SUREHOLD_STORAGE``,
    `surehold.toml`, or the default. *every* saves after that many cycles instead, *every_seconds*
    after the first cycle that ends so much later than the last save. The name is the *agent_id*
    that its runs share.

    An `AgentConfig` in place of the name, or as *config*, sets limits and the model. With a
    *state_manager* in place of *storage*, checkpoints follow the configuration and the manager,
    and unfinished runs continue if it says ``resume_from_checkpoint``. With none of name, storage
    and manager nothing is saved.

    *tools* are functions, see `surehold.tool`. *signature* gives the shape of the answer: a
    `Signature`, a pydantic model or a dataclass. *model* replaces the configured one. *report*
    receives the one line about a resume, by default on stderr; *on_text* the model's text as it
    comes.
    """

    def __init__(
        self,
        name: str | AgentConfig | None = None,
        signature: object = None,
        state_manager: AsyncCheckpointManager | None = None,
        *,
        config: AgentConfig | None = None,
        storage: Storage | str | None = None,
        every: int | None = None,
        every_seconds: float | None = None,
        agent_id: str = DEFAULT_ID,
        tools: Sequence[ToolLike] = (),
        hook_manager: HookManager | None = None,
        model: Model | str | None = None,
        instructions: str = "",
        report: Callable[[str], None] = _to_stderr,
        on_text: Callable[[str], None] | None = None,
        observer: str | Observer | Sequence[str | Observer] = "noop",
    ) -> None:
        if state_manager is not None and storage is not None:
            raise UsageError("storage= and state_manager= are given", hint="give one of them")
        self._durable = state_manager is None and (storage is not None or isinstance(name, str))
        self.config, self.agent_id = read_options(
            name,
            config,
            agent_id,
            default_id=DEFAULT_ID,
            durable=self._durable,
            every=every,
            every_seconds=every_seconds,
        )
        self.answer = read_signature(signature)
        if state_manager is not None and not isinstance(state_manager, AsyncCheckpointManager):
            raise UsageError(
                f"the state_manager is a {type(state_manager).__name__}",
                hint="give AsyncCheckpointManager(storage)",
            )
        if not isinstance(instructions, str):
            raise UsageError(f"instructions is {instructions!r:.40}", hint="give a text")
        if not isinstance(tools, Iterable):
            raise UsageError(f"tools is a {type(tools).__name__}", hint="give a list of functions")
        self.hook_manager = hook_manager
        given = state_manager
        if storage is not None:
            state_manager = AsyncCheckpointManager(storage, hook_manager=hook_manager)
        elif state_manager is not None:
            state_manager = _hooked(state_manager, hook_manager)
        self.state_manager = state_manager
        self._owns_manager = state_manager is not given
        if hook_manager is None and state_manager is not None:
            self.hook_manager = state_manager.hook_manager
        self.tools: dict[str, Tool] = {}
        for each in map(read_tool, tools):
            if each.name in self.tools or each.name in ("finish_step", "answer"):
                raise UsageError(f"there is a tool {each.name!r} already", hint="rename one")
            self.tools[each.name] = each
        self.instructions = instructions
        self.report = report
        self.on_text = on_text
        self.observer = observer
        self._state = AgentState(agent_id=self.agent_id)
        self._given = GivenFields()
        self.interrupts = StopRequests(self.config.graceful_shutdown_timeout)
        self._module = module_that_makes(self)
        self.forwarded: ForwardedAnswers = {}
        """Answers given to this execution for agents inside it."""
        self._model = open_model(model) if isinstance(model, str) else model
        if self._model is not None and not isinstance(self._model, Model):
            raise UsageError(
                f"the model is {type(model).__name__}", hint='give a model, or a text as "openai:…"'
            )
        self._running = False
        self._resumed = False
        self._saved = Spent()
        self._on_event: Callable[[Event], None] | None = None

    # Running

    async def run(
        self,
        task: str = "",
        *,
        run_id: str | None = None,
        checkpoint: str | None = None,
        answer: Any = NOTHING,
        answers: Mapping[str, Any] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> AgentResult:
        """Work on *task* until it is done, or continue an unfinished run.

        If the agent is durable or configured with ``resume_from_checkpoint``, the newest unfinished
        run of the same task continues; without a *task*, the newest unfinished one. Another task
        begins a new run. Inside a run that is recorded it is the run that this call began, on every
        replay. With *run_id* that run is begun or, if the storage holds it, continued; a completed
        one returns its stored result. With *checkpoint*, the newest of its run, that run continues;
        from an earlier one, a fork of it does, which replays nothing that was recorded after it.
        Another text is added to the conversation.
        *answer* answers the one question that the run, or an agent inside it, waits for;
        *answers* several, by the ids that the result gives them. *on_event* is called with every
        event, see `stream`.
        """
        return await self._work(task, run_id, checkpoint, answer, answers or {}, on_event)

    async def _work(
        self,
        task: str,
        run_id: str | None,
        checkpoint: str | None,
        answer: Any,
        answers: Mapping[str, Any],
        on_event: Callable[[Event], None] | None,
        back_to: str | None = None,
        *,
        known: bool = False,
    ) -> AgentResult:
        """`run`; a run that must be *known* is a `NotFoundError` if it is not."""
        self._check_idle()
        check_listener(on_event)
        check_task(task)
        self._on_event = on_event
        await self._open_manager()
        here = None
        named = run_id is not None or checkpoint is not None
        if task and not named and answer is NOTHING and not answers and self._resumes():
            here = RunHere(self.agent_id, task)
            run_id = here.run_id
        start = await self._start(task, checkpoint, run_id, known=known)
        start.back_to = back_to
        self.forwarded = {}
        if answer is not NOTHING or answers:
            if not start.known:
                raise UsageError(
                    f"no run of {self.agent_id!r} waits for an answer",
                    hint="set resume_from_checkpoint=True, or name its checkpoint",
                )
            self.forwarded = await asyncio.to_thread(hand_out, self, start, answer, answers)
        config, status = self.config, ""
        try:
            with self.interrupts.watching(
                start.run_id,
                signals=None if config.enable_interrupts else False,
                timeout=config.timeout_seconds,
            ):
                result = await self._run(start, self.state_manager)
                status = result.status
                if status == "interrupted" and self.interrupts.number:
                    raise self.interrupts.signal(f"run {start.run_id!r} was interrupted")
            return result
        finally:
            if here is not None:
                here.ended(status)

    async def resume(
        self,
        run_id: str,
        *,
        checkpoint_id: str | None = None,
        answer: Any = NOTHING,
        answers: Mapping[str, Any] | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> AgentResult:
        """Continue a run that the storage holds; a completed one returns its result.

        With *checkpoint_id* the run goes back to that checkpoint and keeps its recorded effects.
        """
        check_run_id(run_id)
        back = checkpoint_id
        return await self._work("", run_id, None, answer, answers or {}, on_event, back, known=True)

    stream = streamed(run)
    """`run`, as the events that happen: ``async for event in agent.stream(task)``.

    ``model.text`` carries the model's text as it comes. See `StateGraph.stream`.
    """

    async def start(self, task: str, **options: Unpack[StartOptions]) -> AsyncRunHandle[None]:
        """Queue a run for a worker; give a handle. See `surehold.workflow`'s ``start``.

        *entry_point* names the agent where it is not a variable of its module, or a function that
        makes it: ``app:make_agent``. A worker executes one run at a time of an agent that is a
        variable, and several of one that a function makes.
        """
        wanted = QueueOptions(**options)
        await self._open_manager()
        if self.state_manager is None:
            raise UsageError(f"{self!r} saves nothing", hint="give storage=")
        return AsyncRunHandle(
            await asyncio.to_thread(self.submit, task, wanted, self.state_manager)
        )

    def submit(
        self, task: str, options: QueueOptions, manager: AsyncCheckpointManager
    ) -> RunHandle[None]:
        """Save the run's first state in a queue; blocking. `start` is for users."""
        check_task(task)
        if not task:
            raise UsageError("there is no task", hint="give one")
        model = self._model or self._open_model()
        cycles = Cycles(self, model, "", False)
        graph = build_graph(self, cycles, manager, self.agent_id)
        run_id = options.id_for(self.agent_id)
        values = first_values(task, model.name, self._given.in_new_run(self._state, run_id))
        state = State.new(values, run_id=run_id, name=self.agent_id)
        return graph.submit(state, options, inputs=("conversation_history",))

    async def _open_manager(self) -> None:
        """Open the configured storage, if the agent is durable and none was given."""
        if self.state_manager is None and self._durable:
            manager = await asyncio.to_thread(
                AsyncCheckpointManager, hook_manager=self.hook_manager
            )
            self.state_manager, self._owns_manager = manager, True
            self.hook_manager = self.hook_manager or manager.hook_manager

    async def _autonomous_loop(self, task: str = "") -> AgentResult:
        """`run`, except that a text joins the agent's newest run if that is unfinished."""
        newest = None
        if task and self.state_manager is not None and self.config.resume_from_checkpoint:
            newest = await self.state_manager.latest(self.agent_id)
        if newest is not None and newest.status != "completed":
            return await self.run(task, checkpoint=newest.checkpoint_id)
        return await self.run(task)

    def as_resumable(self) -> Resumable:
        """The object that resumes the agent's runs by their ids."""
        from surehold.agents.agent.resumable import AgentRuns

        return AgentRuns(self)

    async def run_within(self, parent: Parent, task: str, run_id: str) -> AgentResult:
        """Work on a part of *parent*'s task, in its own run, begun or continued.

        What it waits for is raised as `Interrupted`: the parent waits with it.
        """
        self._check_idle()
        manager = self.state_manager
        if manager is not None or not run_id:
            return await self._within(parent, task, run_id, manager)
        here = CURRENT_STEP.get()
        assert here is not None and here.run is not None
        outer = here.run.awaited.manager  # also where the parent is a child without its own
        manager = _hooked(outer, self.hook_manager)
        try:
            return await self._within(parent, task, run_id, manager)
        finally:
            if manager is not outer:
                await manager.close()

    async def _within(
        self, parent: Parent, task: str, run_id: str, manager: AsyncCheckpointManager | None
    ) -> AgentResult:
        start = Start(task=task, run_id=run_id or str(uuid4()))
        start.name = f"{parent.name}/{self.agent_id}"
        start.metadata = {"parent_run": parent.run_id, "parent_agent": parent.name}
        self.forwarded = parent.answers
        if manager is not None:
            reader = manager.reader
            start.found = await asyncio.to_thread(reader.run, start.run_id)
            start.known = start.found is not None
            if start.known and self.forwarded:
                asked = await asyncio.to_thread(questions_of, reader, run_id)
                take_answers(self.forwarded, start, asked)
        stop = self.interrupts
        try:
            with stop.within(parent.stop) if parent.stop else stop.watching(signals=False):
                result = await self._run(start, manager)
        except UsageError as error:
            pass_on_refusal(error)
            raise
        if result.waiting:
            raise waiting_inside_signal(result)
        return result

    async def _start(
        self, task: str, checkpoint: str | None, run_id: str | None, *, known: bool
    ) -> Start:
        """Find the run to continue, or make a new one."""
        start = None
        if run_id is not None:
            check_run_id(run_id)
            if checkpoint is not None:
                raise UsageError("run_id= and checkpoint= are given", hint="give one of them")
        if self.state_manager is not None:
            manager = self.state_manager
            if run_id is not None:
                start = await asyncio.to_thread(known_start, manager, self.agent_id, run_id, task)
            elif checkpoint is not None or self._resumes():
                start = await asyncio.to_thread(
                    find_start, manager, self.agent_id, checkpoint, task
                )
        elif checkpoint is not None:
            raise UsageError("there is no state manager to load a checkpoint from")
        if start is None:
            if known and run_id is not None:
                raise no_run(run_id)
            if not task:
                raise UsageError("there is no task and no run to continue", hint="give a task")
            return Start(task=task, run_id=run_id or str(uuid4()), name=self.agent_id)
        if self.agent_id == DEFAULT_ID and DEFAULT_ID not in _warned:
            _warned.add(DEFAULT_ID)
            logger.warning(
                "resuming a run of the default agent_id %r: give each agent its own", DEFAULT_ID
            )
        if start.earlier is not None:
            start.run_id = await self._forked(start.earlier)
        start.task = task
        return start

    async def _forked(self, header: Header) -> str:
        """Fork a checkpoint; nothing recorded after it is replayed. Return the run id."""
        manager = self.state_manager
        assert manager is not None
        await asyncio.to_thread(check_not_held, manager.reader, header.run_id)
        done = await asyncio.to_thread(done_since, manager.reader, header)
        fork = await manager.fork_from_checkpoint(header.id)
        repeats = f"; effects recorded since then may be repeated: {', '.join(done)}"
        logger.warning(
            "run %s has come further than checkpoint %s: run %s, a fork of it, continues from"
            " there%s",
            header.run_id,
            header.id,
            fork.run_id,
            repeats if done else "",
        )
        return str(fork.run_id)

    def _resumes(self) -> bool:
        """Return whether `run` continues what the storage holds of the task."""
        saves = self.state_manager is not None
        return saves and (self.config.resume_from_checkpoint or self._durable)

    def _check_idle(self) -> None:
        if self._running:
            raise UsageError(
                f"agent {self.agent_id!r} is running",
                hint="wait until its run has ended, or make another Agent",
            )

    async def _run(self, start: Start, manager: AsyncCheckpointManager | None) -> AgentResult:
        if manager is None and any(tool.approval for tool in self.tools.values()):
            raise UsageError(
                "a tool that needs approval needs a storage",
                hint="the run waits until someone answers: give storage=",
            )
        model = self._model
        if model is None:
            model = await asyncio.to_thread(self._open_model)  # one in this process takes a while
        self._running, self._resumed, self._saved = True, False, Spent()
        self.state = self._given.in_new_run(self._state, start.run_id)
        try:
            async with AsyncExitStack() as stack:
                if isinstance(model, AbstractAsyncContextManager):
                    await stack.enter_async_context(model)  # one connection for the whole run
                veto = await self.fire(HookEvent.PRE_AGENT_LOOP, task=start.task)
                if veto:
                    raise VetoError(f"a hook refused the run: {veto}", run_id=start.run_id)
                result = await self._executed(start, manager, model)
                await self.fire(HookEvent.POST_AGENT_LOOP, status=result.status)
                return result
        finally:
            self._running = False
            self._given.after_run(self._state)

    async def _executed(
        self, start: Start, manager: AsyncCheckpointManager | None, model: Model
    ) -> AgentResult:
        message = start.task if start.known else ""
        cycles = Cycles(self, model, message, start.known)
        graph = build_graph(self, cycles, manager, start.name)
        waiting: tuple[Any, ...] = ()
        try:
            if start.known:
                veto = await self.fire(HookEvent.PRE_RESUME, run_id=start.run_id)
                if veto:
                    raise VetoError(f"a hook refused the resume: {veto}", run_id=start.run_id)
                self._resumed = True
                state = await graph.resume_state(
                    start.run_id,
                    checkpoint_id=start.back_to,
                    answer=start.answer,
                    answers=start.answers,
                    found=start.found,
                    force=True,  # planning may be switched on or off, and the nodes still fit
                )
            else:
                values = first_values(start.task, model.name, self.state)
                state = State.new(values, run_id=start.run_id, name=start.name)
                state = await graph.execute(state.at(metadata=start.metadata))
        except EndRun as ending:
            assert ending.state is not None
            self._restore_state(restored(ending.state))
            if ending.status == "failed" and not self.config.error_handling_enabled:
                raise StepError(f"the agent failed: {ending.error}", node="cycle") from ending
            status = ending.status
        except Interrupted as signal:
            waiting, status = getattr(signal, "waiting", ()), "waiting"
        except Drained:
            status = "interrupted"
        else:
            self._restore_state(restored(state))
            status = "completed"
        self.say_resumed()
        self.state.status = status
        if status == "failed":
            tell_failed(start.run_id, self.state.metadata.get("error") or "")
        return result_of(self.state, self.config, self.answer, waiting, self._saved)

    def _open_model(self) -> Model:
        config = self.config
        settings = {"temperature": config.temperature, "max_tokens": config.max_tokens}
        given = {name: value for name, value in settings.items() if value is not None}
        return open_model(config.llm_provider, config.model, **given, **config.provider_config)

    def interrupt(self, message: str = "", *, mode: InterruptMode = "graceful") -> None:
        """Ask the run to stop, after its cycle or at once; from any thread."""
        self.interrupts.request("user", message, mode)

    def as_tool(self, name: str | None = None, description: str = "") -> Tool:
        """This agent as a tool of another; each call is a run of its own, linked to it."""
        return agent_tool(self, name, description)

    # The state

    @property
    def state(self) -> AgentState:
        """Its state; during a run, what the next checkpoint will hold."""
        views = _VIEWS.get()
        return views.get(id(self), self._state) if views else self._state

    @state.setter
    def state(self, state: AgentState) -> None:
        self._state = state

    @contextmanager
    def seen_with(self, fields: Mapping[str, Any]) -> Iterator[None]:
        """Show the state with other *fields* to what is called in the block."""
        view = copy.copy(self._state)
        for name, value in fields.items():
            setattr(view, name, value)
        token = _VIEWS.set({**_VIEWS.get(), id(self): view})
        try:
            yield
        finally:
            _VIEWS.reset(token)

    def _capture_state(self) -> AgentState:
        """The state to save. Extend it with ``state = super()._capture_state()``."""
        return copied(self.state)

    def _restore_state(self, state: AgentState) -> None:
        """Use the state of a checkpoint. Extend it with ``super()._restore_state(state)``."""
        self.state = state
        state.registered_hooks = [
            {"name": name} for name in (self.hook_manager or HookManager()).registered_hook_names()
        ]
        state.active_specialists = [
            tool.agent.agent_id for tool in self.tools.values() if tool.agent is not None
        ]

    @property
    def memory(self) -> dict[str, Any]:
        """Its memory, saved with the state; tools may change it too.

        A run begins with what the program put into it outside of runs; a run that continues has
        the memory of its checkpoint.
        """
        return self.state.memory_contents

    @property
    def plan(self) -> list[dict[str, Any]]:
        """Steps that are done, in progress and pending."""
        return [dict(item) for item in (*self.state.completed_actions, *self.state.pending_actions)]

    @property
    def raw_answer(self) -> Any:
        """The answer of the last run as JSON, before the signature converts it."""
        return self.state.extra.get("answer")

    def record_approval(
        self,
        tool_name: str,
        approved: bool,
        action: str = "once",
        tool_input: Mapping[str, Any] | None = None,
    ) -> None:
        """Record in the state the answer to an approval."""
        self.state.approval_history.append(
            {
                "tool_name": tool_name,
                "approved": approved,
                "action": action,
                "tool_input": dict(tool_input or {}),
                "step": self.state.step_number,
            }
        )

    def record_tool_usage(self, name: str, increment: int = 1) -> None:
        """Count a call of a tool in the state."""
        counts = self.state.tool_usage_counts
        counts[name] = counts.get(name, 0) + increment

    def update_workflow_state(
        self,
        run_id: str | None = None,
        status: str | None = None,
        current_node: str | None = None,
        node_results: Mapping[str, Any] | None = None,
        execution_time: float | None = None,
        **facts: Any,
    ) -> None:
        """Record in the state the progress of a workflow that the agent drives."""
        if run_id is not None:
            self.state.workflow_run_id = run_id
        named = {
            "status": status,
            "current_node": current_node,
            "node_results": None if node_results is None else dict(node_results),
            "execution_time": execution_time,
        }
        known = {name: value for name, value in named.items() if value is not None}
        self.state.workflow_state |= {**known, **facts, "last_updated": datetime.now(UTC)}

    # For the other modules of this room

    def observers(self) -> tuple[Observer, ...]:
        """The observers of the run that is executed."""
        given = resolve_observers(self.observer)
        return given if self._on_event is None else (*given, Listener(self._on_event))

    def instructions_text(self) -> str:
        """The instructions for the model."""
        parts = [self.instructions, self.answer.instructions if self.answer is not None else ""]
        return "\n".join(part for part in parts if part) or "Work on the task with the tools."

    async def fire(self, event: HookEvent, **data: Any) -> str:
        """Call the hooks; return the reason of a veto, or an empty text."""
        hooks = self.hook_manager
        if hooks is None or not hooks.has(event):
            return ""
        live = self.state
        facts = {"agent_id": self.agent_id, "run_id": live.run_id, "step_number": live.step_number}
        results = await hooks.trigger(event, self.agent_id, {**facts, **data})
        veto = pre_outcome(None, results).veto if event.is_pre else None
        return veto.error or "" if veto is not None else ""

    def note_event(self, event: HookEvent, **facts: Any) -> None:
        """Record an event in the state, if hooks are registered for it."""
        if self.hook_manager is not None and self.hook_manager.has(event):
            entry = {"event": event.value, "step": self.state.step_number, **facts}
            self.state.hook_event_history.append(entry)

    def say_resumed(self) -> None:
        """Report what the resume saved: once, before the first new call."""
        if self._resumed:
            self._resumed = False
            if "usage" in self.state.extra:
                self._saved = ModelSpent.of(self.state.extra["usage"])
                self.report(resume_line(self.state, self.config.max_cycles))

    def warn_unpriced(self, model: str) -> None:
        """Warn once that a budget cannot be kept because a price is unknown."""
        if self.config.budget_usd is not None and model not in _warned:
            _warned.add(model)
            logger.warning(
                "the price of %r is unknown: budget_usd does not count its calls; give"
                " provider_config={'prices': {...}}",
                model,
            )

    # Closing

    async def close(self) -> None:
        """Finish pending saves, and close the storage if this agent opened it."""
        if self._owns_manager and self.state_manager is not None:
            await self.state_manager.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.agent_id}>"
