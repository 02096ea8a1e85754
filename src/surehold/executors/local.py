"""The executor of one process: a few threads that drive runs."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait

from surehold.core.closing import Closing
from surehold.core.policy import CANCELLED
from surehold.engine.runs import StopScope
from surehold.errors import UsageError
from surehold.executors.driving import Driven, drive
from surehold.storage.base import Storage
from surehold.storage.registry import open_storage


class LocalExecutor(Closing):
    """Drives runs in threads of this process; a timed wait is driven again later."""

    def __init__(self, storage: Storage | str | None = None, *, concurrency: int = 8) -> None:
        if concurrency < 1:
            raise UsageError(f"concurrency is {concurrency}", hint="give 1 or more")
        self._owns_storage = not isinstance(storage, Storage)
        self._storage = open_storage(storage)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="surehold-drive")
        self._scopes: dict[str, StopScope] = {}
        self._again: set[str] = set()
        """Runs that were submitted while they were driven here."""
        self._futures: set[Future[Driven]] = set()
        self._timers: dict[str, threading.Timer] = {}
        self._closed = False

    def submit(self, run_id: str) -> Future[Driven]:
        """Have the run driven by the next free thread; see `Executor.submit`."""
        with self._lock:
            if self._closed:
                raise UsageError("the executor is closed", hint="make another one")
            timer = self._timers.pop(run_id, None)
            if timer is not None:
                timer.cancel()
            future = self._pool.submit(self._drive, run_id)
            self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def cancel(self, run_id: str) -> None:
        """See `Executor.cancel`."""
        with self._lock:
            scope = self._scopes.get(run_id)
            self._again.discard(run_id)
        if scope is not None:
            scope.stop(CANCELLED)

    def close(self, timeout: float | None = None) -> None:
        """See `Executor.close`."""
        with self._lock:
            self._closed = True
            scopes, timers = [*self._scopes.values()], [*self._timers.values()]
            futures = [*self._futures]
        for timer in timers:
            timer.cancel()
        for scope in scopes:
            scope.stop("the executor is closing")
        wait(futures, timeout)
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._owns_storage:
            self._storage.close()

    def _drive(self, run_id: str) -> Driven:
        scope = StopScope()
        with self._lock:
            if self._closed or run_id in self._scopes:
                # The drive may be past the answer that this one is for: the run is driven again.
                self._again.add(run_id)
                return Driven(run_id=run_id, outcome="held")
            self._scopes[run_id] = scope
        try:
            driven = drive(run_id, storage=self._storage, stop=scope)
        finally:
            with self._lock:
                del self._scopes[run_id]
                again = run_id in self._again
                self._again.discard(run_id)
        if again:
            self._resubmit(run_id)
        elif driven.outcome == "waiting" and driven.due is not None:
            self._later(run_id, driven.due)
        return driven

    def _later(self, run_id: str, due: float) -> None:
        timer = threading.Timer(max(0.0, due - time.time()), self._resubmit, (run_id,))
        timer.daemon = True
        with self._lock:
            if not self._closed:
                self._timers[run_id] = timer
                timer.start()

    def _resubmit(self, run_id: str) -> None:
        with self._lock:
            if self._closed:
                return
        self.submit(run_id)
