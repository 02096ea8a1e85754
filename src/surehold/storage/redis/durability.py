"""Settings of a server that decide whether an append survives a restart."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from redis.exceptions import ResponseError

from surehold.errors import StorageError
from surehold.storage.redis.acknowledgements import Acknowledgements

logger = logging.getLogger("surehold.storage")


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a server."""

    version: str
    is_cluster: bool = False
    appends: bool = False
    """An append-only file is kept."""
    syncs: str | None = None
    """The sync policy: always, everysec or no; None if the server does not tell."""
    waits_for_disk: bool = False
    """The server has the command WAITAOF."""
    evicts: str = "noeviction"


def read_facts(server: Any) -> Facts:
    """Ask a server for its settings; hidden ones count as the less durable."""
    info: Mapping[str, Any] = server.info()
    syncs = None
    with suppress(ResponseError):
        syncs = server.config_get("appendfsync").get("appendfsync")
    waits_for_disk = False
    with suppress(ResponseError):
        server.execute_command("WAITAOF", 0, 0, 1)
        waits_for_disk = True
    name = "Valkey" if "valkey_version" in info else "Redis"
    return Facts(
        version=f"{name} {info.get('valkey_version', info.get('redis_version', '?'))}",
        is_cluster=bool(int(info.get("cluster_enabled", 0))),
        appends=bool(int(info.get("aof_enabled", 0))),
        syncs=syncs,
        waits_for_disk=waits_for_disk,
        evicts=str(info.get("maxmemory_policy", "noeviction")),
    )


def decide(facts: Facts, *, replicas: int) -> tuple[Acknowledgements, list[tuple[str, str]]]:
    """The acknowledgements to wait for, and each reason why an append may be lost.

    A reason comes with the hint that removes it.
    """
    lost: list[tuple[str, str]] = []
    waiting = Acknowledgements(replicas=replicas)
    if not facts.appends:
        lost.append(
            (
                f"{facts.version} keeps no append-only file, so a restart loses appends",
                "CONFIG SET appendonly yes and CONFIG SET appendfsync always, in the server's"
                " configuration file too",
            )
        )
    elif facts.syncs == "always":
        pass
    elif facts.syncs in ("everysec", None) and facts.waits_for_disk:
        waiting = Acknowledgements(disk=True, replicas=replicas)
    else:
        lost.append(
            (
                f"{facts.version} syncs its append-only file {facts.syncs or 'at an unknown time'}"
                " and cannot be asked to wait for it",
                "CONFIG SET appendfsync always",
            )
        )
    if facts.evicts.startswith("allkeys"):
        lost.append(
            (
                f"{facts.version} drops any key when memory is short (maxmemory-policy"
                f" {facts.evicts})",
                "CONFIG SET maxmemory-policy noeviction",
            )
        )
    return waiting, lost


def apply(facts: Facts, where: str, *, durability: str, replicas: int) -> Acknowledgements:
    """Refuse a server that would lose appends, or warn if that is wanted."""
    waiting, lost = decide(facts, replicas=replicas)
    for reason, hint in lost:
        if durability == "disk":
            raise StorageError(
                f"{where}: {reason}",
                hint=f"{hint}; or accept the loss with ?durability=relaxed",
            )
        logger.warning("%s: %s", where, reason)
    if facts.evicts.startswith("volatile"):
        logger.warning(
            "%s: maxmemory-policy is %s; Surehold's keys have no time to live and stay",
            where,
            facts.evicts,
        )
    return Acknowledgements(replicas=replicas) if durability == "relaxed" else waiting
