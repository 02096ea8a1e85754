"""A bucket: named objects, written under conditions, with time limits and retries."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from typing import ClassVar, TypeVar

import msgspec

from surehold.errors import StorageError, UsageError
from surehold.storage.shared import patiently

T = TypeVar("T")
A = TypeVar("A")

_PAGE = 1000
"""Keys that a store lists with one request."""


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


class Bucket(ABC):
    """Objects under keys of several parts; services differ in its subclasses.

    A request that takes longer than *timeout* seconds is given up. One that fails because the
    store is away or busy is repeated for up to *patience* seconds.
    """

    _errors: ClassVar[tuple[type[Exception], ...]]
    """What the requests of a service raise when they fail."""

    def __init__(
        self,
        where: str,
        identity: tuple[str, str],
        *,
        timeout: float,
        patience: float,
        width: int = 16,
    ) -> None:
        self.where = where
        self.identity = identity
        """The bucket and the endpoint it is reached by."""
        self.timeout = timeout
        self._patience = patience
        self._pid = os.getpid()
        self._closed = False
        self._pool = ThreadPoolExecutor(width, thread_name_prefix="surehold-objects")
        self._outer = ThreadPoolExecutor(width, thread_name_prefix="surehold-runs")

    def create(self, key: str, data: bytes) -> bool:
        """Store an object unless there is one; True if this call stored it.

        False says that there is one. After a lost answer it may be that of this call.
        """
        return self._run(lambda: self._store(key, data, "create")) is not None

    def replace(self, key: str, data: bytes, version: Mapping[str, str]) -> dict[str, str] | None:
        """Store an object in place of the version given; None if there is another one."""
        return self._run(lambda: self._store(key, data, dict(version)))

    def put(self, key: str, data: bytes) -> None:
        """Store an object, whatever is there."""
        self._run(lambda: self._store(key, data, "overwrite"))

    def get(self, key: str) -> bytes | None:
        """Read an object whole; None if there is none."""
        found = self.look(key)
        return None if found is None else found.data

    def look(self, key: str) -> StoredObject | None:
        """Read an object with its version; None if there is none."""
        return self._run(lambda: self._fetch(key))

    def get_range(self, key: str, start: int, end: int) -> bytes | None:
        """Read some bytes of an object, fewer where it ends; None if there is none."""
        return self._run(lambda: self._fetch_range(key, start, end))

    def page(self, prefix: str, after: str | None = None) -> list[ListedObject]:
        """The first objects below *prefix*, or the first after a key: one request.

        There are more if the page is full, see `is_full`.
        """
        found = self._run(lambda: self._list(prefix, after, _PAGE))
        return [one for one in found if after is None or one.key > after]

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
            self._run(partial(self._remove, gone[start : start + _PAGE]))

    def clear(self, keys: Sequence[str]) -> None:
        """Replace objects by empty ones, whose names stay taken."""
        self.together(lambda key: self._run(partial(self._clear, key)), keys)

    def copy(self, key: str, to: str) -> None:
        """Copy an object within the store; what is not there is passed over."""
        self._run(lambda: self._duplicate(key, to))

    def together(self, work: Callable[[A], T], items: Sequence[A]) -> list[T]:
        """The results of *work* for each item, several at a time."""
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
        """Do *work* without repeating requests while the store is away."""
        patience, self._patience = self._patience, 0.0
        try:
            return work()
        finally:
            self._patience = patience

    def _run(self, work: Callable[[], T]) -> T:
        self.check_open()

        def attempt() -> T:
            try:
                return work()
            except self._errors as error:
                raise self._failure(error) from None

        return patiently(attempt, self._patience, longest_wait=2.0)

    @abstractmethod
    def _store(self, key: str, data: bytes, mode: Mapping[str, str] | str) -> dict[str, str] | None:
        """Store an object and return its version; None if the condition does not hold.

        *mode* is "create", "overwrite", or the version to be replaced.
        """

    @abstractmethod
    def _fetch(self, key: str) -> StoredObject | None: ...

    @abstractmethod
    def _fetch_range(self, key: str, start: int, end: int) -> bytes | None: ...

    @abstractmethod
    def _list(self, prefix: str, after: str | None, size: int) -> list[ListedObject]:
        """The first *size* objects below *prefix*, after a key if one is given."""

    @abstractmethod
    def _remove(self, keys: Sequence[str]) -> None: ...

    def _clear(self, key: str) -> None:
        self._store(key, b"", "overwrite")

    @abstractmethod
    def _duplicate(self, key: str, to: str) -> None: ...

    @abstractmethod
    def _failure(self, error: Exception) -> StorageError:
        """The error in Surehold's own terms, without what may be secret."""
