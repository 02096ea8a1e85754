"""A bucket of an object store: conditional writes, time limits, errors in Holdfast's own terms."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast.errors import (
    MissingExtraError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    UsageError,
)
from holdfast.storage.addresses import mask_url

try:
    import obstore
    from obstore.exceptions import (
        AlreadyExistsError,
        BaseError,
        PermissionDeniedError,
        PreconditionError,
        UnauthenticatedError,
    )
    from obstore.store import AzureStore, GCSStore, S3Store
except ImportError as missing:
    raise MissingExtraError(
        "object stores need the package obstore", hint="pip install 'holdfast[objects]'"
    ) from missing

__all__ = ["Bucket", "ListedObject", "StoredObject"]

T = TypeVar("T")
A = TypeVar("A")

_STORES: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
_OPTION = {"s3": "endpoint", "gs": "base_url", "az": "endpoint"}
_PAGE = 1000
"""Keys that a store lists with one request."""
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 2.0
_AWAY = ("status code: 5", "status code: 429", "status code: 408", "status code: 409")
_FULL = ("status code: 507", "QuotaExceeded", "InsufficientStorage", "EntityTooLarge")


class StoredObject(msgspec.Struct, frozen=True):
    """An object and the mark of its version, for a write that depends on it."""

    data: bytes
    version: dict[str, str]


class ListedObject(msgspec.Struct, frozen=True):
    """An object as a listing shows it."""

    key: str
    size: int
    changed: datetime
    """By the store's own clock."""


class Bucket:
    """Objects below a prefix of a bucket, of a container in Azure.

    A request that takes longer than *timeout* seconds is given up. One that fails because the
    store is away or busy is repeated for up to *patience* seconds.
    """

    def __init__(
        self,
        scheme: str,
        name: str,
        prefix: str,
        *,
        endpoint: str | None = None,
        region: str | None = None,
        timeout: float,
        patience: float,
        width: int = 16,
    ) -> None:
        self.where = f"{scheme}://{name}/{prefix}".rstrip("/")
        self._timeout = timeout
        self._patience = patience
        self._pid = os.getpid()
        self._closed = False
        options: dict[str, Any] = {}
        if endpoint is not None:
            options[_OPTION[scheme]] = endpoint
        if region is not None:
            if scheme != "s3":
                raise UsageError(
                    f"{scheme}: storages have no region", hint="leave region= out", option="region"
                )
            options["region"] = region
        names = _ENDPOINTS[scheme]
        given = endpoint or next(filter(None, map(os.environ.get, names)), "")
        if given and scheme == "s3":
            options["endpoint"] = given
        self.identity = (f"{scheme}://{name}", given)
        """The bucket and the endpoint it is reached by."""
        try:
            self._store = _STORES[scheme](
                name,
                prefix=prefix or None,
                client_options={
                    "timeout": timedelta(seconds=timeout),
                    "connect_timeout": timedelta(seconds=min(timeout, 10)),
                    "allow_http": given.startswith("http://"),
                },
                retry_config={"max_retries": 0},
                **options,
            )
        except (BaseError, ValueError, TypeError) as error:
            raise UsageError(
                f"{self.where} cannot be opened: {_brief(error)}",
                hint="give credentials by the environment, as the store's own tools take them",
            ) from None
        self._pool = ThreadPoolExecutor(width, thread_name_prefix="holdfast-objects")
        self._outer = ThreadPoolExecutor(width, thread_name_prefix="holdfast-runs")

    def create(self, key: str, data: bytes) -> bool:
        """Store an object unless there is one; True if this call may have stored it.

        False says that there is one. After a lost answer it may be that of this call.
        """
        return self._run(lambda: self._put(key, data, "create")) is not None

    def replace(self, key: str, data: bytes, version: Mapping[str, str]) -> dict[str, str] | None:
        """Store an object in place of the version given; None if there is another one."""
        return self._run(lambda: self._put(key, data, dict(version)))

    def put(self, key: str, data: bytes) -> None:
        """Store an object, whatever is there."""
        self._run(lambda: self._put(key, data, "overwrite"))

    def get(self, key: str) -> bytes | None:
        """Read an object whole; None if there is none."""
        found = self.look(key)
        return None if found is None else found.data

    def look(self, key: str) -> StoredObject | None:
        """Read an object with its version; None if there is none."""

        def work() -> StoredObject | None:
            try:
                answer = obstore.get(self._store, key)
                return StoredObject(bytes(answer.bytes()), _version(answer.meta))
            except FileNotFoundError:
                return None

        return self._run(work)

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Read some bytes of an object, fewer where it ends; None if there is none."""

        def work() -> bytes | None:
            try:
                return bytes(obstore.get_range(self._store, key, start=start, end=end))
            except FileNotFoundError:
                return None

        return self._run(work)

    def page(self, prefix: str, after: str | None = None) -> list[ListedObject]:
        """The first objects below *prefix*, or the first after a key: one request.

        There are more if the page is full, see `is_full`.
        """

        def work() -> list[ListedObject]:
            stream = obstore.list(self._store, prefix, offset=after, chunk_size=_PAGE)
            rows = next(iter(stream), ())
            found = [ListedObject(row["path"], row["size"], row["last_modified"]) for row in rows]
            return [one for one in found if after is None or one.key > after]

        return self._run(work)

    def each(self, prefix: str, after: str | None = None) -> Iterator[ListedObject]:
        """The objects below *prefix* in the order of their keys."""
        while True:
            page = self.page(prefix, after)
            yield from page
            if not self.is_full(page):
                return
            after = page[-1].key

    def is_full(self, page: Sequence[ListedObject]) -> bool:
        """True if there may be more objects after a page."""
        return len(page) >= _PAGE

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects, many with one request; what is not there is passed over."""
        gone = list(keys)
        for start in range(0, len(gone), _PAGE):
            self._run(partial(self._delete, gone[start : start + _PAGE]))

    def copy(self, key: str, to: str) -> None:
        """Copy an object within the store; what is not there is passed over."""

        def work() -> None:
            with suppress(FileNotFoundError):
                obstore.copy(self._store, key, to)

        self._run(work)

    def together(self, work: Callable[[A], T], items: Sequence[A]) -> list[T]:
        """What *work* makes of each item, several at a time."""
        if len(items) < 2:
            return [work(item) for item in items]
        return list(self._pool.map(work, items))

    def apart(self, work: Callable[[A], T], items: Sequence[A]) -> list[T]:
        """Like `together`, for work that itself does several requests at a time."""
        if len(items) < 2:
            return [work(item) for item in items]
        return list(self._outer.map(work, items))

    def check_open(self) -> None:
        """Raise a `UsageError` if the storage was closed, or opened by another process."""
        if self._closed:
            raise UsageError("the storage is closed", hint="open it again")
        if self._pid != os.getpid():
            raise UsageError(
                "the storage was opened before this process was forked",
                hint="open it in this process, or start processes with spawn",
            )

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        if self._pid == os.getpid():
            self._outer.shutdown(wait=True)
            self._pool.shutdown(wait=True)

    def once(self, work: Callable[[], T]) -> T:
        """Do *work* without repeating it while the store is away."""
        patience, self._patience = self._patience, 0.0
        try:
            return work()
        finally:
            self._patience = patience

    def _run(self, work: Callable[[], T]) -> T:
        self.check_open()
        give_up = time.monotonic() + self._patience
        wait = _FIRST_WAIT
        while True:
            try:
                return work()
            except (BaseError, OSError, ValueError, TimeoutError) as error:
                failure = self._translate(error)
                if not failure.retryable or time.monotonic() + wait > give_up:
                    raise failure from None
            time.sleep(wait * (0.5 + random.random()))
            wait = min(2 * wait, _LONGEST_WAIT)

    def _put(self, key: str, data: bytes, mode: Any) -> dict[str, str] | None:
        try:
            answer = obstore.put(self._store, key, data, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return None
        except FileNotFoundError:
            if isinstance(mode, dict):
                return None
            raise
        return _version(answer)

    def _delete(self, keys: Sequence[str]) -> None:
        try:
            obstore.delete(self._store, list(keys))
        except FileNotFoundError:
            # Some stores stop at a key that is not there.
            for key in keys:
                with suppress(FileNotFoundError):
                    obstore.delete(self._store, key)

    def _translate(self, error: Exception) -> StorageError:
        text = _brief(error)
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            return StorageError(
                f"{self.where} refused: {text}",
                hint="check the credentials in the environment and what they allow",
            )
        if isinstance(error, FileNotFoundError):
            return StorageError(
                f"{self.where} is not there: {text}", hint="create the bucket or the container"
            )
        if any(word in text for word in _FULL):
            return StorageFullError(f"{self.where} takes no more: {text}")
        if "status code: 4" in text and not any(word in text for word in _AWAY):
            return StorageError(f"{self.where} failed: {text}")
        return StorageUnavailableError(
            f"{self.where} cannot be reached within {self._timeout:g} s: {text}"
        )


def _version(meta: Mapping[str, Any]) -> dict[str, str]:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


def _brief(error: Exception) -> str:
    """The first line of an error, without the answer's body and without what may be secret."""
    line = str(error).strip().partition("\n")[0].partition(": <")[0]
    return mask_url(line) or type(error).__name__
