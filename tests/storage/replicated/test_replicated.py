"""A storage around storages goes on while one fails, loses neither side, and acknowledges nothing
that is not stored."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.engine.repair.test_recovery import damage

from surehold import CheckpointManager, MemoryStorage, State, Storage
from surehold.core.records.record import Record
from surehold.errors import (
    ConflictError,
    CorruptError,
    DivergedError,
    LeaseHeldError,
    StorageError,
    StorageUnavailableError,
    UsageError,
)
from surehold.storage.base import Batch, Owner, RecordQuery, RunQuery, this_process
from surehold.storage.files.storage import FilesystemStorage
from surehold.storage.registry import open_storage
from surehold.storage.replicated.breaker import Breaker, BreakerRules
from surehold.storage.replicated.copies import bring_up, visible
from surehold.storage.replicated.replicas import StorageEvent
from surehold.storage.replicated.storage import ResilientStorage
from surehold.storage.retries import Retry
from surehold.storage.sqlite.page_checksums import checked_pages
from surehold.storage.sqlite.storage import SQLiteStorage
from surehold.testing import JournalWriter

FULL = os.environ.get("SUREHOLD_FULL") == "1"
FAST = Retry(retries=2, first_wait=0.001, jitter=0.001)
ANNA = Owner("anna.example", "boot-1", 17, "1000")
BERT = Owner("bert.example", "boot-2", 17, "1000")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


class Place:
    """A directory for a `FilesystemStorage` that can go away, as a mount does, and come back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.real = path.with_name(f"{path.name}.real")
        self.real.mkdir()
        self._other = path.with_name(f"{path.name}.other")
        self.come_back()

    def open(self) -> FilesystemStorage:
        return FilesystemStorage(self.path)

    def leave(self) -> None:
        self._other.write_text("not a directory")
        self._other.replace(self.path)

    def come_back(self) -> None:
        self._other.symlink_to(self.real)
        self._other.replace(self.path)

    @contextmanager
    def away(self) -> Iterator[None]:
        self.leave()
        try:
            yield
        finally:
            self.come_back()


class Setup:
    """A `ResilientStorage` over two directories, with what it told and a clock."""

    def __init__(self, tmp_path: Path) -> None:
        self.one, self.two = Place(tmp_path / "one"), Place(tmp_path / "two")
        self.events: list[StorageEvent] = []
        self.clock = Clock()
        self.storage = self.open()

    def open(self) -> ResilientStorage:
        return ResilientStorage(
            self.one.open(),
            self.two.open(),
            retry=FAST,
            breaker=BreakerRules(failures=2, pause=5),
            on_event=self.events.append,
            clock=self.clock,
        )

    def reopen(self) -> ResilientStorage:
        self.storage.close()
        self.storage = self.open()
        return self.storage

    def reopened_beside(self) -> ResilientStorage:
        """What another process would see."""
        return self.open()

    def wait(self) -> None:
        """Until a storage that was left alone is tried again."""
        self.clock.now += 100

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.storage.close()


def seqs(storage: Storage, run_id: str = "run") -> list[int]:
    return [record.header.seq for record in storage.read(run_id)]


def digests(storage: Storage, run_id: str = "run") -> list[str]:
    return [record.header.digest for record in storage.read(run_id)]


# Copies


def test_what_is_saved_is_in_every_storage(setup: Setup) -> None:
    writer = JournalWriter(name="x")
    for _ in range(5):
        writer.save(setup.storage)
    setup.storage.delete("run", hide=[2], erase=[1])
    one, two = setup.storage.storages
    assert digests(one) == digests(two) == digests(setup.storage)
    for storage in (one, two):
        assert [h.seq for h in storage.headers(RecordQuery(run_id="run"))] == [5, 4, 3]
    setup.storage.delete("run")
    assert [list(s.runs(RunQuery())) for s in (one, two)] == [[], []]
    assert setup.events == []


def test_a_run_that_is_older_than_its_copy_is_copied_at_its_next_save(setup: Setup) -> None:
    writer = JournalWriter()
    with setup.one.open() as alone:
        for _ in range(4):
            writer.save(alone)
        alone.delete("run", hide=[2], erase=[1])
    writer.save(setup.storage)
    one, two = setup.storage.storages
    assert digests(one) == digests(two)
    assert [h.seq for h in two.headers(RecordQuery(run_id="run"))] == [5, 4, 3]


def test_sync_copies_what_nobody_saves_to(setup: Setup) -> None:
    with setup.one.open() as alone:
        JournalWriter("old").save(alone)
    assert setup.storage.sync() == []
    assert digests(setup.storage.storages[1], "old") == digests(setup.storage, "old")


# Failing over


def test_a_run_goes_on_in_the_fallback_and_comes_back_in_order(setup: Setup) -> None:
    writer = JournalWriter()
    saved = [writer.save(setup.storage) for _ in range(3)]
    with setup.one.away():
        saved += [writer.save(setup.storage) for _ in range(4)]
        assert digests(setup.storage) == [record.header.digest for record in saved]
    assert "failover" in setup.kinds()
    setup.wait()
    saved.append(writer.save(setup.storage))
    wanted = [record.header.digest for record in saved]
    assert [digests(s) for s in setup.storage.storages] == [wanted, wanted]
    back = [event for event in setup.events if event.kind == "recovered" and event.run_id]
    assert [(event.run_id, event.records) for event in back] == [("run", 4)]


def test_a_run_that_began_in_the_fallback_comes_to_the_primary(setup: Setup) -> None:
    with setup.one.away():
        JournalWriter("new").save(setup.storage)
    setup.wait()
    assert [run.run_id for run in setup.storage.runs(RunQuery())] == ["new"]
    assert seqs(setup.storage.storages[0], "new") == [1]


def test_another_process_brings_back_what_one_that_died_left_in_the_fallback(
    setup: Setup,
) -> None:
    writer = JournalWriter()
    writer.save(setup.storage)
    with setup.one.away():
        writer.save(setup.storage)
    again = setup.reopen()
    assert seqs(again) == [1, 2]
    assert seqs(again.storages[0]) == [1, 2]
    writer.save(again)
    assert seqs(again.storages[0]) == [1, 2, 3]


def test_a_manager_notices_nothing_of_a_failure(setup: Setup) -> None:
    manager = CheckpointManager(setup.storage)
    state = State.new({"log": []}, run_id="run", name="job")
    for step in range(1, 10):
        if step == 4:
            setup.one.leave()
        if step == 7:
            setup.one.come_back()
            setup.wait()
        state = manager.resume_from_latest("run") or state
        state = state.append("log", step).at(step=step)
        manager.save_checkpoint(state)
    assert list(manager.resume_from_latest("job")["log"]) == list(range(1, 10))
    for storage in setup.storage.storages:
        alone = CheckpointManager(storage)
        assert all(alone.verify())
        assert list(alone.resume_from_latest("run")["log"]) == list(range(1, 10))


def test_what_was_hidden_meanwhile_is_hidden_when_the_primary_is_back(setup: Setup) -> None:
    writer = JournalWriter()
    for _ in range(3):
        writer.save(setup.storage)
    with setup.one.away():
        assert setup.storage.delete("run", hide=[1]) == 1
        writer.save(setup.storage)
    setup.wait()
    assert [h.seq for h in setup.storage.headers(RecordQuery(run_id="run"))] == [4, 3, 2]
    primary = setup.storage.storages[0]
    assert [h.seq for h in primary.headers(RecordQuery(run_id="run"))] == [4, 3, 2]


def test_a_copy_that_was_away_hides_what_it_missed_at_the_next_save(setup: Setup) -> None:
    writer = JournalWriter()
    for _ in range(3):
        writer.save(setup.storage)
    with setup.two.away():
        setup.storage.delete("run", hide=[1])
        setup.storage.append([Batch(run_id="run", records=(), hide=(2,))])
    setup.wait()
    writer.save(setup.storage)
    for storage in setup.storage.storages:
        assert [h.seq for h in storage.headers(RecordQuery(run_id="run"))] == [4, 3]


@pytest.mark.parametrize("who", ["one", "two"])
def test_nothing_is_erased_unless_it_is_erased_everywhere(setup: Setup, who: str) -> None:
    writer = JournalWriter()
    for _ in range(3):
        writer.save(setup.storage)
    with getattr(setup, who).away():
        with pytest.raises(StorageError):
            setup.storage.delete("run", erase=[1])
        with pytest.raises(StorageError):
            setup.storage.delete("run")
    setup.wait()
    setup.storage.delete("run")
    assert [list(s.runs(RunQuery())) for s in setup.storage.storages] == [[], []]


def test_when_all_fail_the_error_names_them_all_and_nothing_is_acknowledged(setup: Setup) -> None:
    writer = JournalWriter()
    writer.save(setup.storage)
    batch = writer.batch(1)
    with setup.one.away(), setup.two.away():
        with pytest.raises(StorageUnavailableError, match=r"primary.*fallback 1"):
            setup.storage.append([batch])
        for _ in range(3):
            with pytest.raises(StorageUnavailableError, match=r"primary.*fallback 1"):
                list(setup.storage.read("run"))
    setup.wait()
    assert seqs(setup.storage) == [1]
    assert setup.storage.append([batch]) == [None]
    assert seqs(setup.storage.storages[1]) == [1, 2]


def test_a_fallback_that_lacks_something_takes_nothing(setup: Setup) -> None:
    writer = JournalWriter()
    writer.save(setup.storage)
    with setup.two.away():
        writer.save(setup.storage)
    assert "behind" in setup.kinds()
    setup.wait()
    batch = writer.batch(1)
    beside = setup.reopened_beside()
    with setup.one.away():
        for storage in (setup.storage, beside):
            with pytest.raises(StorageError, match=r"up to record 1 only|does not have all"):
                storage.append([batch])
        with pytest.raises(StorageError):
            list(setup.storage.read("run"))
    setup.wait()
    assert setup.storage.append([batch]) == [None]
    assert [seqs(s) for s in setup.storage.storages] == [[1, 2, 3], [1, 2, 3]]


def test_a_primary_that_is_back_alone_is_not_taken_for_whole(setup: Setup) -> None:
    writer = JournalWriter()
    writer.save(setup.storage)
    with setup.one.away():
        writer.save(setup.storage)
    setup.wait()
    batch = writer.batch(1)
    with setup.two.away():
        with pytest.raises(StorageUnavailableError, match="does not have all"):
            setup.storage.append([batch])
        with pytest.raises(StorageUnavailableError):
            list(setup.storage.read("run"))
        JournalWriter("other").save(setup.storage)
    setup.wait()
    assert setup.storage.append([batch]) == [None]
    assert [seqs(s) for s in setup.storage.storages] == [[1, 2, 3], [1, 2, 3]]


def test_two_fallbacks_stand_in_for_each_other(tmp_path: Path) -> None:
    places = [Place(tmp_path / name) for name in "abc"]
    clock = Clock()
    storage = ResilientStorage(
        *(place.open() for place in places),
        retry=FAST,
        breaker=BreakerRules(failures=1),
        clock=clock,
    )
    writer = JournalWriter()
    with storage:
        writer.save(storage)
        with places[0].away():
            writer.save(storage)
            with places[1].away():
                writer.save(storage)
            clock.now += 100
            writer.save(storage)
        clock.now += 100
        writer.save(storage)
        assert [seqs(one) for one in storage.storages] == [[1, 2, 3, 4, 5]] * 3


def test_batches_of_many_runs_fail_over_together(setup: Setup) -> None:
    writers = [JournalWriter(f"run-{n}") for n in range(5)]
    setup.storage.append([writer.batch(2) for writer in writers])
    with setup.one.away():
        assert setup.storage.append([writer.batch(1) for writer in writers]) == [None] * 5
        late = JournalWriter("run-1").batch([JournalWriter("run-1").record(b"other")])
        results = setup.storage.append([writers[0].batch(1), late])
        assert results[0] is None
        assert isinstance(results[1], ConflictError)
    setup.wait()
    assert len(list(setup.storage.runs(RunQuery()))) == 5
    assert seqs(setup.storage.storages[0], "run-0") == [1, 2, 3, 4]
    assert seqs(setup.storage.storages[0], "run-4") == [1, 2, 3]


# Conflicts


def both_go_on(setup: Setup) -> tuple[list[str], list[str]]:
    """Another process goes on in the primary, while this one does in the fallback."""
    writer = JournalWriter()
    writer.save(setup.storage)
    with FilesystemStorage(setup.one.real) as other, setup.one.away():
        mine = [writer.save(setup.storage, b"mine") for _ in range(2)]
        theirs = [JournalWriter.after(other, "run").save(other, b"theirs")]
    setup.wait()
    return [r.header.digest for r in mine], [r.header.digest for r in theirs]


def test_a_run_that_went_two_ways_is_parked_and_neither_side_is_lost(setup: Setup) -> None:
    mine, theirs = both_go_on(setup)
    for _ in range(2):
        (refused,) = setup.storage.append([JournalWriter.after(setup.storage, "run").batch(1)])
        assert isinstance(refused, DivergedError)
        assert "keep_copy" in str(refused)
        assert refused.run_id == "run"
        assert "primary" in refused.storages[0] and "fallback" in refused.storages[1]
    assert "diverged" in setup.kinds()
    one, two = setup.storage.storages
    assert (digests(one)[1:], digests(two)[1:]) == (theirs, mine)
    assert [run.run_id for run in setup.storage.runs(RunQuery())] == ["run"]
    again = setup.reopen()
    (refused,) = again.append([JournalWriter.after(again, "run").batch(1)])
    assert isinstance(refused, DivergedError)
    with pytest.raises(DivergedError):
        again.take_lease("run", ANNA, now=0, ttl=30)


def test_other_runs_go_on_while_one_is_parked(setup: Setup) -> None:
    both_go_on(setup)
    late = JournalWriter.after(setup.storage, "run").batch(1)
    results = setup.storage.append([JournalWriter("other").batch(1), late])
    assert results[0] is None
    assert isinstance(results[1], DivergedError)


@pytest.mark.parametrize("keep", [0, 1])
def test_a_parked_run_goes_on_when_it_is_said_which_copy_counts(setup: Setup, keep: int) -> None:
    sides = both_go_on(setup)
    wanted = sides[1 - keep]
    (kept,) = setup.storage.keep_copy("run", keep=keep)
    other = setup.storage.storages[1 - keep]
    assert [digests(s)[1:] for s in setup.storage.storages] == [wanted, wanted]
    assert any(sides[keep][0].encode() in path.read_bytes() for path in Path(kept).iterdir())
    assert str(other._path) in kept  # type: ignore[attr-defined]
    JournalWriter.after(setup.storage, "run").save(setup.storage)
    assert digests(setup.storage)[1:-1] == wanted
    with pytest.raises(UsageError):
        setup.storage.keep_copy("run", keep=7)


def test_a_manager_is_told_of_a_parked_run(setup: Setup) -> None:
    manager = CheckpointManager(setup.storage)
    state = State.new({"n": 0}, run_id="run")
    manager.save_checkpoint(state)
    with FilesystemStorage(setup.one.real) as other, setup.one.away():
        manager.save_checkpoint(state.set("n", 1).at(step=1))
        theirs = CheckpointManager(other)
        theirs.save_checkpoint(theirs.resume_from_latest("run").set("n", 2).at(step=1))
    setup.wait()
    with pytest.raises(ConflictError):
        manager.save_checkpoint(state.set("n", 3).at(step=2))


# Retrying, breaking, hanging


def test_what_is_busy_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    events: list[StorageEvent] = []
    noticed = threading.Event()

    def notice(event: StorageEvent) -> None:
        events.append(event)
        noticed.set()

    storage = ResilientStorage(
        SQLiteStorage(tmp_path / "runs.db", busy_timeout=0),
        MemoryStorage(),
        retry=Retry(retries=100, first_wait=0.02, longest_wait=0.1, deadline=300),
        on_event=notice,
    )
    writer = JournalWriter()
    with storage, ThreadPoolExecutor(1) as pool:
        writer.save(storage)
        db = apsw.Connection(str(tmp_path / "runs.db"), vfs=checked_pages())
        db.execute("BEGIN IMMEDIATE")
        waiting = pool.submit(writer.save, storage)
        noticed.wait()
        db.execute("ROLLBACK")
        db.close()
        waiting.result()
        assert {event.kind for event in events} == {"retry"}
        assert seqs(storage.storages[0]) == [1, 2]


def test_a_storage_that_is_locked_for_long_is_replaced_and_given_all_later(tmp_path: Path) -> None:
    storage = ResilientStorage(
        SQLiteStorage(tmp_path / "runs.db", busy_timeout=0), MemoryStorage(), retry=FAST
    )
    writer = JournalWriter()
    with storage:
        writer.save(storage)
        db = apsw.Connection(str(tmp_path / "runs.db"), vfs=checked_pages())
        db.execute("BEGIN IMMEDIATE")
        for _ in range(2):
            writer.save(storage)
        db.execute("ROLLBACK")
        db.close()
        assert seqs(storage.storages[0]) == [1]
        writer.save(storage)
        assert seqs(storage.storages[0]) == [1, 2, 3, 4]


def test_a_storage_that_failed_is_left_alone_until_the_pause_is_over(setup: Setup) -> None:
    writer = JournalWriter()
    writer.save(setup.storage)
    with setup.one.away():
        for _ in range(3):
            writer.save(setup.storage)
    writer.save(setup.storage)
    assert seqs(setup.storage.storages[0]) == [1], "it was asked before its pause was over"
    setup.wait()
    writer.save(setup.storage)
    assert seqs(setup.storage.storages[0]) == [1, 2, 3, 4, 5, 6]


def test_a_storage_that_hangs_is_given_up(tmp_path: Path) -> None:
    primary = FilesystemStorage(tmp_path / "one")
    storage = ResilientStorage(
        primary,
        FilesystemStorage(tmp_path / "two"),
        retry=Retry(retries=0, deadline=1.0),
        breaker=BreakerRules(failures=1, pause=0.2, longest_pause=0.2),
    )
    writer = JournalWriter()
    writer.save(storage)
    locks = [os.open(path, os.O_RDWR) for path in (tmp_path / "one/.locks").iterdir()]
    for fd in locks:
        fcntl.flock(fd, fcntl.LOCK_EX)
    writer.save(storage)  # returns, although no lock is ever free
    assert seqs(storage.storages[1]) == [1, 2]
    for fd in locks:
        os.close(fd)
    time.sleep(0.3)
    writer.save(storage)
    assert seqs(storage.storages[0]) == [1, 2, 3]
    storage.close()


class Server(MemoryStorage):
    """A server that is patient by itself before a call fails while it is down."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._time = clock
        self.down = False
        self.asked = 0

    def __getattribute__(self, name: str) -> Any:
        asks = ("append", "read", "headers", "find", "runs", "head_and_newest", "change_lease")
        if name in (*asks, "lease_of") and self.down:
            self.asked += 1
            self._time.now += 2
            raise StorageUnavailableError("the server did not answer within 2 s")
        return super().__getattribute__(name)


def test_a_failover_takes_the_patience_of_one_call() -> None:
    clock = Clock()
    server = Server(clock)
    storage = ResilientStorage(server, MemoryStorage(), clock=clock)
    writer = JournalWriter()
    lease = storage.take_lease("run", ANNA, now=0, ttl=30)
    assert storage.append([writer.batch(1, epoch=lease.epoch)]) == [None]
    server.down = True
    for _ in range(3):
        assert storage.append([writer.batch(1, epoch=lease.epoch)]) == [None]
    assert (server.asked, clock.now) == (1, 1_002.0), "it is asked once, and then left alone"
    assert seqs(storage.storages[1]) == [1, 2, 3, 4]
    clock.now += 5
    assert storage.append([writer.batch(1, epoch=lease.epoch)]) == [None]
    assert server.asked == 2, "it is asked again after the pause, once"
    server.down = False
    clock.now += 60
    assert seqs(storage) == seqs(server) == [1, 2, 3, 4, 5]


def test_a_breaker_opens_probes_once_and_closes() -> None:
    clock = Clock()
    breaker = Breaker(BreakerRules(failures=2, pause=5, longest_pause=15), clock=clock)
    breaker.failed()
    assert (breaker.state, breaker.allows()) == ("closed", True)
    breaker.worked()
    breaker.failed()
    breaker.failed()
    assert (breaker.state, breaker.allows()) == ("open", False)
    clock.now += 5
    assert (breaker.state, breaker.allows(), breaker.allows()) == ("half-open", True, False)
    breaker.failed()
    clock.now += 9
    assert not breaker.allows(), "the second pause is longer"
    clock.now += 1
    assert breaker.allows()
    breaker.failed()
    clock.now += 15
    assert breaker.allows()
    assert breaker.worked() is True
    assert (breaker.state, breaker.worked()) == ("closed", False)


def test_a_probe_that_never_comes_back_does_not_close_the_door() -> None:
    clock = Clock()
    breaker = Breaker(BreakerRules(failures=1, pause=5), clock=clock)
    breaker.failed()
    clock.now += 5
    assert breaker.allows()
    clock.now += 5
    assert breaker.allows()


@pytest.mark.parametrize("wrong", [{"failures": 0}, {"pause": 0}, {"factor": 0.5}, {"pause": 99}])
def test_rules_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        BreakerRules(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [[MemoryStorage()], "memory://", None])
def test_what_is_no_storage_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(UsageError, match="is not a storage"):
        ResilientStorage(MemoryStorage(), wrong)


# Healing


MEDIA: dict[str, Callable[[Path], Storage]] = {
    "memory": lambda path: MemoryStorage(),
    "sqlite": lambda path: SQLiteStorage(path / "runs.db"),
    "file": lambda path: FilesystemStorage(path / "runs"),
    "file-zstd": lambda path: FilesystemStorage(path / "runs", compress="zstd"),
}


@pytest.mark.parametrize("medium", MEDIA)
@pytest.mark.parametrize("seq", [1, 4, 6])
def test_a_damaged_record_is_read_from_a_copy_and_made_whole(
    tmp_path: Path, medium: str, seq: int
) -> None:
    events: list[StorageEvent] = []
    primary = MEDIA[medium](tmp_path)
    storage = ResilientStorage(
        primary, FilesystemStorage(tmp_path / "copy"), on_event=events.append
    )
    writer = JournalWriter(name="x")
    saved = [writer.save(storage, b'{"n":%d}' % n * 30) for n in range(6)]
    storage.delete("run", hide=[2])
    (before,) = primary.runs(RunQuery())
    damage(primary, "run", seq)
    assert list(storage.read("run")) == saved
    assert [event.kind for event in events] == ["heal"]
    assert list(primary.read("run")) == saved
    (after,) = primary.runs(RunQuery())
    assert after == before
    assert [h.seq for h in primary.headers(RecordQuery(run_id="run"))] == [6, 5, 4, 3, 1]
    writer.save(storage)
    assert seqs(primary) == list(range(1, 8))
    storage.close()


@pytest.mark.parametrize("medium", MEDIA)
def test_a_manager_reads_past_damage_and_repairs_it(tmp_path: Path, medium: str) -> None:
    primary = MEDIA[medium](tmp_path)
    storage = ResilientStorage(primary, FilesystemStorage(tmp_path / "copy"))
    manager = CheckpointManager(storage)
    state = State.new({"log": []}, run_id="run", name="job")
    for step in range(1, 6):
        state = state.append("log", step).at(step=step)
        manager.save_checkpoint(state)
    damage(primary, "run", 5)
    assert list(manager.resume_from_latest("job")["log"]) == [1, 2, 3, 4, 5]
    damage(primary, "run", 2)
    assert all(manager.verify())
    damage(primary, "run", 3)
    assert manager.repair().clean, "it was made whole, so that there is nothing to put aside"
    assert list(manager.resume_from_latest("job")["log"]) == [1, 2, 3, 4, 5]
    storage.close()


def test_a_damaged_copy_is_healed_from_the_primary_when_its_run_is_inspected(
    setup: Setup,
) -> None:
    writer = JournalWriter()
    saved = [writer.save(setup.storage) for _ in range(4)]
    damage(setup.storage.storages[1], "run", 2)
    again = setup.reopen()
    saved.append(writer.save(again))
    inspection = again.inspect("run")
    assert inspection is not None and not inspection.problems
    assert list(again.storages[1].read("run")) == saved


def test_damage_that_no_copy_can_make_good_is_an_error_and_can_be_repaired(setup: Setup) -> None:
    manager = CheckpointManager(setup.storage)
    state = State.new({"log": []}, run_id="run", name="job")
    for step in range(1, 6):
        state = state.append("log", step).at(step=step)
        manager.save_checkpoint(state)
    for storage in setup.storage.storages:
        damage(storage, "run", 5)
    again = CheckpointManager(setup.reopen())
    with pytest.raises(CorruptError):
        again.resume_from_latest("run")
    assert "quarantined" in str(again.repair("run"))
    assert list(again.resume_from_latest("run")["log"]) == [1, 2, 3, 4]
    assert all(again.verify())
    assert [digests(s) for s in setup.storage.storages] == [digests(setup.storage)] * 2


# Leases


def test_a_copy_gives_the_lease_while_the_primary_is_away_unless_another_holds_it(
    setup: Setup,
) -> None:
    lease = setup.storage.take_lease("run", ANNA, now=0, ttl=30)
    other = setup.reopened_beside()
    with setup.one.away():
        with pytest.raises(LeaseHeldError) as held:
            other.take_lease("run", BERT, now=29, ttl=30)
        assert held.value.owner == ANNA
        assert setup.storage.renew_lease(lease, now=25, ttl=30).expires_at == 55
        with pytest.raises(LeaseHeldError):
            other.take_lease("run", BERT, now=54, ttl=30)
        taken = other.take_lease("run", BERT, now=56, ttl=30)
        assert taken.epoch == lease.epoch + 1
        with pytest.raises(ConflictError, match="lost"):
            setup.storage.renew_lease(lease, now=57, ttl=30)
        assert setup.storage.lease_of("run") == taken


def test_a_lease_that_a_copy_gave_counts_when_the_primary_is_back(setup: Setup) -> None:
    before = setup.storage.take_lease("run", ANNA, now=0, ttl=30)
    with setup.one.away():
        taken = setup.storage.take_lease("run", BERT, now=31, ttl=30)
    setup.wait()
    primary = setup.storage.storages[0]
    assert primary.lease_of("run") == before  # type: ignore[attr-defined]
    with pytest.raises(LeaseHeldError) as held:
        setup.storage.take_lease("run", ANNA, now=32, ttl=30)
    assert held.value.owner == BERT
    with pytest.raises(ConflictError):
        setup.storage.renew_lease(before, now=32, ttl=30)
    renewed = setup.storage.renew_lease(taken, now=33, ttl=30)
    assert primary.lease_of("run") == renewed  # type: ignore[attr-defined]
    assert setup.storage.take_lease("run", ANNA, now=64, ttl=30).epoch == taken.epoch + 1


def test_a_copy_that_missed_a_release_is_no_obstacle(setup: Setup) -> None:
    lease = setup.storage.take_lease("run", ANNA, now=0, ttl=30)
    with setup.two.away():
        setup.storage.release_lease(lease)
    setup.wait()
    assert setup.storage.take_lease("run", BERT, now=1, ttl=30).epoch == lease.epoch + 1


def test_a_process_that_could_not_release_its_lease_takes_it_again_at_once(setup: Setup) -> None:
    lease = setup.storage.take_lease("run", this_process(), now=1_000, ttl=30)
    with setup.one.away():
        setup.storage.release_lease(lease)
    setup.wait()
    again = setup.storage.take_lease("run", this_process(), now=1_001, ttl=30)
    assert again.epoch == lease.epoch + 1


def test_who_holds_a_lease_saves_to_a_fallback_however_long_the_primary_is_away(
    setup: Setup,
) -> None:
    writer = JournalWriter()
    lease = setup.storage.take_lease("run", ANNA, now=0, ttl=30)
    assert setup.storage.append([writer.batch(1, epoch=lease.epoch)]) == [None]
    with setup.one.away():
        for now in (1, 31, 1_800, 7_200):
            setup.clock.now = 1_000.0 + now
            lease = setup.storage.renew_lease(lease, now=now, ttl=30)
            assert setup.storage.append([writer.batch(1, epoch=lease.epoch)]) == [None]
    setup.wait()
    assert seqs(setup.storage) == seqs(setup.storage.storages[0]) == [1, 2, 3, 4, 5]


def test_a_writer_whose_lease_was_taken_over_is_refused_by_the_fallback(setup: Setup) -> None:
    writer = JournalWriter()
    lease = setup.storage.take_lease("run", ANNA, now=0, ttl=30)
    assert setup.storage.append([writer.batch(1, epoch=lease.epoch)]) == [None]
    setup.reopened_beside().take_lease("run", BERT, now=31, ttl=30)
    with setup.one.away():
        (refused,) = setup.storage.append([writer.batch(1, epoch=lease.epoch)])
        assert isinstance(refused, ConflictError)
        assert seqs(setup.storage) == [1]


def test_who_takes_over_goes_on_from_what_the_last_holder_saved_to_a_fallback(
    setup: Setup,
) -> None:
    writer = JournalWriter()
    lease = setup.storage.take_lease("run", ANNA, now=0, ttl=30)
    setup.storage.append([writer.batch(1, epoch=lease.epoch)])
    other = setup.reopened_beside()
    assert seqs(other) == [1]
    with setup.one.away():
        setup.storage.append([writer.batch(2, epoch=lease.epoch)])
    taken = other.take_lease("run", BERT, now=31, ttl=30)
    assert taken.epoch > lease.epoch
    assert seqs(other.storages[0]) == [1, 2, 3]
    late = writer.batch(1, epoch=lease.epoch)
    setup.wait()
    assert isinstance(setup.storage.append([late])[0], ConflictError)
    assert other.append([JournalWriter.after(other, "run").batch(1, epoch=taken.epoch)]) == [None]


def test_what_was_saved_under_an_older_lease_is_not_brought_back_under_a_newer(
    setup: Setup,
) -> None:
    writer = JournalWriter()
    lease = setup.storage.take_lease("run", ANNA, now=0, ttl=30)

    def save() -> None:
        batch = writer.batch([writer.record(epoch=lease.epoch)], epoch=lease.epoch)
        assert setup.storage.append([batch]) == [None]

    save()
    with setup.one.away():
        save()
        with FilesystemStorage(setup.one.real) as elsewhere:
            taken = elsewhere.take_lease("run", BERT, now=31, ttl=30)
    setup.wait()
    late = writer.batch(1, epoch=lease.epoch)
    assert isinstance(setup.storage.append([late])[0], DivergedError)
    primary, fallback = setup.storage.storages
    assert (seqs(primary), seqs(fallback)) == ([1], [1, 2])
    assert primary.lease_of("run") == taken  # type: ignore[attr-defined]


def test_a_primary_that_lost_its_leases_gives_no_epoch_twice(setup: Setup) -> None:
    writer = JournalWriter()
    for n in range(3):
        lease = setup.storage.take_lease("run", ANNA, now=100.0 * n, ttl=30)
    stale = writer.batch([writer.record(epoch=lease.epoch)], epoch=lease.epoch)
    setup.storage.append([stale])
    shutil.rmtree(setup.one.real)
    setup.one.real.mkdir()
    again = setup.reopen()
    taken = again.take_lease("run", BERT, now=1_000, ttl=30)
    assert taken.epoch > lease.epoch
    assert seqs(again.storages[0]) == [1]
    late = writer.batch(1, epoch=lease.epoch)
    assert isinstance(again.append([late])[0], ConflictError)


# The rest


def test_a_handler_of_events_that_fails_fails_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path / "one")

    def fails(event: StorageEvent) -> None:
        raise ZeroDivisionError(event.kind)

    storage = ResilientStorage(place.open(), MemoryStorage(), retry=FAST, on_event=fails)
    with storage:
        writer = JournalWriter()
        writer.save(storage)
        with place.away():
            writer.save(storage)
            assert seqs(storage) == [1, 2]


def test_a_storage_that_is_away_at_the_start_is_opened_later(tmp_path: Path) -> None:
    path = tmp_path / "one"
    path.write_text("")
    clock = Clock()
    storage = ResilientStorage(
        lambda: FilesystemStorage(path), MemoryStorage(), retry=FAST, clock=clock
    )
    with storage:
        JournalWriter().save(storage)
        path.unlink()
        clock.now += 100
        assert seqs(storage) == [1]
        assert seqs(storage.storages[0]) == [1]


@pytest.mark.parametrize("given", [lambda s: (s,), lambda s: (s, s)])
def test_a_primary_alone_or_twice_is_refused(
    given: Callable[[Storage], tuple[Storage, ...]],
) -> None:
    with pytest.raises(UsageError):
        ResilientStorage(*given(MemoryStorage()))


def test_an_address_names_the_storages(tmp_path: Path) -> None:
    with open_storage(f"resilient:sqlite:///{tmp_path}/runs.db|file:{tmp_path}/copy") as storage:
        assert isinstance(storage, ResilientStorage)
        assert [type(one) for one in storage.storages] == [SQLiteStorage, FilesystemStorage]
        JournalWriter().save(storage)
    with open_storage(f"file:{tmp_path}/copy?compress=gzip") as copy:
        assert seqs(copy) == [1]
    for wrong in ("resilient:", "resilient:memory://", "resilient:memory://|nothing:x"):
        with pytest.raises((UsageError, LookupError)):
            open_storage(wrong)


def test_an_address_whose_primary_is_away_opens_on_the_fallback(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("")
    with open_storage(f"resilient:file:{tmp_path}/one|file:{tmp_path}/two") as storage:
        JournalWriter().save(storage)
        assert seqs(storage) == [1]


def test_threads_fail_over_together(setup: Setup) -> None:
    def work(n: int) -> None:
        writer = JournalWriter(f"run-{n}")
        for step in range(12):
            writer.save(setup.storage)
            if n == 0 and step == 3:
                setup.one.leave()
            if n == 0 and step == 8:
                setup.one.come_back()
                setup.wait()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    setup.wait()
    assert setup.storage.sync() == []
    for storage in setup.storage.storages:
        for n in range(4):
            assert seqs(storage, f"run-{n}") == list(range(1, 13))


class Schedule:
    """Failures, returns, restarts and saves of two processes, in an order that chance decides."""

    def __init__(self, setup: Setup, chance: random.Random) -> None:
        self.setup = setup
        self.chance = chance
        self.processes = [setup.storage, setup.open()]
        self.away: set[str] = set()
        self.acknowledged: dict[str, set[str]] = {"a": set(), "b": set()}

    def step(self) -> None:
        what = self.chance.choice(["save"] * 8 + ["leave", "return", "wait", "restart", "read"])
        who = self.chance.choice(["one", "two"])
        process = self.chance.randrange(2)
        if what == "save":
            self.save(process, self.chance.choice("ab"))
        elif what == "leave" and who not in self.away:
            getattr(self.setup, who).leave()
            self.away.add(who)
        elif what == "return" and who in self.away:
            getattr(self.setup, who).come_back()
            self.away.discard(who)
        elif what == "wait":
            self.setup.wait()
        elif what == "restart" and not self.away:
            self.processes[process].close()
            self.processes[process] = self.setup.open()
        elif what == "read":
            with suppress(StorageError):
                list(self.processes[process].runs(RunQuery()))

    def save(self, process: int, run_id: str) -> None:
        storage = self.processes[process]
        try:
            writer = JournalWriter.after(storage, run_id)
            record = writer.record(b"%d" % self.chance.getrandbits(60))
            (refused,) = storage.append([writer.batch([record])])
        except StorageError:
            return
        if refused is None:
            self.acknowledged[run_id].add(record.header.digest)

    def end(self) -> list[str]:
        for who in sorted(self.away):
            getattr(self.setup, who).come_back()
        self.setup.wait()
        return self.processes[0].sync()

    def close(self) -> None:
        for storage in self.processes:
            storage.close()


@pytest.mark.parametrize("seed", range(600 if FULL else 30))
def test_whatever_fails_in_whatever_order_nothing_that_was_acknowledged_is_lost(
    setup: Setup, seed: int
) -> None:
    schedule = Schedule(setup, random.Random(seed))
    for _ in range(60):
        schedule.step()
    diverged = schedule.end()
    storage = schedule.processes[0]
    one, two = storage.storages
    for run_id, wanted in schedule.acknowledged.items():
        there = [set(digests(copy, run_id)) for copy in (one, two)]
        assert wanted <= there[0] | there[1], f"seed {seed}: an acknowledged record is lost"
        if run_id not in diverged:
            assert wanted <= there[0] == there[1], f"seed {seed}: {diverged}"
    for run_id in diverged:
        storage.keep_copy(run_id, keep=seed % 2)
        assert digests(one, run_id) == digests(two, run_id)
    assert storage.sync() == []
    schedule.close()


_SAVES = """
import sys
from pathlib import Path
from surehold.storage.replicated.breaker import BreakerRules
from surehold.storage.files.storage import FilesystemStorage
from surehold.storage.replicated.storage import ResilientStorage
from surehold.storage.retries import Retry
from surehold.testing import JournalWriter
storage = ResilientStorage(
    FilesystemStorage(sys.argv[1]),
    FilesystemStorage(sys.argv[2]),
    retry=Retry(retries=1, first_wait=0.001, jitter=0.001),
    breaker=BreakerRules(failures=1, pause=0.005, longest_pause=0.01),
)
writer = JournalWriter.after(storage, "run")
while True:
    record = writer.save(storage)
    print(record.header.seq, record.header.digest, flush=True)
"""


def test_what_was_acknowledged_survives_failures_and_kills(tmp_path: Path) -> None:
    one, two = Place(tmp_path / "one"), Place(tmp_path / "two")
    acknowledged: dict[int, str] = {}
    for attempt in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", _SAVES, one.path, two.path], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            for wanted in (7, 9, 5 + attempt):
                for _ in range(wanted):
                    seq, _, digest = child.stdout.readline().strip().partition(" ")
                    acknowledged[int(seq)] = digest
                if wanted == 7:
                    one.leave()
                elif wanted == 9 and attempt % 2:
                    one.come_back()
            child.send_signal(signal.SIGKILL)
            for line in child.stdout:
                seq, _, digest = line.strip().partition(" ")
                if digest and line.endswith("\n"):
                    acknowledged[int(seq)] = digest
        if not attempt % 2:
            one.come_back()
        with ResilientStorage(one.open(), two.open(), retry=FAST) as storage:
            stored = {r.header.seq: r.header.digest for r in storage.read("run")}
            assert acknowledged.items() <= stored.items()
            assert dict(enumerate(digests(storage.storages[0]), 1)) == stored
    assert len(acknowledged) > 100


def test_a_batch_that_a_fallback_cannot_store_as_it_is_is_copied_record_by_record(
    tmp_path: Path,
) -> None:
    with ResilientStorage(MemoryStorage(), FilesystemStorage(tmp_path)) as storage:
        writer = JournalWriter()
        mixed = writer.batch([writer.record(name="a"), writer.record(name="b")])
        assert storage.append([mixed]) == [None]
        assert [seqs(one) for one in storage.storages] == [[1, 2], [1, 2]]


def test_a_damaged_run_does_not_stop_the_saves_of_others(setup: Setup) -> None:
    writer = JournalWriter()
    for _ in range(3):
        writer.save(setup.storage)
    for storage in setup.storage.storages:
        damage(storage, "run", 3)
    again = setup.reopen()
    results = again.append([writer.batch(1), JournalWriter("other").batch(1)])
    assert isinstance(results[0], ConflictError)
    assert results[1] is None
    assert seqs(again.storages[1], "other") == [1]


_HOLDS_A_LEASE = """
import sys, time
from surehold.errors import SureholdError
from surehold.storage.base import this_process
from surehold.storage.files.storage import FilesystemStorage
from surehold.storage.replicated.storage import ResilientStorage
from surehold.storage.retries import Retry
from surehold.testing import JournalWriter
storage = ResilientStorage(
    FilesystemStorage(sys.argv[1]), FilesystemStorage(sys.argv[2]), retry=Retry(retries=0)
)
lease = storage.take_lease("run", this_process(), now=time.time(), ttl=1)
writer = JournalWriter("run")
writer_batches = [writer.batch(1, epoch=lease.epoch) for _ in range(2)]
for batch in writer_batches:
    sys.stdin.readline()
    try:
        print(storage.append([batch])[0] is None, flush=True)
    except SureholdError as error:
        print(type(error).__name__, flush=True)
"""


@pytest.mark.parametrize("primary", ["there", "away"])
def test_a_holder_that_was_paused_past_its_lease_saves_nowhere(
    tmp_path: Path, primary: str
) -> None:
    one, two = Place(tmp_path / "one"), Place(tmp_path / "two")
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDS_A_LEASE, one.path, two.path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "True\n"
        child.send_signal(signal.SIGSTOP)
        time.sleep(1.1)
        with ResilientStorage(one.open(), two.open(), retry=FAST) as storage:
            lease = storage.take_lease("run", BERT, now=time.time(), ttl=60)
            assert seqs(storage) == [1]
            if primary == "away":
                one.leave()
            child.stdin.write("\n")
            child.stdin.flush()
            child.send_signal(signal.SIGCONT)
            assert child.stdout.readline() == "False\n"
            if primary == "away":
                one.come_back()
            assert [seqs(one) for one in storage.storages] == [[1], [1]]
            writer = JournalWriter.after(storage, "run")
            assert storage.append([writer.batch(1, epoch=lease.epoch)]) == [None]


def test_a_long_read_goes_on_in_the_fallback_where_the_primary_broke_off(setup: Setup) -> None:
    batch = JournalWriter().batch(600)
    setup.storage.append([batch])
    found = setup.storage.read("run")
    read = [next(found) for _ in range(20)]
    with setup.one.away():
        read += found
    assert tuple(read) == batch.records


def test_damage_in_the_middle_of_a_long_read_is_healed_on_the_way(setup: Setup) -> None:
    writer = JournalWriter()
    batches = [writer.batch(1) for _ in range(400)]
    setup.storage.append(batches)
    damage(setup.storage.storages[0], "run", 300, at=0.9)
    read = list(setup.storage.read("run"))
    assert read == [record for batch in batches for record in batch.records]
    assert "heal" in setup.kinds()
    assert seqs(setup.storage.storages[0]) == list(range(1, 401))


def test_damage_is_healed_though_the_copy_lacks_the_end(setup: Setup) -> None:
    writer = JournalWriter()
    saved = [writer.save(setup.storage) for _ in range(4)]
    with setup.one.open() as alone:
        saved += [writer.save(alone) for _ in range(2)]
    damage(setup.storage.storages[0], "run", 3)
    assert list(setup.reopen().read("run")) == saved


@pytest.mark.parametrize("why", ["it lacks the record", "it is another history"])
def test_damage_is_not_healed_from_a_copy_that_does_not_fit(setup: Setup, why: str) -> None:
    writer = JournalWriter()
    with setup.one.open() as one, setup.two.open() as two:
        for _ in range(4):
            writer.save(one)
        if why == "it lacks the record":
            for record in list(one.read("run"))[:3]:
                two.append([JournalWriter().batch([record])])
        else:
            JournalWriter().save(two, b"other")
            two.append([JournalWriter.after(two, "run").batch(5)])
    damage(setup.storage.storages[0], "run", 4)
    again = setup.reopen()
    with pytest.raises(CorruptError):
        list(again.read("run"))
    assert "heal" not in setup.kinds()


def test_a_lease_that_cannot_be_given_back_runs_out(setup: Setup) -> None:
    lease = setup.storage.take_lease("run", ANNA, now=0, ttl=30)
    with setup.one.away():
        setup.storage.release_lease(lease)
    assert [event.operation for event in setup.events if event.kind == "behind"] == [
        "release_lease"
    ]
    setup.wait()
    setup.storage.release_lease(lease)
    assert setup.storage.take_lease("run", BERT, now=1, ttl=30).epoch == lease.epoch + 1


def test_a_repair_looks_at_every_storage(setup: Setup) -> None:
    manager = CheckpointManager(setup.storage)
    manager.save_checkpoint(State.new({"n": 1}, run_id="run"))
    (file,) = setup.two.real.glob("_/*.jsonl")
    with file.open("ab") as opened:
        opened.write(b'{"torn')
    manager = CheckpointManager(setup.reopen())
    assert "fallback 1" in str(manager.repair(dry_run=True))
    assert "fallback 1" in str(manager.repair())
    assert manager.repair().clean
    setup.storage.compact()


@pytest.mark.parametrize("when", ["while it is open", "before it is opened"])
def test_runs_are_verified_and_repaired_while_the_primary_is_no_database(
    tmp_path: Path, when: str
) -> None:
    path, address = (
        tmp_path / "runs.db",
        f"resilient:sqlite:///{tmp_path}/runs.db|file:{tmp_path}/c",
    )
    storage = open_storage(address)
    manager = CheckpointManager(storage)
    for step in (1, 2):
        manager.save_checkpoint(State.new({"n": step}, run_id="run", name="job").at(step=step))
    if when == "before it is opened":
        storage.close()
    for name in ("runs.db-wal", "runs.db-shm"):
        (tmp_path / name).unlink(missing_ok=True)
    path.write_bytes(b"this is not a database" * 1000)
    if when == "before it is opened":
        storage = open_storage(address)
        manager = CheckpointManager(storage)
    assert [verdict.records for verdict in manager.verify()] == [2]
    assert all(manager.verify())
    for dry_run in (True, False):
        (told,) = manager.repair(dry_run=dry_run).medium
        assert told.startswith("primary")
        assert "moved away" in told
    assert manager.repair("run").clean
    assert manager.resume_from_latest("job")["n"] == 2
    assert path.read_bytes().startswith(b"this is not a database"), "it may be somebody's file"
    storage.close()
    path.unlink()
    with open_storage(address) as again:
        assert CheckpointManager(again).repair().clean
        assert isinstance(again, ResilientStorage)
        assert seqs(again.storages[0]) == [1, 2]


def test_no_run_is_called_lost_while_a_storage_fails(setup: Setup) -> None:
    JournalWriter().save(setup.storage)
    (file,) = setup.two.real.glob("_/*.jsonl")
    file.unlink()
    assert setup.storage.storages[1].lost_runs() == ["run"]  # type: ignore[attr-defined]
    with setup.one.away():
        assert setup.storage.lost_runs() == []
    with setup.one.away(), setup.two.away(), pytest.raises(StorageError):
        setup.storage.known_runs()


def test_what_is_saved_while_a_copy_is_made_is_not_hidden_in_it() -> None:
    writer = JournalWriter()

    class Busy(MemoryStorage):
        """One that somebody else saves to just before it is read."""

        def read(
            self, run_id: str, *, first: int | None = None, last: int | None = None
        ) -> Iterator[Record]:
            writer.save(self)
            return super().read(run_id, first=first, last=last)

    with Busy() as source, MemoryStorage() as target:
        writer.save(source)
        assert bring_up(source, target, "run", 0) == (2, None)
        assert visible(target, "run") == {1, 2}


class Away(MemoryStorage):
    """A storage that can be away."""

    away = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("append", "read", "headers", "find", "runs", "delete") and self.away:
            raise StorageUnavailableError("it is away")
        return super().__getattribute__(name)


def test_what_was_hidden_while_the_primary_was_away_stays_hidden() -> None:
    now, primary = [0.0], Away()
    storage = ResilientStorage(
        primary, MemoryStorage(), retry=Retry(retries=0), clock=lambda: now[0]
    )
    writer = JournalWriter()
    for _ in range(3):
        writer.save(storage)
    primary.away = True
    storage.delete("run", hide=[1])
    primary.away = False
    now[0] += 1000
    assert [one.seq for one in storage.headers(RecordQuery(run_id="run"))] == [3, 2]


def test_a_fallback_that_is_behind_does_not_answer_for_all_runs() -> None:
    now, primary, fallback = [0.0], Away(), Away()
    storage = ResilientStorage(primary, fallback, retry=Retry(retries=0), clock=lambda: now[0])
    fallback.away = True
    JournalWriter().save(storage)
    fallback.away = False
    primary.away = True
    now[0] += 1000
    with pytest.raises(StorageUnavailableError):
        list(storage.runs(RunQuery()))


def test_a_child_gets_locks_of_its_own_after_a_fork() -> None:
    storage = ResilientStorage(MemoryStorage(), MemoryStorage())
    replicas = storage._replicas
    held = [replicas.lock, *(one._lock for one in replicas.all)]
    held += [one.breaker._lock for one in replicas.all]
    for lock in held:
        lock.acquire()
    pid = os.fork()
    if pid == 0:
        now = [replicas.lock, *(one._lock for one in replicas.all)]
        now += [one.breaker._lock for one in replicas.all]
        os._exit(0 if all(lock.acquire(timeout=1) for lock in now) else 1)
    for lock in held:
        lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    storage.close()


def test_an_epoch_that_was_lost_is_passed_in_one_step() -> None:
    primary = MemoryStorage()
    storage = ResilientStorage(primary, MemoryStorage())
    writer = JournalWriter()
    assert storage.append([writer.batch([writer.record(epoch=1 << 40)])]) == [None]
    lease = storage.take_lease("run", this_process(), now=0.0, ttl=9.0)
    assert lease.epoch == (1 << 40) + 1
    storage.close()


def test_the_failure_of_all_storages_names_the_operation_and_each_reason() -> None:
    primary, fallback = Away(), Away()
    storage = ResilientStorage(primary, fallback, retry=Retry(retries=0))
    JournalWriter().save(storage)
    primary.away = fallback.away = True
    with pytest.raises(StorageUnavailableError) as caught:
        list(storage.headers(RecordQuery(run_id="run")))
    assert caught.value.message.startswith("every storage failed (headers): primary")
    assert caught.value.message.count("it is away") == 2
