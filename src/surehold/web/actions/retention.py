"""The action that drops checkpoints by retention rules."""

from __future__ import annotations

from itertools import groupby

from surehold.core.policy import Decision, Rules
from surehold.engine.retention import bulk
from surehold.engine.runs import note_action
from surehold.storage.base import RunInfo, RunQuery
from surehold.views.forgetting import plan_forget
from surehold.web.actions.plan import Action, ActionPlan, page_of, run_in, shell
from surehold.web.forms import Field, Given

_SHOWN = 200


def _alike(one: Decision) -> tuple[str, bool, tuple[str, ...]]:
    """The facts by which neighbours are listed as one."""
    return one.header.run_id, one.keep, tuple(one.reasons)


def _row(alike: list[Decision]) -> tuple[str, ...]:
    newest, oldest = alike[0].header, alike[-1].header
    several = len(alike) > 1
    return (
        f"{oldest.run_id}@{oldest.step}" + (f" to @{newest.step}" if several else ""),
        f"{oldest.saved_at:%Y-%m-%d %H:%M} UTC",
        ("keep" if alike[0].keep else "drop") + (f" {len(alike):,}" if several else ""),
        ", ".join(alike[0].reasons),
    )


class ForgetAction(Action):
    """Drops the checkpoints that rules do not keep, of one run, a name, or all."""

    def ask(self, given: Given) -> ActionPlan:
        runs, rules, words = self._meant(given)
        decisions, document = plan_forget(self._site.manager, runs, rules, "page")
        name = given.get("id") or given.get("name") or "NAME"
        where = "all runs" if name == "NAME" else name
        none = "" if document.forgotten else "These rules drop nothing."
        if rules.empty:
            none = "There are no rules, so nothing is dropped. Give one below and preview."
        listed = sorted(decisions, key=lambda one: one.keep)
        rows = [_row([*group]) for _, group in groupby(listed, key=_alike)]
        last, within = given.get("keep_last", ""), given.get("keep_within", "")
        return ActionPlan(
            title=f"Forget checkpoints of {where}",
            what=[
                f"{document.forgotten:,} are dropped and {document.kept:,} are kept, as below.",
                f"surehold prune then frees {document.freed_bytes:,} bytes.",
                "The newest checkpoint of a run and pinned ones are never dropped.",
            ],
            command=shell("forget", *words),
            python="CheckpointManager(storage, retention=Rules.from_mapping("
            f"{document.rules!r})).cleanup_old_checkpoints({name!r})",
            button=f"Drop {document.forgotten:,}",
            hidden={name: given.get(name, "") for name in ("id", "name")},
            fields=[
                Field(name="keep_last", label="Keep the newest", value=last, help="A count."),
                Field(name="keep_within", label="Keep all within", value=within, help="As 7d12h."),
            ],
            heads=("Checkpoints", "Saved", "Decision", "Reasons"),
            table=rows[:_SHOWN],
            left_out=max(0, len(rows) - _SHOWN),
            problem=none,
            previews=True,
            destroys=True,
            back=page_of(given["id"]) if given.get("id") else "/storage",
        )

    def do(self, given: Given, who: str) -> str:
        runs, rules, _ = self._meant(given)
        manager = self._site.manager
        decisions, document = plan_forget(manager, runs, rules, "page")
        for run_id in bulk.forget(manager.reader, manager.retention, decisions):
            dropped = sum(not one.keep and one.header.run_id == run_id for one in decisions)
            did = f"dropped {dropped} checkpoints by {document.rules}"
            note_action(self._site.manager, run_id, did, who)
        return page_of(given["id"]) if given.get("id") else "/storage"

    def _meant(self, given: Given) -> tuple[list[RunInfo], Rules, list[str]]:
        """The runs that are meant, the rules, and both as words of a command."""
        if given.get("id"):
            runs, words = [run_in(self._site, given)], [given["id"]]
        else:
            name = given.get("name", "")
            runs = list(self._site.manager.storage.runs(RunQuery(name=name or None)))
            words = [run.run_id for run in runs] if name else []
        named = {k: given[k].strip() for k in ("keep_last", "keep_within") if given.get(k)}
        for rule, value in named.items():
            words += [f"--{rule.replace('_', '-')}", value]
        return runs, Rules.from_mapping(named) if named else self._site.rules, words
