"""Prompts for a fleet's manager, and the reading of its answers.

The pattern is Magentic's: facts and a plan first; then, round by round, a *progress ledger* that
says whether the task is done, whether there is progress, who is next and what it is to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from surehold.core.state import State

LEDGER_ATTEMPTS = 3
"""Attempts to get a readable ledger before the fleet plans again."""

_MANAGER = "You lead a team that works on a task. You plan, you say who does what, and you answer."
_FACTS = (
    "List what is known about the task below, what has to be looked up, what has to be worked out,"
    " and what can only be guessed. Do not solve it yet.\n\nTask: {task}"
)
_FACTS_AGAIN = (
    "The team is stuck. Correct the list of facts with what has been learned, and say what went"
    " wrong.\n\nTask: {task}\n\nFacts so far:\n{facts}"
)
_PLAN = (
    "The team:\n{team}\n\nWrite a short plan, a line for each step, saying who does it. Not"
    " everyone has to take part."
)
_REVISE = "The plan was not accepted, because: {reason}\n\nWrite a better one."
_TASK = "Task: {task}\n\nThe team:\n{team}\n\nFacts:\n{facts}\n\nPlan:\n{plan}"
_LEDGER = (
    "Judge the work so far. Is the task done? Does the team go round in circles? Is there progress?"
    " Who is next, and with what instruction? Choose from: {names}. Give a short reason for each"
    " answer, as JSON."
)
_ANSWER = "The work on the task is over. Write the answer for whoever set it.\n\nTask: {task}"

_ITEMS: dict[str, dict[str, Any]] = {
    "is_request_satisfied": {"type": "boolean"},
    "is_in_loop": {"type": "boolean"},
    "is_progress_being_made": {"type": "boolean"},
    "next_speaker": {"type": "string"},
    "instruction_or_question": {"type": "string", "maxLength": 1000},
}
_REASON = {"type": "string", "maxLength": 100}
"""Small models may not end a text by themselves."""


class ProgressLedger(msgspec.Struct, frozen=True, kw_only=True):
    """A progress ledger: the manager's decisions and reasons."""

    satisfied: bool
    looping: bool
    progressing: bool
    speaker: str
    instruction: str
    reasons: dict[str, str] = {}

    @property
    def stalled(self) -> bool:
        """True if the last round brought no progress."""
        return self.looping or not self.progressing


def ledger_schema(names: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of a ledger for a team of these names."""
    items: dict[str, Any] = {key: dict(kind) for key, kind in _ITEMS.items()}
    items["next_speaker"]["enum"] = [*names]
    return {
        "type": "object",
        "properties": {
            key: {
                "type": "object",
                "properties": {"reason": _REASON, "answer": kind},
                "required": ["reason", "answer"],
                "additionalProperties": False,
            }
            for key, kind in items.items()
        },
        "required": [*items],
        "additionalProperties": False,
    }


def read_ledger(data: Any, names: Sequence[str]) -> ProgressLedger | str:
    """Read a manager's answer as a ledger, or return what is wrong with it."""
    if not isinstance(data, Mapping):
        return "it is not a JSON object"
    answers: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for key, kind in _ITEMS.items():
        item = data.get(key)
        answer = item.get("answer") if isinstance(item, Mapping) else item
        if not isinstance(answer, bool if kind["type"] == "boolean" else str):
            return f"the answer to {key} is {answer!r}"
        answers[key] = answer
        reasons[key] = str(item.get("reason", "")) if isinstance(item, Mapping) else ""
    speaker = answers["next_speaker"].strip()
    if speaker not in names and not answers["is_request_satisfied"]:
        return f"next_speaker is {speaker!r}, and the team is {', '.join(names)}"
    return ProgressLedger(
        satisfied=answers["is_request_satisfied"],
        looping=answers["is_in_loop"],
        progressing=answers["is_progress_being_made"],
        speaker=speaker,
        instruction=answers["instruction_or_question"],
        reasons=reasons,
    )


def facts_messages(state: State, instructions: str) -> list[dict[str, Any]]:
    """Asks for the facts; after a reset, for better ones."""
    if state.get("facts"):
        said = _FACTS_AGAIN.format(task=state["task"], facts=state["facts"])
        return [_system(instructions), *_spoken(state), _user(said)]
    return [_system(instructions), *_spoken(state), _user(_FACTS.format(task=state["task"]))]


def plan_messages(
    state: State, instructions: str, facts: str, team: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Asks for the plan that goes with *facts*."""
    asked = facts_messages(state, instructions)
    return [*asked, _assistant(facts), _user(_PLAN.format(team=_team(team)))]


def revision_messages(
    asked: Sequence[Mapping[str, Any]], plan: str, reason: str
) -> list[Mapping[str, Any]]:
    """Asks for another plan than the one that *asked* had led to."""
    return [*asked, _assistant(plan), _user(_REVISE.format(reason=reason))]


def ledger_messages(
    state: State, instructions: str, team: Mapping[str, str], problems: Sequence[str]
) -> list[dict[str, Any]]:
    """Asks for a ledger; *problems* tell why earlier ledgers could not be read."""
    asked = [*_so_far(state, instructions, team), _user(_LEDGER.format(names=", ".join(team)))]
    for problem in problems:
        asked.append(_user(f"That could not be read: {problem}. Answer again."))
    return asked


def answer_messages(
    state: State, instructions: str, team: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Asks for the final answer."""
    so_far = _so_far(state, instructions, team)
    return [*so_far, _user(_ANSWER.format(task=state["task"]))]


def _so_far(state: State, instructions: str, team: Mapping[str, str]) -> list[dict[str, Any]]:
    """The task ledger and all that was said; each round only adds to it."""
    task = _TASK.format(
        task=state["task"], team=_team(team), facts=state["facts"], plan=state["plan"]
    )
    return [_system(instructions), _user(task), *_spoken(state)]


def _spoken(state: State) -> list[dict[str, Any]]:
    return [
        _assistant(f"To {entry['to']}: {entry['content']}")
        if entry["speaker"] == "manager"
        else _user(f"{entry['speaker']}: {entry['content']}")
        for entry in state.get("history", ())
    ]


def _team(team: Mapping[str, str]) -> str:
    return "\n".join(f"- {name}: {what}" for name, what in team.items())


def _system(instructions: str) -> dict[str, Any]:
    return {"role": "system", "content": f"{_MANAGER}\n\n{instructions}".strip()}


def _user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}
