"""Notifications of a medium, and the thread that passes them on."""

from __future__ import annotations

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from surehold.storage.process import start_thread

logger = logging.getLogger("surehold.storage")

_FIRST_WAIT, _LONGEST_WAIT = 0.2, 5.0

Notify = Callable[[str | None], None]
"""A function that is called with the id of a run that changed, or None if any may have."""


class Subscription:
    """Notifications of one medium, until it is closed."""

    def __init__(
        self, listener: ChangeListener | None = None, notify: Notify = lambda _: None
    ) -> None:
        self._listener = listener
        self._notify = notify

    @property
    def is_live(self) -> bool:
        """True while notifications arrive; else the reader has to poll."""
        return self._listener is not None and self._listener.is_live

    def tell(self, run_id: str | None) -> None:
        """Pass a notification on."""
        self._notify(run_id)

    def close(self) -> None:
        """End the notifications. Closing twice is allowed."""
        if self._listener is not None:
            self._listener.remove(self)


class ChangeListener(ABC):
    """One thread with its own connection that feeds a storage's subscriptions.

    It runs while there are any. A lost connection is opened again, and every subscription is then
    told that any run may have changed.
    """

    def __init__(self) -> None:
        self.is_live = False
        self._lock = threading.Lock()
        self._subscriptions: list[Subscription] = []
        self._stop = threading.Event()
        self._pid = os.getpid()

    @abstractmethod
    def listen(self, stop: threading.Event) -> bool:
        """Connect, set `is_live`, and `tell` of changes until *stop* is set.

        Returns False if the medium sends no notifications: there is no second attempt then. An
        exception ends this attempt only.
        """

    def subscribe(self, notify: Notify) -> Subscription:
        """Call *notify* for every change, from another thread."""
        subscription = Subscription(self, notify)
        with self._lock:
            if self._pid != os.getpid():
                # The thread and the subscriptions of the parent have stayed there.
                self._pid, self._subscriptions, self.is_live = os.getpid(), [], False
            self._subscriptions.append(subscription)
            if len(self._subscriptions) == 1:
                self._stop = threading.Event()
                work = threading.Thread(
                    target=self._run, args=(self._stop,), name="surehold-listen", daemon=True
                )
                start_thread(work)
        return subscription

    def remove(self, subscription: Subscription) -> None:
        """End one subscription, and the thread with the last one."""
        with self._lock:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)
            if not self._subscriptions:
                self._stop.set()

    def close(self) -> None:
        """End all subscriptions."""
        with self._lock:
            self._subscriptions.clear()
            self._stop.set()

    def tell(self, run_id: str | None) -> None:
        """Pass a notification on to all subscriptions."""
        with self._lock:
            found = list(self._subscriptions)
        for subscription in found:
            subscription.tell(run_id)

    def _run(self, stop: threading.Event) -> None:
        wait = _FIRST_WAIT
        while not stop.is_set():
            began = time.monotonic()
            try:
                if not self.listen(stop):
                    return
            except Exception as error:
                logger.debug("the connection for notifications was lost: %r", error)
            finally:
                if not stop.is_set():
                    self.is_live = False
            wait = _FIRST_WAIT if time.monotonic() - began > wait else min(2 * wait, _LONGEST_WAIT)
            stop.wait(wait)


class Listening:
    """The `Watching` ability of a medium that has a `ChangeListener`."""

    _listener: ChangeListener

    def subscribe(self, notify: Notify) -> Subscription:
        return self._listener.subscribe(notify)
