"""Appends of one engine: one at a time, and others beside a slow one where that is faster."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from surehold import CheckpointManager, MemoryStorage
from surehold.engine.commit import engine_of
from surehold.engine.commit.group_commit import GroupCommit, _Waiting
from surehold.engine.journal import Note, Outcome, Request
from surehold.errors import ConflictError
from surehold.storage.base import Batch, RecordQuery

PATIENCE = 60.0


class Gated(MemoryStorage):
    """Lets the append that holds a note to run "slow" wait until the gate opens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.began = threading.Event()
        self.appends: list[list[str]] = []

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        runs = [batch.run_id for batch in batches]
        self.appends.append(runs)
        if "slow" in runs and not self.began.is_set():
            self.began.set()
            assert self.gate.wait(PATIENCE)
        return super().append(batches)


def note(manager: CheckpointManager, run_id: str) -> None:
    manager.append_notes(run_id, (Note(kind="effect", content={}),))


def eventually(holds: Callable[[], bool]) -> bool:
    give_up = time.monotonic() + PATIENCE
    while not holds() and time.monotonic() < give_up:
        time.sleep(0.002)
    return holds()


@pytest.mark.parametrize("parallel", [False, True])
def test_appends_begin_beside_a_slow_one_only_where_none_waits_for_another(
    parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Gated, "appends_at_once", 3 if parallel else 1)
    with Gated() as storage, ThreadPoolExecutor(8) as pool:
        manager = CheckpointManager(storage)
        queue = engine_of(storage).commits._queue
        done = [pool.submit(note, manager, "slow")]
        assert storage.began.wait(PATIENCE)
        done.append(pool.submit(note, manager, "slow"))
        assert eventually(lambda: len(queue) == 1), "its run is being written"
        done += [pool.submit(note, manager, f"r{number}") for number in range(4)]
        if parallel:
            assert eventually(lambda: sum(one.done() for one in done) >= 3)
            assert not done[1].done(), "the run of the slow append waits for it"
        else:
            assert eventually(lambda: len(queue) == 5)
            assert len(storage.appends) == 1
        storage.gate.set()
        for one in done:
            one.result(PATIENCE)
        assert parallel or len(storage.appends) == 2, "all that waited share the second one"
        seqs = [one.seq for one in storage.headers(RecordQuery(run_id="slow", notes=True))]
        assert seqs == [2, 1]


def test_a_caller_that_another_append_takes_is_neither_queued_nor_written_again() -> None:
    """A stale caller at the head of the queue would keep all others waiting for ever."""
    commits = GroupCommit(parallel=True)
    first, other, *_ = commits._leaders
    with MemoryStorage() as storage:
        journal = CheckpointManager(storage).face.journal
        own, beside = (
            _Waiting([(journal, Request(run_id="r", notes=[Note(kind="effect", content={})]))])
            for _ in range(2)
        )
        with other.lock:
            other.group = [own]
            commits._write(first, own)
            assert not commits._queue and not own.is_settled, "the other append writes it"
            own.outcomes = [Outcome()]
            other.group = [beside]
            commits._write(first, own)
            assert not commits._queue, "written meanwhile"
        commits._write(first, own)
        assert not list(storage.headers(RecordQuery(run_id="r", notes=True)))


def test_many_threads_write_to_few_runs_beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStorage, "appends_at_once", 3)
    monkeypatch.setattr("surehold.engine.commit.group_commit._LONG", 0.0)
    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(5):
            write_beside_each_other()
    finally:
        sys.setswitchinterval(often)


@pytest.mark.parametrize("parallel", [False, True])
def test_no_caller_waits_while_nobody_writes(
    parallel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Callers look again by themselves only where a thread that wrote was interrupted."""
    monkeypatch.setattr(MemoryStorage, "appends_at_once", 3 if parallel else 1)
    monkeypatch.setattr("surehold.engine.commit.group_commit._LOOK_AGAIN", 2 * PATIENCE)
    often = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        write_beside_each_other()
    finally:
        sys.setswitchinterval(often)


def write_beside_each_other() -> None:
    with MemoryStorage() as storage, ThreadPoolExecutor(16) as pool:
        manager = CheckpointManager(storage)

        def work(number: int) -> None:
            for _ in range(20):
                note(manager, f"r{number % 5}")

        for one in [pool.submit(work, number) for number in range(16)]:
            one.result(PATIENCE)
        counts = [
            len(list(storage.headers(RecordQuery(run_id=f"r{number}", notes=True))))
            for number in range(5)
        ]
        assert sum(counts) == 16 * 20
