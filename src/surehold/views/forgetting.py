"""Previews of forgetting: each decision of retention rules, with its reason."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Annotated, Any

from surehold.core.policy import Decision, Rules
from surehold.engine.managers import CheckpointManager
from surehold.engine.retention import bulk, plan_freeing
from surehold.storage.base import RunInfo
from surehold.views.documents import CheckpointInfo, Document, Rows


class DecidedCheckpoint(CheckpointInfo, frozen=True, kw_only=True):
    """A checkpoint with the decision about it."""

    keep: bool
    reasons: tuple[str, ...]


class Forget(Document, kw_only=True, tag="forget"):
    dry_run: bool
    rules: dict[str, Any]
    origin: str
    kept: int
    forgotten: int
    freed_bytes: int
    """The bytes that `surehold prune` frees, or that --prune freed."""
    deleted_runs: list[str]
    decisions: Annotated[list[DecidedCheckpoint], Rows("decision")]


def plan_forget(
    manager: CheckpointManager, runs: list[RunInfo], rules: Rules, origin: str
) -> tuple[list[Decision], Forget]:
    """Compute what the rules keep and drop of these runs; change nothing."""
    tz, now = datetime.now().astimezone().tzinfo or UTC, datetime.now(UTC)
    decisions = bulk.plan_forget(manager.reader, manager.retention, runs, rules, now, tz)
    gone: dict[str, set[int]] = {}
    for header, keep, _ in decisions:
        if not keep:
            gone.setdefault(header.run_id, set()).add(header.seq)
    document = Forget(
        dry_run=True,
        rules=spelled(rules),
        origin=origin,
        kept=sum(decision.keep for decision in decisions),
        forgotten=sum(map(len, gone.values())),
        freed_bytes=sum(
            plan.stored
            for run in runs
            if run.run_id in gone
            and (plan := plan_freeing(manager.retention, run, gone[run.run_id])) is not None
        ),
        deleted_runs=[],
        decisions=[
            DecidedCheckpoint.of(header, keep=keep, reasons=reasons)
            for header, keep, reasons in decisions
        ],
    )
    return decisions, document


def spelled(rules: Rules) -> dict[str, Any]:
    """The rules that are set, as `surehold.toml` spells them."""
    values = {field.name: getattr(rules, field.name) for field in fields(rules)}
    return {
        name.replace("_", "-"): _plain(value)
        for name, value in values.items()
        if value not in (None, (), {}, False, "run")
    }


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {kind: spelled(rules) for kind, rules in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return value if isinstance(value, int) else str(value)
