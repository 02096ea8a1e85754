"""Facts about a Redis or Valkey server, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from surehold.storage.base import Fact
from surehold.storage.redis.connections import ServerConnections
from surehold.storage.redis.durability import Facts, decide
from surehold.storage.shared import measure

_FULL = 0.9
"""The part of the memory in use from which on it is a problem."""


def diagnose(db: ServerConnections, settings: list[Facts], *, replicas: int) -> list[Fact]:
    """Version, latency, durability, memory and clock of the first server."""
    server, first = db.servers()[0], settings[0]
    info: Mapping[str, Any] = server.info()
    waiting, lost = decide(first, replicas=replicas)
    reasons = "; ".join(reason for reason, _ in lost)
    hints = "; ".join(hint for _, hint in lost)
    policy = (
        "appendonly no"
        if not first.appends
        else f"appendonly yes, appendfsync {first.syncs or 'unknown'}"
    )
    return [
        Fact("server", first.version + (f", {len(settings)} primaries" * first.is_cluster)),
        *measure(lambda: _seconds(server.time())),
        Fact("durability", policy, reasons, hints),
        Fact("an append waits for", _waiting(waiting.disk, waiting.replicas, first.syncs)),
        _last_write(info),
        _replicas(info, replicas),
        _memory(info, first),
        Fact("encryption", "TLS" if db.is_encrypted else "none", *_clear(db)),
    ]


def _seconds(moment: tuple[int, int]) -> float:
    return moment[0] + moment[1] / 1e6


def _waiting(disk: bool, replicas: int, syncs: str | None) -> str:
    own = "its disk" if disk or syncs == "always" else "the server's memory"
    return f"{own} and {replicas} replicas" if replicas else own


def _last_write(info: Mapping[str, Any]) -> Fact:
    state = str(info.get("aof_last_write_status", "unknown"))
    failed = state == "err"
    return Fact(
        "last write to its disk",
        state,
        "the append-only file could not be written" if failed else "",
        "look at the server's log and the free space of its disk" if failed else "",
    )


def _replicas(info: Mapping[str, Any], wanted: int) -> Fact:
    count = int(info.get("connected_slaves", 0))
    lacking = count < wanted
    return Fact(
        "replicas",
        str(count),
        f"saves wait for {wanted}, and fail" if lacking else "",
        f"connect replicas, or give replicas={count} in the address" if lacking else "",
    )


def _memory(info: Mapping[str, Any], facts: Facts) -> Fact:
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    full = bool(most) and used >= most * _FULL
    limit = f" of {most / 1e6:.0f} MB" if most else ", no limit"
    return Fact(
        "memory",
        f"{used / 1e6:.0f} MB{limit}, {facts.evicts}",
        "when it is used up, saves fail" if full else "",
        "raise maxmemory, or free space: surehold forget, then surehold prune" if full else "",
    )


def _clear(db: ServerConnections) -> tuple[str, str]:
    if db.is_encrypted or db.is_local:
        return "", ""
    return "runs cross the network in the clear", "use rediss:// or valkeys://"
