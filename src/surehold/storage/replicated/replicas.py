"""The storages of a `ResilientStorage`, and the agreement of their copies."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar

import msgspec

from surehold.errors import (
    ConflictError,
    CorruptError,
    DivergedError,
    StorageError,
    StorageUnavailableError,
    SureholdError,
)
from surehold.storage.base import Batch, Leasing, RunInfo, RunQuery, Storage, has_record, run_of
from surehold.storage.replicated.breaker import Breaker
from surehold.storage.replicated.copies import (
    Whole,
    bring_up,
    hide_alike,
    merged,
    repairable,
    visible,
)
from surehold.storage.retries import Retry, retried, within

logger = logging.getLogger("surehold.storage")

T = TypeVar("T")
_LONGER = 30
"""Factor by which a call that moves a whole run may take longer."""
_SLOW = 1.0
"""Seconds after which a failed attempt is the last: the storage was patient itself."""
Opener = Callable[[], Storage]
EventKind = Literal["retry", "failover", "behind", "heal", "diverged", "recovered"]


class StorageEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a `ResilientStorage` did to keep working.

    `retry`: a call is made again. `failover`: another storage takes the place of the first.
    `behind`: a copy could not be brought up to date. `heal`: a damaged run was made whole from a
    copy. `diverged`: two copies of a run disagree. `recovered`: a storage works again, and was
    given what it had missed.
    """

    kind: EventKind
    storage: str
    """The storage concerned."""
    operation: str = ""
    run_id: str | None = None
    records: int = 0
    """Records that were brought over."""
    error: BaseException | None = None


class Replica:
    """One of the storages."""

    def __init__(self, number: int, given: Storage | Opener, breaker: Breaker) -> None:
        self.number = number
        self.breaker = breaker
        self.behind: set[str] = set()
        """The runs that it is known to lack something of."""
        self.failure: SureholdError | None = None
        """The error of the last call, if it failed."""
        self.missing = False
        """True if the last copy could not be made."""
        self.name = f"fallback {number}" if number else "primary"
        self._given = given
        self._opened: Storage | None = given if isinstance(given, Storage) else None
        self._lock = threading.Lock()

    @property
    def storage(self) -> Storage:
        """The storage, opened now if it was not yet."""
        with self._lock:
            if self._opened is None:
                assert not isinstance(self._given, Storage)
                self._opened = self._given()
            return self._opened

    @property
    def may_lease(self) -> bool:
        """False if the storage is open and cannot lease runs."""
        return self._opened is None or isinstance(self._opened, Leasing)

    def renew_locks(self) -> None:
        self._lock = threading.Lock()
        self.breaker.renew_lock()

    def close(self) -> None:
        with self._lock:
            if self._opened is not None:
                self._opened.close()

    def __str__(self) -> str:
        return self.name if self._opened is None else f"{self.name} ({type(self._opened).__name__})"


def has_failed(error: BaseException) -> bool:
    """True if the storage failed, rather than one damaged run in it."""
    if isinstance(error, CorruptError):
        return error.facts.get("run_id") is None
    return isinstance(error, StorageError)


class _SlowFailure(Exception):
    """A failure that is not worth another attempt, however transient it is."""

    def __init__(self, error: StorageError) -> None:
        super().__init__()
        self.error = error


class Replicas:
    """All storages, the primary first. A change requires `lock`."""

    def __init__(
        self,
        replicas: list[Replica],
        retry: Retry,
        on_event: Callable[[StorageEvent], None] | None,
        clock: Callable[[], float],
    ) -> None:
        self.all = replicas
        self.retry = retry
        self._clock = clock
        self.lock = threading.RLock()
        self._on_event = on_event
        self._settled: set[str] = set()
        """The runs whose copies were found to fit, all storages having answered."""
        self._all_settled = False
        self._acting = 0

    def renew_locks(self) -> None:
        """Give a child process locks of its own, after a fork."""
        self.lock = threading.RLock()
        for replica in self.all:
            replica.renew_locks()

    def call(
        self,
        replica: Replica,
        operation: str,
        call: Callable[[Storage], T],
        *,
        again: bool = True,
        long: bool = False,
    ) -> T:
        """Call a storage, tried *again* if that may help; *long* calls get more time.

        A storage that took long to fail is not asked again, neither for this nor, until the pause
        of its breaker is over, for anything else: what is to be saved waits for it once.
        """
        if not replica.breaker.allows():
            raise StorageUnavailableError(f"{replica} failed before and is left alone for a while")
        retry = self.retry if again else msgspec.structs.replace(self.retry, retries=0)
        if long and retry.deadline is not None:
            retry = msgspec.structs.replace(retry, deadline=retry.deadline * _LONGER)

        def told(number: int, error: BaseException) -> None:
            self.tell("retry", replica, operation, error=error)

        began = self._clock()

        def attempt() -> T:
            since = self._clock()
            try:
                return call(replica.storage)
            except StorageError as error:
                if self._clock() - since >= _SLOW:
                    raise _SlowFailure(error) from error
                raise

        try:
            result = within(
                retry.deadline,
                lambda _: retried(attempt, retry, told),
                f"{operation} on {replica}",
            )
        except (SureholdError, _SlowFailure) as raised:
            error = raised.error if isinstance(raised, _SlowFailure) else raised
            if has_failed(error):
                replica.failure = error
                replica.breaker.failed(slowly=self._clock() - began >= _SLOW)
                self.unsettle()
            else:
                self._worked(replica)
            raise error from error.__cause__
        self._worked(replica)
        return result

    def _worked(self, replica: Replica) -> None:
        replica.failure = None
        if replica.breaker.worked():
            self.unsettle()

    def tell(self, kind: EventKind, replica: Replica, operation: str = "", **facts: Any) -> None:
        event = StorageEvent(kind=kind, storage=str(replica), operation=operation, **facts)
        level = logging.INFO if kind in ("retry", "recovered") else logging.WARNING
        logger.log(level, "%s: %s %s %s", event.storage, kind, operation, facts)
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:
                # A listener that fails must not undo what was done.
                logger.exception("a handler of storage events failed")

    def acting(self, replica: Replica, operation: str, error: BaseException | None) -> None:
        """Tell that another storage than before does the work, if it is so."""
        if replica.number != self._acting:
            kind: EventKind = "failover" if replica.number > self._acting else "recovered"
            self._acting = replica.number
            self.tell(kind, replica, operation, error=error)

    def unsettle(self, run_id: str | None = None) -> None:
        """Compare the copies of a run, or of all, before they are used again."""
        if run_id is None:
            self._settled.clear()
        else:
            self._settled.discard(run_id)
        self._all_settled = False

    def pass_by(self, replica: Replica, run_id: str) -> None:
        """Note that the storages before *replica* lack what it has now of a run."""
        for earlier in self.all[: replica.number]:
            self.unsettle(run_id)
            earlier.behind.add(run_id)

    # Making copies agree

    def settle(self, run_id: str) -> int:
        """Check that the copies of a run fit; the number of the first up-to-date storage.

        What an earlier storage lacks it is given first. Copies that disagree are a `DivergedError`.
        """
        if run_id in self._settled:
            return 0
        with self.lock:
            heads = {replica.number: self._head(replica, run_id) for replica in self.all}
            for damaged in heads.values():
                if isinstance(damaged, CorruptError) and not has_failed(damaged):
                    raise damaged
            known = {n: head for n, head in heads.items() if isinstance(head, RunInfo)}
            if known:
                lead = max(known, key=lambda n: (known[n].seq, -n))
                for replica in self.all:
                    head = heads[replica.number]
                    if replica.number != lead and not isinstance(head, SureholdError):
                        self._fit(run_id, self.all[lead], known[lead], replica, head, heads)
            if not any(isinstance(head, SureholdError) for head in heads.values()):
                self._settled.add(run_id)
                if known:
                    self.all[lead].behind.discard(run_id)
            return next((n for n, h in heads.items() if not isinstance(h, SureholdError)), 0)

    def _head(self, replica: Replica, run_id: str) -> RunInfo | SureholdError | None:
        try:
            return self.whole(replica, run_id, "compare", lambda storage: run_of(storage, run_id))
        except (StorageError, CorruptError) as error:
            return error

    def _fit(
        self,
        run_id: str,
        lead: Replica,
        newest: RunInfo,
        replica: Replica,
        head: RunInfo | None,
        heads: dict[int, RunInfo | SureholdError | None],
    ) -> None:
        seq, digest = (head.seq, head.digest) if head is not None else (0, "")
        if (seq, digest) == (newest.seq, newest.digest):
            if run_id in lead.behind:  # something was hidden while it was away
                self.call(
                    lead, "bring back", lambda to: hide_alike(to, replica.storage, run_id, seq)
                )
            return
        if seq and not self.call(
            lead, "compare", lambda storage: has_record(storage, run_id, seq, digest)
        ):
            raise self._divergence(run_id, replica, lead, seq, newest.seq)
        if replica.number > lead.number:
            return
        try:
            self._give(run_id, lead, replica, seq)
        except StorageError as error:
            replica.behind.add(run_id)
            heads[replica.number] = error

    def _give(self, run_id: str, source: Replica, target: Replica, after: int) -> None:
        """Bring what *source* has of a run after that seq to *target*, in order."""
        copied, conflict = self._bring(run_id, source, target, after, "bring back")
        if conflict is not None:
            raise self._divergence(run_id, target, source, conflict.head, after + copied)
        self.tell("recovered", target, "bring back", run_id=run_id, records=copied)

    def _bring(
        self, run_id: str, source: Replica, target: Replica, after: int, operation: str
    ) -> tuple[int, ConflictError | None]:
        copied, conflict = self.call(
            target, operation, lambda to: bring_up(source.storage, to, run_id, after), long=True
        )
        if conflict is None:
            if after:
                self.call(
                    target, operation, lambda to: hide_alike(to, source.storage, run_id, after)
                )
            target.behind.discard(run_id)
        return copied, conflict

    def _divergence(self, run_id: str, one: Replica, two: Replica, a: int, b: int) -> DivergedError:
        error = DivergedError(
            f"run {run_id!r} has gone one way in the {one}, to record {a}, and another in the"
            f" {two}, to record {b}",
            run_id=run_id,
            seq=min(a, b) + 1,
            head=a,
            storages=(str(one), str(two)),
        )
        self.unsettle(run_id)
        self.tell("diverged", one, run_id=run_id, error=error)
        return error

    def settle_all(self) -> tuple[list[str], int]:
        """See that no fallback has what an earlier storage lacks.

        Returns the runs that have diverged, and the number of the first storage that answered.
        """
        if self._all_settled:
            return [], 0
        diverged: list[str] = []
        with self.lock:
            heads = [self._heads(replica) for replica in self.all]
            for run_id in dict.fromkeys(run_id for found in heads for run_id in found or ()):
                known = [found.get(run_id, (0, "")) for found in heads if found is not None]
                if any(later[0] >= known[0][0] and later != known[0] for later in known[1:]):
                    try:
                        self.settle(run_id)
                    except DivergedError:
                        diverged.append(run_id)
            behind = any(replica.behind for replica in self.all[:-1])
            self._all_settled = None not in heads and not diverged and not behind
        return diverged, next((n for n, found in enumerate(heads) if found is not None), 0)

    def _heads(self, replica: Replica) -> dict[str, tuple[int, str]] | None:
        def look(storage: Storage) -> dict[str, tuple[int, str]]:
            return {run.run_id: (run.seq, run.digest) for run in storage.runs(RunQuery())}

        try:
            return self.whole(replica, None, "compare", look)
        except (StorageError, CorruptError):
            return None

    def mirror(self, replica: Replica, batches: Iterable[Batch]) -> None:
        """Append what *replica* has stored to the storages after it, as far as they work."""
        sent = list(batches)
        runs = {batch.run_id for batch in sent}
        for copy in self.all[replica.number + 1 :] if sent else ():
            try:
                results = self.call(copy, "copy", lambda storage: storage.append(sent))
                pairs = zip(sent, results, strict=True)
                late = {batch.run_id for batch, refused in pairs if refused}
                late |= runs & copy.behind
                copy.missing = False
                for run_id in sorted(late):
                    self.catch_up(replica, copy, run_id)
            except SureholdError as error:
                # It is stored and acknowledged, whatever becomes of its copy.
                copy.behind |= runs
                if not copy.missing:
                    # Once, not at every save of a long failure.
                    copy.missing = True
                    self.tell("behind", copy, "copy", error=error)

    def catch_up(self, source: Replica, copy: Replica, run_id: str) -> bool:
        """Bring a copy up to date with *source*; False if it differs."""
        head = self.whole(copy, run_id, "copy", lambda storage: run_of(storage, run_id))
        after = 0 if head is None else head.seq
        if head is not None and not self.call(
            source, "copy", lambda storage: has_record(storage, run_id, head.seq, head.digest)
        ):
            copy.behind.add(run_id)
            self._divergence(run_id, copy, source, head.seq, head.seq)
            return False
        _, conflict = self._bring(run_id, source, copy, after, "copy")
        if conflict is not None:
            copy.behind.add(run_id)
            self.tell("behind", copy, "copy", run_id=run_id, error=conflict)
        return True

    # Making them whole

    def whole(
        self, replica: Replica, run_id: str | None, operation: str, call: Callable[[Storage], T]
    ) -> T:
        """Call a storage, after healing a damaged run that it meets from a copy."""
        healed: set[str] = set()
        while True:
            try:
                return self.call(replica, operation, call)
            except CorruptError as error:
                damaged = error.facts.get("run_id", run_id)
                if damaged is None or damaged in healed or not self.heal(replica, damaged):
                    raise
                healed.add(damaged)

    def heal(self, replica: Replica, run_id: str) -> bool:
        """Make a damaged run whole from another storage; False if none has all of it."""
        with self.lock:
            for good in self.all:
                if good is replica or run_id in good.behind:
                    continue
                try:
                    made = self.call(
                        good, "heal", lambda s: merged(replica.storage, s, run_id), long=True
                    )
                    if made is None:
                        continue
                    self.call(replica, "heal", partial(made.put, run_id=run_id), long=True)
                except (StorageError, CorruptError, ConflictError):
                    continue
                self.tell("heal", replica, "heal", run_id=run_id, records=len(made.records))
                return True
        return False

    def heal_where_found(self, replica: Replica, id_prefix: str) -> bool:
        """Heal runs of *replica* that another storage finds by id; True if one was bad."""
        healed = False
        for other in self.all:
            if other is replica:
                continue
            with suppress(StorageError, CorruptError):
                found = self.call(other, "find", lambda s: s.find(id_prefix))
                for run_id in {header.run_id for header in found}:
                    healed |= self.heal(replica, run_id)
        return healed

    def keep(self, replica: Replica, run_id: str) -> list[str]:
        """Replace every other copy by this one; report where their own records are kept."""
        with self.lock:
            records = self.call(replica, "keep_copy", lambda s: list(s.read(run_id)), long=True)
            shown = self.call(replica, "keep_copy", lambda s: visible(s, run_id))
            hidden = {record.header.seq for record in records} - shown
            kept: list[str] = []
            for other in self.all:
                if other is replica:
                    continue
                inspection = self.call(
                    other, "keep_copy", lambda s: repairable(s).inspect(run_id), long=True
                )
                if inspection is not None:
                    put = partial(Whole(records, hidden, inspection.head).put, run_id=run_id)
                    kept.append(self.call(other, "keep_copy", put, long=True))
                else:
                    self.catch_up(replica, other, run_id)
                other.behind.discard(run_id)
            self.unsettle(run_id)
            return kept
