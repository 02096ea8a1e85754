"""Applies retention rules to many runs at once, with the reason of every decision.

Forgetting hides checkpoints, which are no longer listed or loaded. Freeing gives back the space of
what no visible checkpoint is built on. Both work run by run and can be interrupted and repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, tzinfo

import msgspec

from surehold.core.policy import Decision, Rules
from surehold.engine.journal import Reader
from surehold.engine.retention.live import RetentionManager, grouped
from surehold.engine.retention.marks import is_of_group, plan_marked
from surehold.storage.base import RunInfo


class Freed(msgspec.Struct, frozen=True):
    """The space that a run can give back."""

    run_id: str
    records: int
    stored: int


def plan_forget(
    reader: Reader,
    retention: RetentionManager,
    runs: Sequence[RunInfo],
    rules: Rules,
    now: datetime,
    tz: tzinfo,
) -> list[Decision]:
    """Decide about every checkpoint of these runs. Nothing is changed.

    Those of groups stay (``group``), as does all of a run that a live process executes (``live``).
    """
    decisions: list[Decision] = []
    for found in grouped(reader.storage.headers, runs, rules):
        counted = [one for one in found if not is_of_group(one)]
        decisions += (Decision(one, True, ("group",)) for one in found if is_of_group(one))
        marks = {run_id: retention.marks(run_id) for run_id in {one.run_id for one in counted}}
        plan = plan_marked(counted, marks, rules, now, tz)
        held = {
            run_id
            for run_id in {one.header.run_id for one in plan if not one.keep}
            if retention.is_held(run_id)
        }
        decisions += (
            Decision(one.header, True, ("live",))
            if one.header.run_id in held and not one.keep
            else one
            for one in plan
        )
    return decisions


def forget(
    reader: Reader, retention: RetentionManager, decisions: Iterable[Decision]
) -> Iterator[str]:
    """Hide what is not kept, a run at a time; yields each run's id when it is done."""
    gone: dict[str, list[int]] = {}
    for header, keep, _ in decisions:
        if not keep:
            gone.setdefault(header.run_id, []).append(header.seq)
    for run_id, seqs in gone.items():
        reader.storage.delete(run_id, hide=seqs)
        retention.forget_all()
        yield run_id


def plan_freeing(
    retention: RetentionManager, run: RunInfo, hiding: Collection[int] = ()
) -> Freed | None:
    """The space that erasing a run's hidden records frees; None if there is none.

    The checkpoints *hiding* count as hidden too.
    """
    if not hiding and retention.is_empty(run.run_id):
        return Freed(run.run_id, run.seq, run.stored)
    plan = retention.plan_erasure(run.run_id, hiding)
    return None if plan is None else Freed(run.run_id, len(plan.seqs), plan.stored)
