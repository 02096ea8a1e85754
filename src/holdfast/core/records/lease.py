"""The lease: the right of one process to run a run, and the rule for taking it."""

from __future__ import annotations

import msgspec

from holdfast.errors import ConflictError, LeaseHeldError

__all__ = ["Lease", "Owner", "check_free", "released", "renewed", "taken"]


class Owner(msgspec.Struct, frozen=True):
    """Who holds a lease: enough to tell on the same host whether that process still lives."""

    host: str
    boot: str
    pid: int
    started: str
    """When the process started, as its host counts, so that a reused pid is not mistaken."""


class Lease(msgspec.Struct, frozen=True):
    """The right to run a run, until it expires. Each taking raises the epoch."""

    run_id: str
    epoch: int
    owner: Owner | None
    """None once it is released."""
    expires_at: float


def check_free(lease: Lease | None, *, now: float, owner_is_dead: bool) -> None:
    """Raise `LeaseHeldError` unless the run that *lease* is of may be taken."""
    if lease is None or lease.owner is None or lease.expires_at <= now or owner_is_dead:
        return
    holder = lease.owner
    raise LeaseHeldError(
        f"run {lease.run_id!r} is held by process {holder.pid} on {holder.host.partition('/')[0]}"
        f" for another {lease.expires_at - now:.0f} s",
        run_id=lease.run_id,
        owner=holder,
        until=lease.expires_at,
    )


def taken(
    held: Lease | None, run_id: str, owner: Owner, *, now: float, ttl: float, owner_is_dead: bool
) -> Lease:
    """The lease that *owner* gets of a run whose newest lease is *held*, or `LeaseHeldError`."""
    check_free(held, now=now, owner_is_dead=owner_is_dead)
    return Lease(run_id, held.epoch + 1 if held else 1, owner, now + ttl)


def renewed(newest: Lease | None, lease: Lease, *, now: float, ttl: float) -> Lease:
    """*lease* prolonged, if it is still the newest; else `ConflictError`."""
    if newest is None or not _is_same(newest, lease):
        raise ConflictError(
            f"the lease of run {lease.run_id!r} with epoch {lease.epoch} was lost",
            run_id=lease.run_id,
            epoch=newest.epoch if newest else 0,
        )
    return msgspec.structs.replace(newest, expires_at=now + ttl)


def released(newest: Lease | None, lease: Lease) -> Lease | None:
    """What is left of *lease* when it is given back; None if it was lost before."""
    if newest is None or not _is_same(newest, lease):
        return None
    return msgspec.structs.replace(newest, owner=None)


def _is_same(newest: Lease, lease: Lease) -> bool:
    return newest.owner is not None and (newest.epoch, newest.owner) == (lease.epoch, lease.owner)
