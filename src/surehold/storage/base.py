"""The port that every medium implements, and the values that pass through it.

A storage moves sealed records and understands nothing of what is in them. What it promises is
written on the methods of `Storage`; `surehold.testing.StorageContract` holds it to that.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec

from surehold.core.closing import Closing
from surehold.core.records import Header, Lease, Owner, Record, check_run_id, gaps_between
from surehold.core.state import State, find_saver
from surehold.errors import ConflictError, NotFoundError, StorageUnavailableError, UsageError
from surehold.storage.abilities import Diagnosable, Fact, Inspection, Repairable
from surehold.storage.notifications import Subscription
from surehold.storage.process import (
    abandon,
    is_dead,
    is_left,
    is_live,
    leave,
    owner_is_dead,
    start_thread,
    this_process,
)

__all__ = [
    "Atomic",
    "Batch",
    "Diagnosable",
    "Fact",
    "Inspection",
    "Lease",
    "Leasing",
    "Owner",
    "Page",
    "RecordQuery",
    "Repairable",
    "RunInfo",
    "RunQuery",
    "RunTally",
    "Storage",
    "Subscription",
    "Watching",
    "abandon",
    "is_dead",
    "is_left",
    "is_live",
    "leave",
    "only_one",
    "owner_is_dead",
    "start_thread",
    "this_process",
]

logger = logging.getLogger("surehold.storage")

T = TypeVar("T")

_BATCH_BYTES = 8 << 20
_BATCH_RECORDS = 1000
_LOOKS = 100
"""Reads of a run that keeps changing, before giving up."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one run, stored together or not at all; without any, it only hides."""

    run_id: str
    records: tuple[Record, ...]
    epoch: int | None = None
    """The lease it is written under, None for a writer without one."""
    hide: tuple[int, ...] = ()
    """Seqs, its own or earlier, that stop being visible in the same commit."""
    erased: frozenset[tuple[int, int]] = frozenset()
    """Ranges of seqs, first and last, that it passes over: erased where it is a copy from."""

    def opened(self) -> list[Record]:
        """Its records, each proved by its own bytes; a batch of several runs is refused.

        Digests that this process computed when it sealed or read a record are not computed again.
        """
        check_run_id(self.run_id)
        records: list[Record] = []
        last: Header | None = None
        for given in self.records:
            record = given.verified()
            header = record.header
            if header.run_id != self.run_id:
                raise UsageError(f"a batch of run {self.run_id!r} holds a record of another run")
            if last is not None and not self.follows(header, last.seq, last.digest):
                raise UsageError(
                    f"seq {header.seq} does not follow seq {last.seq} in a batch of {self.run_id!r}"
                )
            records.append(record)
            last = header
        return records

    def follows(self, header: Header, seq: int, digest: str) -> bool:
        """True if *header* may come right after the record with this *seq* and *digest*.

        The digest of a record that was erased is not known, so what comes after a gap is
        believed.
        """
        if header.seq == seq + 1:
            return header.prev == digest
        return (seq + 1, header.seq - 1) in self.erased

    def gaps(self, seq: int) -> list[tuple[int, int]]:
        """The ranges that its records pass over, if they come after the record at *seq*."""
        return gaps_between((record.header.seq for record in self.records), after=seq)


def in_batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records of a run in pieces that are fit to be a batch each."""
    batch: list[Record] = []
    size = 0
    for record in records:
        full = size > _BATCH_BYTES or len(batch) == _BATCH_RECORDS
        if batch and full:
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += len(record.text) + len(record.body)
    if batch:
        yield batch


def has_record(storage: Storage, run_id: str, seq: int, digest: str) -> bool:
    """True if a run has, or had before a prune, the record with *digest* at *seq*."""
    for record in storage.read(run_id, first=seq, last=seq + 1):
        header = record.header
        return digest == (header.digest if header.seq == seq else header.prev)
    return False


class RecordQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for headers. Every field narrows; None means any."""

    run_id: str | None = None
    name: str | None = None
    scope: str | None = None
    kind: str | None = None
    status: str | None = None
    tag: str | None = None
    metadata: Mapping[str, Any] | None = None
    """Top-level keys and the values they must have."""
    since: datetime | None = None
    until: datetime | None = None
    before: str | None = None
    """The id of a record: only what is listed after it, for the next page.

    It may be a note or have been hidden since; one that is not there is a `NotFoundError`.
    """
    limit: int | None = None
    notes: bool = False
    """True: notes as well as checkpoints."""

    def __post_init__(self) -> None:
        _check_limit(self.limit)

    def matches(self, header: Header) -> bool:
        """True if this header is wanted; `before` and `limit` are left to the medium."""
        return (
            (self.notes or header.frame != "note")
            and (self.run_id is None or header.run_id == self.run_id)
            and (self.name is None or header.name == self.name)
            and (self.scope is None or header.scope == self.scope)
            and (self.kind is None or header.kind == self.kind)
            and (self.status is None or header.status == self.status)
            and (self.tag is None or self.tag in header.tags)
            and (self.since is None or header.saved_at >= self.since)
            and (self.until is None or header.saved_at <= self.until)
            and all(
                key in header.metadata and header.metadata[key] == value
                for key, value in (self.metadata or {}).items()
            )
        )


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for runs. Every field narrows; None means any."""

    run_id: str | None = None
    name: str | None = None
    status: str | None = None
    not_status: str | None = None
    open: bool = False
    """Only runs that are `RunInfo.open`; of queued runs, only those that were ever leased."""
    saved_before: datetime | None = None
    """Only runs whose newest record is older."""
    before: int | None = None
    """Only runs whose ordinal is smaller, for the next page."""
    limit: int | None = None

    def __post_init__(self) -> None:
        _check_limit(self.limit)

    def matches(self, run: RunInfo) -> bool:
        """True if this run is wanted; `before` and `limit` are left to the medium."""
        return (
            self.run_id in (None, run.run_id)
            and self.name in (None, run.name)
            and self.status in (None, run.status)
            and self.not_status != run.status
            and (self.saved_before is None or run.saved_at < self.saved_before)
            and (run.open or not self.open)
        )


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run as its head entry knows it, without reading its journal."""

    run_id: str
    name: str
    ordinal: int
    """Given by the storage in the order in which runs begin; never reused, not a clock."""
    seq: int
    """The newest record's seq."""
    digest: str
    """The newest record's digest."""
    checkpoints: int
    """Visible checkpoints."""
    stored: int
    """Bytes of all sealed bodies, hidden ones included."""
    step: int
    """This, node, kind and status are those of the newest visible checkpoint of scope ""."""
    node: str | None
    kind: str
    status: str
    started_at: datetime
    saved_at: datetime
    door: str = ""
    """The kind of its door; empty if its newest checkpoint names none."""
    open: bool = True
    """True if the run may wait for something: it is not completed, and it has records after its
    newest checkpoint, or that one says in its metadata where those of its open step begin."""


class RunTally(msgspec.Struct, frozen=True):
    """All runs of a storage, counted."""

    counts: dict[tuple[str, str], int]
    """By stored status and, if that is ``running``, by hold: ``held`` by a live lease, else the
    state of the entry in a queue (``ready``, ``waiting``, ``dead``), else ``manager`` for a run
    that is saved by hand, ``ended`` for a lease that is over, and empty for no lease yet."""
    newest: dict[str, list[int]]
    """Ordinals of runs with the hold ``held``, ``ended`` or ``dead``, newest first."""


class Page(msgspec.Struct, frozen=True):
    """Some headers, and the notes about the runs they belong to."""

    headers: tuple[Header, ...]
    notes: tuple[Header, ...]


class Storage(Closing):
    """A medium for journals. Blocking; every method may be called from any thread."""

    body_compression: str | None = None
    """Compression of bodies before they come here; None if the medium compresses."""
    appends_at_once: int = 1
    """The number of appends that are faster at once than one after the other."""
    redundancy: int = 0
    """The number of second copies of every record, from which a damaged one is made whole."""

    @abstractmethod
    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        """Store the batches, and tell of each whether it was stored (None) or why not.

        - A batch is stored whole or not at all, and survives power loss once this returns.
        - Nothing is overwritten. A batch must start at the run's next seq and follow its newest
          digest; where that seq is taken, or it leaves a gap, the batch is a `ConflictError` with
          `.run_id`, `.seq` and `.head` (the seq that is newest there). If the records there have
          the same ids and digests, it is a retry of what had succeeded, and is None.
        - A copy of a pruned run leaves the gaps that its batch names as `erased`, as if those
          records had been erased here.
        - An `epoch` older than that of the run's newest lease is a `ConflictError` as well. The
          comparison is part of the same atomic step.
        - All batches of one call share one commit; each succeeds or conflicts alone. Several may
          be of the same run, in order.
        - A `StorageError` means that nothing was acknowledged.
        """

    @abstractmethod
    def read(
        self, run_id: str, *, first: int | None = None, last: int | None = None
    ) -> Iterator[Record]:
        """The records of a run by seq, oldest first, with hidden ones, digests checked."""

    @abstractmethod
    def headers(self, query: RecordQuery) -> Iterator[Header]:
        """Visible headers, newest first, digests checked.

        What is damaged is a `CorruptError` if *query* names its run; a listing of many runs
        leaves it out and logs a warning.

        Within a run the order is by seq; between runs it is that of their commits, as well as
        the medium can tell.
        """

    @abstractmethod
    def find(self, id_prefix: str) -> list[Header]:
        """Visible checkpoints whose id starts so, in any run; an exact id gives its own.

        Where an id was used again within a run and scope, only the newest counts.
        """

    @abstractmethod
    def runs(self, query: RunQuery) -> Iterator[RunInfo]:
        """Runs, the one that began last first.

        A damaged run is a `CorruptError` if *query* names the run or its name, so that no other
        run is mistaken for it. A listing of all runs shows the part that can be read.
        """

    def head_and_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        """The head of a run and a scope's newest visible checkpoint; None without a run.

        Both are of one moment. This default asks twice and compares; a medium that can answer in
        one round trip overrides it.
        """
        wanted = RecordQuery(run_id=run_id, scope=scope, limit=1)
        for _ in range(_LOOKS):
            head = run_of(self, run_id)
            if head is None:
                return None
            newest = next(iter(self.headers(wanted)), None)
            if run_of(self, run_id) == head:
                return head, newest
        raise restless(run_id, _LOOKS)

    def page(
        self, query: RecordQuery, *, about: str | None = None, notes: Collection[str] = ()
    ) -> Page:
        """The headers that *query* wants, and visible notes of some kinds of their runs.

        *about* narrows to the run with exactly that id or, if there is none, to the runs of that
        name. Notes come oldest first within a run.
        """
        if about is not None and self.has_run(about):
            query = msgspec.structs.replace(query, run_id=about)
        elif about is not None:
            query = msgspec.structs.replace(query, name=about)
        headers = tuple(self.headers(query))
        run_ids = sorted({header.run_id for header in headers})
        if not run_ids or not notes:
            return Page(headers, ())
        return Page(headers, tuple(self.notes(run_ids, notes, strict=query.run_id is not None)))

    def count_runs(self, *, now: float, most: int) -> RunTally | None:
        """Count all runs, and name up to *most* of each hold that may be wrong.

        None if the medium would have to read each run.
        """
        return None

    def has_run(self, run_id: str) -> bool:
        """True if there is a run with this id."""
        return run_of(self, run_id) is not None

    def notes(
        self, run_ids: Sequence[str], kinds: Collection[str], *, strict: bool
    ) -> Iterable[Header]:
        """Visible notes of some kinds, run by run, oldest first.

        A damaged one is a `CorruptError`; unless *strict*, a medium may leave it out instead. This
        default asks once for each run and kind; a medium that can answer at once overrides it.
        """
        for run_id in run_ids:
            found = [
                header
                for kind in kinds
                for header in self.headers(RecordQuery(run_id=run_id, kind=kind, notes=True))
                if header.frame == "note"
            ]
            yield from sorted(found, key=lambda note: note.seq)

    @abstractmethod
    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        """Hide some seqs, erase some, or delete the whole run (neither given).

        Hidden records leave `headers`, `find` and the counts of `runs` but can still be read as
        bases of deltas. Erased ones are gone. What is already so is passed over; returns how many
        records were affected. The newest record of a run cannot be erased.
        """

    def fit(self, threads: int) -> None:
        """Have connections for calls of so many threads, unless a number was given."""

    @abstractmethod
    def close(self) -> None:
        """Release what the storage holds; closing twice is allowed, later use an error."""

    def compact(self) -> None:
        """Give freed space back to the system, where the medium does not do so by itself."""

    # With `delete`, these make a storage a store of states.

    def save(self, state: State) -> str:
        """Save a state as the newest of its run; return the checkpoint's id."""
        return find_saver(self).save_checkpoint(state)

    def load(self, run_id: str) -> Any:
        """Load the newest state of a run, or raise a `NotFoundError`."""
        found = self.head_and_newest(run_id)
        if found is None or found[1] is None:
            raise NotFoundError(f"there is no run {run_id!r}", hint="list() names the runs")
        return find_saver(self).load_checkpoint(found[1].id)

    def list(self) -> Iterable[str]:
        """List the ids of all runs, the one that began last first."""
        return [run.run_id for run in self.runs(RunQuery())]


@runtime_checkable
class Leasing(Protocol):
    """A storage that can give a run to one process at a time."""

    def take_lease(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> Lease:
        """Give the run to *owner* until ``now + ttl``, with a new highest epoch.

        The epoch is also higher than *above*. A lease of another that has not expired and whose
        owner is not known to be dead is a `LeaseHeldError` with `.owner` and `.until`. The run
        need not exist, and its lease stays, with its epoch, when the run is deleted.
        """

    def renew_lease(self, lease: Lease, *, now: float, ttl: float) -> Lease:
        """Prolong a lease that is still the newest; else a `ConflictError`."""

    def release_lease(self, lease: Lease) -> None:
        """Give the run back. The epoch stays. A lease that was taken over is left alone."""

    def lease_of(self, run_id: str) -> Lease | None:
        """The newest lease, expired or not; `.owner` is None once released."""


class TakenRun(msgspec.Struct, frozen=True):
    """A lease just taken, and the run as it was then or later."""

    lease: Lease
    head: RunInfo | None
    """None if there is no such run."""
    newest: Header | None
    """The newest visible checkpoint of scope ""."""


@runtime_checkable
class Opening(Protocol):
    """A `Leasing` storage that takes a run and looks at it in one call."""

    def take_run(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> TakenRun:
        """`take_lease`, and the head with the newest checkpoint, not older than the lease.

        All that the holder before has appended is in the head. If the head cannot be read, the
        lease is not taken.
        """


def take_and_look(
    storage: Storage, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
) -> TakenRun:
    """`Opening.take_run` of a storage that takes the lease and looks in two steps."""
    assert isinstance(storage, Leasing)
    lease = storage.take_lease(run_id, owner, now=now, ttl=ttl, above=above)
    try:
        found = storage.head_and_newest(run_id)
    except BaseException:
        storage.release_lease(lease)
        raise
    return TakenRun(lease, *(found or (None, None)))


@runtime_checkable
class Watching(Protocol):
    """A storage that notifies of changes; `RunWatch` polls where there is none."""

    def subscribe(self, notify: Callable[[str | None], None]) -> Subscription:
        """Call *notify* after each append of any process, until it is closed.

        It is called from another thread, with the id of the run, or None if any may have changed.
        A notification may come twice or be lost with its connection: it is a reason to look.
        """


@runtime_checkable
class Atomic(Protocol):
    """A storage that can store batches of several runs together or not at all."""

    def append_all(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        """Store all of the batches in one commit or, if one of them conflicts, none.

        Each is of another run. Where any is a `ConflictError`, the others were not stored either.
        """


def run_of(storage: Storage, run_id: str) -> RunInfo | None:
    """The head of a run; None if there is no such run."""
    return next(iter(storage.runs(RunQuery(run_id=run_id, limit=1))), None)


def newest_record(storage: Storage, run_id: str, kind: str | None = None) -> Header | None:
    """The newest visible record of a run, of all or of one kind, notes included."""
    query = RecordQuery(run_id=run_id, kind=kind, notes=True, limit=1)
    return next(iter(storage.headers(query)), None)


def newest_lease(storage: Storage, run_id: str) -> Lease | None:
    """The newest lease of a run; None on a storage without leases."""
    return storage.lease_of(run_id) if isinstance(storage, Leasing) else None


def restless(run_id: str, times: int) -> StorageUnavailableError:
    """The error for a run that changes whenever it is read."""
    return StorageUnavailableError(
        f"run {run_id!r} changed {times} times while it was read", run_id=run_id
    )


def _check_limit(limit: int | None) -> None:
    if limit is not None and limit < 0:
        raise UsageError(f"limit is {limit}", hint="give 0 or more, or leave it out")


def only_one(found: Mapping[tuple[str, str], T], before: str | None) -> T:
    """The one place that `RecordQuery.before` names, among those *found*."""
    if not found:
        raise NotFoundError(
            f"there is no record {before!r} to continue from",
            hint="list again from the start",
            id=before,
        )
    if len(found) > 1:
        raise UsageError(
            f"{before!r} names records of several runs and scopes: {sorted(found)}",
            hint="give run_id and scope as well as before",
            id=before,
        )
    return next(iter(found.values()))
