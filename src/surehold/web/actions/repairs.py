"""The actions on damage: verify a run, repair it."""

from __future__ import annotations

import hashlib

from surehold.engine.repair import RepairReport, verify_run
from surehold.engine.runs import note_action
from surehold.errors import ConflictError, SureholdError
from surehold.web.actions.plan import Action, ActionPlan, page_of, run_in, shell
from surehold.web.forms import Given


class VerifyAction(Action):
    """Opens every record of a run and rebuilds every state; it changes nothing."""

    def ask(self, given: Given) -> ActionPlan:
        run = run_in(self._site, given)
        verdict = verify_run(self._site.manager.reader, run)
        sound = f"All {verdict.records:,} records were opened, every state was rebuilt: sound."
        repair = None if verdict else (f"/act/repair?{_query(run.run_id)}", "Repair…")
        return ActionPlan(
            title=f"Verification of {run.run_id}",
            what=[sound] if verdict else ["It is damaged:", *verdict.problems],
            command=shell("verify", "--read-data", run.run_id),
            python=f"manager.verify({run.run_id!r})",
            back=page_of(run.run_id),
            next=repair,
        )

    def do(self, given: Given, who: str) -> str:
        return f"/act/verify?{_query(given.get('id', ''))}"


class RepairAction(Action):
    """Sets damaged records aside, of one run or of the whole storage."""

    def ask(self, given: Given) -> ActionPlan:
        run_id = given.get("id") or None
        report = self._site.manager.repair(run_id, dry_run=True)
        lines = [] if report.clean else str(report).splitlines()
        return ActionPlan(
            title=f"Repair {run_id or 'the storage'}",
            what=[
                "Damaged records are set aside and kept; a note in each run records it.",
                "Nothing is guessed: what cannot be read is not made up.",
                *lines,
            ],
            command=shell("repair", *([run_id] if run_id else []), "--yes"),
            python=f"manager.repair({run_id!r})" if run_id else "manager.repair()",
            button="Repair",
            hidden={"id": run_id or "", "seen": _seen(report)},
            problem="Nothing is damaged." if report.clean else "",
            is_fine=report.clean,
            back="/health",
        )

    def do(self, given: Given, who: str) -> str:
        manager, run_id = self._site.manager, given.get("id") or None
        if _seen(manager.repair(run_id, dry_run=True)) != given.get("seen", ""):
            raise ConflictError(
                "the damage is not what the preview showed", hint="look at the preview again"
            )
        for run in manager.repair(run_id).runs:
            try:
                note_action(self._site.manager, run.run_id, "repaired it", who)
            except SureholdError:  # nothing of the run was left to write to
                continue
        return page_of(run_id) if run_id else "/health?verify=1"


def _seen(report: RepairReport) -> str:
    """A digest of the preview, sent back by the form: no other repair is confirmed."""
    return hashlib.sha256(str(report).encode()).hexdigest()


def _query(run_id: str) -> str:
    return page_of(run_id).partition("?")[2]
