"""The lease of a run: acquired at its start, renewed, released at the end."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from typing import NamedTuple

from surehold.core.context import during
from surehold.core.records import Header, Lease
from surehold.engine.journal import Journal
from surehold.errors import ConflictError, LeaseHeldError, StorageError, SureholdError
from surehold.storage.base import (
    Leasing,
    Opening,
    RunInfo,
    TakenRun,
    abandon,
    is_left,
    start_thread,
    this_process,
)

logger = logging.getLogger("surehold.leases")

LEASE_SECONDS = 30.0
"""Seconds that a lease lasts after it was last renewed, as seen from another host."""


class Moment(NamedTuple):
    """A time by both clocks of this process."""

    wall: float
    monotonic: float

    @classmethod
    def now(cls, clock: Callable[[], float] = time.time) -> Moment:
        """This moment."""
        return cls(clock(), time.monotonic())

    def passed(self, now: Moment) -> float:
        """The seconds since, by the clock that counted more of them.

        The monotonic one stands still while a machine sleeps, and the other can be set back.
        """
        return max(now.wall - self.wall, now.monotonic - self.monotonic)


class GrantedLease:
    """A lease that a worker took with its claim, renews and releases itself.

    Whoever executes the run within `used` writes under it instead of taking one. *began* is the
    time before the claim.
    """

    def __init__(
        self, lease: Lease, seconds: float = LEASE_SECONDS, began: Moment | None = None
    ) -> None:
        self.lease = lease
        self.seconds = seconds
        self.began = began or Moment.now()
        self.lost: SureholdError | None = None
        self.on_lost: Callable[[SureholdError], None] | None = None

    def lose(self, error: SureholdError) -> None:
        """Tell the execution that another process has the run now; from any thread."""
        self.lost = error
        if self.on_lost is not None:
            self.on_lost(error)

    def used(self) -> AbstractContextManager[None]:
        """Have the run executed under this lease in the block."""
        return during(_granted, self)


_granted: ContextVar[GrantedLease | None] = ContextVar("surehold_granted", default=None)


class _InUse:
    """The leases that this process holds, in whichever storage, by run and epoch.

    Two storages may have a run of the same id and epoch, so each pair is counted.
    """

    def __init__(self) -> None:
        self._held: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()

    def add(self, lease: Lease) -> None:
        with self._lock:
            self._held[lease.run_id, lease.epoch] += 1

    def remove(self, lease: Lease) -> None:
        key = lease.run_id, lease.epoch
        with self._lock:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]

    def __contains__(self, lease: Lease) -> bool:
        return (lease.run_id, lease.epoch) in self._held


_in_use = _InUse()


class RunLease:
    """Holds the lease of a run for as long as the block lasts.

    Whoever holds the run names its *epoch* with everything it writes, so that nothing is appended
    once another holder has taken over. *on_lost* is called from the renewing thread
    if that happens. On a storage without leases every run is free.
    """

    def __init__(
        self,
        journal: Journal,
        run_id: str,
        *,
        seconds: float = LEASE_SECONDS,
        on_lost: Callable[[SureholdError], None] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._now = now
        self._journal = journal
        self._run_id = run_id
        self._seconds = seconds
        self._on_lost = on_lost
        self._lease: Lease | None = None
        self._began = Moment.now(now)
        self._renewing = threading.Lock()
        self._taken: TakenRun | None = None
        self.epoch: int | None = None
        """The number of times the run was taken, this one included; None without leases."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._grant: GrantedLease | None = None
        self.lost: SureholdError | None = None

    def acquire(self) -> RunLease:
        """Acquire the lease, or raise `LeaseHeldError` if a live process has it."""
        storage = self._journal.storage
        self._began = Moment.now(self._now)
        granted = _granted.get()
        if granted is not None and granted.lease.run_id == self._run_id:
            self._grant, granted.on_lost = granted, self._lose
            self._use(granted.lease)
            if granted.lost is not None:
                self._lose(granted.lost)
        elif isinstance(storage, Leasing):
            try:
                self._use(self._take(storage))
            except LeaseHeldError as error:
                if error.facts.get("owner") != this_process():
                    raise
                raise LeaseHeldError(
                    f"run {self._run_id!r} is open in this process already",
                    hint="end it first, or choose another run id",
                    **error.facts,
                ) from None
            except BaseException as error:
                if not isinstance(error, Exception) and self._lease is None:
                    self._abandon_taken(storage)
                raise
            self._thread = threading.Thread(
                target=self._renew,
                args=(storage,),
                name=f"surehold-lease-{self._run_id[:20]}",
                daemon=True,
            )
            start_thread(self._thread)
        return self

    def _take(self, storage: Leasing) -> Lease:
        try:
            return self._take_free(storage)
        except LeaseHeldError as error:
            if error.facts.get("owner") != this_process() or not self._release_late(storage):
                raise
            return self._take_free(storage)

    def _take_free(self, storage: Leasing) -> Lease:
        if self._journal.reader.recover is None and isinstance(storage, Opening):
            self._taken = storage.take_run(
                self._run_id, this_process(), now=self._now(), ttl=self._seconds
            )
            return self._taken.lease
        return storage.take_lease(self._run_id, this_process(), now=self._now(), ttl=self._seconds)

    def _release_late(self, storage: Leasing) -> bool:
        """Release a lease that this process could not release while the storage was away."""
        lease = storage.lease_of(self._run_id)
        if lease is None or lease in _in_use or not is_left(lease):
            return False
        storage.release_lease(lease)
        return True

    def ensure(self) -> None:
        """Raise a `ConflictError` if the lease has ended, before anything begins under it.

        A process that was frozen, or a machine that slept, finds out by its own clock. If nobody
        took the run meanwhile, the lease is renewed; a storage that fails raises its error.
        """
        grant, storage = self._grant, self._journal.storage
        began, seconds = (
            (self._began, self._seconds) if grant is None else (grant.began, grant.seconds)
        )
        now = Moment.now(self._now)
        if self._lease is None or began.passed(now) < seconds or not isinstance(storage, Leasing):
            return
        with self._renewing:
            lease = self._lease if grant is None else grant.lease
            try:
                renewed = storage.renew_lease(lease, now=now.wall, ttl=seconds)
            except ConflictError as error:
                self._lose(error)
                raise
            if grant is None:
                self._lease, self._began = renewed, now
            else:
                grant.lease, grant.began = renewed, now

    def head_and_newest(self) -> tuple[RunInfo, Header | None] | None:
        """The run as it was when its lease was taken, the first time; then as it is now.

        It is not older than the lease, so it has all that the holder before has appended.
        """
        taken, self._taken = self._taken, None
        if taken is None:
            return self._journal.reader.head_and_newest(self._run_id)
        return (taken.head, taken.newest) if taken.head is not None else None

    def _abandon_taken(self, storage: Leasing) -> None:
        """Abandon a lease that was stored when Ctrl-C came, and is not known here."""
        with suppress(Exception):
            lease = storage.lease_of(self._run_id)
            if lease is None or lease.owner != this_process():
                return
            if lease not in _in_use:
                abandon(lease)

    def _use(self, lease: Lease) -> None:
        self._lease, self.epoch = lease, lease.epoch
        _in_use.add(lease)
        self._journal.invalidate(self._run_id)
        self._journal.reader.held[self._run_id] = lease.epoch

    def release(self) -> None:
        """Stop renewing and release the lease.

        One that cannot be released, as on a full medium or after Ctrl-C, is free for this process
        at once, and for others when it expires or the process ends.
        """
        self._stop.set()
        lease = self._lease
        try:
            if self._thread is not None and self._thread is not threading.current_thread():
                with suppress(RuntimeError):  # Ctrl-C came before it was started
                    self._thread.join()
            lease = self._lease  # as it was renewed last
            if lease is not None:
                self._give_back(lease)
        except BaseException as error:
            if lease is not None:
                abandon(lease)
            if not isinstance(error, StorageError):
                raise
            logger.warning("run %s: its lease was not released: %s", self._run_id, error)
        finally:
            self._thread = None
            self._lease = lease
            self._forget()

    def _forget(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            _in_use.remove(lease)
            held = self._journal.reader.held
            if held.get(self._run_id) == lease.epoch:
                del held[self._run_id]

    def _give_back(self, lease: Lease) -> None:
        storage = self._journal.storage
        if self._grant is not None:
            self._grant.on_lost = None
        elif isinstance(storage, Leasing) and self.lost is None:
            storage.release_lease(lease)

    def _renew(self, storage: Leasing) -> None:
        while not self._stop.wait(self._seconds / 3):
            lease = self._lease
            if lease is None:
                return
            began = Moment.now(self._now)
            try:
                with self._renewing:
                    self._lease = storage.renew_lease(lease, now=began.wall, ttl=self._seconds)
                    self._began = began
            except ConflictError as error:
                self._lose(error)
                return
            except SureholdError as error:
                logger.warning("run %s: its lease was not renewed: %s", self._run_id, error)
                if self._began.passed(Moment.now(self._now)) > self._seconds:
                    self._lose(error)
                    return

    def _lose(self, error: SureholdError) -> None:
        self.lost = error
        if self._on_lost is not None:
            self._on_lost(error)

    def __enter__(self) -> RunLease:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class SavedLease(RunLease):
    """A lease that is renewed by saves: no thread does it, and a process shares it.

    A run that was not saved for a while may be taken over by another process. The next save of the
    first takes it back, or raises `LeaseHeldError`.
    """

    def acquire(self) -> RunLease:
        """Take or renew the lease; a `LeaseHeldError` if another live process holds it."""
        storage, lease = self._journal.storage, self._lease
        is_fresh = lease is not None and lease.expires_at - self._now() > self._seconds / 2
        if is_fresh or not isinstance(storage, Leasing):
            return self
        try:
            if not self._renewed(storage):
                self._use(self._take(storage))
        except LeaseHeldError as error:
            self.lose()
            if error.owner != this_process():
                raise
        except StorageError:
            pass  # the save meets the same medium, and its policy decides
        return self

    def _renewed(self, storage: Leasing) -> bool:
        if self._lease is None:
            return False
        try:
            self._lease = storage.renew_lease(self._lease, now=self._now(), ttl=self._seconds)
        except ConflictError:
            self.lose()
            return False
        return True

    def lose(self) -> None:
        """Forget the lease: somebody else saved to the run."""
        self._forget()
        self.epoch = None
        self._journal.invalidate(self._run_id)

    def release(self) -> None:
        """Let others save to the run."""
        super().release()
        self._stop.clear()
        self.epoch = None
