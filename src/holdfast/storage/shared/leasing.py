"""Leases on top of one atomic read-modify-write per run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from holdfast.core.records import Lease, Owner, check_run_id, released, renewed, taken
from holdfast.storage.process import owner_is_dead


class LeaseSlots(ABC):
    """The `Leasing` ability of a medium that can change one run's lease atomically.

    A lease outlives its run: `Storage.delete` leaves it, so that a stale writer is still refused.
    """

    @abstractmethod
    def change_lease(
        self, run_id: str, change: Callable[[Lease | None], Lease | None]
    ) -> Lease | None:
        """Replace the newest lease of a run by what *change* makes of it; returns that.

        Reading, changing and storing are one atomic step. *change* may be called again where a
        medium compares and swaps; what it raises leaves the lease as it is, and so does None.
        """

    @abstractmethod
    def lease_of(self, run_id: str) -> Lease | None: ...

    def take_lease(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> Lease:
        check_run_id(run_id)

        def take(held: Lease | None) -> Lease:
            dead = owner_is_dead(held)
            return taken(held, run_id, owner, now=now, ttl=ttl, owner_is_dead=dead, above=above)

        lease = self.change_lease(run_id, take)
        assert lease is not None
        return lease

    def renew_lease(self, lease: Lease, *, now: float, ttl: float) -> Lease:
        newest = self.change_lease(
            lease.run_id, lambda held: renewed(held, lease, now=now, ttl=ttl)
        )
        assert newest is not None
        return newest

    def release_lease(self, lease: Lease) -> None:
        self.change_lease(lease.run_id, lambda held: released(held, lease))
