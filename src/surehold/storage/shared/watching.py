"""Waiting for changes: by a medium's notifications, else by polling."""

from __future__ import annotations

import threading
import time

from surehold.core.closing import Closing
from surehold.storage.base import RecordQuery, Storage, Watching
from surehold.storage.notifications import Subscription

_POLL = 0.5
_POLL_BESIDE_NOTIFICATIONS = 10.0


class RunWatch(Closing):
    """Waits until a run, or any run if *run_id* is None, is not what it was.

    A notification makes it look at once. Without notifications it looks every *every* seconds,
    and beside them seldom, so that one that was lost delays it and no more.
    """

    def __init__(
        self, storage: Storage, run_id: str | None = None, *, every: float = _POLL
    ) -> None:
        self._storage = storage
        self._run_id = run_id
        self._every = every
        self._nudged = threading.Event()
        self._subscription = (
            storage.subscribe(self._hear) if isinstance(storage, Watching) else Subscription()
        )
        self._seen = self._look()

    @property
    def is_live(self) -> bool:
        """True while notifications arrive."""
        return self._subscription.is_live

    def wait(self, timeout: float) -> bool:
        """Wait for a change since the last call; False after *timeout* seconds."""
        give_up = time.monotonic() + timeout
        while (now := self._look()) == self._seen:
            left = give_up - time.monotonic()
            if left <= 0:
                return False
            beside = max(self._every, _POLL_BESIDE_NOTIFICATIONS)
            self._nudged.wait(min(left, beside if self.is_live else self._every))
            self._nudged.clear()
        self._seen = now
        return True

    def close(self) -> None:
        """End the watch. Closing twice is allowed."""
        self._subscription.close()

    def _hear(self, run_id: str | None) -> None:
        if self._run_id is None or run_id in (None, self._run_id):
            self._nudged.set()

    def _look(self) -> object:
        if self._run_id is not None:
            return self._storage.head_and_newest(self._run_id)
        return next(iter(self._storage.headers(RecordQuery(limit=1, notes=True))), None)
