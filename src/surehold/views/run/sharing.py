"""A run as Markdown, to be pasted into an issue."""

from __future__ import annotations

from collections.abc import Sequence

from surehold.views.costs import Spending
from surehold.views.run.overview import step_words
from surehold.views.run.window import RunView
from surehold.views.values import ChatTurn
from surehold.views.words import counted, cut, money, step_name

_STEPS = 12
_TURNS = 4


def as_markdown(view: RunView, turns: Sequence[ChatTurn], costs: Sequence[Spending]) -> str:
    """Status, newest steps, error, last messages and cost of a run, as Markdown."""
    run = view.summary
    dollars = sum(one.dollars for one in costs)
    facts = [run.status, f"step {run.step}", counted(run.checkpoints, "checkpoint")]
    facts += [money(dollars)] if dollars else []
    lines = [f"**Run {_code(run.run_id)}**: {', '.join(facts)}", ""]
    if view.chosen.error:
        lines += ["```text", cut(view.chosen.error, 2000).replace("```", "'''"), "```", ""]
    lines += ["| step | node | what it did |", "|--:|---|---|"]
    for entry in view.entries[:_STEPS]:
        one = entry.header
        said = entry.error or step_words(entry.changes)
        lines.append(f"| {one.step} | {_cell(step_name(one))} | {_cell(cut(said, 100))} |")
    if len(view.entries) > _STEPS or view.older is not None:
        lines.append("| | | earlier steps are left out |")
    for turn in turns[-_TURNS:]:
        quoted = cut(turn.text, 600).replace("\n", "\n> ")
        lines += ["", f"> **{_plain(turn.role)}:** {quoted}"]
        lines += [f"> {_code(cut(call, 200))}" for call in turn.calls]
    lines += ["", f"Reproduce: {_code(f'surehold show {run.run_id}')}"]
    return "\n".join(lines)


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("`", "'").split())


def _cell(text: str) -> str:
    return _plain(text).replace("<", "&lt;")


def _code(text: str) -> str:
    return f"`{_plain(text)}`"
