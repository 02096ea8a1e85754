"""Leases: an object for each run, replaced only in the version that was read."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from surehold.core.records import Lease, medium_name
from surehold.core.values import remember
from surehold.errors import ConflictError, CorruptError, StorageUnavailableError
from surehold.storage.objects.bucket import Bucket, StoredObject

_TRIES = 50
_REMEMBERED = 1000


class _Stored(msgspec.Struct, frozen=True):
    lease: Lease
    nonce: bytes


class LeaseObjects:
    """The leases in a bucket. The last version of each that was seen is remembered."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._known: OrderedDict[str, StoredObject] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, run_id: str) -> Lease | None:
        """The newest lease of a run."""
        return _decode(run_id, self._look(run_id))

    def change(
        self, run_id: str, change: Callable[[Lease | None], Lease | None]
    ) -> tuple[Lease | None, Lease | None]:
        """Replace a run's lease by what *change* makes of it; return both leases."""
        with self._lock:
            found = self._known.get(run_id)
        remembered = found is not None
        for _ in range(_TRIES):
            if not remembered:
                found = self._look(run_id)
            held = _decode(run_id, found)
            try:
                lease = change(held)
            except ConflictError:
                if not remembered:
                    raise
                lease = None
            if lease is not None and self._store(run_id, lease, found):
                return held, lease
            if lease is None and not remembered:
                return held, None
            remembered = False
        raise StorageUnavailableError(
            f"the lease of run {run_id!r} changed {_TRIES} times meanwhile", run_id=run_id
        )

    def _store(self, run_id: str, lease: Lease, found: StoredObject | None) -> bool:
        key, data = _key(run_id), msgspec.msgpack.encode(_Stored(lease, os.urandom(8)))
        if found is None:
            stored = self._bucket.create(key, data)
            version: dict[str, str] | None = None
        else:
            version = self._bucket.replace(key, data, found.version)
            stored = version is not None
        if stored and version:
            self._remember(run_id, StoredObject(data, version))
            return True
        # After a lost answer it may be there already.
        there = self._look(run_id)
        return stored or (there is not None and there.data == data)

    def _look(self, run_id: str) -> StoredObject | None:
        found = self._bucket.look(_key(run_id))
        self._remember(run_id, found)
        return found

    def _remember(self, run_id: str, found: StoredObject | None) -> None:
        with self._lock:
            if found is None:
                self._known.pop(run_id, None)
            else:
                remember(self._known, run_id, found, most=_REMEMBERED)


def _key(run_id: str) -> str:
    return f"leases/{medium_name(run_id)}"


def _decode(run_id: str, found: StoredObject | None) -> Lease | None:
    if found is None:
        return None
    try:
        return msgspec.msgpack.decode(found.data, type=_Stored).lease
    except msgspec.MsgspecError as error:
        raise CorruptError(
            f"the lease of run {run_id!r} cannot be read",
            hint=f"delete the object {_key(run_id)} once no process writes to the run",
            run_id=run_id,
        ) from error
