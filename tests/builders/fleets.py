"""Scripted managers and participants that the tests of the fleet share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from surehold.agents.fleet.fleet import Fleet
from surehold.agents.models.model import Message, Reply
from surehold.testing.scripted import ScriptedModel

TEAM = ("researcher", "coder", "analyst")


def ledger(
    speaker: str = "researcher",
    instruction: str = "go on",
    *,
    satisfied: bool = False,
    looping: bool = False,
    progressing: bool = True,
) -> str:
    """A progress ledger as a manager writes it."""
    answers = {
        "is_request_satisfied": satisfied,
        "is_in_loop": looping,
        "is_progress_being_made": progressing,
        "next_speaker": speaker,
        "instruction_or_question": instruction,
    }
    return json.dumps({key: {"reason": "so", "answer": one} for key, one in answers.items()})


def rounds_done(messages: Sequence[Message]) -> int:
    """How many instructions the manager has given, by what it is shown."""
    said = (one["content"] for one in messages if one["role"] == "assistant")
    return sum(text.startswith("To ") for text in said)


def last(messages: Sequence[Message]) -> str:
    return str(messages[-1]["content"])


def asked_for(messages: Sequence[Message]) -> str:
    """Which of its questions the manager is asked: facts, plan, ledger or answer."""
    text = last(messages)
    if "Judge the work" in text or "could not be read" in text:
        return "ledger"
    if "The work on the task is over" in text:
        return "answer"
    return (
        "plan"
        if "plan" in text.lower() and "The team:" in text
        else ("plan" if "Write a better one" in text else "facts")
    )


def manager(
    rounds: int,
    *,
    log: Path | None = None,
    judge: Callable[[int, Sequence[Message]], str] | None = None,
    price: float | None = 1.0,
) -> ScriptedModel:
    """A manager that is satisfied after so many rounds, the participants taking turns."""

    def usual(done: int, messages: Sequence[Message]) -> str:
        speaker = TEAM[done % len(TEAM)]
        return ledger(speaker, f"do part {done + 1}", satisfied=done >= rounds)

    def script(messages: Sequence[Message]) -> Reply | str:
        kind = asked_for(messages)
        if kind == "ledger":
            return (judge or usual)(rounds_done(messages), messages)
        if kind == "answer":
            return f"The answer after {rounds_done(messages)} rounds."
        return f"The {kind}."

    return ScriptedModel(script, name="manager", log=log, price=price)


def worker(name: str, *, log: Path | None = None, price: float | None = 1.0) -> ScriptedModel:
    """A participant that says what it was told to do, and how often it has worked."""

    def script(messages: Sequence[Message]) -> str:
        turns = sum(one["role"] == "assistant" for one in messages)
        return f"{name} turn {turns + 1}: {last(messages).splitlines()[-1]}"

    return ScriptedModel(script, name=name, log=log, price=price)


def team(log: Path | None = None) -> dict[str, Any]:
    return {name: worker(name, log=log) for name in TEAM}


def last_of(fleet: Fleet, name: str) -> str:
    """What a participant said last."""
    return str(fleet.history_of(name)[-1]["content"])


class Flaky:
    """A model that fails the first times it is asked at some turn."""

    name = "flaky"

    def __init__(
        self, model: Any, *, fails: int, when: Callable[[Sequence[Message]], bool]
    ) -> None:
        self._model = model
        self._when = when
        self.fails = fails

    async def respond(self, messages: Sequence[Message], **more: Any) -> Reply:
        if self.fails and self._when(messages):
            self.fails -= 1
            raise ConnectionError("no network")
        reply: Reply = await self._model.respond(messages, **more)
        return reply


def calls(log: Path) -> int:
    """How many real calls a log has counted."""
    return len(log.read_text().splitlines()) if os.path.exists(log) else 0
