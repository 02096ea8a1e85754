"""Journals in a Redis or Valkey server: for many processes and short latencies."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Literal, TypeVar
from uuid import uuid4

import msgspec

from surehold.core.policy import QueueEntry, change_of
from surehold.core.records import STATUSES, Header, Lease, Owner, Record, check_run_id
from surehold.errors import ConflictError, CorruptError, StorageUnavailableError, UsageError
from surehold.storage import shared
from surehold.storage.abilities import Fact, Inspection
from surehold.storage.base import Batch, RecordQuery, RunInfo, RunQuery, RunTally, Storage, TakenRun
from surehold.storage.notifications import Listening
from surehold.storage.queueing import check_queues
from surehold.storage.redis.connections import ServerConnections
from surehold.storage.redis.diagnosis import diagnose
from surehold.storage.redis.durability import Facts, apply, read_facts
from surehold.storage.redis.indexes import Indexes
from surehold.storage.redis.keys import KeyNames, member_of
from surehold.storage.redis.notifications import RedisListener
from surehold.storage.redis.queue import RedisQueues, WasChanged
from surehold.storage.redis.repair import (
    check_indexes,
    inspect_run,
    known_runs,
    lost_runs,
    rebuild_indexes,
    rewrite_run,
)
from surehold.storage.redis.rows import append_values, head_at, head_of, header_of, record_at
from surehold.storage.redis.scripts import (
    APPEND,
    DELETE,
    DROP,
    HEAD,
    HOLDS,
    LEASE,
    READ,
    ROWS,
    SEALED,
    SIZES,
    TAKE,
    TAKE_FREE,
    TOUCH,
    WALK,
    Script,
)
from surehold.storage.rows import kind_key, query_keys, scope_key
from surehold.storage.shared import run_number, to_bytes, to_text

T = TypeVar("T")

_FORMAT = 1
"""The layout of the keys; the scripts mark it when a run begins."""
_PAGE = 256
_PAGE_BYTES = 4 << 20
_NO_BOUND = 1 << 53
_LOST = [b"lost"]
"""The answer of `HEAD` for a run that was stored and not deleted, and has no head."""
_TRIES = 20
_CONNECTIONS, _MOST_CONNECTIONS = 4, 33
"""Connections of a process that named no number: by default, and of a worker with many threads."""
_PAUSE = 0.01
"""Seconds between two tries to change the queues, at most."""
_ENTRY_CHANGED = -2
_Place = tuple[int, bytes]
"""A place in an index: of two records with one place, the member decides."""


class RedisStorage(shared.SwappedLeases[Sequence[bytes]], shared.QueueSlots, Listening, Storage):
    """Keeps journals in the Redis or Valkey server at *url*, below the keys' *prefix*.

    An append returns when the server has it on disk: a server whose settings would lose it is
    refused, or accepted with a warning if *durability* is "relaxed". *replicas* is how many
    replicas must have it too. Leases expire by the server's clock. *pool* is the most connections
    this process opens: 4 if it is not given, and more for a worker with more threads. A call waits
    *timeout* seconds for an answer; while the server is away, restarting or failing over, it is
    repeated for up to *patience* seconds. Opening is not: it fails at once. *compress* ("zstd",
    "gzip" or False) compresses bodies before they are sent.
    With ``lease_clock="caller"`` leases expire by the clocks of the processes that take them.
    """

    appends_at_once = 3

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "surehold",
        durability: Literal["disk", "relaxed"] = "disk",
        replicas: int = 0,
        pool: int | None = None,
        compress: bool | str = "zstd",
        timeout: float = 30.0,
        patience: float = 30.0,
        lease_clock: Literal["server", "caller"] = "server",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if (pool is not None and pool < 1) or timeout <= 0 or patience < 0 or replicas < 0:
            raise UsageError(
                "pool and timeout must be positive, and patience and replicas not negative"
            )
        if durability not in ("disk", "relaxed"):
            raise UsageError(f"durability is {durability!r}", hint='give "disk" or "relaxed"')
        self.body_compression = shared.read_compression(compress)
        self._clock = clock
        self._sized = pool is not None
        self._server_clock = lease_clock == "server"
        self._keys = KeyNames(prefix)
        self._db = ServerConnections(
            url, size=pool or _CONNECTIONS, timeout=timeout, patience=patience
        )
        try:
            facts = self._read_facts()[0]
            if facts.is_cluster:
                self._db.run_once(self._db.join_cluster)
            for facts in self._read_facts():
                self._db.awaited = apply(
                    facts, self._db.where, durability=durability, replicas=replicas
                )
            self._db.run_once(self._check_format)
            self._indexes = Indexes(self._db, self._keys, together=not facts.is_cluster)
        except BaseException:
            self._db.close()
            raise
        self._listener = RedisListener(self._db, self._keys.index + b"changes")

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        return self._append(batches, _TRIES)

    def read(
        self, run_id: str, *, first: int | None = None, last: int | None = None
    ) -> Iterator[Record]:
        self._db.check_open()
        page = self._page_of_records(run_id, max(first or 1, 1), last)
        return self._read(run_id, page, last)

    def headers(self, query: RecordQuery) -> Iterator[Header]:
        self._db.check_open()
        zones = _zones(query)
        if query.run_id is not None and zones:
            bound = _NO_BOUND if query.before is None else self._bound(query, by_seq=True)[0]
            found = self._walk(query.run_id, zones, bound, query.limit)
        else:
            start = (_NO_BOUND, b"") if query.before is None else self._bound(query)
            found = self._listed(query, start)
        return islice((header for header in found if query.matches(header)), query.limit)

    def find(self, id_prefix: str) -> list[Header]:
        prefix = to_bytes(id_prefix)
        found = self._checkpoints(b"[" + prefix + b"\0", b"(" + prefix + b"\1")
        exact = [header for header in found if header.id == id_prefix]
        return exact or self._checkpoints(b"[" + prefix, b"(" + prefix + b"\xff")

    def runs(self, query: RunQuery) -> Iterator[RunInfo]:
        self._db.check_open()
        return self._runs(query)

    def head_and_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        if scope and not self._indexes.together:
            return super().head_and_newest(run_id, scope)
        key = scope_key(run_number(run_id), scope) if scope else b""
        row = self._ask(HEAD, run_id, key)
        if not row:
            return None
        if row == _LOST:
            raise shared.run_missing(run_id)
        info, newest = head_of(run_id, row)
        if not scope:
            return info, newest
        return info, None if row[-1] is None else header_of(run_id, int(row[-1][0]), row[-1][1])

    def count_runs(self, *, now: float, most: int) -> RunTally | None:
        if not self._indexes.together:
            return None
        every, *sizes = self._ask(SIZES, "", *STATUSES)
        if every != sum(sizes):  # some have a status of their own
            return None
        counts = {(name, ""): size for name, size in zip(STATUSES, sizes, strict=True) if size}
        counts.pop(("running", ""), None)
        newest: dict[str, list[int]] = {}
        clock = b"" if self._server_clock else repr(now)
        for page in shared.paged(self._running, 0):
            runs = [part for run in page for part in (self._keys.run(to_text(run)), run)]
            holds = self._ask(HOLDS, "", self._keys.queue + b"entries", clock, *runs)
            for ordinal, hold in zip(page.values(), map(bytes.decode, holds), strict=True):
                counts["running", hold] = counts.get(("running", hold), 0) + 1
                if hold in ("held", "ended", "dead"):
                    newest.setdefault(hold, []).append(ordinal)
        return RunTally(counts, {hold: found[:most] for hold, found in newest.items()})

    def _running(self, first: int, size: int) -> tuple[list[dict[bytes, int]], int | None]:
        """A page of the runs stored as running, with their ordinals, newest first."""
        key = self._keys.runs_wanted(RunQuery(status="running"))
        rows = _pairs(self._db.ask("ZREVRANGE", key, first, first + size - 1, "WITHSCORES"))
        page = {run: ordinal for ordinal, run in rows}
        return [page], first + size if len(rows) == size else None

    def has_run(self, run_id: str) -> bool:
        return bool(self._db.ask("EXISTS", self._keys.run(run_id) + b"head"))

    def notes(
        self, run_ids: Sequence[str], kinds: Collection[str], *, strict: bool
    ) -> list[Header]:
        self._indexes.settle()
        lists = [
            self._keys.index + b"g:" + kind_key(run_number(run_id), kind)
            for run_id in run_ids
            for kind in kinds
            if kind != shared.COMMON_KIND
        ]
        members = self._db.ask_all([("ZRANGE", key, 0, -1) for key in lists])
        rows = self._rows(((0, one) for page in members for one in page), strict=strict)
        found = [header for _, hidden, header in rows if not hidden]
        for run_id in run_ids if shared.COMMON_KIND in kinds else ():
            walked = self._walk(run_id, b"n", _NO_BOUND, None)
            found += [header for header in walked if header.kind == shared.COMMON_KIND]
        return sorted(found, key=lambda note: (note.run_id, note.seq))

    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        if hide is None and erase is None:
            return self._delete_run(run_id)
        erased = sorted({*(erase or ())})
        hidden = sorted({*(hide or ())}.difference(erased))
        call = self._call(DROP, run_id, len(hidden), *hidden, *erased)
        affected = self._remove(run_id, call)
        if affected < 0:
            raise shared.cannot_erase(run_id, erased[-1])
        return affected

    def fit(self, threads: int) -> None:
        if not self._sized:
            self._db.widen(min(threads + 1, _MOST_CONNECTIONS))

    def close(self) -> None:
        self._listener.close()
        self._db.close()

    @property
    def keeps_queues(self) -> bool:
        """False in a cluster: a run and the queues are on different servers."""
        return self._indexes.together

    def in_queues(self, work: Callable[[shared.QueueTable], T]) -> T:
        for _ in range(_TRIES):
            table = self._queues()
            try:
                done = work(table)
                table.commit()
                return done
            except WasChanged:
                time.sleep(random.uniform(0, _PAUSE))
        raise _busy("the queues")

    def put_entries(self, entries: Iterable[tuple[str, QueueEntry | None]]) -> None:
        rest = iter(entries)
        while page := [*islice(rest, _PAGE)]:
            super().put_entries(page)

    def check_medium(self, *, repair: bool) -> list[str]:
        return (rebuild_indexes if repair else check_indexes)(self._db, self._keys, self._indexes)

    def diagnose(self) -> list[Fact]:
        return self._db.run_once(
            lambda: diagnose(self._db, self._read_facts(), replicas=self._db.awaited.replicas)
        )

    def known_runs(self) -> list[str]:
        return [*known_runs(self._db, self._keys), *self.lost_runs()]

    def lost_runs(self) -> list[str]:
        return lost_runs(self._db, self._keys, together=self._indexes.together)

    def inspect(self, run_id: str) -> Inspection | None:
        return inspect_run(self._db, self._keys, run_id, together=self._indexes.together)

    def rewrite(
        self, run_id: str, records: Sequence[Record], hidden: Collection[int], *, head: int
    ) -> str:
        return rewrite_run(self._db, self._indexes, run_id, records, hidden, head)

    def _read_facts(self) -> list[Facts]:
        return self._db.run_once(lambda: [read_facts(server) for server in self._db.servers()])

    def _check_format(self) -> None:
        (found,) = self._db.send([("GET", self._keys.index + b"format")])
        shared.check_format(self._db.where, found, _FORMAT)

    def _call(self, script: Script, run_id: str, *values: Any) -> tuple[Any, ...]:
        return self._indexes.call(script, run_id, *values)

    def _ask(self, script: Script, run_id: str, *values: Any) -> Any:
        return self._db.ask(*self._call(script, run_id, *values))

    def _append(self, batches: Sequence[Batch], tries: int) -> list[ConflictError | None]:
        sealed = [(batch, batch.opened()) for batch in batches]
        calls = self._append_calls(sealed, guess=tries == _TRIES)
        begun = [(batch.run_id, rows[0].header.seq) for batch, rows in sealed if rows]
        announced = self._indexes.announce(begun)
        answers = self._db.store(calls)
        results: list[ConflictError | None] = [None] * len(batches)
        again: list[int] = []
        changed: set[str] = set()
        for at, ((batch, records), answer) in enumerate(zip(sealed, answers, strict=True)):
            if answer[0] == 2 and not tries:
                raise _busy(f"the entry of run {batch.run_id!r}")
            if answer[0] == 2 or batch.run_id in changed:
                # Later batches of the run could not follow one that was not stored.
                changed.add(batch.run_id)
                again.append(at)
            elif not answer[0]:
                results[at] = self._explain(batch, records, answer[1:])
        made = zip(sealed, answers, strict=True)
        changes = [(batch.run_id, answer[1]) for (batch, _), answer in made if answer[0] == 1]
        self._indexes.change(changes, announced)
        if again:
            left = _TRIES - 1 if changes else tries - 1
            for at, result in zip(
                again, self._append([batches[at] for at in again], left), strict=True
            ):
                results[at] = result
        return results

    def _queues(self) -> RedisQueues:
        check_queues(self)
        ahead = 0.0
        if self._server_clock:
            seconds, micros = self._db.ask("TIME")
            ahead = int(seconds) + int(micros) / 1e6 - self._clock()
        return RedisQueues(self._db, self._keys, ahead)

    def _queue_arguments(self, run_id: str, records: list[Record], *, guess: bool) -> list[Any]:
        """The change that *records* make to the queues; a *guess* has the run in none."""
        change = change_of(records)
        if change is None or not self.keeps_queues:
            return []
        if change.submitted is None and guess:
            table = RedisQueues(self._db, self._keys)
            table.assume_absent(run_id)
        else:
            table = self._queues()
        return table.arguments_for(run_id, change, self._clock())

    def _delete_run(self, run_id: str) -> int:
        for tried in range(_TRIES):
            arguments: list[Any] = []
            if self.keeps_queues:
                table = RedisQueues(self._db, self._keys)
                if not tried:
                    table.assume_absent(run_id)
                arguments = table.arguments_without(run_id)
            affected = self._remove(run_id, self._call(DELETE, run_id, *arguments))
            if affected != _ENTRY_CHANGED:
                return affected
        raise _busy(f"the entry of run {run_id!r}")

    def _append_calls(
        self, sealed: Sequence[tuple[Batch, list[Record]]], *, guess: bool
    ) -> list[tuple[Any, ...]]:
        begins = [_may_begin(batch, records) for batch, records in sealed]
        ordinals = iter(self._indexes.ordinals(sum(begins)))
        return [
            self._call(
                APPEND,
                batch.run_id,
                *append_values(batch, records, next(ordinals) if begin else b""),
                *self._queue_arguments(batch.run_id, records, guess=guess),
            )
            for (batch, records), begin in zip(sealed, begins, strict=True)
        ]

    def _remove(self, run_id: str, call: tuple[Any, ...]) -> int:
        """Send a call that hides, erases or deletes; returns how many records it affected."""
        ((affected, changes),) = self._db.store([call])
        self._indexes.change([(run_id, changes)])
        return int(affected)

    def _explain(
        self, batch: Batch, records: list[Record], facts: Sequence[bytes]
    ) -> ConflictError | None:
        """Tell a retry that had succeeded from a conflict; nothing was stored just now."""
        seq, digest, epoch = int(facts[0]), facts[1].decode(), int(facts[2])
        stored: list[tuple[int, str]] = []
        if shared.may_be_retry(records, seq):
            rows = self._ask(SEALED, batch.run_id, *(record.header.seq for record in records))
            stored = [(int(at), sealed.decode()) for at, sealed in rows]
        decision = shared.decide_append(
            batch, records, seq=seq, digest=digest, epoch=epoch, stored=stored
        )
        if decision == "store":
            return self.append([batch])[0]
        if decision != "stored":
            return decision
        # An earlier attempt has stored it, of which neither durability nor indexes are known.
        self._db.store([self._call(TOUCH, batch.run_id)])
        if not self._indexes.together:
            self._indexes.reindex(batch.run_id, records[0].header.seq)
        return None

    def _read(self, run_id: str, page: Any, last: int | None) -> Iterator[Record]:
        before: Header | None = None
        while page:
            following, rows = page
            for seq, row, body in rows:
                record = record_at(run_id, int(seq), row, body)
                header = record.header
                if before and header.seq == before.seq + 1 and header.prev != before.digest:
                    raise shared.misplaced(run_id, header.seq)
                before = header
                yield record
            if not following:
                return
            page = self._page_of_records(run_id, int(following), last)

    def _page_of_records(self, run_id: str, first: int, last: int | None) -> Any:
        end = _NO_BOUND if last is None else last
        return self._ask(READ, run_id, first, end, _PAGE, _PAGE_BYTES)

    def _walk(self, run_id: str, zones: bytes, bound: int, limit: int | None) -> Iterator[Header]:
        def fetch(bound: int, size: int) -> tuple[list[Header], int | None]:
            rows = self._ask(WALK, run_id, zones, bound, size)
            found = [header_of(run_id, int(seq), row) for seq, row in rows]
            return found, found[-1].seq if len(rows) == size else None

        return shared.paged(fetch, bound, limit=limit)

    def _listed(self, query: RecordQuery, start: _Place) -> Iterator[Header]:
        """The records in the shortest index that holds all that *query* wants."""
        self._indexes.settle()
        number = None if query.run_id is None else run_number(query.run_id)
        keys = query_keys(query, number)
        index = self._keys.index
        lists = [index + b"f:" + keys[0] if keys else index + b"c"]
        if query.notes:
            lists.append(index + b"g:" + keys[0] if keys else index + b"n")

        def fetch(bound: _Place, size: int) -> tuple[list[Header], _Place | None]:
            place, after = bound
            page = (f"({place}", "-inf", "WITHSCORES", "LIMIT", 0, size)
            calls: list[tuple[Any, ...]] = [("ZREVRANGEBYSCORE", key, *page) for key in lists]
            if after:
                # Records of other runs may share the place of the bound.
                calls += [("ZREVRANGEBYSCORE", key, place, place, "WITHSCORES") for key in lists]
            answers = self._db.ask_all(calls)
            members = sorted({pair for rows in answers for pair in _pairs(rows)}, reverse=True)
            below = [pair for pair in members if pair < (place, after)][:size]
            rows = self._rows(below, strict=query.run_id is not None)
            found = [header for _, hidden, header in rows if not hidden]
            return found, below[-1] if len(below) == size else None

        return shared.paged(fetch, start, limit=query.limit)

    def _rows(
        self, members: Iterable[_Place], *, strict: bool = True
    ) -> list[tuple[int, bool, Header]]:
        """Place, visibility and header of records, in the order of *members*.

        One round trip reads them. Missing records are left out, and damaged ones too unless
        *strict*.
        """
        wanted = [member_of(member) for _, member in members]
        by_run: dict[str, list[int]] = {}
        for seq, run_id in wanted:
            by_run.setdefault(run_id, []).append(seq)
        calls = [self._call(ROWS, run_id, *seqs) for run_id, seqs in by_run.items()]
        found = {
            (seq, run_id): row
            for (run_id, seqs), rows in zip(by_run.items(), self._db.ask_all(calls), strict=True)
            for seq, row in zip(seqs, rows, strict=True)
        }
        whole = []
        for seq, run_id in wanted:
            if row := found[seq, run_id]:
                with shared.Sparing(run_id, strict=strict):
                    header = header_of(run_id, seq, row[3])
                    whole.append((int(row[0]), row[2] == b"1", header))
        return whole

    def _checkpoints(self, first: bytes, after: bytes) -> list[Header]:
        """The newest visible checkpoint of each id in a range, run and scope."""
        rows = sorted(self._rows(self._with_id(first, after)), key=itemgetter(0), reverse=True)
        return shared.newest_of_ids(
            header for _, hidden, header in rows if not hidden and header.frame != "note"
        )

    def _with_id(self, first: bytes, after: bytes) -> list[_Place]:
        """Members of the index of ids, as places."""
        self._indexes.settle()
        found = self._db.ask("ZRANGEBYLEX", self._keys.index + b"ids", first, after)
        return [(0, member.rpartition(b"\0")[2]) for member in found]

    def _bound(self, query: RecordQuery, *, by_seq: bool = False) -> _Place:
        """The place of the record that *query* calls `before`, hidden or not."""
        id_ = to_bytes(query.before or "")
        known = self._rows(self._with_id(b"[" + id_ + b"\0", b"(" + id_ + b"\1"))
        rows = [(place, header) for place, _, header in known if header.id == query.before]
        rows.sort(key=itemgetter(0))
        at = shared.bound_of(query, ((n, header) for n, (_, header) in enumerate(rows)))
        place, header = rows[at]
        if by_seq:
            return header.seq, b""
        return place, b"%d:%s" % (header.seq, to_bytes(header.run_id))

    def _runs(self, query: RunQuery) -> Iterator[RunInfo]:
        start = _NO_BOUND if query.before is None else query.before
        if query.run_id is None:
            self._indexes.settle()

        def fetch(bound: int, size: int) -> tuple[list[RunInfo], int | None]:
            if query.run_id is not None:
                pairs = [(_NO_BOUND, to_bytes(query.run_id))]
            else:
                key = self._keys.runs_wanted(query)
                page = ("-inf", "WITHSCORES", "LIMIT", 0, size)
                pairs = _pairs(self._db.ask("ZREVRANGEBYSCORE", key, f"({bound}", *page))
            runs = [run for _, run in pairs]
            run_ids = [to_text(run) for run in (self._begun(runs) if query.open else runs)]
            rows = self._db.ask_all([self._call(HEAD, run_id) for run_id in run_ids])
            if (query.run_id is not None or query.name is not None) and _LOST in rows:
                raise shared.run_missing(run_ids[rows.index(_LOST)])
            found = [
                _info(query, run_id, row)
                for run_id, row in zip(run_ids, rows, strict=True)
                if row and row != _LOST
            ]
            wanted = [info for info in found if info.ordinal < bound and query.matches(info)]
            more = query.run_id is None and len(pairs) == size
            return wanted, pairs[-1][0] if more else None

        return islice(shared.paged(fetch, start, limit=query.limit), query.limit)

    def _begun(self, runs: list[bytes]) -> list[bytes]:
        """The runs that were ever leased, or are in no queue."""
        if not runs or not self.keeps_queues:
            return runs
        entries = self._db.ask("HMGET", self._keys.queue + b"entries", *runs)
        queued = [run for run, entry in zip(runs, entries, strict=True) if entry is not None]
        keys = [self._keys.run(to_text(run)) + b"lease" for run in queued]
        leased = self._db.ask_all([("EXISTS", key) for key in keys])
        waiting = {run for run, held in zip(queued, leased, strict=True) if not held}
        return [run for run in runs if run not in waiting]

    def take_run(
        self, run_id: str, owner: Owner, *, now: float, ttl: float, above: int = 0
    ) -> TakenRun:
        given = b"" if self._server_clock else repr(now)
        ahead = repr(now - self._clock())
        values = uuid4().hex, msgspec.json.encode(owner), given, ahead, repr(ttl), above
        take = self._call(TAKE_FREE, check_run_id(run_id), *values)
        epoch, row = self._db.store([take, self._call(HEAD, run_id)])
        if not epoch:  # it is held, perhaps by a process that has ended
            return super().take_run(run_id, owner, now=now, ttl=ttl, above=above)
        lease = Lease(run_id, int(epoch), owner, now + ttl)
        try:
            if row == _LOST:
                raise shared.run_missing(run_id)
            return TakenRun(lease, *(head_of(run_id, row) if row else (None, None)))
        except CorruptError:
            self.release_lease(lease)
            raise

    def _lease_row(self, run_id: str) -> Sequence[bytes] | None:
        return self._ask(LEASE, run_id) or None

    def _held(self, run_id: str, row: Sequence[bytes], now: float) -> Lease:
        epoch, owner, until, _, clock = row
        expires_at = float(until)
        if self._server_clock:
            expires_at += now - int(clock) / 1e6
        holder = msgspec.json.decode(owner, type=Owner) if owner else None
        return Lease(run_id, int(epoch), holder, expires_at)

    def _put_lease(self, lease: Lease, seen: Sequence[bytes] | None, now: float) -> bool:
        values = (
            seen[3] if seen else b"",
            uuid4().hex,
            lease.epoch,
            b"" if lease.owner is None else msgspec.json.encode(lease.owner),
            b"" if self._server_clock else repr(lease.expires_at),
            repr(lease.expires_at - now),
        )
        return bool(self._db.store([self._call(TAKE, lease.run_id, *values)])[0])


def _busy(what: str) -> StorageUnavailableError:
    return StorageUnavailableError(f"{what} changed {_TRIES} times meanwhile")


def _may_begin(batch: Batch, records: Sequence[Record]) -> bool:
    """True if the run begins with this batch, should there be none yet."""
    return bool(records) and (
        not records[0].header.prev or any(one == 1 for one, _ in batch.erased)
    )


def _zones(query: RecordQuery) -> bytes:
    """The lists of a run that hold all that *query* wants; "" if an index is shorter."""
    if query.tag is not None or query.kind not in (None, shared.COMMON_KIND):
        return b""
    if query.notes:
        return b"cxn"
    if query.scope is None:
        return b"cx"
    return b"" if query.scope else b"c"


def _info(query: RunQuery, run_id: str, row: Sequence[Any]) -> RunInfo:
    """A head of a listing; damage is an error only if its run or name is asked for."""
    with shared.Sparing(run_id, strict=query.run_id is not None or query.name is not None):
        return head_of(run_id, row)[0]
    return shared.run_info(head_at(run_id, row), None)


def _pairs(rows: Sequence[Any]) -> list[_Place]:
    """Scores and members of an answer of the server."""
    return [
        (int(float(score)), member) for member, score in zip(rows[::2], rows[1::2], strict=True)
    ]
