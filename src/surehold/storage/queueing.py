"""The ability of a storage to keep queues of runs and give them to workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from surehold.core.policy import EntryState, QueueEntry, QueueInfo, QueueSettings
from surehold.core.records import Lease, Owner
from surehold.errors import UsageError
from surehold.storage.base import Storage


class ClaimQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that a worker can take."""

    queues: tuple[str, ...]
    targets: tuple[str, ...]
    """The code that it has: ``module:name@version``."""
    run_id: str | None = None
    """Only this run, whatever is ahead of it in its queue."""
    limit: int = 1


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was given to a worker, with its lease."""

    entry: QueueEntry
    lease: Lease


class StaleClaim(Claim, frozen=True, kw_only=True):
    """A run that is marked as running and whose lease may be dead."""

    expired: bool


class EntryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for entries of queues. Every field narrows; None means any."""

    queue: str | None = None
    state: EntryState | None = None
    cancelled: bool | None = None
    """True: only those that someone asked to cancel."""
    run_ids: tuple[str, ...] | None = None
    """Only entries of these runs: costs what they are, whatever else is queued."""
    limit: int | None = None

    def admits(self, entry: QueueEntry) -> bool:
        """True if *entry* passes the filter."""
        return (
            self.queue in (None, entry.queue)
            and self.state in (None, entry.state)
            and self.cancelled in (None, entry.cancelled)
            and (self.run_ids is None or entry.run_id in self.run_ids)
        )


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it announces itself."""

    id: str
    owner: Owner
    queues: tuple[str, ...]
    targets: tuple[str, ...]
    """The code that it has: ``module:name@version``."""
    concurrency: int
    since: float
    """Seconds since 1970 at which it started."""
    seen: float = 0.0
    """Seconds since 1970 at which it last announced itself."""


@runtime_checkable
class Queueing(Protocol):
    """A storage that keeps the entries of queued runs beside their journals.

    Entries change with `Storage.append`, in its commit, as `surehold.core.policy.after_change`
    says; a deleted run has none.
    """

    @property
    def keeps_queues(self) -> bool:
        """False if this one cannot, though others of its kind can."""

    def claim(self, query: ClaimQuery, owner: Owner, *, now: float, ttl: float) -> list[Claim]:
        """Give *owner* the next ready runs with their leases, within the queues' limits.

        What is due becomes ready first. A run whose lease another process holds is passed over. No
        two callers get the same run, and none waits for another.
        """

    def idle_for(self, query: ClaimQuery, *, now: float) -> float | None:
        """Seconds until a claim may succeed: 0 if a run is due, None if none has a time.

        Limits are not looked at, and nothing is changed.
        """

    def ready(self, query: ClaimQuery, *, now: float) -> list[QueueEntry]:
        """The next ready runs of each queue, whatever its limits; nothing is taken."""

    def renew_claims(self, leases: Sequence[Lease], *, now: float, ttl: float) -> list[str]:
        """Prolong leases that are still the newest; the ids of the runs of the others."""

    def settle(
        self, lease: Lease, entry: QueueEntry | None, *, now: float, expired: bool = False
    ) -> bool:
        """Store the fate of a claimed run and release its lease, if that is the newest.

        A run that is to wait and was answered meanwhile is ready. None removes the entry. With
        *expired* nothing is done unless the lease has expired. Returns whether it was done.
        """

    def stale_claims(self, *, now: float, host: str | None = None) -> list[StaleClaim]:
        """Runs that are marked as running, the ones without a live lease among them.

        With *host*, of runs with a live lease only those of its processes.
        """

    def entry_of(self, run_id: str) -> QueueEntry | None:
        """The entry of a run."""

    def entries(self, query: EntryQuery) -> Iterator[QueueEntry]:
        """Entries by queue and state, in the order in which ready ones start."""

    def put_entries(self, entries: Iterable[tuple[str, QueueEntry | None]]) -> None:
        """Replace entries by run id, to make the index again from the journal."""

    def queues(self) -> list[QueueInfo]:
        """The queues that have entries or settings, by name."""

    def settings_of(self, name: str) -> QueueSettings:
        """The limits of a queue."""

    def set_queue(self, name: str, settings: QueueSettings) -> None:
        """Set the limits of a queue."""

    def announce(self, worker: WorkerInfo, *, now: float, ttl: float) -> None:
        """List *worker* for *ttl* seconds, instead of what it said before; 0 removes it."""

    def workers(self, *, now: float) -> list[WorkerInfo]:
        """The workers whose announcements have not expired, the oldest first."""


def queues_in(storage: Storage) -> Queueing | None:
    """The queues of a storage; None if it keeps none."""
    return storage if isinstance(storage, Queueing) and storage.keeps_queues else None


def check_queues(storage: Storage) -> Queueing:
    """The queues of a storage; a `UsageError` names the storages that have them."""
    kept = queues_in(storage)
    if kept is None:
        name = type(storage).__name__ + (" on a cluster" if isinstance(storage, Queueing) else "")
        raise UsageError(
            f"a {name} keeps no queues",
            hint="PostgreSQL and one Redis or Valkey server keep them for many machines,"
            " SQLite for the processes of one; files, objects, Cosmos DB and clusters do not",
        )
    return kept
