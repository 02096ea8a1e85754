"""`drive`: execute a run as far as it goes; and the protocol of executors."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import msgspec

from surehold.core.policy import Outcome, driven_by
from surehold.core.records import Header, Lease
from surehold.doors.result import RunResult
from surehold.doors.resume import load_resumable
from surehold.engine.hooks import HookManager
from surehold.engine.leases import GrantedLease
from surehold.engine.managers import CheckpointManager
from surehold.engine.metrics import Metrics
from surehold.engine.runs import StopScope, quietly
from surehold.engine.runs.effects import traceback_text
from surehold.errors import (
    DataError,
    NotFoundError,
    RunError,
    SureholdError,
    UsageError,
)
from surehold.storage.base import RecordQuery, Storage


class Driven(msgspec.Struct, frozen=True, kw_only=True):
    """The progress that one `drive` made with a run."""

    run_id: str
    outcome: Outcome
    """``completed``; ``cancelled``; ``waiting`` for an answer, a message, an event or a time;
    ``interrupted`` because it was asked to stop; ``failed`` with an error of its code; ``unfit`` if
    code or data must change first; ``held`` by another process, so that nothing was done; ``lost``
    to another process."""
    due: float | None = None
    """Of a run that waits: seconds since 1970 at which it is to be driven again."""
    error: str = ""
    traceback: str = ""
    """The frames of user code that an error came from."""
    seconds: float = 0.0


class Executor(Protocol):
    """Decides where and when runs are driven; never what happened.

    A submission may be lost or doubled: the storage has the run, a sweep finds it, and a second
    `drive` of it is refused its lease.
    """

    def submit(self, run_id: str) -> None:
        """Have the run driven soon; returns at once."""

    def cancel(self, run_id: str) -> None:
        """Stop driving the run at its next step, if this executor does; it can be resumed."""

    def close(self, timeout: float | None = None) -> None:
        """Take nothing more, stop runs at their next step, wait up to *timeout* seconds."""


def drive(
    run_id: str,
    *,
    storage: Storage | str | None = None,
    entry_point: str | None = None,
    lease: GrantedLease | None = None,
    stop: StopScope | None = None,
    hook_manager: HookManager | None = None,
    metrics: Metrics | None = None,
) -> Driven:
    """Execute a run until it completes, waits, fails or is stopped; blocking.

    Takes the run's lease, continues after its last record, commits each step under the lease's
    epoch, and releases it. So it may be called twice, late or by several processes at once: one
    executes the run and the others return ``held``; one that was away for longer than its lease
    is refused by the storage and returns ``lost``. The code is found by the *entry_point* that the
    run recorded, unless one is given. A worker that has claimed the run hands in its *lease*.
    Hooks, keys and rules are those that the code names; *hook_manager* is for code without hooks.
    *metrics* count what the run does.

    A run that is unknown, or that nothing here can read or execute, is ``unfit``. `drive` raises
    a `StorageError` if the storage is unusable, a `UsageError` for an address that is none, and
    what the run's code raises without being an `Exception`: `SystemExit`, say.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        stack.enter_context(quietly())
        if not isinstance(storage, Storage):
            storage = stack.enter_context(CheckpointManager(storage)).storage
        if lease is not None:
            stack.enter_context(lease.used())
        if stop is not None:
            stack.enter_context(stop.entered())
        outcome, facts = _attempt(run_id, storage, entry_point, hook_manager, metrics)
    return Driven(run_id=run_id, outcome=outcome, seconds=time.monotonic() - began, **facts)


def has_progressed(storage: Storage, lease: Lease, began: Header | None = None) -> bool:
    """True if the attempt under *lease* recorded a step that no attempt before it had.

    *began* is the checkpoint that it began with, if it is known: retention may have dropped it.
    """
    reached: set[tuple[str, str | None, int]] = set()
    try:
        for header in storage.headers(RecordQuery(run_id=lease.run_id, notes=True)):
            if header.frame == "note" and not header.epoch:
                continue  # written from outside: an answer, a request to cancel
            place = (header.scope, header.node, header.step)
            if header.epoch == lease.epoch:
                reached.add(place)
            else:
                reached.discard(place)
                if not reached:
                    return False
    except DataError:  # whoever resumes the run reports it
        return False
    if began is not None:
        reached.discard((began.scope, began.node, began.step))
    return bool(reached)


def _attempt(
    run_id: str,
    storage: Storage,
    entry_point: str | None,
    hooks: HookManager | None,
    metrics: Metrics | None,
) -> tuple[Outcome, dict[str, Any]]:
    try:
        found = entry_point or _recorded(storage, run_id)
        result = _resume(run_id, storage, found, hooks, metrics)
    except Exception as error:
        outcome = driven_by(error)
        if outcome is None:
            raise
        return outcome, {"error": _text(error), "traceback": traceback_text(_origin(error))}
    match result.status:
        case "completed" | "cancelled" | "interrupted" as ended:
            return ended, {}
        case "waiting":
            times = (one.until.timestamp() for one in result.waiting if one.until is not None)
            return "waiting", {"due": min(times, default=None)}
        case "failed":
            return "failed", {"error": result.error or ""}
        case limit:
            return "unfit", {"error": result.error or f"the run ended with status {limit}"}


def _resume(
    run_id: str,
    storage: Storage,
    entry_point: str,
    hooks: HookManager | None,
    metrics: Metrics | None,
) -> RunResult[Any]:
    resumable = load_resumable(entry_point)
    manager = resumable.manager_on(storage, hooks)
    if metrics is not None:
        manager.count_in(metrics)
    try:
        with _turn_of(resumable):
            return resumable.over(manager).resume_sync(run_id)
    finally:
        manager.finish()


_turns: WeakKeyDictionary[object, threading.Lock] = WeakKeyDictionary()
_making = threading.Lock()


def _turn_of(resumable: object) -> Any:
    """A lock for an agent that is one object: it executes one run at a time."""
    agent = getattr(resumable, "agent", None)
    if agent is None:
        return threading.Lock()
    with _making:
        return _turns.setdefault(agent, threading.Lock())


def _recorded(storage: Storage, run_id: str) -> str:
    reader = CheckpointManager(storage).reader
    newest = reader.newest_of(run_id)
    if newest is None:
        raise NotFoundError(f"no run {run_id!r} to drive", run_id=run_id)
    entry_point = reader.door(newest).entry_point
    if not entry_point:
        raise UsageError(
            f"run {run_id!r} does not record which code executes it",
            hint="begin it with start(), or give entry_point=",
            run_id=run_id,
        )
    return entry_point


def _origin(error: BaseException) -> BaseException:
    """The error of user code that a `StepError` tells of, or the error itself."""
    return error.__cause__ or error if isinstance(error, RunError) else error


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, SureholdError) else f"{type(error).__name__}: {error}"
