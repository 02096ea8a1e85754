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
    RunInfo,
    RunQuery,
    Storage,
    TakenRun,
    take_and_look,
)
from surehold.storage.replicated.breaker import Breaker, BreakerRules
from surehold.storage.replicated.copies import head_of, repairable
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

    Leases are the primary's alone. While it fails none can be taken or renewed, and who holds one
    can save to a fallback only until it runs out.

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
                    f"{one!r} is no storage, and does not open one",
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
        )
        self._clock = clock
        self._leases: dict[str, tuple[int, float]] = {}
        """The epoch of each lease that was taken here, and until when a fallback may be used."""
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

    # Writing

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        with self._replicas.lock:
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
        """Let a fallback take only records that follow its own, under a valid lease."""
        for run_id in {batch.run_id for batch in batches if batch.records}:
            first = next(b for b in batches if b.run_id == run_id and b.records)
            self._check_lease(first)
            look = partial(head_of, run_id=run_id)
            head = self._replicas.call(replica, "append", look)
            newest = head.seq if head is not None else 0
            wanted = first.records[0].header.seq - 1
            if newest < wanted and not first.erased:
                raise StorageUnavailableError(
                    f"the {replica} has run {run_id!r} up to record {newest} only, not {wanted}",
                    hint="wait until the storage that has the rest is back",
                    run_id=run_id,
                )

    def _check_lease(self, batch: Batch) -> None:
        if batch.epoch is None:
            return
        epoch, until = self._leases.get(batch.run_id, (0, 0.0))
        if epoch != batch.epoch or self._clock() >= until:
            raise StorageUnavailableError(
                f"the lease of run {batch.run_id!r} has run out, or was not taken here, and the"
                " primary is away",
                hint="another process may have the run; a longer lease lasts through a longer"
                " failure",
                run_id=batch.run_id,
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
        _, head = self._reads.look("read", run_id, lambda s: head_of(s, run_id))
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
            # Another process may have saved to a fallback under the lease before.
            self._replicas.unsettle(run_id)
            if self._replicas.settle(run_id):
                raise StorageUnavailableError(
                    f"run {run_id!r} cannot be taken while the primary is away",
                    hint="a lease is the primary's to give; try again when it is back",
                    run_id=run_id,
                )
            began = self._clock()
            # It is not tried again: the first attempt may have taken it, and would be in the way.
            lease = self._replicas.call(
                self._replicas.all[0],
                "take_lease",
                lambda s: _take(s, run_id, owner, now=now, ttl=ttl, above=above),
                again=False,
            )
            self._leases[run_id] = (lease.epoch, self._safe_until(began, ttl))
            return lease

    def take_run(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> TakenRun:
        return take_and_look(self, run_id, owner, now=now, ttl=ttl, above=above)

    def renew_lease(self, lease: Lease, *, now: float, ttl: float) -> Lease:
        began = self._clock()
        renewed = self._replicas.call(
            self._replicas.all[0],
            "renew_lease",
            lambda s: _leasing(s).renew_lease(lease, now=now, ttl=ttl),
        )
        self._leases[lease.run_id] = (renewed.epoch, self._safe_until(began, ttl))
        return renewed

    def _safe_until(self, began: float, ttl: float) -> float:
        """Until when an append that is sent has ended before the lease has."""
        deadline = self._opened.retry.deadline or 0.0
        return began + ttl - min(deadline, ttl / 3)

    def release_lease(self, lease: Lease) -> None:
        self._leases.pop(lease.run_id, None)
        primary = self._replicas.all[0]
        try:
            self._replicas.call(
                primary, "release_lease", lambda s: _leasing(s).release_lease(lease)
            )
        except StorageError as error:
            # It runs out by itself; what was saved while it was held is saved.
            self._opened.tell("behind", primary, "release_lease", run_id=lease.run_id, error=error)

    def lease_of(self, run_id: str) -> Lease | None:
        return self._replicas.call(
            self._replicas.all[0], "lease_of", lambda s: _leasing(s).lease_of(run_id)
        )

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
        """Problems of each of the storages, or what was done about them."""
        self._replicas.unsettle()
        return [
            f"{replica}: {told}"
            for replica in self._replicas.all
            for told in repairable(replica.storage).check_medium(repair=repair)
        ]

    def known_runs(self) -> list[str]:
        every = [repairable(one.storage).known_runs() for one in self._replicas.all]
        return list(dict.fromkeys(run_id for runs in every for run_id in runs))

    def lost_runs(self) -> list[str]:
        """The runs lost in every storage; others are healed when they are read."""
        every = [repairable(one.storage).lost_runs() for one in self._replicas.all]
        return [run_id for run_id in every[0] if all(run_id in lost for lost in every)]

    def inspect(self, run_id: str) -> Inspection | None:
        """Inspect a run in the primary, after healing it and its copies from each other."""
        with suppress(CorruptError):
            self._reads.settled([run_id])
        primary, *copies = self._replicas.all
        for copy in copies:
            with suppress(StorageError, CorruptError):
                found = repairable(copy.storage).inspect(run_id)
                if found is not None and found.problems:
                    self._replicas.heal(copy, run_id)
        inspection = repairable(primary.storage).inspect(run_id)
        if inspection is not None and inspection.problems and self._replicas.heal(primary, run_id):
            inspection = repairable(primary.storage).inspect(run_id)
        return inspection

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


def _leasing(storage: Storage) -> Leasing:
    if isinstance(storage, Leasing):
        return storage
    raise UsageError(f"a {type(storage).__name__} cannot lease runs, as a primary must")


def _take(
    storage: Storage, run_id: str, owner: Owner, *, now: float, ttl: float, above: int
) -> Lease:
    """Take a lease with a higher epoch than any that the run's newest record names.

    A primary that was lost and given its runs again from a fallback has lost its leases.
    """
    query = RecordQuery(run_id=run_id, notes=True, limit=1)
    newest = next(iter(storage.headers(query)), None)
    known = max(above, newest.epoch if newest else 0)
    return _leasing(storage).take_lease(run_id, owner, now=now, ttl=ttl, above=known)


_storages: WeakSet[ResilientStorage] = WeakSet()


def _new_locks() -> None:
    """A child must not wait for a lock that a thread of its parent held."""
    for storage in _storages:
        storage._opened.renew_locks()


register_at_fork(after_in_child=_new_locks)
