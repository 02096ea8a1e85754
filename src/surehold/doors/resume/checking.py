"""Checks of new code against a run: on a copy in memory, without a live call."""

from __future__ import annotations

from typing import Literal

import msgspec

from surehold.core.context import during
from surehold.doors.resume.entry_points import Resumable
from surehold.doors.resume.explanation import ResumePlan
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager
from surehold.engine.runs.effects import REPLAY_ONLY
from surehold.errors import Drained, InDoubtError, Interrupted
from surehold.storage.memory import MemoryStorage

Outcome = Literal["resumes", "asks", "cannot"]


class CheckVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """The judgement about one run and the code."""

    run_id: str
    outcome: Outcome
    detail: str


def check_run(manager: CheckpointManager, resumable: Resumable, run_id: str) -> CheckVerdict:
    """Judge whether the code of *resumable* continues a run, which stays as it is.

    A workflow is executed with its recorded calls up to the first live one, which is not made: a
    call that differs from the recorded one is named. Of a graph and an agent the nodes are
    compared.
    """
    memory = MemoryStorage()
    manager.copy_run(run_id, memory)
    with CheckpointManager(memory) as copied:
        mine = resumable.over(AsyncCheckpointManager.of(copied.face))
        try:
            plan = mine.explain_resume(run_id)
            if plan.problem:
                return CheckVerdict(run_id=run_id, outcome="cannot", detail=plan.problem)
            if not plan.is_workflow:
                return _planned(run_id, plan)
            return _executed(run_id, mine)
        except Exception as error:  # whatever the new code raises
            outcome: Outcome = "asks" if isinstance(error, InDoubtError) else "cannot"
            text = getattr(error, "message", "") or f"{type(error).__name__}: {error}"
            return CheckVerdict(run_id=run_id, outcome=outcome, detail=text)


def _planned(run_id: str, plan: ResumePlan) -> CheckVerdict:
    waits = [*plan.questions, *plan.in_doubt]
    if waits:
        return CheckVerdict(run_id=run_id, outcome="asks", detail=f"waits for {waits[0].id}")
    return CheckVerdict(run_id=run_id, outcome="resumes", detail=f"continues with {plan.next}")


def _executed(run_id: str, mine: Resumable) -> CheckVerdict:
    met: list[str] = []
    with during(REPLAY_ONLY, met):
        try:
            result = mine.resume_sync(run_id)
            status, waits = result.status, [one.id for one in result.waiting]
        except Drained:
            status, waits = "interrupted", []
        except Interrupted as signal:
            return CheckVerdict(run_id=run_id, outcome="asks", detail=signal.message)
    if met:
        return CheckVerdict(run_id=run_id, outcome="resumes", detail=f"the next call is {met[0]}")
    if status == "waiting":
        return CheckVerdict(run_id=run_id, outcome="asks", detail=f"waits for {', '.join(waits)}")
    return CheckVerdict(
        run_id=run_id, outcome="resumes", detail=f"ends as {status} without a new call"
    )
