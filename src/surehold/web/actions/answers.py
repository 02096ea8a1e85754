"""The action that settles what a run waits for."""

from __future__ import annotations

from typing import Any

import msgspec

from surehold.engine.runs import Waiting, answer, check_fits, pending, retract
from surehold.errors import NotFoundError, UsageError
from surehold.views.words import read_value
from surehold.web.actions.plan import Action, ActionPlan, page_of, shell
from surehold.web.forms import PREFIX, Given, read_changes

_BUTTONS = {
    "approve": "Approve",
    "edit": "Approve with these arguments",
    "reject": "Reject",
    "answer": "Answer",
    "happened": "It happened",
    "failed": "It failed",
    "repeat": "Call it again",
}


class AnswerAction(Action):
    """Answers a question, sends an event, or states the outcome of an effect in doubt."""

    def ask(self, given: Given) -> ActionPlan:
        one, how = self.wanted(given), given.get("how", "")
        outcome = _outcome(one, given)
        said = f"surehold.answer({one.run_id!r}, {one.id!r}, "
        if "value" in outcome:
            text = msgspec.json.encode(outcome["value"]).decode()
            python, words = f"{said}{outcome['value']!r})", [text, "--id", one.id]
            noun = "outcome of the effect" if one.kind == "effect" else "answer to"
            what = f"The {noun} {one.id} is recorded as {text}."
        elif "error" in outcome:
            error = outcome["error"]
            python, words = f"{said}error={error!r})", ["--error", error, "--id", one.id]
            what = f"The effect {one.id} is recorded as failed with {error!r}."
        else:
            python, words = f"{said}repeat=True)", ["--repeat", "--id", one.id]
            what = f"The effect {one.id} is recorded as not done: a resume calls it again."
        return ActionPlan(
            title=f"{_BUTTONS[how]}: {one.id} of {one.run_id}",
            what=[what, "Nothing is executed now: a resume continues with it."],
            command=shell("answer", one.run_id, *words),
            python=python,
            button=_BUTTONS[how],
            hidden={
                name: text
                for name, text in given.items()
                if name in ("id", "waiting", "how", "value") or name.startswith(PREFIX)
            },
            back="/waiting",
        )

    def do(self, given: Given, who: str) -> str:
        one = self.wanted(given)
        outcome = _outcome(one, given)
        answer(one.run_id, one.id, **outcome, by=who, storage=self._site.manager)
        return page_of(one.run_id)

    def wanted(self, given: Given) -> Waiting:
        """The question or effect that the form answers."""
        run_id, id = given.get("id", ""), given.get("waiting", "")
        for one in pending(run_id, storage=self._site.manager):
            if one.id == id:
                return one
        raise NotFoundError(
            f"run {run_id!r} does not wait for {id!r} any more",
            hint="someone may have answered, or its process runs again",
        )


class RetractAction(Action):
    """Takes back an answer that no process has read yet."""

    def ask(self, given: Given) -> ActionPlan:
        run_id, id = given.get("id", ""), given.get("waiting", "")
        return ActionPlan(
            title=f"Take back the answer to {id} of {run_id}",
            what=["The run waits for an answer again. Both answers stay in its journal."],
            command=shell("answer", run_id, "--id", id, "--undo"),
            python=f"surehold.engine.runs.retract({run_id!r}, {id!r})",
            button="Undo the answer",
            hidden={"id": run_id, "waiting": id},
            back=page_of(run_id),
        )

    def do(self, given: Given, who: str) -> str:
        run_id, id = given.get("id", ""), given.get("waiting", "")
        retract(run_id, id, by=who, storage=self._site.manager)
        return page_of(run_id)


def _outcome(one: Waiting, given: Given) -> dict[str, Any]:
    """The arguments of `surehold.answer` that a form stands for."""
    how, text = given.get("how", ""), given.get("value", "")
    if one.kind == "effect":
        if how == "repeat":
            return {"repeat": True}
        if how == "failed":
            return {"error": text or "it failed"}
        if how == "happened":
            return {"value": read_value(text)}
        raise UsageError(f"an effect has no outcome {how!r}", hint="happened, failed or repeat")
    if one.kind == "timer":
        raise UsageError(f"{one.id} waits for a time", hint="it ends by itself")
    if how == "approve":
        value: Any = True
    elif how == "edit":
        asked = one.question if isinstance(one.question, dict) else {}
        arguments = asked["arguments"] if isinstance(asked.get("arguments"), dict) else {}
        edited = {**arguments, **read_changes(arguments, given)}
        value = {"approved": True, "arguments": edited}
    elif how == "reject":
        value = {"approved": False, "reason": text} if text else False
    elif how == "answer":
        value = read_value(text)
    else:
        raise UsageError(f"there is no answer {how!r}", hint="approve, edit, reject or answer")
    check_fits(one.id, value, one.schema)
    return {"value": value}
