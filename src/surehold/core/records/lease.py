"""Leases: which process may write to a run, and when another may take over."""

from __future__ import annotations

import msgspec

from surehold.errors import ConflictError, LeaseHeldError


class Owner(msgspec.Struct, frozen=True):
    """The process that holds a lease; its host can tell whether it lives."""

    host: str
    boot: str
    pid: int
    started: str
    """The process's start time by its host's clock; it exposes a reused pid."""


class Lease(msgspec.Struct, frozen=True):
    """The right to write to a run until it expires; each new lease has a higher epoch."""

    run_id: str
    epoch: int
    owner: Owner | None
    """None once it is released."""
    expires_at: float


def check_free(lease: Lease | None, *, now: float, owner_is_dead: bool) -> None:
    """Raise `LeaseHeldError` while another process holds *lease*."""
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
    held: Lease | None,
    run_id: str,
    owner: Owner,
    *,
    now: float,
    ttl: float,
    owner_is_dead: bool,
    above: int = 0,
) -> Lease:
    """The lease that *owner* gets after *held*, the run's newest, or `LeaseHeldError`.

    Its epoch is higher than that of *held* and than *above*.
    """
    check_free(held, now=now, owner_is_dead=owner_is_dead)
    return Lease(run_id, max(held.epoch if held else 0, above) + 1, owner, now + ttl)


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
    """*lease* without an owner, its epoch kept; None if it is not the newest any more."""
    if newest is None or not _is_same(newest, lease):
        return None
    return msgspec.structs.replace(newest, owner=None)


def _is_same(newest: Lease, lease: Lease) -> bool:
    return newest.owner is not None and (newest.epoch, newest.owner) == (lease.epoch, lease.owner)
