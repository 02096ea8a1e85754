"""Leases in several storages, so that a copy gives them while the primary fails."""

from __future__ import annotations

from collections.abc import Callable

from surehold.core.records import Lease, Owner, check_free
from surehold.errors import ConflictError, CorruptError, StorageError, SureholdError, UsageError
from surehold.storage.base import Leasing, Storage, abandon, leave, newest_record
from surehold.storage.process import owner_is_dead
from surehold.storage.replicated.reads import Reads, check_whole
from surehold.storage.replicated.replicas import Replica, Replicas, has_failed


class CopiedLeases:
    """The leases of all storages.

    The first storage that works gives a lease, the others repeat it. A higher epoch replaces a
    lower one wherever it was given; for the same epoch the word of the first storage counts. A
    storage that was away is told of the lease with its next renewal.
    """

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def take(self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int) -> Lease:
        """Take the lease in the first storage that works, then in the others."""
        # Another process may have saved to a fallback under the lease before.
        self._replicas.unsettle(run_id)
        start = self._replicas.settle(run_id)
        elsewhere = self._leases_after(start, run_id)
        newest = max(elsewhere.values(), key=lambda lease: lease.epoch, default=None)
        above = max(above, newest.epoch if newest else 0)

        def give(replica: Replica) -> Lease:
            check_whole(replica, run_id)
            if newest is not None and not _is_dead_or_over(newest, now):
                held = self._replicas.call(
                    replica, "take_lease", lambda s: _leasing(s).lease_of(run_id)
                )
                if held is None or held.epoch < newest.epoch:
                    check_free(newest, now=now, owner_is_dead=False)
            # It is not tried again: the first attempt may have taken it, and would be in the way.
            return self._replicas.call(
                replica,
                "take_lease",
                lambda s: _take(s, run_id, owner, now=now, ttl=ttl, above=above),
                again=False,
            )

        giver, lease = Reads(self._replicas).first("take_lease", give, start)
        for replica in self._after(giver.number):
            try:
                self._replicas.call(
                    replica, "copy", lambda s: _repeat(_leasing(s), lease, now=now, ttl=ttl)
                )
            except (StorageError, CorruptError, ConflictError):
                continue  # it is told with the next renewal, once it works
        return lease

    def renew(self, lease: Lease, *, now: float, ttl: float) -> Lease:
        """Renew the lease in all storages; a `ConflictError` if it was taken over.

        A storage that does not know the lease takes it if another one does, or if it has records
        that were saved under it.
        """
        said: dict[int, Lease | SureholdError] = {}

        def ask(replica: Replica, renew: Callable[[Leasing], Lease]) -> None:
            try:
                said[replica.number] = self._replicas.call(
                    replica, "renew_lease", lambda s: renew(_leasing(s))
                )
            except ConflictError as error:
                if error.facts.get("epoch", 0) > lease.epoch:
                    raise
                said[replica.number] = error
            except (StorageError, CorruptError) as error:
                if not has_failed(error):
                    raise
                said[replica.number] = error

        every = self._after(-1)
        for replica in reversed(every):  # a later lease is met before this is prolonged
            ask(replica, lambda s: s.renew_lease(lease, now=now, ttl=ttl))
        strange = [one for one in every if isinstance(said[one.number], ConflictError)]
        known = any(isinstance(one, Lease) for one in said.values())
        for replica in strange:
            if known or self._newest_epoch(replica, lease.run_id) == lease.epoch:
                ask(replica, lambda s: _repeat(s, lease, now=now, ttl=ttl))
        answers = [said[one.number] for one in every]
        told = [one for one in answers if isinstance(one, Lease | ConflictError)] or answers
        if isinstance(told[0], Lease):
            return told[0]
        raise told[0]

    def _newest_epoch(self, replica: Replica, run_id: str) -> int:
        """The epoch under which the newest record of a run was saved."""
        try:
            return self._replicas.call(replica, "renew_lease", lambda s: _newest_epoch(s, run_id))
        except (StorageError, CorruptError):
            return 0

    def release(self, lease: Lease) -> None:
        """Release the lease in every storage that works; in the others it runs out.

        This process can take it again at once, also from a disk that comes back with it.
        """
        leave(lease)
        for replica in self._after(-1):
            try:
                self._replicas.call(
                    replica, "release_lease", lambda s: _leasing(s).release_lease(lease)
                )
            except (StorageError, CorruptError) as error:
                abandon(lease)
                run_id = lease.run_id
                self._replicas.tell("behind", replica, "release_lease", run_id=run_id, error=error)

    def lease_of(self, run_id: str) -> Lease | None:
        """The newest lease that the first storage that works knows."""
        return Reads(self._replicas).first(
            "lease_of",
            lambda replica: self._replicas.call(
                replica, "lease_of", lambda s: _leasing(s).lease_of(run_id)
            ),
        )[1]

    def _after(self, number: int) -> list[Replica]:
        """The storages after that one which can lease, or were not opened yet."""
        return [one for one in self._replicas.all[number + 1 :] if one.may_lease]

    def _leases_after(self, number: int, run_id: str) -> dict[int, Lease]:
        """The leases that the storages after that one know of."""
        found: dict[int, Lease] = {}
        for replica in self._after(number):
            try:
                lease = self._replicas.call(
                    replica, "take_lease", lambda s: _leasing(s).lease_of(run_id)
                )
            except (StorageError, CorruptError):
                continue
            if lease is not None:
                found[replica.number] = lease
        return found


def _leasing(storage: Storage) -> Leasing:
    if isinstance(storage, Leasing):
        return storage
    raise UsageError(f"a {type(storage).__name__} cannot lease runs, as a primary must")


def _is_dead_or_over(lease: Lease, now: float) -> bool:
    return lease.owner is None or lease.expires_at <= now or owner_is_dead(lease)


def _take(
    storage: Storage, run_id: str, owner: Owner, *, now: float, ttl: float, above: int
) -> Lease:
    """Take a lease with a higher epoch than any that the run's newest record names.

    A storage that was lost and given its runs again from another has lost its leases.
    """
    known = max(above, _newest_epoch(storage, run_id))
    return _leasing(storage).take_lease(run_id, owner, now=now, ttl=ttl, above=known)


def _newest_epoch(storage: Storage, run_id: str) -> int:
    newest = newest_record(storage, run_id)
    return newest.epoch if newest else 0


def _repeat(storage: Leasing, lease: Lease, *, now: float, ttl: float) -> Lease:
    """Take the lease that another storage gave; else a `ConflictError`."""
    held = storage.lease_of(lease.run_id)
    if held is None or held.epoch < lease.epoch:
        assert lease.owner is not None
        if held is not None and held.owner is not None:
            storage.release_lease(held)  # it ended where this one was given
        above = lease.epoch - 1
        got = storage.take_lease(lease.run_id, lease.owner, now=now, ttl=ttl, above=above)
        if got.epoch == lease.epoch:
            return got
        storage.release_lease(got)
        held = got
    raise ConflictError(
        f"the lease of run {lease.run_id!r} with epoch {lease.epoch} was lost",
        run_id=lease.run_id,
        epoch=held.epoch,
    )
