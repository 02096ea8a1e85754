"""The nodes of an agent's graph: plan, cycle, finish."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from surehold.agents.agent.state_mapping import (
    LOGS,
    absorbed,
    add_usage,
    begun,
    copied,
    restored,
    usage_of,
)
from surehold.agents.agent.tool_calls import AgentToolCalls
from surehold.agents.models import Message, Model, Reply, ToolCall, ToolSpec, ask
from surehold.core.policy import RunFacts, ending_of
from surehold.core.records import Effect
from surehold.core.state import AgentState, State
from surehold.core.values import Usage
from surehold.doors.graph import EndRun
from surehold.engine.hooks import HookEvent
from surehold.engine.runs.effects import effect, failure_here
from surehold.engine.runs.positions import CURRENT_STEP, place_name
from surehold.errors import Drained, UsageError

if TYPE_CHECKING:
    from surehold.agents.agent.agent import Agent
    from surehold.agents.tools import Tool

# No tool has a name with a colon, so these effects never collide with those of tools.
_ASK = "model:cycle"
_ASK_PLAN = "model:plan"
_MESSAGE = "message:new"

_PLAN_SCHEMA = {
    "type": "object",
    "properties": {
        "steps": {
            "type": "array",
            "items": {"type": "string", "maxLength": 120},
            "minItems": 1,
            "maxItems": 7,
        }
    },
    "required": ["steps"],
    "additionalProperties": False,
}
_FINISH_STEP = ToolSpec(
    "finish_step",
    "Say that the step of the plan that is in progress is done.",
    {"type": "object", "properties": {}, "additionalProperties": False},
)
_BOXES = {"completed": "x", "in_progress": ">", "pending": " "}


class Cycles(msgspec.Struct, eq=False):
    """The nodes of one execution of an agent."""

    agent: Agent
    model: Model
    message: str
    resumes: bool
    _restored: bool = False
    _before: Usage = msgspec.field(default_factory=Usage.none)
    _extra: Mapping[str, Any] = {}

    # The nodes

    async def plan(self, state: State) -> State:
        """Make the plan, once in a run."""
        return await self._guarded(self._plan, state)

    async def cycle(self, state: State) -> State:
        """Call the model, and the tools that it asks for."""
        return await self._guarded(self._cycle, state)

    async def finish(self, state: State) -> State:
        """Close the plan."""
        live = self._live(state)
        for item in live.pending_actions:
            if item["status"] == "in_progress":
                live.completed_actions.append({**item, "status": "completed"})
        live.pending_actions = [i for i in live.pending_actions if i["status"] == "pending"]
        return self._kept(state)

    async def _guarded(self, node: Callable[[State], Awaitable[State]], state: State) -> State:
        """Execute *node*; an interrupt or a failure ends the run with its reason."""
        interrupts = self.agent.interrupts
        interrupts.doing = f"cycle {state.step + 1}"
        with interrupts.cancellable():
            try:
                if not self._restored:
                    live = self._live(state)
                    if self.resumes:
                        facts = _resumed_from()
                        await self.agent.fire(HookEvent.POST_RESUME, **facts, state=copied(live))
                return await node(state)
            except EndRun:
                raise
            except BaseException as error:
                stopped = isinstance(error, Drained) and interrupts.reason is not None
                if interrupts.caused(error) or stopped:
                    raise await self._interrupted(state) from error
                ending = ending_of(error, RunFacts(run_id=self.agent.state.run_id or ""))
                if ending.gives != "failure" or not isinstance(error, Exception):
                    raise
                text = failure_here(error)
                raise EndRun(ending.status, leaves=_with(state, error=text), error=text) from error

    async def _heed_interrupt(self, state: State) -> None:
        """End the run here if it was asked to stop, unless a hook vetoes it."""
        interrupts = self.agent.interrupts
        if interrupts.reason is None:
            return
        facts = interrupts.reason.to_dict()
        if not await self.agent.fire(HookEvent.PRE_INTERRUPT, reason=facts):
            raise await self._interrupted(state)
        interrupts.withdraw()

    async def _interrupted(self, state: State) -> EndRun:
        agent = self.agent
        reason = agent.interrupts.reason
        assert reason is not None
        await agent.fire(HookEvent.POST_INTERRUPT, reason=reason.to_dict())
        return EndRun(
            "interrupted",
            leaves=_with(state, interrupt=reason.to_dict()),
            kind="interrupt",
            save=agent.config.checkpoint_on_interrupt,
        )

    # Shared by the nodes

    def _live(self, state: State) -> AgentState:
        """The agent's state, read from the graph's when the execution begins."""
        if not self._restored:
            self._restored = True
            live = restored(state)
            begun(live, self.message)
            for passing in ("interrupt", "error"):
                live.metadata.pop(passing, None)
            self.agent._restore_state(live)
        return self.agent.state

    def _begin_node(self, state: State) -> AgentState:
        """The agent's state, with its account of usage opened for this node."""
        live = self._live(state)
        self._before = usage_of(live)
        self._extra = state["extra"]
        return live

    def _kept(self, state: State) -> State:
        """The graph's state with the values of the agent's."""
        agent = self.agent
        state = absorbed(state, agent._capture_state())
        for name in LOGS:
            setattr(agent.state, name, list(state[name]))
        agent.state.step_number = state.step + 1
        return state

    def _on_text(self) -> Callable[[str], None] | None:
        """The receiver of the model's text: the agent's own, and the observers."""
        own, here = self.agent.on_text, CURRENT_STEP.get()
        if here is None or here.emit is None:
            return own

        def both(text: str) -> None:
            if own is not None:
                own(text)
            here.say("model.text", text=text)

        return both

    async def _ask(self, name: str, messages: Sequence[Message], **how: Any) -> Reply:
        agent = self.agent
        how |= {"on_text": self._on_text(), "before": agent.say_resumed}
        reply = await ask(self.model, messages, name=name, **how)
        live = agent.state
        live.model = reply.model
        add_usage(live, reply.usage)
        if reply.usage.cost_usd is None:
            agent.warn_unpriced(reply.model)
        here = CURRENT_STEP.get()
        assert here is not None
        # A node that does not complete is executed again, and its replayed calls counted again.
        used = {"usage": live.extra["usage"], "usage_before": self._before.to_dict()}
        here.outer.leaves = {
            "budget_spent_usd": live.budget_spent_usd,
            "extra": {**self._extra, **used},
        }
        return reply

    # Planning

    async def _plan(self, state: State) -> State:
        agent, live = self.agent, self._begin_node(state)
        await self._heed_interrupt(state)
        if not live.pending_actions and not live.completed_actions:
            task = live.extra["task"]
            if await agent.fire(HookEvent.PRE_PLAN_GENERATION, task=task):
                return self._kept(state)  # a hook wants none
            asked = [
                {"role": "system", "content": agent.instructions_text()},
                {"role": "user", "content": f"Make a plan of a few short steps for: {task}"},
            ]
            reply = await self._ask(_ASK_PLAN, asked, schema=_PLAN_SCHEMA)
            planned = {"status": "pending", "priority": "normal", "estimated_cycles": 1}
            live.pending_actions = [{"task": step, **planned} for step in _steps(reply, task)]
            agent.note_event(HookEvent.POST_PLAN_GENERATION)
            await agent.fire(HookEvent.POST_PLAN_GENERATION, plan=agent.plan)
        return self._kept(state)

    # Cycles

    async def _cycle(self, state: State) -> State:
        agent, live = self.agent, self._begin_node(state)
        await self._heed_interrupt(state)
        self._check_limits(state, live)
        await self._take_message(live)
        _start_next(live)
        spent = live.budget_spent_usd
        specs = [tool.spec for tool in agent.tools.values()]
        reply = await self._ask(
            _ASK,
            [{"role": "system", "content": self._system(live)}, *live.conversation_history],
            tools=[*specs, _FINISH_STEP] if live.pending_actions else specs,
            schema=agent.answer.schema if agent.answer is not None else None,
        )
        live.conversation_history.append(reply.message)
        live.conversation_history += await _Calls(agent, state).answer_all(reply.tool_calls)
        if not reply.tool_calls:
            self._conclude(live, reply)
        _note_cost(live.extra["cycle_cost"], live.budget_spent_usd - spent)
        live.extra["cycles_used"] += 1
        return self._kept(state)

    def _check_limits(self, state: State, live: AgentState) -> None:
        config = self.agent.config
        if live.extra["cycles_used"] >= config.max_cycles:
            raise EndRun("max_cycles_reached")
        if config.budget_usd is None:
            return
        spent, last = live.budget_spent_usd, live.extra["cycle_cost"]
        expected = last["last_usd"] + last["growth_usd"]
        if spent >= config.budget_usd or spent + expected > config.budget_usd:
            message = f"${spent:.4g} of ${config.budget_usd:.4g} is spent"
            reason = self.agent.interrupts.note("budget", message)
            raise EndRun("budget_exhausted", leaves=_with(state, interrupt=reason.to_dict()))

    async def _take_message(self, live: AgentState) -> None:
        """Add the text given to a resume to the conversation, before the first new call."""
        if not self._message_is_due(live):
            return
        message, self.message = self.message, ""
        text: str = await effect(_MESSAGE, lambda: message, in_doubt="retry")
        live.conversation_history.append({"role": "user", "content": text})

    def _message_is_due(self, live: AgentState) -> bool:
        here = CURRENT_STEP.get()
        if here is not None and here.run is not None:
            ledger = here.run.ledger
            if ledger.find(Effect, place_name(_MESSAGE, here.step)) is not None:
                return True  # it was added here, before the process ended
            if ledger.find(Effect, place_name(_ASK, here.step)) is not None:
                return False
        return bool(self.message) and not _was_said(live, self.message)

    def _system(self, live: AgentState) -> str:
        parts = [self.agent.instructions_text()]
        if live.pending_actions or live.completed_actions:
            parts.append("The plan:")
            parts += [f"[{_BOXES[i['status']]}] {i['task']}" for i in self.agent.plan]
        return "\n".join(part for part in parts if part)

    def _conclude(self, live: AgentState, reply: Reply) -> None:
        """End the run with the answer, or tell the model why it does not fit."""
        answer = self.agent.answer
        if answer is None:
            live.extra["answer"] = reply.text
            return
        try:
            answer.read(reply.data)
        except UsageError as error:
            live.conversation_history.append({"role": "user", "content": str(error)})
        else:
            live.extra["answer"] = reply.data


def _with(state: State, **facts: Any) -> dict[str, Any]:
    return {"metadata": {**state["metadata"], **facts}}


class _Calls(AgentToolCalls):
    """The agent's tools and the built-in one that ends a step of the plan."""

    async def _outcome(self, call: ToolCall, index: int) -> str | tuple[Tool, Any]:
        if call.name == _FINISH_STEP.name:
            return _finish_step(self._agent.state)
        return await super()._outcome(call, index)


def _was_said(live: AgentState, text: str) -> bool:
    """Return whether *text* is the task, or was added at an earlier resume."""
    return any(
        message["role"] == "user" and message["content"] == text
        for message in live.conversation_history
    )


def _resumed_from() -> dict[str, Any]:
    """The newest checkpoint that this run had when it was opened, for hooks."""
    here = CURRENT_STEP.get()
    loaded = here.run.loaded if here is not None and here.run is not None else None
    if loaded is None:  # it goes back to an earlier one
        return {}
    return {"status": loaded.header.status, "checkpoint_id": loaded.header.id}


def _steps(reply: Reply, task: str) -> list[str]:
    data = reply.data if isinstance(reply.data, dict) else {}
    steps = [str(step) for step in data.get("steps", ()) if step]
    return steps or [task]


def _note_cost(account: dict[str, Any], cost: float) -> None:
    """Keep what predicts the next cost: the last cycle's, and its growth."""
    before = account["last_usd"]
    account["growth_usd"] = max(0.0, cost - before) if before else 0.0
    account["last_usd"] = cost


def _start_next(live: AgentState) -> None:
    pending = live.pending_actions
    if pending and all(item["status"] == "pending" for item in pending):
        pending[0]["status"] = "in_progress"


def _finish_step(live: AgentState) -> str:
    for index, item in enumerate(live.pending_actions):
        if item["status"] == "in_progress":
            del live.pending_actions[index]
            live.completed_actions.append({**item, "status": "completed"})
            _start_next(live)
            left = len(live.pending_actions)
            return f"done: {item['task']}; {left} left"
    return "there is no step in progress"
