"""Removing whole runs that are old, one at a time, and none that someone needs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

import msgspec

from surehold.core.policy import Age, Expiry
from surehold.engine.leases import LEASE_SECONDS
from surehold.engine.managers import CheckpointManager, Target, opened
from surehold.engine.runs.status import runs_with_status, status_of_run
from surehold.errors import DataError, LeaseHeldError
from surehold.storage.base import Leasing, RunInfo, RunQuery, this_process
from surehold.storage.queueing import queues_in

_LONGEST_REST = 0.1
_rest = time.sleep


class ExpiringRun(msgspec.Struct, frozen=True):
    """A run that a rule of expiry matches."""

    run: RunInfo
    status: str
    kept: str = ""
    """The reason for which it stays: ``live``, ``pin``, ``group``, ``due`` or ``damaged``."""


def expire(
    older: Age | timedelta | str,
    *,
    status: str | tuple[str, ...] = "completed",
    name: str | None = None,
    keep_last: int = 0,
    dry_run: bool = False,
    storage: Target = None,
) -> list[str]:
    """Remove whole runs last saved longer ago than *older*; return their ids.

    *status* is as `surehold runs` shows it. The newest *keep_last* of each name stay, and so do
    runs that a process holds, that wait, that have a pinned checkpoint or are of a group. With
    *dry_run* nothing is removed.
    """
    rule = Expiry(older=older, status=status, name=name, keep_last=keep_last)
    with opened(storage) as manager:
        going = (one.run for one in plan_expiry(manager, rule) if not one.kept)
        return [run.run_id for run in (going if dry_run else remove_runs(manager, going))]


def plan_expiry(manager: CheckpointManager, rule: Expiry) -> Iterator[ExpiringRun]:
    """The runs that *rule* matches, the newest of each status first; removes nothing."""
    cutoff = Age.of(rule.older).before(datetime.now(UTC))
    # A rule that keeps the newest has to count them; else only old runs are read.
    query = RunQuery(name=rule.name, saved_before=None if rule.keep_last else cutoff)
    for status in rule.status:
        found: Counter[str] = Counter()
        for run in runs_with_status(manager.storage, query, status):
            if status_of_run(manager.storage, run) == status:
                found[run.name] += 1
                if run.saved_at < cutoff and found[run.name] > rule.keep_last:
                    yield ExpiringRun(run, status, _reason_to_keep(manager, run))


def expire_some(manager: CheckpointManager, rule: Expiry, most: int) -> list[str]:
    """Remove up to *most* runs that *rule* matches; return their ids."""
    going = (one.run for one in plan_expiry(manager, rule) if not one.kept)
    return [run.run_id for run in islice(going, most) if remove_run(manager, run)]


def remove_runs(manager: CheckpointManager, runs: Iterable[RunInfo]) -> Iterator[RunInfo]:
    """Remove runs one after the other; yield those that were removed.

    It rests after each removal for as long as the removal took, so that other writers have
    their turn.
    """
    for run in runs:
        began = time.monotonic()
        if remove_run(manager, run):
            yield run
        _rest(min(time.monotonic() - began, _LONGEST_REST))


def remove_run(manager: CheckpointManager, run: RunInfo) -> bool:
    """Remove a run that nobody holds and nobody has written to since; True if it was."""
    storage = manager.storage
    lease = None
    try:
        if isinstance(storage, Leasing):
            owner = this_process()
            lease = storage.take_lease(run.run_id, owner, now=time.time(), ttl=LEASE_SECONDS)
        now = manager.reader.run(run.run_id)
        if now is None or (now.ordinal, now.digest) != (run.ordinal, run.digest):
            return False
        return bool(manager.delete_run(run.run_id))
    except (LeaseHeldError, DataError):
        return False
    finally:
        if lease is not None and isinstance(storage, Leasing):
            storage.release_lease(lease)


def _reason_to_keep(manager: CheckpointManager, run: RunInfo) -> str:
    queues = queues_in(manager.storage)
    entry = queues.entry_of(run.run_id) if queues is not None else None
    try:
        if (run.name, run.kind) == ("group", "group"):
            return "group"
        if manager.retention.is_held(run.run_id):
            return "live"
        if entry is not None and entry.due is not None and entry.due > time.time():
            return "due"
        return "pin" if manager.retention.marks(run.run_id).pinned else ""
    except DataError:
        return "damaged"
