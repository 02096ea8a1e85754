"""The graph of a fleet: plan, rounds, replan, answer; and its state.

==================  ===============================================================================
task                the task of the fleet
facts, plan         the manager's task ledger
current_round       completed rounds; a round is one participant's work
stall_count         rounds without progress, less those with progress since
reset_count         times that the fleet began again with another plan
ledger              the newest progress ledger
ledger_problem      why the last ledger could not be read
decision            its consequence: ``round``, ``replan`` or ``answer``
rounds              of each round: the ledger that decided on it, its cost, its seconds
history             what was said, by whom, since the last reset
history:NAME        messages to and from the participant of that name since then
last_response       the last response of a participant
context             the participants and their descriptions, and the task as it was given
inbox               texts that came with a resume during a round, for its end
hearings            times that a text made a stalled run continue
approvals           questions to people, and their answers
usage               the `Usage` so far
usage_before        the same without the current step, if that did not complete
elapsed             seconds of executed steps
answer              the final answer
==================  ===============================================================================
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from surehold.agents.agent import managers_of
from surehold.agents.fleet.participants import (
    AgentParticipant,
    Assignment,
    Participant,
    Turn,
    ask_person,
)
from surehold.agents.fleet.prompts import (
    LEDGER_ATTEMPTS,
    ProgressLedger,
    answer_messages,
    facts_messages,
    ledger_messages,
    ledger_schema,
    plan_messages,
    read_ledger,
    revision_messages,
)
from surehold.agents.fleet.settings import ApprovalSettings, Callbacks, Limits, PlanReview
from surehold.agents.models import Model, Reply, ask
from surehold.agents.tools import PLAN_REVIEW, TIMED_OUT
from surehold.core.state import State
from surehold.core.values import Usage
from surehold.doors.graph import EndRun, StateGraph, key_equals
from surehold.engine.managers import AsyncCheckpointManager
from surehold.engine.runs.positions import CURRENT_STEP

logger = logging.getLogger("surehold.fleet")

ROUND = "round"
"""Metadata key of the number of completed rounds."""
OWN_ROUND = "current_round"
"""The same where the user's own metadata has a ``round``."""


class Crew(msgspec.Struct, frozen=True, kw_only=True):
    """The members of a fleet, and its rules."""

    manager: Model
    participants: Mapping[str, Participant]
    instructions: str = ""
    limits: Limits = Limits()
    approvals: ApprovalSettings = ApprovalSettings(enabled=False)
    plan_review: PlanReview = PlanReview()
    callbacks: Callbacks = Callbacks()

    @property
    def team(self) -> dict[str, str]:
        """The participants' descriptions by name."""
        return {name: one.description for name, one in self.participants.items()}

    def managers(self) -> list[AsyncCheckpointManager]:
        """The managers of their own that agents among the participants save through."""
        crew = self.participants.values()
        agents = [one.agent for one in crew if isinstance(one, AgentParticipant)]
        return [manager for agent in agents for manager in managers_of(agent)]


def history_key(name: str) -> str:
    """The key of a participant's history in the state."""
    return f"history:{name}"


def first_state(task: str, team: Mapping[str, str]) -> dict[str, Any]:
    """The first state of a run."""
    return {
        "task": task,
        "context": {"available_agents": dict(team), "user_query": task},
        "current_round": 0,
        "stall_count": 0,
        "reset_count": 0,
        "last_response": None,
        "decision": "round",
        "history": [],
        **{history_key(name): [] for name in team},
        "rounds": [],
        "inbox": [],
        "hearings": 0,
        "approvals": [],
        "usage": _account(Usage.none()),
        "elapsed": 0.0,
    }


def imported_state(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a run whose checkpoint AgenticFleet saved with these *fields*."""
    context = dict(fields.get("context") or {})
    said = fields.get("last_response")
    spoken = {"history": [{"speaker": "team", "content": str(said)}]} if said else {}
    known = ("current_round", "stall_count", "last_response")
    return {
        **first_state(str(context.get("user_query") or context.get("task") or ""), {}),
        **{key: fields[key] for key in known if key in fields},
        **spoken,
        "context": context,
    }


def add_nodes(graph: StateGraph, crew: Crew) -> None:
    """Make *graph* that of a fleet with this crew."""

    def node(name: str, work: Callable[[_Step], Awaitable[State]]) -> None:
        async def execute(state: State) -> State:
            return await _Step(crew, state).execute(work)

        graph.add_node(name, execute)

    node("plan", _Step.plan)
    node("round", _Step.round)
    node("replan", _Step.replan)
    node("answer", _Step.answer)
    for planning in ("plan", "replan"):
        graph.add_edge(planning, "answer", key_equals("decision", "answer"), name="rejected")
        graph.add_edge(planning, "round")
    graph.add_edge("round", "answer", key_equals("decision", "answer"), name="satisfied")
    graph.add_edge("round", "replan", key_equals("decision", "replan"), name="stalled")
    graph.add_edge("round", "round", name="next")
    graph.set_entry_point("plan")
    graph.set_exit_point("answer")


class _Step:
    """One execution of a node, with its account of model calls."""

    def __init__(self, crew: Crew, state: State) -> None:
        # A step that did not complete is executed again, and its replayed calls counted again.
        self._before = Usage.read(state.get("usage_before") or state["usage"])
        if "usage_before" in state:
            state = state.without("usage_before")
        self._crew = crew
        self._state = state
        self._names = [*crew.participants]
        self._spent = Usage.none()

    async def execute(self, work: Callable[[_Step], Awaitable[State]]) -> State:
        """Do *work* within the time that the run has left; return the next state."""
        limit, began, elapsed = self._crew.limits.seconds, time.monotonic(), self._state["elapsed"]
        left = None if limit is None else limit - elapsed
        if left is not None and left <= 0:
            raise _out_of_time(limit, elapsed)
        try:
            async with asyncio.timeout(left) as scope:
                made = await work(self)
        except TimeoutError:
            if not scope.expired():
                raise
            raise _out_of_time(limit, elapsed + time.monotonic() - began) from None
        used = _account(self._before + self._spent)
        elapsed = round(elapsed + time.monotonic() - began, 3)
        return made.merge({"usage": used, "elapsed": elapsed})

    def _count(self, usage: Usage) -> None:
        """Add a call to the account, which is saved also if the step does not complete."""
        self._spent += usage
        here = CURRENT_STEP.get()
        if here is not None:
            used = _account(self._before + self._spent)
            here.outer.leaves = {"usage": used, "usage_before": _account(self._before)}

    # Planning

    async def plan(self) -> State:
        """Gather the facts and make a plan."""
        crew, state = self._crew, self._state
        facts = await self._ask("facts", facts_messages(state, crew.instructions))
        asked: Any = plan_messages(state, crew.instructions, facts.text, crew.team)
        plan = await self._ask("plan", asked)
        text, notes, decision = plan.text, [], "round"
        while crew.plan_review.require_human_approval:
            said = await ask_person(
                crew.approvals,
                operation_type=PLAN_REVIEW,
                agent_name="manager",
                operation="plan",
                details={"task": state["task"], "facts": facts.text, "plan": text},
            )
            notes.append(
                {"agent_name": "manager", "operation": "plan", **msgspec.to_builtins(said)}
            )
            if said.approved:
                text = str((said.arguments or {}).get("plan", text))
                break
            if said.reason in ("", TIMED_OUT):
                decision = "answer"
                break
            asked = revision_messages(asked, text, said.reason)
            text = (await self._ask("plan", asked)).text
        if crew.plan_review.enabled:
            _emit("fleet.plan", facts=facts.text, plan=text)
        made = {"facts": facts.text, "plan": text, "decision": decision}
        return state.merge(made).append("approvals", *notes)

    async def replan(self) -> State:
        """Begin again with what was learned: new facts, a new plan, an empty history."""
        state = await self.plan()
        empty: dict[str, Any] = {history_key(name): [] for name in self._names}
        resets = state["reset_count"] + 1
        _emit("fleet.reset", resets=resets)
        return state.merge({**empty, "history": [], "stall_count": 0, "reset_count": resets})

    # Rounds

    async def round(self) -> State:
        """Judge the work so far, and let the next participant work."""
        crew, state = self._crew, self._state
        ledger = await self._judged()
        if isinstance(ledger, str):  # no ledger that could be read: another plan may help
            problem = f"the manager's progress ledger could not be read: {ledger}"
            logger.warning("run %s: %s", state.run_id, problem)
            _emit("fleet.ledger_unreadable", problem=ledger, attempts=LEDGER_ATTEMPTS)
            self._check_resets(problem)
            return state.merge({"decision": "replan", "ledger_problem": problem})
        if crew.callbacks.log_progress_ledger:
            logger.info("progress ledger %s", msgspec.json.encode(ledger).decode())
            _emit("fleet.ledger", ledger=msgspec.to_builtins(ledger))
        stalls = state["stall_count"] + 1 if ledger.stalled else max(0, state["stall_count"] - 1)
        state = state.merge({"ledger": msgspec.to_builtins(ledger), "stall_count": stalls})
        if ledger.satisfied:
            return state.set("decision", "answer")
        if stalls > crew.limits.stalls:
            self._check_resets(f"{stalls} rounds brought no progress")
            return state.set("decision", "replan")
        if state["current_round"] >= crew.limits.rounds:
            raise EndRun("max_rounds_reached")
        return await self._worked(state, ledger)

    async def _judged(self) -> ProgressLedger | str:
        """The manager's ledger, or what is wrong with it after several attempts."""
        crew, state = self._crew, self._state
        # Judged again because of a text, it is another question at the same step.
        name = f"ledger {state['hearings']}" if state["hearings"] else "ledger"
        problems: list[str] = []
        while len(problems) < LEDGER_ATTEMPTS:
            asked = ledger_messages(state, crew.instructions, crew.team, problems)
            reply = await ask(crew.manager, asked, name=name, schema=ledger_schema(self._names))
            self._count(reply.usage)
            read = read_ledger(reply.data, self._names)
            if isinstance(read, ProgressLedger):
                return read
            problems.append(read)
        return problems[-1]

    def _check_resets(self, why: str) -> None:
        if self._state["reset_count"] >= self._crew.limits.resets:
            raise EndRun("stalled", error=why)

    async def _worked(self, state: State, ledger: ProgressLedger) -> State:
        """The state after the participant's work, with all histories."""
        number = state["current_round"] + 1
        name, key = ledger.speaker, history_key(ledger.speaker)
        participant = self._crew.participants[name]
        before = state.get(key, ()) if participant.remembers else ()
        text = _instruction(state, name, ledger.instruction, first=not before)
        told = {"role": "user", "content": text}
        _emit("fleet.turn", round=number, speaker=name, instruction=ledger.instruction)
        started = time.monotonic()
        here = CURRENT_STEP.get()
        if here is not None:
            here.outer.doing = f"participant {name!r}"
        turn = await participant.work(
            Assignment(
                fleet=state.name,
                name=name,
                instruction=ledger.instruction,
                messages=[*before, told],
                approvals=self._crew.approvals,
                tell=self._emit_wanted,
                spend=self._count,
            )
        )
        if here is not None:
            here.outer.doing = ""
        for usage in turn.usages:
            self._count(usage)
        entry = {
            "round": number,
            "ledger": msgspec.to_builtins(ledger),
            "usage": _account(self._spent),
            "seconds": round(time.monotonic() - started, 3),
        }
        state = state.append(key, told, {"role": "assistant", "content": turn.text})
        state = state.append("history", *_said(state, name, ledger.instruction, turn))
        state = state.append("rounds", entry).append("approvals", *turn.approvals)
        made = {"current_round": number, "last_response": turn.text, "inbox": []}
        state = state.merge({**made, "decision": "round"}).at(metadata={ROUND: number})
        _emit(
            "fleet.round",
            round=number,
            speaker=name,
            text=turn.text,
            seconds=entry["seconds"],
            usage=entry["usage"],
            total=_account(self._before + self._spent),
        )
        return state

    # Answering

    async def answer(self) -> State:
        """Write the final answer; a rejected plan has none, and ends the run as failed."""
        crew, state = self._crew, self._state
        if state["decision"] == "answer" and "ledger" not in state:
            text = "The plan was not approved."
            raise EndRun("failed", leaves={"answer": text}, error="the plan was not approved")
        reply = await self._ask("answer", answer_messages(state, crew.instructions, crew.team))
        _emit("fleet.answer", text=reply.text)
        return state.merge({"answer": reply.text, "last_response": reply.text})

    # Shared by the nodes

    async def _ask(self, name: str, messages: Any) -> Reply:
        on_text = None
        if self._crew.callbacks.streaming_enabled:
            on_text = lambda text: _emit("model.text", speaker="manager", text=text)  # noqa: E731
        reply = await ask(self._crew.manager, messages, name=name, on_text=on_text)
        self._count(reply.usage)
        return reply

    def _emit_wanted(self, kind: str, **facts: Any) -> None:
        """Emit an event of a participant, if the callbacks want it."""
        if kind == "model.text" and not self._crew.callbacks.streaming_enabled:
            return
        if kind == "fleet.tool":
            if not self._crew.callbacks.log_tool_calls:
                return
            logger.info("tool %s of %s: %s", facts["tool"], facts["speaker"], facts["arguments"])
        _emit(kind, **facts)


def _out_of_time(limit: float | None, elapsed: float) -> EndRun:
    return EndRun(
        "budget_exhausted",
        leaves={"elapsed": round(elapsed, 3)},
        error=f"the limit of {limit:g} s is used up",
    )


def _account(usage: Usage) -> dict[str, Any]:
    """*usage* as the state keeps it; the time is in ``elapsed``."""
    tree = usage.to_dict()
    del tree["seconds"]
    return tree


def _emit(kind: str, **facts: Any) -> None:
    here = CURRENT_STEP.get()
    if here is not None:
        here.say(kind, **facts)


def _instruction(state: State, name: str, instruction: str, *, first: bool) -> str:
    """The participant's message: what others said since its last turn, and what to do."""
    news: list[str] = []
    for entry in reversed(state["history"]):
        if entry["speaker"] == name:
            break
        if entry["speaker"] != "manager":
            news.append(f"{entry['speaker']}: {entry['content']}")
    task = [f"The task: {state['task']}"] if first or news else []
    return "\n\n".join([*task, *reversed(news), instruction])


def _said(state: State, name: str, instruction: str, turn: Turn) -> list[dict[str, Any]]:
    said = [
        {"speaker": "manager", "to": name, "content": instruction},
        {"speaker": name, "content": turn.text},
    ]
    return said + [{"speaker": "user", "content": text} for text in state["inbox"]]
