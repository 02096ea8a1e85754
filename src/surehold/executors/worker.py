"""The worker: claims ready runs, drives them, and recovers those of dead workers."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Self
from uuid import uuid4

import msgspec

from surehold.core.context import during
from surehold.core.policy import (
    CANCELLED,
    DEAD,
    Expiry,
    QueueEntry,
    QueueSettings,
    after_death,
    after_drive,
)
from surehold.core.records import Header, Lease
from surehold.engine.hooks import HookManager
from surehold.engine.journal import Note
from surehold.engine.leases import LEASE_SECONDS, GrantedLease, Moment
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import StopScope, expire_some
from surehold.engine.runs.messages import tell_end
from surehold.errors import ConflictError, DataError, StorageError, SureholdError, UsageError
from surehold.executors.driving import Driven, drive, has_progressed
from surehold.executors.schedules import Schedule
from surehold.executors.serving import Served, schedules_in, served_by
from surehold.executors.worker_metrics import WorkerMetrics
from surehold.storage.base import Storage, Watching, is_dead, this_process
from surehold.storage.notifications import Subscription
from surehold.storage.queueing import (
    Claim,
    ClaimQuery,
    EntryQuery,
    StaleClaim,
    WorkerInfo,
    check_queues,
)

Log = Callable[[str, dict[str, Any]], None]
"""Called with the name of each event and its facts."""

logger = logging.getLogger("surehold.executors")

_POLL = 0.5
"""Seconds between two looks for ready runs, on average, while there are none."""
_POLL_NEAR = 0.04
"""The same for a storage of this machine, which sends no notifications and is quick to ask."""
_BUSY_FOR = 5.0
"""Seconds without a pause after which a worker does not listen for new runs."""
_HERD = 0.02
"""Seconds over which workers spread that wait for one due time."""
_LONGEST_PAUSE = 60.0
"""Seconds that a worker claims nothing after many failures of the storage in a row."""
_LOOKS_FOR_CANCELLED = 1.0
_MOST_OFFERED = 10_000
_EXPIRED_AT_ONCE = 20
"""Runs that are removed between two claims."""
_EXPIRES_EVERY = 600.0
"""Seconds between two looks for expired runs, on average, once none is left."""

_executed: ContextVar[dict[str, Any]] = ContextVar("surehold_executed")


def executed_here() -> dict[str, Any]:
    """Facts about the run that a worker executes in this thread or task, if any."""
    return _executed.get({})


class _Active(msgspec.Struct):
    """An attempt at a run, in a thread of this worker.

    A run that the worker lost and claimed again has two of them until the first one ends.
    """

    claim: Claim
    grant: GrantedLease
    scope: StopScope
    began: Header | None = None
    """The checkpoint that a run begins with which failed before."""

    @property
    def id(self) -> tuple[str, int]:
        """The run and the epoch of its claim."""
        return self.claim.entry.run_id, self.claim.lease.epoch


class Worker:
    """Executes queued runs of *served* code in threads, *concurrency* at a time.

    Any number of workers may share a storage. Claims, leases and limits are the storage's, so that
    a worker may be started, stopped, killed or frozen at any time: what it held is found by others
    once its lease has ended, at once if it died on their host. Leases are renewed by one thread,
    however long a step takes. Without *claims* it executes only what `take` is called with.
    *hook_manager* is for runs whose code names no hooks. Runs that *expire* matches are removed, a
    few at a time.
    """

    def __init__(
        self,
        storage: Storage,
        served: Sequence[Served],
        *,
        queues: Sequence[str] = ("default",),
        concurrency: int = 8,
        lease_seconds: float = LEASE_SECONDS,
        schedules: Sequence[Schedule] = (),
        log: Log | None = None,
        claims: bool = True,
        hook_manager: HookManager | None = None,
        expire: Expiry | None = None,
    ) -> None:
        queue = check_queues(storage)
        if not served:
            raise UsageError("there is nothing to serve", hint="name modules or module:name")
        if concurrency < 1 or lease_seconds <= 0:
            raise UsageError("concurrency and lease_seconds must be positive")
        storage.fit(concurrency)
        self.metrics = WorkerMetrics(queue)
        self._storage = storage
        self._queue = queue
        self._manager = CheckpointManager(storage, hook_manager=hook_manager)
        self._queues = tuple(queues)
        self._targets = tuple(one.target for one in served)
        self._concurrency = concurrency
        self._lease_seconds = lease_seconds
        self._schedules = tuple(schedules)
        self._expiry = expire
        self._log: Log = log or (lambda event, facts: None)
        self._claims = claims
        self._offered: deque[str] = deque(maxlen=_MOST_OFFERED)
        self._owner = this_process()
        self._info = WorkerInfo(
            id=uuid4().hex,
            owner=self._owner,
            queues=self._queues,
            targets=self._targets,
            concurrency=concurrency,
            since=time.time(),
        )
        self._active: dict[tuple[str, int], _Active] = {}
        self._kept: dict[tuple[str, int], QueueEntry | None] = {}
        """What is to become of runs that could not be settled, by run and epoch."""
        self._troubles = 0
        """The attempts in a row that the storage failed."""
        self._resting_until = 0.0
        """The monotonic time until which nothing is claimed, because the storage fails."""
        self._idle = False
        """True if the last claim found nothing."""
        self._subscription: Subscription | None = None
        """The notifications that wake a worker without runs."""
        self._idle_at = 0.0
        self._due_in: float | None = None
        """Seconds until the next run is due, at the last look."""
        self._lock = threading.Lock()
        self._claiming = threading.Lock()
        """Held from a claim until its run is active, so that a sweep does not take it for lost."""
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._beat = time.monotonic()

    @classmethod
    def of_modules(
        cls,
        storage: Storage,
        serves: Sequence[str],
        queues: Sequence[str],
        concurrency: int,
        lease_seconds: float,
        *,
        claims: bool = True,
    ) -> Self:
        """Make a worker of what modules or ``module:name`` hold, which logs its events."""
        return cls(
            storage,
            served_by(serves),
            queues=queues,
            concurrency=concurrency,
            lease_seconds=lease_seconds,
            schedules=schedules_in(serves),
            log=lambda event, facts: logger.info("%s %s", event, facts),
            claims=claims,
        )

    def run(self, *, until_idle: bool = False) -> None:
        """Work until `stop` is called or, with *until_idle*, until nothing is left to do.

        Returns when every run that was begun has been let go.
        """
        self._tell("worker.start", queues=self._queues, serves=self._targets)
        renewing = threading.Thread(target=self._renew, name="surehold-leases", daemon=True)
        renewing.start()
        pool = ThreadPoolExecutor(self._concurrency, thread_name_prefix="surehold-run")
        try:
            self._loop(pool, until_idle=until_idle)
            while self._active:
                self._wake.wait(_POLL)
                self._wake.clear()
        finally:
            if self._subscription is not None:
                self._subscription.close()
            self._ended.set()
            renewing.join()
            pool.shutdown(wait=False, cancel_futures=True)
            self._announce(0)
            self._tell("worker.stop", left=len(self._active))

    @contextmanager
    def in_background(self, grace: float = 30.0) -> Iterator[Self]:
        """Work in a thread of its own during the block.

        At its end, runs have *grace* seconds to end their steps; others are let go.
        """
        thread = threading.Thread(target=self.run, name="surehold-worker", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.stop()
            thread.join(grace)
            if thread.is_alive():
                self.let_go()

    def stop(self, reason: str = "the worker is stopping") -> None:
        """Claim nothing more, stop runs at their next step; from any thread or signal."""
        self._stopping.set()
        for active in [*self._active.values()]:
            active.scope.stop(reason)
        self._wake.set()

    def offer(self, run_id: str) -> None:
        """Claim this run before others if a thread is free soon: a hint, from any thread."""
        self._offered.append(run_id)
        self._wake.set()

    def take(self, run_id: str) -> str:
        """Claim this run and execute it in this thread; ``held`` without a claim."""
        with self._claiming:
            began = Moment.now()
            begun = [self._begin(claim, began) for claim in self._ask(1, run_id)]
        return self._execute(begun[0]) if begun else "held"

    def let_go(self) -> None:
        """Make the runs that are still executed ready for others, in the middle of a step.

        For a process that ends now. It counts as no failure, and no worker waits for their leases.
        """
        for active in [*self._active.values()]:
            run_id = active.claim.entry.run_id
            driven = Driven(run_id=run_id, outcome="interrupted")
            self._tell("run.let_go", run_id=run_id, state=self._settled(active, driven))

    def cancel(self, run_id: str) -> None:
        """Stop this run at its next step, if it is executed here; no worker continues it."""
        self._cancel({run_id})

    def _cancel(self, run_ids: set[str]) -> None:
        for active in [*self._active.values()]:
            if active.claim.entry.run_id in run_ids:
                active.scope.stop(CANCELLED)

    def ready(self, limit: int) -> list[str]:
        """The ids of runs that it could take next."""
        query = ClaimQuery(queues=self._queues, targets=self._targets, limit=limit)
        return [entry.run_id for entry in self._queue.ready(query, now=time.time())]

    @property
    def id(self) -> str:
        """A name that no other worker has."""
        return self._info.id

    @property
    def is_healthy(self) -> bool:
        """True while the worker looks for runs, or is full."""
        return time.monotonic() - self._beat < max(30.0, 3 * self._lease_seconds)

    @property
    def active(self) -> int:
        """The number of runs that it executes."""
        return len(self._active)

    # Claiming

    def _loop(self, pool: ThreadPoolExecutor, *, until_idle: bool) -> None:
        sweep_at = cancel_at = fire_at = expire_at = 0.0
        pause = _POLL
        while not self._stopping.is_set():
            now = time.monotonic()
            # A run that ends after the claim has looked may have made others ready.
            found, idle = 0, until_idle and not self._active and now >= self._resting_until
            try:
                if now >= sweep_at:
                    self._sweep()
                    self._announce(self._lease_seconds)
                    sweep_at = now + self._lease_seconds / 3 * random.uniform(0.8, 1.2)
                if now >= cancel_at:
                    self._stop_cancelled()
                    cancel_at = now + _LOOKS_FOR_CANCELLED
                if self._schedules and time.time() >= fire_at:
                    fire_at = self._fire()
                if self._expiry is not None and now >= expire_at:
                    expire_at = now + self._expire(self._expiry) * random.uniform(0.8, 1.2)
                found = self._claim(pool) if self._claims else 0
                self._beat = time.monotonic()
                pause = _POLL
            except StorageError as error:
                self._tell("storage.error", error=str(error))
                pause, idle = min(2 * pause, 10.0), False
            if idle and not found:
                return
            self._listen(self._idle and not self._active)
            self._wake.wait(self._until_next_look(pause))
            self._wake.clear()

    def _listen(self, idle: bool) -> None:
        """Be woken by whoever queues or answers a run, while there is nothing to do.

        A worker that is busy for long does not listen: appends that notify wait for each other.
        """
        now = time.monotonic()
        if idle:
            self._idle_at = now
            if self._subscription is None and isinstance(self._storage, Watching):
                self._subscription = self._storage.subscribe(self._hear)
        elif self._subscription is not None and now > self._idle_at + _BUSY_FOR:
            self._subscription.close()
            self._subscription = None

    def _hear(self, run_id: str | None) -> None:
        if not self._active:  # its own appends are no news
            self._wake.set()

    def _until_next_look(self, pause: float) -> float:
        if pause == _POLL and self._idle and not isinstance(self._storage, Watching):
            pause = _POLL_NEAR
        seconds = pause * random.uniform(0.5, 1.5)
        if self._due_in is None:
            return seconds
        return min(seconds, self._due_in + random.uniform(0, _HERD))

    def _announce(self, ttl: float) -> None:
        """List this worker in the storage; it works without."""
        try:
            self._queue.announce(self._info, now=time.time(), ttl=ttl)
        except SureholdError as error:
            self._tell("worker.not_announced", error=str(error))

    def _fire(self) -> float:
        """Begin the runs that schedules name for now; the time of the next ones."""
        more = False
        for one in self._schedules:
            try:
                fired = one.fire(self._manager)
                more = more or len(fired) > 1  # of many that were missed, there may be others
                for run_id in fired:
                    self._tell("schedule.fired", schedule=one.name, run_id=run_id)
            except StorageError:
                raise
            except SureholdError as error:
                self._tell("schedule.error", schedule=one.name, error=str(error))
        return 0.0 if more else min(one.next().timestamp() for one in self._schedules)

    def _expire(self, rule: Expiry) -> float:
        """Remove some runs that have expired; return the seconds until the next look."""
        gone = expire_some(self._manager, rule, _EXPIRED_AT_ONCE)
        if gone:
            self.metrics.count("expired", len(gone))
            self._tell("runs.expired", count=len(gone), first=gone[0], last=gone[-1])
        return _EXPIRES_EVERY if len(gone) < _EXPIRED_AT_ONCE else _POLL

    def _claim(self, pool: ThreadPoolExecutor) -> int:
        free = self._concurrency - len(self._active)
        if self._troubles:  # a single run tries whether the storage works again
            free = min(free, 1 - len(self._active))
        if free < 1 or time.monotonic() < self._resting_until:
            return 0
        offered = [self._offered.popleft() for _ in range(min(free, len(self._offered)))]
        found = sum(self._start(pool, 1, run_id) for run_id in offered)
        query = ClaimQuery(queues=self._queues, targets=self._targets)
        if self._idle and not found:
            # One look instead of the steps of a claim.
            self._due_in = self._queue.idle_for(query, now=time.time())
            if self._due_in != 0:
                return 0
        self._due_in = None
        started = self._start(pool, free - found)
        self._idle = not started
        return found + started

    def _start(self, pool: ThreadPoolExecutor, limit: int, run_id: str | None = None) -> int:
        began = Moment.now()
        claims = self._ask(limit, run_id) if limit else []
        for claim in claims:
            pool.submit(self._execute, self._begin(claim, began))
        return len(claims)

    def _ask(self, limit: int, run_id: str | None = None) -> list[Claim]:
        query = ClaimQuery(queues=self._queues, targets=self._targets, run_id=run_id, limit=limit)
        return self._queue.claim(query, self._owner, now=time.time(), ttl=self._lease_seconds)

    def _begin(self, claim: Claim, began: Moment) -> _Active:
        """Count a claimed run as active, from when on its lease is renewed."""
        grant = GrantedLease(claim.lease, self._lease_seconds, began)
        active = _Active(claim, grant, StopScope())
        if claim.entry.cancelled:
            active.scope.stop(CANCELLED)
        if self._stopping.is_set():
            active.scope.stop("the worker is stopping")
        for other in [*self._active.values()]:
            if other.claim.entry.run_id == claim.entry.run_id:
                self._lose(other.grant)  # an attempt that was frozen, say
        with self._lock:
            self._active[active.id] = active
        self.metrics.count("claimed")
        return active

    def _execute(self, active: _Active) -> str:
        entry = active.claim.entry
        facts = {"run_id": entry.run_id, "target": entry.target, "epoch": active.claim.lease.epoch}
        facts["attempt"] = entry.failures + 1
        self._tell("run.start", **facts, queue=entry.queue)
        try:
            with during(_executed, facts):
                driven = self._drive(active)
            state = self._settled(active, driven)
            told = {"seconds": round(driven.seconds, 6), "state": state}
            if driven.error:
                told["error"] = driven.error
            if driven.traceback:
                told["traceback"] = driven.traceback
            self.metrics.of(entry.queue, entry.target).driven(driven.outcome, driven.seconds)
            self._tell(f"run.{driven.outcome}", **facts, **told)
            return driven.outcome
        finally:
            with self._lock:
                self._active.pop(active.id, None)
            self._wake.set()

    def _drive(self, active: _Active) -> Driven:
        entry = active.claim.entry
        try:
            if entry.failures:
                with contextlib.suppress(DataError):  # drive reports it
                    active.began = self._manager.reader.newest_of(entry.run_id)
            driven = drive(
                entry.run_id,
                storage=self._storage,
                entry_point=entry.target.rpartition("@")[0],
                lease=active.grant,
                stop=active.scope,
                hook_manager=self._manager.hook_manager,
                metrics=self.metrics.of(entry.queue, entry.target),
            )
            self._troubles = 0
            return driven
        except StorageError as error:
            self._rest(error)
            return Driven(run_id=entry.run_id, outcome="failed", error=str(error))
        except BaseException as error:  # of the run's code: sys.exit() in a step, say
            text = f"{type(error).__name__}: {error}"
            return Driven(run_id=entry.run_id, outcome="failed", error=text)

    def _rest(self, error: StorageError) -> None:
        """Claim nothing for a while: the storage fails.

        A step whose outcome cannot be stored is executed again at the next attempt.
        """
        self.metrics.count("storage_errors")
        self._troubles += 1
        pause = min(_POLL * 2**self._troubles, _LONGEST_PAUSE)
        self._resting_until = time.monotonic() + pause
        self._tell("worker.rests", seconds=pause, error=str(error))

    def _settled(self, active: _Active, driven: Driven) -> str:
        """Store what becomes of the run; the state that its entry has then.

        ``kept`` if the storage fails: then a sweep tries it again.
        """
        if driven.outcome in ("lost", "held"):
            return driven.outcome
        try:
            after = self._after(active, driven)
        except SureholdError as error:  # the sweep treats the run as that of a worker that died
            self._tell("run.kept", run_id=driven.run_id, error=str(error))
            return "kept"
        try:
            return self._settle(active.claim.lease, after)
        except SureholdError as error:
            self._kept[active.id] = after
            self._tell("run.kept", run_id=driven.run_id, error=str(error))
            return "kept"

    def _settle(self, lease: Lease, after: QueueEntry | None, *, expired: bool = False) -> str:
        if not self._queue.settle(lease, after, now=time.time(), expired=expired):
            return "lost"
        if after is not None and after.state == "dead":
            self._bury(after)
        return after.state if after is not None else "completed"

    def _after(self, active: _Active, driven: Driven) -> QueueEntry | None:
        """The entry of a run that was driven; None if it is completed."""
        entry, outcome, now = active.claim.entry, driven.outcome, time.time()
        if (
            outcome == "completed"
            or outcome == "cancelled"
            or outcome == "lost"
            or outcome == "held"
        ):
            return None
        # A run that waits has not heard a request that came since the claim; see `after_drive`.
        if active.scope.message == CANCELLED and outcome != "waiting":
            entry = msgspec.structs.replace(entry, cancelled=True)
        settings, progressed = QueueSettings(), False
        if outcome == "failed":
            settings = self._queue.settings_of(entry.queue)
            progressed = has_progressed(self._storage, active.claim.lease, active.began)
        return after_drive(
            entry,
            outcome,
            settings,
            now=now,
            due=driven.due,
            reason=driven.error,
            progressed=progressed,
        )

    def _bury(self, entry: QueueEntry) -> None:
        """Record in the journal that the run is a dead letter."""
        self.metrics.count("dead")
        note = Note(kind=DEAD, content={}, metadata={"reason": entry.reason})
        try:
            self._manager.append_notes(entry.run_id, (note,))
        except ConflictError as error:
            self._tell("run.not_buried", run_id=entry.run_id, error=str(error))
        else:
            newest = self._manager.reader.newest_of(entry.run_id)
            if newest is not None and (parent := newest.metadata.get("parent_run")):
                tell_end(self._manager, entry.run_id, parent)
        self._tell("run.dead", run_id=entry.run_id, reason=entry.reason)

    # Looking after others

    def _sweep(self) -> None:
        """Take back the runs of workers that died or outlived their leases."""
        with self._claiming:
            found = self._queue.stale_claims(now=time.time(), host=self._owner.host)
            for gone in self._kept.keys() - {(one.entry.run_id, one.lease.epoch) for one in found}:
                del self._kept[gone]  # another worker has it
            for stale in found:
                owner = stale.lease.owner
                if owner is not None and owner == self._owner:
                    if (stale.entry.run_id, stale.lease.epoch) not in self._active:
                        self._take_back(stale, ours=True)
                elif stale.expired or (owner is not None and is_dead(owner)):
                    self._take_back(stale, ours=False)

    def _take_back(self, stale: StaleClaim, *, ours: bool) -> None:
        now, entry = time.time(), stale.entry
        id = entry.run_id, stale.lease.epoch
        after: QueueEntry | None
        if ours and id in self._kept:
            after = self._kept[id]
        elif ours:  # a claim whose answer was lost
            after = after_drive(entry, "interrupted", QueueSettings(), now=now)
        else:
            settings = self._queue.settings_of(entry.queue)
            progressed = has_progressed(self._storage, stale.lease)
            after = after_death(entry, settings, now=now, progressed=progressed)
        state = self._settle(stale.lease, after, expired=stale.expired)
        self._kept.pop(id, None)
        if state != "lost":
            self.metrics.count("taken_back")
            self._tell("run.taken_back", run_id=entry.run_id, epoch=id[1], state=state)

    def _stop_cancelled(self) -> None:
        ours = tuple({active.claim.entry.run_id for active in [*self._active.values()]})
        if ours:
            query = EntryQuery(state="running", cancelled=True, run_ids=ours)
            self._cancel({entry.run_id for entry in self._queue.entries(query)})

    def _renew(self) -> None:
        while not self._ended.wait(self._lease_seconds / 3):
            grants = [active.grant for active in [*self._active.values()]]
            held = [grant for grant in grants if grant.lost is None]
            if not held:
                continue
            began = Moment.now()
            try:
                lost = self._queue.renew_claims(
                    [grant.lease for grant in held], now=began.wall, ttl=self._lease_seconds
                )
            except SureholdError as error:
                self._tell("leases.not_renewed", error=str(error))
                for grant in held:
                    if grant.began.passed(Moment.now()) > grant.seconds:
                        grant.lose(error)
                continue
            for grant in held:
                lease = grant.lease
                if lease.run_id in lost:
                    self._lose(grant)
                else:
                    until = began.wall + self._lease_seconds
                    grant.lease = msgspec.structs.replace(lease, expires_at=until)
                    grant.began = began

    def _lose(self, grant: GrantedLease) -> None:
        run_id = grant.lease.run_id
        if grant.lost is not None or (run_id, grant.lease.epoch) not in self._active:
            return  # it may have been settled meanwhile
        self._tell("lease.lost", run_id=run_id, epoch=grant.lease.epoch)
        grant.lose(ConflictError(f"run {run_id!r} was taken over by another worker", run_id=run_id))

    def _tell(self, event: str, **facts: Any) -> None:
        self._log(event, facts)
