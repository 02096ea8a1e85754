"""The lease: the right of one process to run a run, and the rule for taking it."""

from __future__ import annotations

import msgspec

from holdfast.errors import LeaseHeldError

__all__ = ["Lease", "Owner", "check_free"]


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
