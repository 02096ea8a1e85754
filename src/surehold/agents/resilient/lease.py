"""The lease of an agent's run, renewed whenever the agent saves."""

from __future__ import annotations

import time
from collections.abc import Callable

from surehold.core.records import Lease
from surehold.engine.journal import Journal
from surehold.engine.runs import LEASE_SECONDS
from surehold.errors import ConflictError, LeaseHeldError, StorageError
from surehold.storage.base import Leasing, this_process


class AgentLease:
    """The right to save for one agent: taken by its first save, renewed by later ones.

    No thread renews it: an agent that has not saved for a while may be taken over by another
    process, and the next save of the first takes it back or raises `LeaseHeldError`. Managers of
    one process share the right.
    """

    def __init__(self, journal: Journal, run_id: str, now: Callable[[], float] = time.time) -> None:
        self._journal = journal
        self._run_id = run_id
        self._now = now
        self._lease: Lease | None = None

    def acquire(self) -> None:
        """Take or renew the lease; a `LeaseHeldError` if another live process holds it."""
        storage, now = self._journal.storage, self._now()
        if not isinstance(storage, Leasing):
            return
        if self._lease is not None and self._lease.expires_at - now > LEASE_SECONDS / 2:
            return
        try:
            self._lease = self._renewed(storage, now) or storage.take_lease(
                self._run_id, this_process(), now=now, ttl=LEASE_SECONDS
            )
        except LeaseHeldError as error:
            self._lease = None
            if error.owner != this_process():
                raise
        except StorageError:
            return  # the save meets the same medium, and its policy decides

    @property
    def epoch(self) -> int | None:
        """The epoch to save under; None without leases, or if another manager here has it."""
        return self._lease.epoch if self._lease is not None else None

    def _renewed(self, storage: Leasing, now: float) -> Lease | None:
        if self._lease is None:
            return None
        try:
            return storage.renew_lease(self._lease, now=now, ttl=LEASE_SECONDS)
        except ConflictError:
            self._journal.invalidate(self._run_id)
            return None

    def lose(self) -> None:
        """Forget the lease: somebody else saved for the agent."""
        self._lease = None

    def release(self) -> None:
        """Let others save for the agent."""
        storage, lease = self._journal.storage, self._lease
        self.lose()
        if lease is not None and isinstance(storage, Leasing):
            storage.release_lease(lease)
