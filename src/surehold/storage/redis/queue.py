"""The entries of queues in one server, changed together if none has changed.

Work on queues reads what it needs, collects its changes, and sends them in one script, which makes
them if every entry and lease that they follow from is still the same; else the work is repeated.
So nothing is locked. Keys, all behind ``PREFIX:queue:{PREFIX}:``:

- ``entries``, ``settings``, ``starts``, ``turns``, ``workers``: hashes by run, queue and process
- ``counts``: a hash, the number of entries by queue and state
- ``s:QUEUE STATE``, ``r:QUEUE TARGET``: sorted sets of entries, and of ready ones, in their order
- ``k:QUEUE KEY``: a sorted set of ready runs by rank; ``due``: of waiting ones by time
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from surehold.core.policy import QueueChange, QueueEntry, QueueSettings
from surehold.core.records import Lease, Owner
from surehold.storage.queueing import Claim, EntryQuery, StaleClaim, WorkerInfo
from surehold.storage.redis.connections import ServerConnections
from surehold.storage.redis.keys import KeyNames, netstrings
from surehold.storage.redis.scripts import COMMIT
from surehold.storage.shared import LeasedQueueTable, apply_change, to_bytes, to_text

_AT_ONCE = 100
"""Entries that become ready in one script."""
_STATES = ("cancelled", "dead", "ready", "running", "waiting")
_PAGE = 512


class WasChanged(Exception):
    """The entries that were read have changed; repeat the work."""


class RedisQueues(LeasedQueueTable):
    """The queues below one prefix, as one piece of work sees them.

    *ahead* is how many seconds the clock by which leases expire is ahead of the caller's.
    """

    def __init__(self, db: ServerConnections, keys: KeyNames, ahead: float = 0.0) -> None:
        self._db = db
        self._keys = keys
        self._ahead = ahead
        self._found: dict[str, bytes] = {}
        self._leases: dict[str, Lease | None] = {}
        self._tokens: dict[str, bytes] = {}
        self._expected: dict[tuple[bytes, bytes], bytes] = {}
        self._changes: list[tuple[Any, ...]] = []

    def commit(self) -> None:
        """Make the changes so far, or raise `WasChanged`."""
        if not self._changes:
            return
        call = (COMMIT, self._keys.queue, b"", b"", b"1", *self.arguments())
        self._expected, self._changes, self._found, self._leases = {}, [], {}, {}
        if not self._db.store([call])[0]:
            raise WasChanged

    def arguments(self) -> list[Any]:
        """The basis of the changes, and the changes, as the scripts read them."""
        expected = [part for place, value in self._expected.items() for part in (*place, value)]
        changes = [part for change in self._changes for part in (len(change), *change)]
        return [len(self._expected), *expected, *changes]

    def arguments_for(self, run_id: str, change: QueueChange, now: float) -> list[Any]:
        """`arguments` of the change that records make which are appended to a run."""
        apply_change(self, run_id, change, now=self.clock(now))
        self._expect_entry(run_id)
        return self.arguments()

    def arguments_without(self, run_id: str) -> list[Any]:
        """`arguments` that remove the entry of a run."""
        if self.get(run_id) is not None:
            self.put(run_id, None)
        self._expect_entry(run_id)
        return self.arguments()

    def assume_absent(self, run_id: str) -> None:
        """Take it that a run has no entry, without a look; a script finds out."""
        self._found[run_id] = b""

    # Times

    def clock(self, now: float) -> float:
        return now + self._ahead

    def promote(self, now: float, queues: Sequence[str]) -> Mapping[str, QueueSettings]:
        limited = {
            name: one
            for name, one in super().promote(self.clock(now), queues).items()
            if name in queues
        }
        self.commit()  # what is due is ready, whatever becomes of the claim
        if limited:
            names = [to_bytes(name) for name in limited]
            turns = self._db.ask("HMGET", self._key("turns"), *names)
            for name, turn in zip(names, turns, strict=True):
                self._expected[self._key("turns"), name] = turn or b""
        return limited

    def take(
        self, entries: Sequence[QueueEntry], owner: Owner, *, now: float, ttl: float
    ) -> list[Claim]:
        self._read_leases(entry.run_id for entry in entries)
        claims = super().take(entries, owner, now=self.clock(now), ttl=ttl)
        for queue in {claim.entry.queue for claim in claims}:
            if (self._key("turns"), to_bytes(queue)) in self._expected:
                self._changes.append(("HINCRBY", self._key("turns"), to_bytes(queue), 1))
        return [_by_clock_of_caller(claim, now + ttl) for claim in claims]

    def renew(self, leases: Sequence[Lease], *, now: float, ttl: float) -> list[str]:
        self._read_leases(lease.run_id for lease in leases)
        return super().renew(leases, now=self.clock(now), ttl=ttl)

    def settle(self, lease: Lease, entry: QueueEntry | None, *, now: float, expired: bool) -> bool:
        return super().settle(lease, entry, now=self.clock(now), expired=expired)

    def stale(self, now: float, host: str | None) -> list[StaleClaim]:
        self._read_leases(entry.run_id for entry in self.find(EntryQuery(state="running")))
        found = super().stale(self.clock(now), host)
        return [_by_clock_of_caller(one, one.lease.expires_at - self._ahead) for one in found]

    # Leases

    def lease(self, run_id: str) -> Lease | None:
        if run_id not in self._leases:
            self._read_leases((run_id,))
        return self._leases[run_id]

    def put_lease(self, lease: Lease) -> None:
        key = self._keys.run(lease.run_id) + b"lease"
        self._expected[key, b"token"] = self._tokens[lease.run_id]
        owner = b"" if lease.owner is None else msgspec.json.encode(lease.owner)
        until, token = repr(lease.expires_at), uuid4().hex
        facts = ("epoch", lease.epoch, "owner", owner, "until", until, "token", token)
        self._changes.append(("HSET", key, *facts))
        self._leases[lease.run_id] = lease

    def _read_leases(self, run_ids: Iterable[str]) -> None:
        wanted = [*run_ids]
        fields = ("epoch", "owner", "until", "token")
        rows = self._db.ask_all(
            [("HMGET", self._keys.run(run_id) + b"lease", *fields) for run_id in wanted]
        )
        for run_id, (epoch, owner, until, token) in zip(wanted, rows, strict=True):
            self._tokens[run_id] = token or b""
            held = msgspec.json.decode(owner, type=Owner) if owner else None
            found = epoch is not None
            self._leases[run_id] = Lease(run_id, int(epoch), held, float(until)) if found else None

    # Settings

    def settings(self, queue: str | None = None) -> Mapping[str, QueueSettings]:
        rows = self._db.ask("HGETALL", self._key("settings"))
        return {
            to_text(name): msgspec.json.decode(text, type=QueueSettings)
            for name, text in rows.items()
        }

    def set_settings(self, queue: str, settings: QueueSettings) -> None:
        text = msgspec.json.encode(settings)
        self._changes.append(("HSET", self._key("settings"), to_bytes(queue), text))

    def starts(self, queue: str) -> list[float]:
        text = self._db.ask("HGET", self._key("starts"), to_bytes(queue))
        return msgspec.json.decode(text, type=list[float]) if text else []

    def set_starts(self, queue: str, starts: list[float]) -> None:
        text = msgspec.json.encode(starts)
        self._changes.append(("HSET", self._key("starts"), to_bytes(queue), text))

    # Workers

    def put_worker(self, worker: WorkerInfo, *, now: float, ttl: float) -> None:
        key, now = self._key("workers"), self.clock(now)
        for name, text in self._db.ask("HGETALL", key).items():
            if float(text.partition(b" ")[0]) <= now:
                self._changes.append(("HDEL", key, name))
        facts = msgspec.json.encode(msgspec.structs.replace(worker, seen=now))
        until = repr(now + ttl).encode()
        self._changes.append(("HSET", key, to_bytes(worker.id), until + b" " + facts))

    def workers(self, now: float) -> list[WorkerInfo]:
        known = (text.partition(b" ") for text in self._db.ask("HVALS", self._key("workers")))
        found = [
            msgspec.json.decode(facts, type=WorkerInfo)
            for until, _, facts in known
            if float(until) > self.clock(now)
        ]
        return [msgspec.structs.replace(one, seen=one.seen - self._ahead) for one in found]

    # Entries

    def get(self, run_id: str) -> QueueEntry | None:
        if run_id not in self._found:
            self._read([run_id])
        return _entry(run_id, self._found[run_id])

    def put(self, run_id: str, entry: QueueEntry | None) -> None:
        old = self.get(run_id)
        self._expect_entry(run_id)
        run, entries = to_bytes(run_id), self._key("entries")
        before, after = self._places(old), self._places(entry)
        self._changes += [("ZREM", key, member) for key, member in before.keys() - after.keys()]
        self._changes += [
            ("ZADD", key, score, member)
            for (key, member), score in after.items()
            if before.get((key, member)) != score
        ]
        for one, by in ((old, -1), (entry, 1)):
            if one is not None:
                named = netstrings([to_bytes(one.queue)]) + one.state.encode()
                self._changes.append(("HINCRBY", self._key("counts"), named, by))
        if entry is None:
            self._changes.append(("HDEL", entries, run))
            self._found[run_id] = b""
        else:
            self._found[run_id] = text = _text(entry)
            self._changes.append(("HSET", entries, run, text))

    def _expect_entry(self, run_id: str) -> None:
        """Make the changes depend on the entry being as it was first read."""
        place = (self._key("entries"), to_bytes(run_id))
        self._expected.setdefault(place, self._found[run_id])

    def _places(self, entry: QueueEntry | None) -> dict[tuple[bytes, bytes], str]:
        """The sorted sets that an entry is in, with its member and its score there."""
        if entry is None:
            return {}
        run, member = to_bytes(entry.run_id), _member(entry)
        places = {(self._list("s:", entry.queue, entry.state), member): "0"}
        if entry.state == "ready":
            places[self._list("r:", entry.queue, entry.target), member] = "0"
            places[self._list("k:", entry.queue, entry.key), run] = repr(entry.rank)
        if entry.state == "waiting" and entry.due is not None:
            places[self._key("due"), run] = repr(entry.due)
        return places

    def due(self, now: float) -> list[QueueEntry]:
        key = self._key("due")
        runs = self._db.ask("ZRANGEBYSCORE", key, "-inf", repr(now), "LIMIT", 0, _AT_ONCE)
        return self._entries(map(to_text, runs))

    def next_due(self) -> float | None:
        found = self._db.ask("ZRANGE", self._key("due"), 0, 0, "WITHSCORES")
        return float(found[1]) if found else None

    def running(self, queue: str) -> Mapping[str, int]:
        members = self._db.ask("ZRANGE", self._list("s:", queue, "running"), 0, -1)
        return Counter(_parts(member)[0] for member in members)

    def ready(
        self, queue: str, targets: Sequence[str], full: Sequence[str], limit: int
    ) -> list[QueueEntry]:
        closed, runs = set(full), list[str]()
        for target in targets:
            key = self._list("r:", queue, target)
            found, start = 0, b"-"
            while found < limit:
                size = limit if not closed else max(limit, _PAGE)
                members = self._db.ask("ZRANGEBYLEX", key, start, b"+", "LIMIT", 0, size)
                open_ones = [run for name, run in map(_parts, members) if name not in closed]
                runs += open_ones[: limit - found]
                found += len(open_ones)
                if len(members) < size:
                    break
                start = b"(" + members[-1]
        return [entry for entry in self._entries(runs) if entry.state == "ready"]

    def newest_rank(self, queue: str, key: str) -> float | None:
        found = self._db.ask("ZRANGE", self._list("k:", queue, key), -1, -1, "WITHSCORES")
        return float(found[1]) if found else None

    def find(self, query: EntryQuery) -> list[QueueEntry]:
        if query.run_ids is not None:
            named = self._entries(query.run_ids)
            return [entry for entry in named if query.admits(entry)][: query.limit]
        names = [query.queue] if query.queue is not None else sorted({q for q, _ in self.counts()})
        states = [query.state] if query.state is not None else _STATES
        found: list[QueueEntry] = []
        for key in (self._list("s:", name, state) for name in names for state in states):
            start = b"-"
            while query.limit is None or len(found) < query.limit:
                members = self._db.ask("ZRANGEBYLEX", key, start, b"+", "LIMIT", 0, _PAGE)
                found += [
                    entry
                    for entry in self._entries(_parts(member)[1] for member in members)
                    if query.cancelled in (None, entry.cancelled)
                ]
                if len(members) < _PAGE:
                    break
                start = b"(" + members[-1]
        return found[: query.limit]

    def counts(self) -> Mapping[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for named, count in self._db.ask("HGETALL", self._key("counts")).items():
            size, _, rest = named.partition(b":")
            queue, state = rest[: int(size)], rest[int(size) :]
            if int(count):
                found[to_text(queue), state.decode()] = int(count)
        return found

    def _entries(self, run_ids: Iterable[str]) -> list[QueueEntry]:
        wanted = [*run_ids]
        self._read([run_id for run_id in wanted if run_id not in self._found])
        found = (_entry(run_id, self._found[run_id]) for run_id in wanted)
        return [entry for entry in found if entry is not None]

    def _read(self, run_ids: Sequence[str]) -> None:
        if run_ids:
            names = [to_bytes(run_id) for run_id in run_ids]
            rows = self._db.ask("HMGET", self._key("entries"), *names)
            self._found |= {run: text or b"" for run, text in zip(run_ids, rows, strict=True)}

    def _key(self, name: str) -> bytes:
        return self._keys.queue + name.encode()

    def _list(self, kind: str, queue: str, name: str) -> bytes:
        return self._key(kind) + netstrings([to_bytes(queue)]) + to_bytes(name)


def _by_clock_of_caller(claim: Any, until: float) -> Any:
    lease = msgspec.structs.replace(claim.lease, expires_at=until)
    return msgspec.structs.replace(claim, lease=lease)


def _text(entry: QueueEntry) -> bytes:
    """An entry as it is stored; Python's own JSON also takes text that is not Unicode."""
    return json.dumps(msgspec.structs.asdict(entry), separators=(",", ":")).encode()


def _entry(run_id: str, text: bytes) -> QueueEntry | None:
    return QueueEntry(**json.loads(text)) if text else None


def _member(entry: QueueEntry) -> bytes:
    """An entry in a sorted list: priority, rank, then key and run id."""
    order = b"%08x%s" % ((1 << 31) - entry.priority, struct.pack(">d", entry.rank).hex().encode())
    return order + netstrings([to_bytes(entry.key)]) + to_bytes(entry.run_id)


def _parts(member: bytes) -> tuple[str, str]:
    """The key and the run id of a member."""
    size, _, rest = member[24:].partition(b":")
    return to_text(rest[: int(size)]), to_text(rest[int(size) :])
