"""Journals in an object store: for machines that share nothing but a bucket."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice

from surehold.core.records import Header, Lease, Record, medium_name, released
from surehold.errors import ConflictError, CorruptError, StorageError, UsageError
from surehold.storage import shared
from surehold.storage.abilities import Fact, Inspection
from surehold.storage.base import Batch, RecordQuery, RunInfo, RunQuery, Storage, logger
from surehold.storage.objects.appending import Append, drop_records
from surehold.storage.objects.bucket import Bucket
from surehold.storage.objects.diagnosis import check_conditions, diagnose, has_format, mark_format
from surehold.storage.objects.leases import LeaseObjects
from surehold.storage.objects.log_reader import LogReader
from surehold.storage.objects.log_view import LogView, entry_key
from surehold.storage.objects.packs import Packs, StaleView
from surehold.storage.objects.repair import check_index, inspect_run, lost_runs, rewrite_run
from surehold.storage.objects.run_listing import NEWEST, RunListing, wants
from surehold.storage.objects.run_log import LogChange, RunLogs, is_at_rest, tip_of
from surehold.storage.objects.run_names import RunNames
from surehold.storage.objects.segments import LogRow, header_of
from surehold.storage.objects.zones import with_kind, with_query

_TRIES = 20


class BucketStorage(shared.LeaseSlots, Storage):
    """Keeps journals in a bucket; one that ignores conditions of writes is refused.

    Leases expire by the clocks of the processes that take them; a stale writer is refused whatever
    the clocks say. *compress* ("zstd", "gzip" or False) compresses bodies before they are sent.
    """

    def __init__(self, bucket: Bucket, *, compress: bool | str) -> None:
        self.body_compression = shared.read_compression(compress)
        self._bucket = bucket
        try:
            self._bucket.once(lambda: check_conditions(self._bucket))
            self._is_marked = self._bucket.once(lambda: has_format(self._bucket))
        except BaseException:
            self._bucket.close()
            raise
        self._index = RunNames(self._bucket)
        self._logs = RunLogs(self._bucket, self._index)
        self._packs = Packs(self._bucket, self._logs)
        self._leases = LeaseObjects(self._bucket)
        self._reading = LogReader(self._logs, self._packs)
        self._listing = RunListing(self._bucket, self._logs, self._index, self._reading)

    @staticmethod
    def check_settings(
        compress: bool | str, timeout: float, patience: float, endpoint: str | None
    ) -> None:
        """Raise a `UsageError` for settings that no bucket can have."""
        if endpoint is not None and not endpoint.startswith(("https://", "http://")):
            raise UsageError(
                "endpoint is not an address of a service", hint="give endpoint=https://host:port"
            )
        if timeout <= 0 or patience < 0:
            raise UsageError("timeout must be positive, and patience not negative")
        shared.read_compression(compress)

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        self._bucket.check_open()
        by_run: dict[str, list[tuple[int, Batch, list[Record]]]] = {}
        for number, batch in enumerate(batches):
            by_run.setdefault(batch.run_id, []).append((number, batch, batch.opened()))
        runs = [Append(run_id, parts) for run_id, parts in by_run.items()]
        beginning = [run for run in runs if run.may_begin]
        for run, ordinal in zip(beginning, self._new_ordinals(beginning), strict=True):
            run.ordinal = ordinal
        results: list[ConflictError | None] = [None] * len(batches)
        for found in self._bucket.apart(self._append, runs):
            for number, result in found:
                results[number] = result
        return results

    def read(
        self, run_id: str, *, first: int | None = None, last: int | None = None
    ) -> Iterator[Record]:
        self._bucket.check_open()
        return self._reading.records(run_id, max(first or 1, 1), last)

    def headers(self, query: RecordQuery) -> Iterator[Header]:
        self._bucket.check_open()
        if query.limit == 0:
            return iter(())
        if query.run_id is None:
            return islice(self._listing.headers(query), query.limit)
        return islice(self._headers_of(query.run_id, query), query.limit)

    def find(self, id_prefix: str) -> list[Header]:
        self._bucket.check_open()
        return self._listing.find(id_prefix)

    def runs(self, query: RunQuery) -> Iterator[RunInfo]:
        self._bucket.check_open()
        if query.run_id is not None:
            info = self._listing.info(query.run_id)
            if info is None:
                self._check_not_lost(self._logs.view(query.run_id))
            return islice((one for one in [info] if one and wants(query, one)), query.limit)
        fetch = partial(self._listing.infos, query)
        start = NEWEST if query.before is None else query.before
        return islice(shared.paged(fetch, start, limit=query.limit), query.limit)

    def head_and_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        with self._logs.lock(run_id):
            view = self._logs.view(run_id)
            if view.head is None:
                self._check_not_lost(view)
                return None
            own = None if view.newest is None else header_of(run_id, view.newest)
            newest = self._reading.newest(view, scope) if scope else own
            return shared.run_info(view.head, own), newest

    def has_run(self, run_id: str) -> bool:
        return self._listing.info(run_id) is not None

    def notes(
        self, run_ids: Sequence[str], kinds: Collection[str], *, strict: bool
    ) -> list[Header]:
        found: list[Header] = []
        for run_id in run_ids:
            rows = self._reading.rows(run_id, fresh=False, wanted=with_kind(kinds))
            opened = [header_of(run_id, row) for row in rows if row.note]
            found += [header for header in reversed(opened) if header.kind in kinds]
        return found

    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        self._bucket.check_open()
        if hide is None and erase is None:
            return self._delete_run(run_id)
        erased = set(erase or ())
        hidden = set(hide or ()) - erased
        gone: list[LogRow] = []
        affected = 0

        def plan(view: LogView, fresh: bool) -> LogChange | None:
            nonlocal affected
            change, affected = drop_records(self._packs, view, hidden, erased, gone)
            return change

        self._packs.again(run_id, lambda: self._logs.change(run_id, plan))
        if gone:
            self._erase(run_id, gone)
        return affected

    def compact(self) -> None:
        """Pack every run, and delete the objects that are not needed any more."""
        resting = {tip.run_id for _, tip in self._index.all_resting()}
        for tip in self._listing.tips():
            with self._logs.lock(tip.run_id):
                self._packs.again(tip.run_id, partial(self._compact, tip.run_id))
                if tip.run_id not in resting:
                    self._rest(tip.run_id)

    def close(self) -> None:
        self._bucket.close()

    def change_lease(
        self, run_id: str, change: Callable[[Lease | None], Lease | None]
    ) -> Lease | None:
        held, lease = self._leases.change(run_id, change)
        if lease is not None and lease.epoch > (held.epoch if held else 0):
            try:
                if held is not None:
                    self._check_not_lost(self._logs.view(run_id))
            except CorruptError:
                self._leases.change(run_id, lambda newest: released(newest, lease))
                raise
            self._fence(run_id, lease.epoch)
        elif held is not None and held.owner and lease is not None and lease.owner is None:
            self._rest(run_id)
        return lease

    def lease_of(self, run_id: str) -> Lease | None:
        return self._leases.read(run_id)

    def check_medium(self, *, repair: bool) -> list[str]:
        return check_index(self._logs, self._index, repair=repair)

    def diagnose(self) -> list[Fact]:
        return self._bucket.once(lambda: diagnose(self._bucket))

    def known_runs(self) -> list[str]:
        known = [tip.run_id for tip in reversed(self._listing.tips(with_damaged=True))]
        return list(dict.fromkeys([*known, *self.lost_runs()]))

    def lost_runs(self) -> list[str]:
        return lost_runs(self._bucket, self._logs, self._index)

    def inspect(self, run_id: str) -> Inspection | None:
        self._bucket.check_open()
        found = inspect_run(self._bucket, run_id)[0]
        if found is None and self._name_of_lost(run_id):
            return shared.inspect_missing(run_id, shared.run_missing(run_id).message)
        return found

    def rewrite(
        self, run_id: str, records: Sequence[Record], hidden: Collection[int], *, head: int
    ) -> str:
        if not records and (name := self._name_of_lost(run_id)):
            for one in self._index.all():
                if one.name == name:
                    self._index.stir(one.ordinal, name)
                    self._index.remove(one.ordinal, name)
            return "nowhere: there was nothing left of it"
        with self._logs.lock(run_id):
            self._logs.forget(medium_name(run_id))
            where, ordinal = rewrite_run(
                self._bucket, self._logs, self._packs, run_id, records, hidden, head
            )
        if not records and ordinal:
            self._index.remove(ordinal, medium_name(run_id))
        return where

    def _check_not_lost(self, view: LogView) -> None:
        """Raise a `CorruptError` if a run begun under a lease has no log any more.

        Taking a lease writes to the log, and the index names a run before its first record.
        """
        if view.pos or self._leases.read(view.run_id) is None:
            return
        if any(one.name == view.name for one in self._index.all()):
            raise shared.run_missing(view.run_id)

    def _name_of_lost(self, run_id: str) -> str | None:
        """The name in the index of a run that has no log any more; None if it is not lost."""
        return next((one for one in self.lost_runs() if one in (run_id, medium_name(run_id))), None)

    def _new_ordinals(self, runs: Sequence[Append]) -> list[int]:
        if not runs:
            return []
        if not self._is_marked:
            mark_format(self._bucket)
            self._is_marked = True
        ordinals = self._index.ordinals(len(runs))
        pairs = list(zip(ordinals, runs, strict=True))
        self._bucket.together(
            lambda one: self._index.add(one[0], medium_name(one[1].run_id)), pairs
        )
        return ordinals

    def _append(self, run: Append) -> list[tuple[int, ConflictError | None]]:
        try:
            view = self._packs.again(run.run_id, lambda: self._change(run))
        except CorruptError as error:
            # Raised, it would fail the batches of all other runs as well.
            return run.refused(error)
        if run.ordinal and (view.head is None or view.head.ordinal != run.ordinal):
            self._index.remove(run.ordinal, medium_name(run.run_id))
        if run.ends:
            self._rest(run.run_id)
        if self._packs.is_due(view):
            self._pack(view)
        return run.results

    def _change(self, run: Append) -> LogView:
        return self._logs.change(
            run.run_id, lambda view, fresh: run.decide(self._packs, view, fresh), fresh=False
        )

    def _pack(self, view: LogView) -> None:
        """Pack a run. A failure costs a later reader some requests, and no record."""
        try:
            with self._logs.lock(view.run_id):
                self._packs.pack(view)
        except (StorageError, CorruptError, StaleView) as error:
            self._logs.forget(view.name)
            logger.warning("run %r was not packed: %s", view.run_id, error)

    def _rest(self, run_id: str) -> None:
        """Put the facts of a run that is not running into the index.

        If it fails, later listings make some more requests.
        """
        try:
            with self._logs.lock(run_id):
                view = self._logs.view(run_id, fresh=False)
                if not is_at_rest(view) or view.rested == view.pos:
                    return
                if not self._index.rest(view.name, tip_of(view)):
                    return
                view.rested = view.pos
                if self._bucket.get(entry_key(view.name, view.pos + 1)) is not None:
                    # Another process has changed it before its facts were there to be removed.
                    assert view.head is not None
                    self._index.stir(view.head.ordinal, view.name)
        except (StorageError, CorruptError) as error:
            logger.warning("run %r is not in the index of ended runs: %s", run_id, error)

    def _fence(self, run_id: str, epoch: int) -> None:
        """Make the lease known to the log, so that whoever holds an older one collides."""

        def plan(view: LogView, fresh: bool) -> LogChange | None:
            if view.epoch >= epoch:
                return None
            return LogChange(head=view.head, newest=view.newest, epoch=epoch)

        self._logs.change(run_id, plan, fresh=False)

    def _erase(self, run_id: str, gone: Sequence[LogRow]) -> None:
        """Remove the bytes of erased records from every object that holds them."""
        seqs, places = {row.seq for row in gone}, {row.pos for row in gone}

        def work() -> None:
            with self._logs.lock(run_id):
                for _ in range(_TRIES):
                    view = self._logs.view(run_id)
                    if self._packs.pack(view, erased=seqs):
                        self._packs.scrub(view, places)
                        return

        self._packs.again(run_id, work)

    def _delete_run(self, run_id: str) -> int:
        affected, ordinal = 0, 0

        def plan(view: LogView, fresh: bool) -> LogChange | None:
            nonlocal affected, ordinal
            if view.head is None:
                return None
            gaps = sum(last - first + 1 for first, last in view.erased)
            affected, ordinal = view.head.seq - gaps, view.head.ordinal
            return LogChange(head=None, newest=None, resets=True)

        with self._logs.lock(run_id):
            view = self._logs.change(run_id, plan)
            if affected:
                self._index.remove(ordinal, view.name)
                self._packs.drop(view)
        return affected

    def _headers_of(self, run_id: str, query: RecordQuery) -> Iterator[Header]:
        below = None if query.before is None else self._listing.bound(query)[2]
        rows = self._reading.rows(
            run_id,
            below,
            fresh=below is None,  # else the look for its place was one at the run
            wanted=with_query(query),
            limit=query.limit,
        )
        for row in rows:
            if query.notes or not row.note:
                header = header_of(run_id, row)
                if query.matches(header):
                    yield header

    def _compact(self, run_id: str) -> None:
        view = self._logs.view(run_id)
        left = self._packs.erased_in(view)
        if (view.loose > 1 or left) and not self._packs.pack(view, erased=left):
            return
        self._packs.sweep(view)
        self._packs.sweep_data(view)
