"""Leases on top of one atomic read-modify-write per run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from surehold.core.records import Lease, Owner, check_run_id, released, renewed, taken
from surehold.errors import StorageUnavailableError
from surehold.storage.base import Storage, TakenRun, take_and_look
from surehold.storage.process import owner_is_dead

R = TypeVar("R")

_TRIES = 20


def take(
    held: Lease | None, run_id: str, owner: Owner, *, now: float, ttl: float, above: int
) -> Lease:
    """The lease of *owner* after *held*, or `LeaseHeldError`; asks this host."""
    dead = owner_is_dead(held)
    return taken(held, run_id, owner, now=now, ttl=ttl, owner_is_dead=dead, above=above)


class LeaseSlots(ABC):
    """The `Leasing` ability of a medium that can change one run's lease atomically.

    A lease outlives its run: `Storage.delete` leaves it, so that a stale writer is still refused.
    """

    @abstractmethod
    def change_lease(
        self, run_id: str, change: Callable[[Lease | None], Lease | None]
    ) -> Lease | None:
        """Replace the newest lease of a run by the result of *change*, and return it.

        Reading, changing and storing are one atomic step. *change* may be called again where a
        medium compares and swaps. If it raises or returns None, the lease does not change.
        """

    @abstractmethod
    def lease_of(self, run_id: str) -> Lease | None: ...

    def take_lease(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> Lease:
        check_run_id(run_id)
        lease = self.change_lease(
            run_id, lambda held: take(held, run_id, owner, now=now, ttl=ttl, above=above)
        )
        assert lease is not None
        return lease

    def take_run(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> TakenRun:
        assert isinstance(self, Storage)
        return take_and_look(self, run_id, owner, now=now, ttl=ttl, above=above)

    def renew_lease(self, lease: Lease, *, now: float, ttl: float) -> Lease:
        newest = self.change_lease(
            lease.run_id, lambda held: renewed(held, lease, now=now, ttl=ttl)
        )
        assert newest is not None
        return newest

    def release_lease(self, lease: Lease) -> None:
        self.change_lease(lease.run_id, lambda held: released(held, lease))


class SwappedLeases(LeaseSlots, Generic[R]):
    """Leases in rows of a server that compares and swaps, with its own clock."""

    _clock: Callable[[], float]

    @abstractmethod
    def _lease_row(self, run_id: str) -> R | None: ...

    @abstractmethod
    def _held(self, run_id: str, row: R, now: float) -> Lease:
        """The lease in *row*, whose end is told by the clock that reads *now*."""

    @abstractmethod
    def _put_lease(self, lease: Lease, seen: R | None, now: float) -> bool:
        """Store *lease* if the one that was *seen* is still the newest.

        A new token tells an attempt whose answer was lost from the lease of another.
        """

    def change_lease(
        self, run_id: str, change: Callable[[Lease | None], Lease | None]
    ) -> Lease | None:
        for _ in range(_TRIES):
            row = self._lease_row(run_id)
            now = self._clock()
            lease = change(None if row is None else self._held(run_id, row, now))
            if lease is None or self._put_lease(lease, row, now):
                return lease
        raise StorageUnavailableError(
            f"the lease of run {run_id!r} changed {_TRIES} times meanwhile", run_id=run_id
        )

    def lease_of(self, run_id: str) -> Lease | None:
        row = self._lease_row(run_id)
        return None if row is None else self._held(run_id, row, self._clock())
