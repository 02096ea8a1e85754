"""Facts about an object store, and what is wrong with them."""

from __future__ import annotations

import os
import statistics
import time

from holdfast.errors import StorageError
from holdfast.storage.objects.bucket import Bucket
from holdfast.storage.objects.conditions import probe
from holdfast.storage.shared import Fact

_LOOKS = 5
_CLOCKS_AGREE = 5.0
"""Seconds that clocks may differ without a warning; a store tells whole seconds only."""


def diagnose(bucket: Bucket) -> list[Fact]:
    """Address, conditional writes, latency, clock and encryption."""
    where, endpoint = bucket.identity
    try:
        probe(bucket)
        conditions = Fact("conditional writes", "honoured")
    except StorageError as error:
        conditions = Fact("conditional writes", "not honoured", error.message, error.hint)
    clear = endpoint.startswith("http://") and not endpoint.startswith(_LOOPBACK)
    return [
        Fact("store", f"{where} at {endpoint}" if endpoint else where),
        conditions,
        *_measured(bucket),
        Fact(
            "encryption",
            "none" if endpoint.startswith("http://") else "TLS",
            "runs cross the network in the clear" if clear else "",
            "use an https:// endpoint" if clear else "",
        ),
    ]


_LOOPBACK = ("http://127.0.0.1", "http://localhost", "http://[::1]")


def _measured(bucket: Bucket) -> list[Fact]:
    """The latency of writes, and the difference of the store's clock from ours."""
    seconds: list[float] = []
    key = f"probe/{os.urandom(12).hex()}"
    try:
        for _ in range(_LOOKS):
            start = time.perf_counter()
            bucket.put(key, b"")
            seconds.append(time.perf_counter() - start)
        sent = time.time()
        (listed,) = [one for one in bucket.page("probe", key[:-1]) if one.key == key]
    finally:
        bucket.delete([key])
    ahead = listed.changed.timestamp() - sent
    differs = abs(ahead) > _CLOCKS_AGREE
    return [
        Fact("latency", f"{statistics.median(seconds) * 1000:.1f} ms a write"),
        Fact(
            "clock",
            f"{abs(ahead):.0f} s {'ahead' if ahead >= 0 else 'behind'}",
            "leases expire by the clocks of the processes that take them" if differs else "",
            "synchronize the clocks of all machines (NTP)" if differs else "",
        ),
    ]
