"""A fleet as a graph: plan, then round after round, then the answer.

The state holds all there is to a fleet, every participant's history included, so that a round is
one step and one append:

==================  ===============================================================================
task                what the fleet is to do
facts, plan         the manager's task ledger
current_round       rounds completed; a round is a participant's work
stall_count         rounds that brought nothing, less those that did since
reset_count         how often the fleet began anew with another plan
ledger              the newest progress ledger
decision            what it led to: ``round``, ``replan`` or ``answer``
rounds              of each round: the ledger that decided on it, its cost, its seconds
history             what was said, by whom, since the last reset
history:NAME        what the participant of that name was told and said since then
last_response       what a participant said last
context             the participants and their descriptions, and the task as it was given
inbox               texts that came with a resume in the middle of a round, for its end
hearings            how often a text set a stalled run going again
approvals           what people were asked, and said
usage               model calls, tokens and dollars so far
elapsed             seconds of completed steps
answer              the end of it all
==================  ===============================================================================
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.checkpoint.effects import CURRENT_STEP
from holdfast.core.state import State
from holdfast.runtime.fleet.participants import Assignment, Participant, Turn
from holdfast.runtime.fleet.prompts import (
    LEDGER_ATTEMPTS,
    Ledger,
    answer_messages,
    facts_messages,
    ledger_messages,
    ledger_schema,
    plan_messages,
    read_ledger,
    revision_messages,
)
from holdfast.runtime.fleet.settings import ApprovalSettings, Callbacks, Limits, PlanReview
from holdfast.runtime.graph import EndRun, StateGraph, key_equals
from holdfast.runtime.models import Model, Reply, Usage, ask
from holdfast.runtime.tools import PLAN_REVIEW, TIMED_OUT, Approval, answer_tree, ask_person

__all__ = ["Crew", "add_nodes", "first_state", "history_key"]

logger = logging.getLogger("holdfast.fleet")

_NO_USAGE = {"calls": 0, "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0, "unpriced": 0}


class Crew(msgspec.Struct, frozen=True, kw_only=True):
    """Who works in a fleet, and by which rules."""

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


def history_key(name: str) -> str:
    """Where in the state the history of a participant is."""
    return f"history:{name}"


def first_state(task: str, team: Mapping[str, str]) -> dict[str, Any]:
    """What a run begins with."""
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
        "usage": dict(_NO_USAGE),
        "elapsed": 0.0,
    }


def add_nodes(graph: StateGraph, crew: Crew) -> None:
    """Make *graph* that of a fleet with this crew."""
    nodes = _Nodes(crew)
    graph.add_node("plan", nodes.plan)
    graph.add_node("round", nodes.round)
    graph.add_node("replan", nodes.replan)
    graph.add_node("answer", nodes.answer)
    for planning in ("plan", "replan"):
        graph.add_edge(planning, "answer", key_equals("decision", "answer"), name="rejected")
        graph.add_edge(planning, "round")
    graph.add_edge("round", "answer", key_equals("decision", "answer"), name="satisfied")
    graph.add_edge("round", "replan", key_equals("decision", "replan"), name="stalled")
    graph.add_edge("round", "round", name="next")
    graph.set_entry_point("plan")
    graph.set_exit_point("answer")


class _Nodes:
    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._names = [*crew.participants]

    # Planning

    async def plan(self, state: State) -> State:
        """Gather the facts and make a plan."""
        return await self._in_time(state, self._plan)

    async def replan(self, state: State) -> State:
        """Begin anew with what was learned: other facts, another plan, an empty history."""
        return await self._in_time(state, self._replan)

    async def _replan(self, state: State) -> State:
        state = await self._plan(state)
        empty: dict[str, Any] = {history_key(name): [] for name in self._names}
        resets = state["reset_count"] + 1
        _tell("fleet.reset", resets=resets)
        return state.merge({**empty, "history": [], "stall_count": 0, "reset_count": resets})

    async def _plan(self, state: State) -> State:
        crew = self._crew
        facts = await self._ask("facts", facts_messages(state, crew.instructions))
        asked: Any = plan_messages(state, crew.instructions, facts.text, crew.team)
        plan = await self._ask("plan", asked)
        usages = [facts.usage, plan.usage]
        text, notes, decision = plan.text, [], "round"
        while crew.plan_review.require_human_approval:
            said = await self._reviewed(state, facts.text, text)
            notes.append({"agent_name": "manager", "operation": "plan", **answer_tree(said)})
            if said.approved:
                text = str((said.arguments or {}).get("plan", text))
                break
            if said.reason in ("", TIMED_OUT):
                decision = "answer"
                break
            asked = revision_messages(asked, text, said.reason)
            better = await self._ask("plan", asked)
            usages.append(better.usage)
            text = better.text
        if crew.plan_review.enabled:
            _tell("fleet.plan", facts=facts.text, plan=text)
        made = {"facts": facts.text, "plan": text, "decision": decision}
        return _spent(state.merge(made).append("approvals", *notes), usages)

    async def _reviewed(self, state: State, facts: str, plan: str) -> Approval:
        return await ask_person(
            self._crew.approvals,
            operation_type=PLAN_REVIEW,
            agent_name="manager",
            operation="plan",
            details={"task": state["task"], "facts": facts, "plan": plan},
        )

    # Rounds

    async def round(self, state: State) -> State:
        """Judge the work so far, and have the next participant work."""
        return await self._in_time(state, self._round)

    async def _round(self, state: State) -> State:
        ledger, usages = await self._judged(state)
        if ledger is None:  # nothing that could be read: another plan may help
            self._check_resets(state)
            return _spent(state.set("decision", "replan"), usages)
        if self._crew.callbacks.log_progress_ledger:
            logger.info("progress ledger %s", msgspec.json.encode(ledger).decode())
            _tell("fleet.ledger", ledger=msgspec.to_builtins(ledger))
        stalls = state["stall_count"] + 1 if ledger.stalled else max(0, state["stall_count"] - 1)
        judged = state.merge({"ledger": msgspec.to_builtins(ledger), "stall_count": stalls})
        if ledger.satisfied:
            return _spent(judged.set("decision", "answer"), usages)
        if stalls > self._crew.limits.stalls:
            self._check_resets(state)
            return _spent(judged.set("decision", "replan"), usages)
        if state["current_round"] >= self._crew.limits.rounds:
            raise EndRun("max_rounds_reached")
        return await self._worked(judged, ledger, usages)

    async def _judged(self, state: State) -> tuple[Ledger | None, list[Usage]]:
        crew = self._crew
        # Judged anew because of a text, it is another question at the same step.
        name = f"ledger {state['hearings']}" if state["hearings"] else "ledger"
        problems: list[str] = []
        usages: list[Usage] = []
        while len(problems) < LEDGER_ATTEMPTS:
            asked = ledger_messages(state, crew.instructions, crew.team, problems)
            reply = await ask(crew.manager, asked, name=name, schema=ledger_schema(self._names))
            usages.append(reply.usage)
            read = read_ledger(reply.data, self._names)
            if isinstance(read, Ledger):
                return read, usages
            problems.append(read)
        return None, usages

    def _check_resets(self, state: State) -> None:
        if state["reset_count"] >= self._crew.limits.resets:
            raise EndRun("stalled")

    async def _worked(self, state: State, ledger: Ledger, usages: list[Usage]) -> State:
        """The state after the participant's work, with all histories as they are then."""
        number = state["current_round"] + 1
        name, key = ledger.speaker, history_key(ledger.speaker)
        participant = self._crew.participants[name]
        before = state[key] if participant.remembers else ()
        text = _told(state, name, ledger.instruction, first=not before)
        told = {"role": "user", "content": text}
        _tell("fleet.turn", round=number, speaker=name, instruction=ledger.instruction)
        started = time.monotonic()
        turn = await participant.work(
            Assignment(
                fleet=state.name,
                name=name,
                instruction=ledger.instruction,
                messages=[*before, told],
                approvals=self._crew.approvals,
                tell=self._watched,
            )
        )
        seconds = time.monotonic() - started
        spent = [*usages, *turn.usages]
        state = state.append(key, told, {"role": "assistant", "content": turn.text})
        state = state.append("history", *_said(state, name, ledger.instruction, turn))
        state = state.append("rounds", _round_entry(number, ledger, spent, seconds))
        state = _spent(state.append("approvals", *turn.approvals), spent)
        made = {"current_round": number, "last_response": turn.text, "inbox": []}
        state = state.merge({**made, "decision": "round"}).at(metadata={"round": number})
        _tell("fleet.round", **_event(state, turn, spent))
        return state

    # Answering

    async def answer(self, state: State) -> State:
        """Write the final answer; a plan that was rejected has none."""
        return await self._in_time(state, self._answer)

    async def _answer(self, state: State) -> State:
        if state["decision"] == "answer" and "ledger" not in state:
            return state.set("answer", "The plan was not approved.")
        messages = answer_messages(state, self._crew.instructions, self._crew.team)
        reply = await self._ask("answer", messages)
        _tell("fleet.answer", text=reply.text)
        made = state.merge({"answer": reply.text, "last_response": reply.text})
        return _spent(made, [reply.usage])

    # What all of them need

    async def _ask(self, name: str, messages: Any) -> Reply:
        on_text = None
        if self._crew.callbacks.streaming_enabled:
            on_text = lambda text: _tell("fleet.text", speaker="manager", text=text)  # noqa: E731
        return await ask(self._crew.manager, messages, name=name, on_text=on_text)

    def _watched(self, kind: str, **facts: Any) -> None:
        if kind == "fleet.text" and not self._crew.callbacks.streaming_enabled:
            return
        if kind == "fleet.tool":
            if not self._crew.callbacks.log_tool_calls:
                return
            logger.info("tool %s of %s: %s", facts["tool"], facts["speaker"], facts["arguments"])
        _tell(kind, **facts)

    async def _in_time(self, state: State, work: Callable[[State], Awaitable[State]]) -> State:
        """What *work* makes of the state, within the time that the run has left."""
        limit, started = self._crew.limits.seconds, time.monotonic()
        left = None if limit is None else max(0.0, limit - state["elapsed"])
        try:
            async with asyncio.timeout(left) as scope:
                made = await work(state)
        except TimeoutError:
            if not scope.expired():
                raise
            raise EndRun("budget_exhausted") from None
        return made.set("elapsed", round(state["elapsed"] + time.monotonic() - started, 3))


def _tell(kind: str, **facts: Any) -> None:
    here = CURRENT_STEP.get()
    if here is not None:
        here.say(kind, **facts)


def _told(state: State, name: str, instruction: str, *, first: bool) -> str:
    """What the participant is told: what the others said since its last turn, and what to do."""
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


def _round_entry(
    number: int, ledger: Ledger, usages: Iterable[Usage], seconds: float
) -> dict[str, Any]:
    return {
        "round": number,
        "ledger": msgspec.to_builtins(ledger),
        "usage": _summed(_NO_USAGE, usages),
        "seconds": round(seconds, 3),
    }


def _event(state: State, turn: Turn, usages: Iterable[Usage]) -> dict[str, Any]:
    entry = state["rounds"][-1]
    return {
        "round": entry["round"],
        "speaker": entry["ledger"]["speaker"],
        "text": turn.text,
        "seconds": entry["seconds"],
        "usage": _summed(_NO_USAGE, usages),
        "total": dict(state["usage"]),
    }


def _spent(state: State, usages: Iterable[Usage]) -> State:
    return state.set("usage", _summed(state["usage"], usages))


def _summed(before: Mapping[str, Any], usages: Iterable[Usage]) -> dict[str, Any]:
    total = dict(before)
    for usage in usages:
        total["calls"] += 1
        total["input_tokens"] += usage.input_tokens
        total["output_tokens"] += usage.output_tokens
        total["cost_usd"] += usage.cost_usd or 0.0
        total["unpriced"] += usage.cost_usd is None
    return total
