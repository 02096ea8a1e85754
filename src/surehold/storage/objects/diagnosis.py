"""The probe of a store's conditional writes, and other facts about it."""

from __future__ import annotations

import os
import statistics
import time

from surehold.errors import StorageError
from surehold.storage.base import Fact
from surehold.storage.objects.bucket import Bucket
from surehold.storage.shared import check_format

FORMAT = 2
"""The layout of objects; the first had no mark, and packs without blocks."""
_MARK = "format"
_HINT = (
    "use a store that honours If-None-Match and If-Match: Amazon S3, Google Cloud Storage,"
    " Azure Blob, Cloudflare R2, MinIO, Ceph 19 or SeaweedFS"
)
_LOOKS = 5
_CLOCKS_AGREE = 5.0
"""Seconds that clocks may differ without a warning; a store tells whole seconds only."""


_honest: set[tuple[str, str]] = set()
"""The buckets, with their endpoints, that this process has probed."""


def check_conditions(bucket: Bucket) -> None:
    """Refuse a store that takes a write although its condition does not hold.

    Such a store answers as if all were well, and the last of two writers would silently replace
    what the first was told is saved. A process probes a bucket once.
    """
    if bucket.identity not in _honest:
        probe(bucket)
        _honest.add(bucket.identity)


def has_format(bucket: Bucket) -> bool:
    """True if the layout is marked, and not newer than this code knows; else False."""
    found = bucket.get(_MARK)
    check_format(bucket.where, found, FORMAT)
    return found is not None


def mark_format(bucket: Bucket) -> None:
    """Mark the layout, unless it is."""
    bucket.create(_MARK, b"%d" % FORMAT)


def probe(bucket: Bucket) -> None:
    """Try a few writes whose conditions do not hold; a `StorageError` if one is taken."""
    key = f"probe/{os.urandom(12).hex()}"
    if not bucket.create(key, b"1"):
        raise StorageError(f"{bucket.where} refuses to create an object that is not there")
    try:
        if bucket.create(key, b"2") or bucket.get(key) != b"1":
            raise _ignored(
                bucket, "If-None-Match", "two writers would overwrite each other's steps"
            )
        first = bucket.look(key)
        if first is None or not first.version:
            raise _ignored(bucket, "entity tags", "two processes could hold one run's lease")
        if bucket.replace(key, b"3", first.version) is None:
            raise StorageError(f"{bucket.where} refuses to replace the version that is there")
        if bucket.replace(key, b"4", first.version) is not None:
            raise _ignored(bucket, "If-Match", "two processes could hold one run's lease")
        listed = bucket.page("probe", key[:-1])
        if key not in [one.key for one in listed]:
            raise _ignored(bucket, "the start of a listing", "a run's newest step would be missed")
    finally:
        bucket.delete([key])


def _ignored(bucket: Bucket, what: str, so: str) -> StorageError:
    return StorageError(
        f"{bucket.where} ignores {what}: {so}, and nothing would say so", hint=_HINT
    )


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
