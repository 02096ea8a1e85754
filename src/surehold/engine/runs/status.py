"""A run's status as people are told it; it takes no key and loads no state."""

from __future__ import annotations

import heapq
import time
from collections import Counter
from collections.abc import Iterator

import msgspec

from surehold.core.records import STATUSES
from surehold.storage.base import (
    Lease,
    Leasing,
    RunInfo,
    RunQuery,
    Storage,
    is_live,
    newest_record,
    run_of,
)
from surehold.storage.queueing import queues_in

STORED_AS_RUNNING = ("running", "queued", "dead", "stale", "saved")
"""The statuses that `status_of_run` gives a run that is stored as running."""
SHOWN_STATUSES = (*STATUSES, *STORED_AS_RUNNING[1:])
"""All that it gives."""
UNDER_WAY = ("running", "queued")
"""Those of a run that a process executes, or a worker takes next."""
_HOLDS = {
    **{"held": "running", "ended": "stale", "manager": "saved"},
    **{"ready": "queued", "waiting": "queued", "dead": "dead"},
}
"""The status of a run stored as running, by its hold in a `RunTally`."""
_LEASED = ("loop", "function", "graph", "agent", "fleet")
"""Doors that take a lease before they execute a run."""
_IN_QUEUE = {"ready": "queued", "waiting": "queued", "dead": "dead"}
"""The status of a run that no process executes, by the state of its queue entry."""


def status_of_run(storage: Storage, run: RunInfo) -> str:
    """The run's status as people are told it.

    A run stored as running that no process executes is ``queued`` if a worker will take it,
    ``dead`` if its attempts are used up, else ``stale``. A run that is saved by hand is ``saved``,
    and so is a fork that nothing has executed yet: no process here does. A thread or a program that
    was never leased nor queued counts as running. A run stored as ``interrupted`` with an open
    question is ``waiting``.
    """
    if run.status == "interrupted" and _asks(storage, run.run_id):
        return "waiting"
    if run.status != "running":
        return run.status
    at_rest = "saved" if run.door == "manager" else "running"
    if not isinstance(storage, Leasing):
        return at_rest
    lease = storage.lease_of(run.run_id)
    if is_live(lease, time.time()):
        return run.status
    queues = queues_in(storage)
    entry = queues.entry_of(run.run_id) if queues is not None else None
    if entry is not None and entry.state in _IN_QUEUE:
        return _IN_QUEUE[entry.state]
    if lease is None or at_rest == "saved" or _only_encrypted(storage, run, lease):
        return "saved" if run.door in _LEASED else at_rest
    now = run_of(storage, run.run_id) or run
    if now.seq == run.seq and storage.lease_of(run.run_id) == lease:
        return "stale"
    return status_of_run(storage, now)  # it came further before its lease was looked at


def at_its_step(storage: Storage, run: RunInfo) -> RunInfo:
    """*run* with the step it has reached.

    The calls of a workflow are its steps, and it saves no checkpoint after each.
    """
    if run.door != "function" or run.status == "completed":
        return run
    newest = newest_record(storage, run.run_id, "effect")
    if newest is None or newest.step <= run.step:
        return run
    return msgspec.structs.replace(run, step=newest.step)


def count_by_status(storage: Storage, most: int) -> tuple[Counter[str], list[tuple[RunInfo, str]]]:
    """Count all runs by status, and list those that may be wrong or wait, with theirs.

    Of each kind the newest *most* are listed and looked at; of the others it is taken that an
    ended lease makes a run stale. A medium that cannot count has each run looked at.
    """
    tally = storage.count_runs(now=time.time(), most=most)
    if tally is None:
        every = [(run, status_of_run(storage, run)) for run in storage.runs(RunQuery())]
        return Counter(status for _, status in every), every
    counts: Counter[str] = Counter()
    for (status, hold), number in tally.counts.items():
        counts[_HOLDS.get(hold, status)] += number
    looked: list[tuple[RunInfo, str]] = []
    for hold, ordinals in tally.newest.items():
        for ordinal in ordinals:  # not by its id: a damaged run is listed all the same
            runs = storage.runs(RunQuery(before=ordinal + 1, limit=1))
            looked += [(run, _HOLDS[hold]) for run in runs if run.ordinal == ordinal]
    for status in ("failed", "interrupted", "waiting"):
        found = storage.runs(RunQuery(status=status, limit=most)) if counts[status] else ()
        looked += [(run, status) for run in found]
    if tally.counts.get(("running", "")):  # never leased: forks that nothing has executed
        known = {run.run_id for run, _ in looked}
        found = storage.runs(RunQuery(status="running", limit=most))
        looked += [
            (run, "running")
            for run in found
            if run.run_id not in known and status_of_run(storage, run) == "saved"
            if run.door in _LEASED
        ]
    seen = [(run, status_of_run(storage, run)) for run, _ in looked]
    for (_, taken), (_, status) in zip(looked, seen, strict=True):
        counts[taken] -= 1
        counts[status] += 1
    return +counts, seen


def _only_encrypted(storage: Storage, run: RunInfo, lease: Lease) -> bool:
    """Return whether a run's first lease was taken only to encrypt it."""
    if lease.epoch != 1:
        return False
    newest = newest_record(storage, run.run_id)
    return newest is not None and newest.kind == "key" and newest.epoch == 1


def runs_with_status(storage: Storage, query: RunQuery, status: str | None) -> Iterator[RunInfo]:
    """The runs of *query* that `status_of_run` may give this status, newest first.

    One that waits may be stored as interrupted.
    """
    stored: dict[str, tuple[str, ...]] = dict.fromkeys(STORED_AS_RUNNING, ("running",))
    stored["waiting"] = ("waiting", "interrupted")
    found = (
        storage.runs(msgspec.structs.replace(query, status=one))
        for one in stored.get(status or "", (status,))
    )
    return heapq.merge(*found, key=lambda run: -run.ordinal)


def _asks(storage: Storage, run_id: str) -> bool:
    """Return whether the newest question of a run has no answer."""
    asked, answered = (newest_record(storage, run_id, kind) for kind in ("question", "answer"))
    return asked is not None and (answered is None or asked.seq > answered.seq)
