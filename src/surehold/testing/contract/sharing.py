"""Promises of a storage to processes and threads that use it at the same time."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from surehold.errors import ConflictError, UsageError
from surehold.storage.base import Batch, Owner, RecordQuery, RunQuery, Storage
from surehold.testing.contract.medium import Medium, infos, seqs, stored
from surehold.testing.contract.racing import race, race_in_processes
from surehold.testing.journal import JournalWriter

_WAIT = 30.0

ITERATORS: dict[str, Callable[[Storage], Iterator[object]]] = {
    "read": lambda storage: storage.read("run"),
    "headers of a run": lambda storage: storage.headers(RecordQuery(run_id="run")),
    "headers of all": lambda storage: storage.headers(RecordQuery(notes=True)),
    "runs": lambda storage: storage.runs(RunQuery()),
}

CALLS: dict[str, Callable[[Storage], object]] = {
    "append": lambda storage: storage.append([JournalWriter("new").batch()]),
    "read": lambda storage: list(storage.read("run")),
    "headers": lambda storage: list(storage.headers(RecordQuery())),
    "find": lambda storage: storage.find("x"),
    "runs": lambda storage: list(storage.runs(RunQuery())),
    "hide": lambda storage: storage.delete("run", hide=[1]),
    "erase": lambda storage: storage.delete("run", erase=[1]),
    "delete": lambda storage: storage.delete("run"),
}


@contextmanager
def restless_threads() -> Iterator[None]:
    """Let Python switch threads as often as it can, so that a missing lock shows."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class SharingPromises(Medium):
    def test_of_threads_that_append_one_seq_one_wins(self, storage: Storage) -> None:
        rounds, threads = 15, 6
        for _ in range(rounds):
            start = threading.Barrier(threads)
            head = JournalWriter.after(storage, "run")

            def attempt(
                n: int, start: threading.Barrier = start, head: JournalWriter = head
            ) -> ConflictError | None:
                writer = JournalWriter("run", seq=head.seq, digest=head.digest)
                batch = writer.batch([writer.record(b"%d" % n)])
                start.wait(_WAIT)
                return storage.append([batch])[0]

            with restless_threads(), ThreadPoolExecutor(threads) as pool:
                results = list(pool.map(attempt, range(threads)))
            assert results.count(None) == 1
            lost = [result for result in results if result is not None]
            assert {(c.run_id, c.seq, c.head) for c in lost} == {
                ("run", head.seq + 1, head.seq + 1)
            }
        _check_chain(storage, rounds)

    def test_threads_that_race_leave_one_winner_per_seq_and_no_gap(self, storage: Storage) -> None:
        with restless_threads(), ThreadPoolExecutor(4) as pool:
            won = list(pool.map(lambda who: race(storage, "run", who, until=60), "abcd"))
        assert sorted(seq for seqs_won in won for seq in seqs_won) == list(range(1, 61))
        _check_chain(storage, 60)

    def test_storages_on_one_medium_leave_one_winner_per_seq_and_no_gap(
        self, directory: Path
    ) -> None:
        self.must_survive()
        with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
            opened = [stack.enter_context(self.open(directory)) for _ in range(4)]
            won = list(pool.map(lambda who: race(opened[int(who)], "run", who, until=60), "0123"))
            assert sorted(seq for seqs_won in won for seq in seqs_won) == list(range(1, 61))
            for storage in opened:
                _check_chain(storage, 60)

    def test_processes_that_race_leave_one_winner_per_seq_and_no_gap(
        self, storage: Storage, directory: Path
    ) -> None:
        self.must_survive()
        won = race_in_processes(
            Path(inspect.getfile(type(self))),
            type(self).__qualname__,
            directory,
            run_id="run",
            processes=2,
            until=100,
        )
        assert sorted(seq for seqs_won in won for seq in seqs_won) == list(range(1, 101))
        for view in self.views(storage):
            _check_chain(view, 100)

    def test_threads_on_runs_of_their_own_do_not_meet(self, storage: Storage) -> None:
        def work(n: int) -> list[ConflictError | None]:
            writer = JournalWriter(f"run-{n}", name="x")
            return [storage.append([writer.batch(2)])[0] for _ in range(10)]

        with restless_threads(), ThreadPoolExecutor(8) as pool:
            assert list(pool.map(work, range(8))) == [[None] * 10] * 8
        for view in self.views(storage):
            assert sorted(info.run_id for info in infos(view)) == [f"run-{n}" for n in range(8)]
            for n in range(8):
                _check_chain(view, 20, f"run-{n}")

    def test_a_reader_sees_whole_batches_in_order_while_another_appends(
        self, storage: Storage, directory: Path
    ) -> None:
        with ExitStack() as stack, ThreadPoolExecutor(1) as pool:
            readers = [storage]
            if self.survives:
                readers.append(stack.enter_context(self.open(directory)))
            writer = JournalWriter()
            batches = [writer.batch(3) for _ in range(40)]
            done = pool.submit(lambda: [storage.append([batch]) for batch in batches])
            while not done.done():
                for reader in readers:
                    read = [record.header.seq for record in reader.read("run")]
                    assert len(read) % 3 == 0
                    assert read == list(range(1, len(read) + 1))
                    listed = seqs(reader)
                    assert listed == list(range(len(listed), 0, -1))
            assert done.result() == [[None]] * 40
            for reader in readers:
                assert len(stored(reader)) == 120

    def test_what_one_storage_does_another_on_the_medium_sees(
        self, storage: Storage, directory: Path
    ) -> None:
        self.must_survive()
        with self.open(directory) as other:
            assert infos(other) == []
            writer = JournalWriter(name="x")
            sealed = [writer.save(storage, id=f"id-{n}") for n in range(5)]
            assert (stored(other), seqs(other)) == (sealed, [5, 4, 3, 2, 1])
            assert infos(other) == infos(storage)
            assert other.find("id-3") == [sealed[3].header]
            storage.delete("run", hide=[2])
            assert (seqs(other), other.find("id-1")) == ([5, 4, 3, 1], [])
            storage.delete("run", erase=[1, 2])
            assert (stored(other), seqs(other)) == (sealed[2:], [5, 4, 3])
            assert infos(other) == infos(storage)
            sealed.append(JournalWriter.after(other, "run").save(other, id="id-5"))
            assert (stored(storage), seqs(storage)) == (sealed[2:], [6, 5, 4, 3])
            storage.delete("run")
            assert (stored(other), infos(other), other.find("id-")) == ([], [], [])
            JournalWriter().save(other, b"anew")
            assert [record.body for record in storage.read("run")] == [b"anew"]

    @pytest.mark.parametrize("what", ITERATORS)
    def test_an_iterator_holds_no_lock_while_the_caller_has_control(
        self, storage: Storage, what: str
    ) -> None:
        writer = JournalWriter()
        storage.append([writer.batch(150), *(JournalWriter(f"r-{n}").batch() for n in range(150))])
        expected = list(ITERATORS[what](storage))
        iterator = ITERATORS[what](storage)
        seen = []
        with ThreadPoolExecutor(1) as pool:
            for n in range(len(expected)):
                seen.append(next(iterator))
                if n % 40 == 0:
                    writer.save(storage)
                    note = pool.submit(writer.save, storage, frame="note")
                    note.result(timeout=_WAIT)
                    JournalWriter(f"late-{n}").save(storage)
        if what == "runs":
            assert _run_ids(seen) == _run_ids(expected)
        else:
            assert seen == expected

    @pytest.mark.parametrize("what", ITERATORS)
    def test_an_iterator_may_be_left_half_way(self, storage: Storage, what: str) -> None:
        writer = JournalWriter()
        storage.append([writer.batch(150), *(JournalWriter(f"r-{n}").batch() for n in range(150))])
        left = ITERATORS[what](storage)
        next(left)
        assert storage.append([writer.batch(1)]) == [None]
        assert storage.delete("run", erase=[1]) == 1
        assert len(stored(storage)) == 150

    @pytest.mark.parametrize("what", CALLS)
    def test_use_after_close_is_a_usage_error(self, storage: Storage, what: str) -> None:
        assert storage.append([JournalWriter().batch(3)]) == [None]
        storage.close()
        with pytest.raises(UsageError, match="closed"):
            CALLS[what](storage)

    def test_leasing_after_close_is_a_usage_error(self, storage: Storage) -> None:
        leasing = self.leasing(storage)
        owner = Owner("elsewhere", "boot", 1, "0")
        lease = leasing.take_lease("run", owner, now=0, ttl=10)
        storage.close()
        with pytest.raises(UsageError, match="closed"):
            leasing.take_lease("run", owner, now=20, ttl=10)
        with pytest.raises(UsageError, match="closed"):
            leasing.renew_lease(lease, now=1, ttl=10)
        with pytest.raises(UsageError, match="closed"):
            leasing.release_lease(lease)
        with pytest.raises(UsageError, match="closed"):
            leasing.lease_of("run")

    def test_closing_twice_is_fine(self, storage: Storage) -> None:
        storage.close()
        storage.close()

    def test_leaving_a_with_block_closes(self, directory: Path) -> None:
        with self.open(directory) as storage:
            JournalWriter().save(storage)
        with pytest.raises(UsageError, match="closed"):
            storage.append([Batch(run_id="x", records=tuple(JournalWriter("x").batch().records))])


def _run_ids(found: list[object]) -> list[str]:
    return [info.run_id for info in found]  # type: ignore[attr-defined]


def _check_chain(storage: Storage, count: int, run_id: str = "run") -> None:
    """The run has *count* records, each sealed on the one before."""
    prev = ""
    for seq, record in enumerate(storage.read(run_id), 1):
        assert (record.header.seq, record.header.prev) == (seq, prev)
        prev = record.header.digest
    (info,) = storage.runs(RunQuery(run_id=run_id))
    assert (info.seq, info.digest, info.checkpoints) == (count, prev, count)
