"""A storage over several storages that survives a failure and reconciles them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar
from weakref import WeakSet

from surehold.core.records import Header, Record
from surehold.errors import (
    ConflictError,
    CorruptError,
    StorageError,
    StorageUnavailableError,
    SureholdError,
    UsageError,
)
from surehold.forks import register_at_fork
from surehold.storage.base import (
    Batch,
    Inspection,
    Lease,
    Leasing,
    Owner,
    Page,
    RecordQuery,
    Repairable,
    RunInfo,
    RunQuery,
    Storage,
    TakenRun,
    run_of,
    take_and_look,
)
from surehold.storage.replicated.breaker import Breaker, BreakerRules
from surehold.storage.replicated.copies import lacks, repairable
from surehold.storage.replicated.leases import CopiedLeases
from surehold.storage.replicated.reads import Reads, check_whole
from surehold.storage.replicated.replicas import Opener, Replica, Replicas, StorageEvent
from surehold.storage.retries import Retry

T = TypeVar("T")


class ResilientStorage(Storage):
    """Keeps runs in *primary*, and a copy of each in every one of *fallbacks*.

    What is saved goes to the primary, then to the others. While the primary fails, after *retry*,
    the first fallback that works takes its place; it has the run, so seqs and digests continue
    unbroken. A primary that is back is given what it missed, in order, before anything else is
    done with the run. If both have new records the run has diverged: every append to it is a
    `DivergedError` until `keep_copy` says which copy counts. What is damaged in one storage is made
    whole from another.

    The first storage that works gives the leases, and the others repeat them. Processes that do not
    reach the same copies can take one run twice; it diverges.

    A storage may be given as a function that opens it: one that is away at the start is opened
    later. *breaker* says when a storage is left alone for a while. *on_event* receives each
    `StorageEvent`; they are logged as well. It is called in the middle of a call, perhaps from
    another thread, and must not use the storage itself. *clock* is in monotonic seconds.

    >>> from surehold.storage.memory import MemoryStorage
    >>> with ResilientStorage(MemoryStorage(), MemoryStorage()) as storage:
    ...     list(storage.runs(RunQuery()))
    []
    """

    def __init__(
        self,
        primary: Storage | Opener,
        *fallbacks: Storage | Opener,
        retry: Retry | None = None,
        breaker: BreakerRules | None = None,
        on_event: Callable[[StorageEvent], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        given = [primary, *fallbacks]
        for one in given:
            if not isinstance(one, Storage) and not callable(one):
                raise UsageError(
                    f"{one!r} is not a storage, and does not open one",
                    hint="give storages one after the other: ResilientStorage(primary, copy)",
                )
        if not fallbacks:
            raise UsageError("there is no fallback", hint="give a second storage, or use the first")
        if len({id(one) for one in given}) < len(given):
            raise UsageError("one storage is given twice", hint="a copy must be somewhere else")
        if isinstance(primary, Storage) and not isinstance(primary, Leasing):
            raise UsageError(f"a {type(primary).__name__} cannot lease runs, as a primary must")
        opened = [one for one in given if isinstance(one, Storage)]
        self.body_compression = opened[0].body_compression if opened else None
        self._opened = Replicas(
            [Replica(n, one, Breaker(breaker, clock=clock)) for n, one in enumerate(given)],
            retry or Retry(),
            on_event,
            clock,
        )
        self._closed = False
        _storages.add(self)

    @property
    def storages(self) -> tuple[Storage, ...]:
        """The storages themselves, the primary first."""
        return tuple(replica.storage for replica in self._opened.all)

    @property
    def _replicas(self) -> Replicas:
        """The storages, unless this is closed; what was begun is ended with `_opened`."""
        if self._closed:
            raise UsageError("this ResilientStorage is closed", hint="open a new one")
        return self._opened

    @property
    def _reads(self) -> Reads:
        return Reads(self._replicas)

    @property
    def _leases(self) -> CopiedLeases:
        return CopiedLeases(self._replicas)

    # Writing

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        with self._replicas.lock:
            results = self._append(batches)
            # A storage that was emptied gets what it had back from a copy.
            again = [n for n, result in enumerate(results) if lacks(batches[n], result)]
            for number in again:
                self._opened.unsettle(batches[number].run_id)
            for number in again:
                results[number] = self._append([batches[number]])[0]
            return results

    def _append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        diverged, start = self._reads.settled({batch.run_id for batch in batches})
        results: list[ConflictError | None] = [diverged.get(b.run_id) for b in batches]
        numbers = [n for n, batch in enumerate(batches) if batch.run_id not in diverged]
        sent = [batches[n] for n in numbers]

        def append(replica: Replica) -> list[ConflictError | None]:
            for batch in sent:
                check_whole(replica, batch.run_id)
            if replica.number:
                self._check_failover(replica, sent)
            return self._replicas.call(replica, "append", lambda s: s.append(sent))

        replica, stored = self._reads.first("append", append, start)
        for number, result in zip(numbers, stored, strict=True):
            results[number] = result
        for batch in sent:
            self._opened.pass_by(replica, batch.run_id)
        kept = [b for b, result in zip(sent, stored, strict=True) if result is None]
        self._opened.mirror(replica, kept)
        return results

    def _check_failover(self, replica: Replica, batches: Sequence[Batch]) -> None:
        """Let a fallback take only records that follow its own."""
        for run_id in {batch.run_id for batch in batches if batch.records}:
            first = next(b for b in batches if b.run_id == run_id and b.records)
            look = partial(run_of, run_id=run_id)
            head = self._replicas.call(replica, "append", look)
            newest = head.seq if head is not None else 0
            wanted = first.records[0].header.seq - 1
            if newest < wanted and not first.erased:
                raise StorageUnavailableError(
                    f"the {replica} has run {run_id!r} up to record {newest} only, not {wanted}",
                    hint="wait until the storage that has the rest is back",
                    run_id=run_id,
                )

    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        with self._replicas.lock:
            _, start = self._reads.settled([run_id])

            def drop(replica: Replica) -> int:
                return self._replicas.call(
                    replica, "delete", lambda s: s.delete(run_id, hide=hide, erase=erase)
                )

            if hide is not None and not erase:
                return self._hide(run_id, drop, start)
            if start:
                raise StorageUnavailableError(
                    "nothing can be erased while the primary is away", run_id=run_id
                )
            counts = [drop(self._replicas.all[0])]
            whole = hide is None and erase is None
            failures: list[tuple[Replica, SureholdError]] = []
            for replica in self._replicas.all[1:]:
                try:
                    counts.append(drop(replica))
                except (StorageError, CorruptError, UsageError) as error:
                    failures.append((replica, error))
                else:
                    if whole:
                        replica.behind.discard(run_id)
            for replica, failure in failures:
                raise StorageUnavailableError(
                    f"the {replica} still has what was erased of run {run_id!r}: {failure.message}",
                    hint="do it again when that storage works",
                    run_id=run_id,
                ) from failure
            return max(counts)

    def _hide(self, run_id: str, drop: Callable[[Replica], int], start: int) -> int:
        replica, count = self._reads.first("delete", drop, start)
        self._opened.pass_by(replica, run_id)
        for copy in self._opened.all[replica.number + 1 :]:
            try:
                drop(copy)
            except (StorageError, CorruptError) as error:
                copy.behind.add(run_id)
                self._opened.tell("behind", copy, "delete", run_id=run_id, error=error)
        return count

    # Reading

    def read(
        self, run_id: str, *, first: int | None = None, last: int | None = None
    ) -> Iterator[Record]:
        _, head = self._reads.look("read", run_id, lambda s: run_of(s, run_id))
        if head is None:
            return iter(())
        return self._reads.read(
            run_id, first or 1, head.seq if last is None else min(last, head.seq)
        )

    def headers(self, query: RecordQuery) -> Iterator[Header]:
        return self._reads.iterate("headers", query.run_id, lambda s: s.headers(query))

    def find(self, id_prefix: str) -> list[Header]:
        replica, found = self._reads.look("find", None, lambda s: s.find(id_prefix))
        if found or not self._replicas.heal_where_found(replica, id_prefix):
            return found
        return self._reads.look("find", None, lambda s: s.find(id_prefix))[1]

    def runs(self, query: RunQuery) -> Iterator[RunInfo]:
        return self._reads.iterate("runs", query.run_id, lambda s: s.runs(query))

    def head_and_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        return self._reads.look(
            "look up", run_id, lambda storage: storage.head_and_newest(run_id, scope)
        )[1]

    def page(
        self, query: RecordQuery, *, about: str | None = None, notes: Collection[str] = ()
    ) -> Page:
        return self._reads.look(
            "list", query.run_id, lambda storage: storage.page(query, about=about, notes=notes)
        )[1]

    # Leases

    def take_lease(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> Lease:
        with self._replicas.lock:
            return self._leases.take(run_id, owner, now=now, ttl=ttl, above=above)

    def take_run(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> TakenRun:
        return take_and_look(self, run_id, owner, now=now, ttl=ttl, above=above)

    def renew_lease(self, lease: Lease, *, now: float, ttl: float) -> Lease:
        return self._leases.renew(lease, now=now, ttl=ttl)

    def release_lease(self, lease: Lease) -> None:
        CopiedLeases(self._opened).release(lease)

    def lease_of(self, run_id: str) -> Lease | None:
        return self._leases.lease_of(run_id)

    # Making them agree, and whole

    def sync(self) -> list[str]:
        """Bring all copies of all runs up to date, both ways; the ids of diverged runs.

        It is for a fallback that is new, or after a failure when nothing is being saved.
        """
        with self._replicas.lock:
            self._replicas.unsettle()
            diverged, _ = self._replicas.settle_all()
            primary, *others = self._replicas.all
            for run in self.runs(RunQuery()):
                if run.run_id in diverged:
                    continue
                if not all(self._replicas.catch_up(primary, one, run.run_id) for one in others):
                    diverged.append(run.run_id)
            return diverged

    def keep_copy(self, run_id: str, *, keep: int = 0) -> list[str]:
        """Let the copy in storage number *keep*, 0 being the primary, count from now on.

        The other copies are made what it is. What they held is put aside where it was, and returned
        is where. To look at both before, open a manager on each of `storages`.
        """
        if not 0 <= keep < len(self._replicas.all):
            raise UsageError(f"there is no storage number {keep}", hint="0 is the primary")
        return self._replicas.keep(self._replicas.all[keep], run_id)

    def check_medium(self, *, repair: bool) -> list[str]:
        """Problems of each of the storages, or what was done about them.

        A storage that fails is a problem; the others are looked at all the same.
        """
        self._replicas.unsettle()
        told: list[str] = []
        for replica, found in self._each(lambda one: one.check_medium(repair=repair)):
            if isinstance(found, SureholdError):
                told.append(
                    f"{replica}: {found.message} (the other storages have its runs: once it works,"
                    " or what is in its place is moved away, it is given them)"
                )
            else:
                told += (f"{replica}: {problem}" for problem in found)
        return told

    def known_runs(self) -> list[str]:
        every = self._each(lambda one: one.known_runs())
        found = [runs for _, runs in every if not isinstance(runs, SureholdError)]
        return list(dict.fromkeys(run_id for runs in found for run_id in runs))

    def lost_runs(self) -> list[str]:
        """The runs lost in every storage; others are healed when they are read.

        While a storage fails, no run is known to be lost.
        """
        every = [found for _, found in self._each(lambda one: one.lost_runs())]
        lost = [[] if isinstance(found, SureholdError) else found for found in every]
        return [run_id for run_id in lost[0] if all(run_id in others for others in lost)]

    def inspect(self, run_id: str) -> Inspection | None:
        """Inspect a run in the first storage that works, after healing it and its copies."""
        with suppress(CorruptError):
            self._reads.settled([run_id])
        for replica, found in reversed(self._each(lambda one: one.inspect(run_id))):
            if isinstance(found, Inspection) and found.problems:
                self._replicas.heal(replica, run_id)
        every = [found for _, found in self._each(lambda one: one.inspect(run_id))]
        return next(found for found in every if not isinstance(found, SureholdError))

    def _each(self, ask: Callable[[Repairable], T]) -> list[tuple[Replica, T | SureholdError]]:
        """Ask every storage; raise the first failure if all of them fail."""
        every: list[tuple[Replica, T | SureholdError]] = []
        for replica in self._replicas.all:
            try:
                every.append((replica, ask(repairable(replica.storage))))
            except (StorageError, CorruptError) as error:
                every.append((replica, error))
        failures = [found for _, found in every if isinstance(found, SureholdError)]
        if len(failures) == len(every):
            raise failures[0]
        return every

    def rewrite(
        self, run_id: str, records: Sequence[Record], hidden: Collection[int], *, head: int
    ) -> str:
        """Make the run just these records, in every storage that has it."""
        with self._replicas.lock:
            primary, *others = map(repairable, self.storages)
            # All of them are looked at first: one that is away would disagree when it is back.
            inspections = [other.inspect(run_id) for other in others]
            kept = [primary.rewrite(run_id, records, hidden, head=head)]
            for other, inspection in zip(others, inspections, strict=True):
                if inspection is not None:
                    kept.append(other.rewrite(run_id, records, hidden, head=inspection.head))
            self._opened.unsettle(run_id)
            return ", ".join(kept)

    def compact(self) -> None:
        for replica in self._replicas.all:
            self._replicas.call(replica, "compact", lambda s: s.compact(), long=True)

    def close(self) -> None:
        """Close all storages; log one that fails: what it acknowledged is stored."""
        self._closed = True
        for replica in self._opened.all:
            try:
                replica.close()
            except StorageError as error:
                self._opened.tell("behind", replica, "close", error=error)


_storages: WeakSet[ResilientStorage] = WeakSet()


def _new_locks() -> None:
    """A child must not wait for a lock that a thread of its parent held."""
    for storage in _storages:
        storage._opened.renew_locks()


register_at_fork(after_in_child=_new_locks)
