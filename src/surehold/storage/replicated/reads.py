"""Asking the storages of a `ResilientStorage` in turn until one answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from operator import methodcaller
from typing import TypeVar

from surehold.core.records import Record
from surehold.errors import (
    ConflictError,
    CorruptError,
    DivergedError,
    StorageError,
    StorageUnavailableError,
)
from surehold.storage.base import Storage
from surehold.storage.replicated.replicas import Replica, Replicas, has_failed

T = TypeVar("T")
_FIRST_PAGE, _PAGE = 8, 256


class Reads:
    """Answers from the first storage that works and is up to date."""

    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def settled(self, runs: Collection[str]) -> tuple[dict[str, ConflictError], int]:
        """The runs that refuse appends, and the first storage that has all the others.

        Of several runs, a damaged one must not stand in the way of the rest.
        """
        diverged: dict[str, ConflictError] = {}
        start = 0
        for run_id in sorted(runs):
            try:
                start = max(start, self._replicas.settle(run_id))
            except DivergedError as error:
                diverged[run_id] = error
            except CorruptError as error:
                if has_failed(error) or len(runs) == 1:
                    raise
                diverged[run_id] = ConflictError(
                    f"run {run_id!r} is damaged: {error.message}",
                    hint=error.hint,
                    run_id=run_id,
                    seq=error.facts.get("seq"),
                    head=None,
                )
        return diverged, start

    def first(
        self, operation: str, call: Callable[[Replica], T], start: int = 0
    ) -> tuple[Replica, T]:
        """Call the first storage that works; if none does, the error names them all."""
        failures = [(one, one.failure) for one in self._replicas.all[:start] if one.failure]
        for replica in self._replicas.all[start:]:
            try:
                result = call(replica)
            except (StorageError, CorruptError) as error:
                if not has_failed(error):
                    raise
                failures.append((replica, error))
                continue
            self._replicas.acting(replica, operation, failures[0][1] if failures else None)
            return replica, result
        told = "; ".join(f"{replica}: {error.message}" for replica, error in failures)
        raise StorageUnavailableError(
            f"every storage failed ({operation}): {told}", storages=[str(r) for r, _ in failures]
        ) from failures[0][1]

    def read(self, run_id: str, seq: int, last: int) -> Iterator[Record]:
        """The records of a run from *seq* to *last*, whichever storages they come from."""
        failures = 0
        while seq <= last:
            try:
                make = methodcaller("read", run_id, first=seq, last=last)
                for record in self.iterate("read", run_id, make):
                    yield record
                    seq = record.header.seq + 1
                return
            except (StorageError, CorruptError) as error:
                # Another storage, or this one once healed, continues where it broke off.
                failures += 1
                if failures > 2 * len(self._replicas.all):
                    raise
                if has_failed(error):
                    continue
                if not any(self._replicas.heal(one, run_id) for one in self._replicas.all):
                    raise

    def look(
        self, operation: str, run_id: str | None, look: Callable[[Storage], T]
    ) -> tuple[Replica, T]:
        """Ask the first storage that works, after damaged runs were made whole."""
        if run_id is None:
            _, start = self._replicas.settle_all()
        else:
            _, start = self.settled([run_id])

        def call(replica: Replica) -> T:
            check_whole(replica, run_id)
            return self._replicas.whole(replica, run_id, operation, look)

        return self.first(operation, call, start)

    def iterate(
        self, operation: str, run_id: str | None, make: Callable[[Storage], Iterator[T]]
    ) -> Iterator[T]:
        """Iterate by pages, of which the first is fetched now."""

        def begin(storage: Storage) -> tuple[Iterator[T], list[T]]:
            found = make(storage)
            return found, list(islice(found, _FIRST_PAGE))

        replica, (found, page) = self.look(operation, run_id, begin)
        return self._rest(replica, operation, found, page)

    def _rest(
        self, replica: Replica, operation: str, found: Iterator[T], page: list[T]
    ) -> Iterator[T]:
        size = _FIRST_PAGE
        while page:
            yield from page
            if len(page) < size:
                return
            size = _PAGE
            page = self._replicas.call(
                replica, operation, lambda _: list(islice(found, _PAGE)), again=False
            )


def check_whole(replica: Replica, run_id: str | None) -> None:
    """Refuse to use a storage for a run of which another one has more."""
    if replica.behind if run_id is None else run_id in replica.behind:
        what = "all runs" if run_id is None else f"all of run {run_id!r}"
        raise StorageUnavailableError(
            f"the {replica} does not have {what}",
            hint="what was saved last is in another storage, which is away",
            run_id=run_id,
        )
