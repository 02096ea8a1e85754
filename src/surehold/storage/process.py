"""The identity and threads of this process, and liveness of others on this host."""

from __future__ import annotations

import os
import socket
import threading
from collections import OrderedDict
from functools import cache
from pathlib import Path

from surehold.core.records import Lease, Owner
from surehold.core.values import remember

_PROC = Path("/proc")
_MOST_ABANDONED = 1024
_abandoned: OrderedDict[tuple[str, int, float], None] = OrderedDict()
_left: OrderedDict[tuple[str, int], None] = OrderedDict()


def this_process() -> Owner:
    """The owner that this process is."""
    pid = os.getpid()
    return Owner(_host(), _boot(), pid, _started(pid) or "")


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; Ctrl-C meanwhile raises `KeyboardInterrupt`.

    An interrupt between two locks in `threading.Thread.start` makes Python raise ``RuntimeError:
    release unlocked lock`` instead.
    """
    try:
        thread.start()
    except RuntimeError as error:
        interrupt = error.__context__
        if interrupt is None or isinstance(interrupt, Exception):
            raise
        raise interrupt from None


def is_dead(owner: Owner) -> bool:
    """True only if *owner* is known to have ended: same host, and no such process now.

    A process that cannot be looked up (another host, no /proc) is taken to be alive; its lease
    has to expire.
    """
    if owner.host != _host():
        return False
    if owner.boot != _boot():
        return True
    if not owner.started:
        return False
    return _started(owner.pid) != owner.started


def abandon(lease: Lease) -> None:
    """Note that this process no longer uses a lease, which it could not release."""
    key = lease.run_id, lease.epoch, lease.expires_at
    remember(_abandoned, key, None, most=_MOST_ABANDONED)
    leave(lease)


def leave(lease: Lease) -> None:
    """Note that this process released a lease, whatever storages that were away say."""
    remember(_left, (lease.run_id, lease.epoch), None, most=_MOST_ABANDONED)


def is_left(lease: Lease) -> bool:
    """True if this process released or abandoned the lease, perhaps since renewed."""
    return lease.owner == this_process() and (lease.run_id, lease.epoch) in _left


def owner_is_dead(lease: Lease | None) -> bool:
    """True if a lease's owner is known to have ended, or to have abandoned the lease."""
    if lease is None or lease.owner is None:
        return False
    if (lease.run_id, lease.epoch, lease.expires_at) in _abandoned:
        return lease.owner.pid == os.getpid()
    return is_dead(lease.owner)


def is_live(lease: Lease | None, now: float) -> bool:
    """Return True if a process not known to have ended holds *lease* at *now*."""
    if lease is None or lease.owner is None or lease.expires_at <= now:
        return False
    return not owner_is_dead(lease)


@cache
def _host() -> str:
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = ""
    return f"{socket.gethostname()}/{namespace}"


@cache
def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """The start time of *pid* in ticks since boot; None if no such process is alive."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except FileNotFoundError:
        return None if _PROC.joinpath("self/stat").exists() else ""
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
