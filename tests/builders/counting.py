"""A storage that counts the calls which reach it, and remembers what was appended."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from surehold import MemoryStorage
from surehold.core.records.lease import Lease, Owner
from surehold.core.records.record import Header, Record
from surehold.errors import ConflictError
from surehold.storage.base import Batch, Page, RecordQuery, RunInfo, RunQuery, Storage, TakenRun


class Counting(Storage):
    """A storage in memory that counts calls."""

    def __init__(self) -> None:
        self._inner = MemoryStorage()
        self.calls: list[str] = []
        self.appended: list[list[Batch]] = []

    def killed_after(self, appends: int) -> Counting:
        """A storage as the kill of its process after so many appends leaves it."""
        left = type(self)()
        for batches in self.appended[:appends]:
            assert left._inner.append(batches) == [None] * len(batches)
        return left

    def holds(self, run_id: str) -> bool:
        """True if there is a run with this id; not counted."""
        return self._inner.has_run(run_id)

    @property
    def before_append(self) -> list[str]:
        """The calls before the first append."""
        return self.calls[: self.calls.index("append")]

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        self.calls.append("append")
        self.appended.append([*batches])
        return self._inner.append(batches)

    def read(
        self, run_id: str, *, first: int | None = None, last: int | None = None
    ) -> Iterator[Record]:
        self.calls.append("read")
        return self._inner.read(run_id, first=first, last=last)

    def headers(self, query: RecordQuery) -> Iterator[Header]:
        self.calls.append("headers")
        return self._inner.headers(query)

    def find(self, id_prefix: str) -> list[Header]:
        self.calls.append("find")
        return self._inner.find(id_prefix)

    def runs(self, query: RunQuery) -> Iterator[RunInfo]:
        self.calls.append("runs")
        return self._inner.runs(query)

    def head_and_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        self.calls.append("head_and_newest")
        return self._inner.head_and_newest(run_id, scope)

    def page(
        self, query: RecordQuery, *, about: str | None = None, notes: Collection[str] = ()
    ) -> Page:
        self.calls.append("page")
        return self._inner.page(query, about=about, notes=notes)

    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        self.calls.append("delete")
        return self._inner.delete(run_id, hide=hide, erase=erase)

    def close(self) -> None:
        self._inner.close()

    def take_lease(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> Lease:
        self.calls.append("take_lease")
        return self._inner.take_lease(run_id, owner, now=now, ttl=ttl, above=above)

    def take_run(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> TakenRun:
        self.calls.append("take_run")
        return self._inner.take_run(run_id, owner, now=now, ttl=ttl, above=above)

    def renew_lease(self, lease: Lease, *, now: float, ttl: float) -> Lease:
        self.calls.append("renew_lease")
        return self._inner.renew_lease(lease, now=now, ttl=ttl)

    def release_lease(self, lease: Lease) -> None:
        self.calls.append("release_lease")
        self._inner.release_lease(lease)

    def lease_of(self, run_id: str) -> Lease | None:
        self.calls.append("lease_of")
        return self._inner.lease_of(run_id)
