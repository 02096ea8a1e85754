"""Sealed records for tests: a manual clock, and a writer that chains records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypedDict, Unpack

from surehold.core.records import Door, Frame, Header, Record, new_id, seal
from surehold.storage.base import Batch, RunQuery, Storage


class FakeClock:
    """A clock that moves only when it is read, by *tick* seconds, or set.

    >>> clock = FakeClock()
    >>> clock.read(), clock.shift(-3600), clock.read()  # doctest: +ELLIPSIS
    (datetime.datetime(2026, 1, 1, 12, 0, ...), None, datetime.datetime(2026, 1, 1, 11, 0, 1, ...))
    """

    def __init__(self, start: datetime | None = None, *, tick: float = 1.0) -> None:
        self._next = start or datetime(2026, 1, 1, 12, tzinfo=UTC)
        self._tick = timedelta(seconds=tick)

    def read(self) -> datetime:
        """The time now; the next reading is a tick later."""
        now = self._next
        self._next += self._tick
        return now

    def shift(self, seconds: float) -> None:
        """Set the clock forward or, with a negative number, back."""
        self._next += timedelta(seconds=seconds)


class HeaderFields(TypedDict, total=False):
    """Header fields that a test may give; the writer supplies the rest."""

    id: str
    frame: Frame
    saved_at: datetime
    name: str
    scope: str
    parent: str | None
    base_seq: int | None
    step: int
    node: str | None
    kind: str
    status: str
    metadata: dict[str, Any]
    tags: tuple[str, ...]
    door: Door | None
    fingerprint: str | None
    schema: int
    size: int
    epoch: int


class JournalWriter:
    """Seals the records of one run, each on the one before it.

    It stands after (*seq*, *digest*) and moves on with every record, stored or not.

    >>> from surehold.storage.memory import MemoryStorage
    >>> storage, writer = MemoryStorage(), JournalWriter("nightly", name="agent")
    >>> writer.save(storage, step=1).header.seq, writer.save(storage, kind="final").header.seq
    (1, 2)
    >>> storage.append([writer.batch(3)])
    [None]
    """

    def __init__(
        self,
        run_id: str = "run",
        *,
        name: str = "",
        clock: FakeClock | None = None,
        seq: int = 0,
        digest: str = "",
    ) -> None:
        self.run_id = run_id
        self.name = name
        self.clock = clock or FakeClock()
        self.seq = seq
        self.digest = digest

    @classmethod
    def after(cls, storage: Storage, run_id: str, *, clock: FakeClock | None = None) -> Self:
        """A writer that stands at the head that *storage* knows of the run."""
        for info in storage.runs(RunQuery(run_id=run_id)):
            return cls(run_id, name=info.name, clock=clock, seq=info.seq, digest=info.digest)
        return cls(run_id, clock=clock)

    def record(self, body: bytes | None = None, **fields: Unpack[HeaderFields]) -> Record:
        """The next record: a keyframe at the step of its seq, unless *fields* differ."""
        seq, saved_at = self.seq + 1, self.clock.read()
        given: HeaderFields = {
            "id": _id(self.run_id, seq, saved_at),
            "frame": "key",
            "saved_at": saved_at,
            "name": self.name,
            "step": seq,
            **fields,
        }
        header = Header(run_id=self.run_id, seq=seq, **given)
        sealed = seal(header, b'{"seq":%d}' % seq if body is None else body, prev=self.digest)
        self.seq, self.digest = seq, sealed.header.digest
        return sealed

    def batch(
        self,
        records: int | Iterable[Record] = 1,
        *,
        epoch: int | None = None,
        hide: Iterable[int] = (),
    ) -> Batch:
        """These records, or that many new ones, as a batch."""
        if isinstance(records, int):
            records = [self.record() for _ in range(records)]
        return Batch(run_id=self.run_id, records=tuple(records), epoch=epoch, hide=tuple(hide))

    def save(
        self, storage: Storage, body: bytes | None = None, **fields: Unpack[HeaderFields]
    ) -> Record:
        """Append the next record on its own; a conflict is raised."""
        record = self.record(body, **fields)
        for conflict in storage.append([self.batch([record])]):
            if conflict is not None:
                raise conflict
        return record


def make_records(
    count: int,
    run_id: str = "run",
    *,
    clock: FakeClock | None = None,
    **fields: Unpack[HeaderFields],
) -> list[Record]:
    """The first *count* records of a run, chained.

    >>> [record.header.seq for record in make_records(3)]
    [1, 2, 3]
    """
    writer = JournalWriter(run_id, clock=clock)
    return [writer.record(**fields) for _ in range(count)]


def _id(run_id: str, seq: int, saved_at: datetime) -> str:
    """A UUIDv7 of the record's own time: the same id in every test run."""
    entropy = hashlib.sha256(f"{saved_at.timestamp()} {seq} {run_id}".encode()).digest()
    return new_id(int(saved_at.timestamp() * 1_000_000) * 1_000, entropy)
