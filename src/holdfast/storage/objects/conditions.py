"""The probe of a store: does it honour the conditions of a write?"""

from __future__ import annotations

import os

from holdfast.errors import StorageError
from holdfast.storage.objects.bucket import Bucket

_HINT = (
    "use a store that honours If-None-Match and If-Match: Amazon S3, Google Cloud Storage,"
    " Azure Blob, Cloudflare R2, MinIO, Ceph 19 or SeaweedFS"
)


_honest: set[tuple[str, str]] = set()
"""The buckets, with their endpoints, that this process has probed."""


def check_conditions(bucket: Bucket) -> None:
    """Refuse a store that takes a write although its condition does not hold.

    Such a store answers as if all were well, and the last of two writers would silently replace
    what the first was told is saved. A process probes a bucket once.
    """
    if bucket.identity in _honest:
        bucket.get("probe/none")  # the credentials may be others
        return
    probe(bucket)
    _honest.add(bucket.identity)


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
