"""`Worker`: claims, drives, waits, fails, cancels and takes back, in one process."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.executors import jobs

import surehold
from surehold import SQLiteStorage, StateManager
from surehold.core.policy import QueueSettings
from surehold.engine.leases import GrantedLease
from surehold.errors import NotFoundError, RunError, StorageFullError, UsageError
from surehold.executors import (
    Driven,
    Served,
    Worker,
    drive,
    handle,
    list_workers,
    requeue,
    served_by,
    unserved,
)
from surehold.storage.base import abandon, this_process
from surehold.storage.notifications import Subscription
from surehold.storage.queueing import ClaimQuery

HERE = "tests.executors.jobs"
PATIENCE = 120.0
"""Seconds that a busy machine may take for what takes one."""


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[SQLiteStorage]:
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        yield storage


def worker(storage: Any, events: list[tuple[str, dict[str, Any]]] | None = None) -> Worker:
    log = None if events is None else (lambda event, facts: events.append((event, facts)))
    return Worker(storage, served_by([HERE]), concurrency=4, log=log)


class Running:
    """A worker in a thread."""

    def __init__(self, one: Worker) -> None:
        self.one = one
        self._thread = threading.Thread(target=one.run)

    def __enter__(self) -> Worker:
        self._thread.start()
        return self.one

    def __exit__(self, *_: object) -> None:
        self.one.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def test_a_run_is_queued_until_a_worker_has_it_and_when_it_is_given_back(
    storage: SQLiteStorage,
) -> None:
    handle = jobs.doubled.start([1], run_id="r", storage=storage)
    assert handle.status() == "queued"
    query = ClaimQuery(queues=("default",), targets=(f"{HERE}:doubled@1",))
    (claim,) = storage.claim(query, this_process(), now=time.time(), ttl=60)
    assert handle.status() == "running"
    back = msgspec.structs.replace(claim.entry, state="ready")
    assert storage.settle(claim.lease, back, now=time.time())
    assert handle.status() == "queued"
    with Running(worker(storage)):
        seen = [event.type for event in surehold.events("r", follow=True, storage=storage)]
    assert seen[-1] == "run.completed"
    assert handle.status() == "completed"


def test_a_run_is_stale_while_its_dead_worker_has_it_and_dead_as_a_dead_letter(
    storage: SQLiteStorage,
) -> None:
    handle = jobs.doubled.start([1], run_id="r", storage=storage)
    query = ClaimQuery(queues=("default",), targets=(f"{HERE}:doubled@1",))
    (claim,) = storage.claim(query, this_process(), now=time.time() - 90, ttl=60)
    abandon(claim.lease)
    assert handle.status() == "stale"
    dead = msgspec.structs.replace(claim.entry, state="dead")
    assert storage.settle(claim.lease, dead, now=time.time())
    assert handle.status() == "dead"


def test_a_worker_completes_what_is_queued(storage: SQLiteStorage) -> None:
    handles = [jobs.doubled.start([n], storage=storage) for n in range(10)]
    events: list[tuple[str, dict[str, Any]]] = []
    worker(storage, events).run(until_idle=True)
    assert [handle.result(timeout=0).value for handle in handles] == [[2 * n] for n in range(10)]
    assert storage.queues() == []
    assert [name for name, _ in events].count("run.completed") == 10
    leases = [storage.lease_of(handle.run_id) for handle in handles]
    assert all(lease is not None and lease.owner is None for lease in leases)


@pytest.mark.parametrize("how", ["answer", "approve"])
async def test_an_answer_to_an_agent_inside_a_run_continues_the_run(
    storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setitem(jobs.STORAGE, "here", storage)
    entry_point = f"{HERE}:make_parent"
    handle = await jobs.make_parent().start("buy", run_id="a", entry_point=entry_point)
    one = Worker(storage, served_by([entry_point]))
    await asyncio.to_thread(one.run, until_idle=True)
    (asked,) = surehold.pending("a", storage=storage)
    assert asked.run_id != "a" and await handle.status() == "waiting"
    if how == "answer":
        surehold.answer("a", asked.id, True, storage=storage)
    else:
        surehold.approve("a", storage=storage)
    await asyncio.to_thread(Worker(storage, served_by([entry_point])).run, until_idle=True)
    assert (await handle.result(timeout=0)).status == "completed"


@pytest.mark.parametrize("name", ["asks", "asks_a_person", "is_in_doubt"])
def test_a_run_that_is_cancelled_while_it_waits_has_ended(
    storage: SQLiteStorage, name: str
) -> None:
    made: Any = getattr(jobs, name).start(run_id="a", storage=storage)
    if asyncio.iscoroutine(made):
        asyncio.run(made)
    worker(storage).run(until_idle=True)
    one = handle("a", storage=storage)
    assert one.status() == "waiting"
    one.cancel()
    worker(storage).run(until_idle=True)
    with pytest.raises(RunError, match="was cancelled"):
        one.result(timeout=0)
    assert one.status() == "cancelled"
    assert surehold.pending("a", storage=storage) == []
    with pytest.raises(NotFoundError):
        requeue("a", storage=storage)


@pytest.mark.parametrize("name", ["asks", "asks_a_person", "is_in_doubt", "asking_long", "buyer"])
def test_a_cancelled_run_that_is_answered_has_ended(
    storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(jobs.STORAGE, "here", storage)
    options: dict[str, Any] = {"run_id": "a"}
    served = served_by([f"{HERE}:make_buyer" if name == "buyer" else HERE])
    if name == "buyer":
        asyncio.run(jobs.make_buyer().start("buy", entry_point=f"{HERE}:make_buyer", **options))
    elif name == "asking_long":
        entry = f"{HERE}:asking_long"
        jobs.asking_long.over(StateManager(storage)).start_sync({}, entry_point=entry, **options)
    else:
        made: Any = getattr(jobs, name).start(storage=storage, **options)
        if asyncio.iscoroutine(made):
            asyncio.run(made)
    Worker(storage, served).run(until_idle=True)
    one = handle("a", storage=storage)
    assert one.status() == "waiting"
    (asked,) = surehold.pending("a", storage=storage)
    one.cancel()
    one.answer(asked.id, True if name == "buyer" else "yes")
    Worker(storage, served).run(until_idle=True)
    has_nodes = name in ("asking_long", "buyer")
    # A function that makes no further call after the answer is told nothing.
    assert one.status() in ({"interrupted"} if has_nodes else {"cancelled", "completed"})
    if has_nodes:
        requeue("a", storage=storage)
        Worker(storage, served).run(until_idle=True)
        assert one.status() == "completed"


def test_an_idle_worker_is_listed_until_it_stops(storage: SQLiteStorage) -> None:
    with Running(worker(storage)):
        until(lambda: bool(list_workers(storage)))
        (listed,) = list_workers(storage)
        assert (listed.pid, listed.queues, listed.runs) == (os.getpid(), ["default"], [])
        assert f"{HERE}:doubled@1" in listed.serves and listed.concurrency == 4
        assert listed.seen_at is not None and listed.started_at is not None
        assert listed.started_at <= listed.seen_at
    assert list_workers(storage) == []


def test_a_worker_that_cannot_announce_itself_works(
    storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise UsageError("no right to do so")

    monkeypatch.setattr(SQLiteStorage, "announce", refuse)
    handle, events = jobs.doubled.start([1], storage=storage), list[tuple[str, dict[str, Any]]]()
    worker(storage, events).run(until_idle=True)
    assert handle.result(timeout=0).value == [2]
    assert ("worker.not_announced", {"error": "no right to do so"}) in events


def test_a_waiting_run_holds_no_worker_and_continues_when_due(storage: SQLiteStorage) -> None:
    for seconds in (0.5, 5, 50):  # a busy machine may be idle only after a short rest is over
        handle = jobs.rests.start(seconds, storage=storage)
        worker(storage).run(until_idle=True)
        entry = storage.entry_of(handle.run_id)
        if entry is not None:
            break
    assert entry is not None and entry.state == "waiting" and entry.due is not None
    with Running(worker(storage)):
        assert handle.result(timeout=PATIENCE).value == "rested"


def test_an_answer_wakes_a_waiting_run(storage: SQLiteStorage) -> None:
    handle = jobs.asks.start(storage=storage)
    with Running(worker(storage)):
        until(lambda: handle.status() == "waiting")
        handle.answer("approval", "yes")
        assert handle.result(timeout=PATIENCE).value == "yes"


def until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_failing_run_becomes_a_dead_letter_with_its_reason(storage: SQLiteStorage) -> None:
    storage.set_queue("default", QueueSettings(attempts=2))
    handle = jobs.fails.start(storage=storage)
    events: list[tuple[str, dict[str, Any]]] = []
    with Running(worker(storage, events)), pytest.raises(RunError, match=r"dead letter.*no luck"):
        handle.result(timeout=PATIENCE)
    entry = storage.entry_of(handle.run_id)
    assert entry is not None and (entry.state, entry.failures) == ("dead", 2)
    assert [name for name, _ in events].count("run.failed") == 2


@pytest.mark.parametrize("name", ["fails_at_each", "fails_in_branches"])
def test_failures_are_counted_from_the_last_new_step(storage: SQLiteStorage, name: str) -> None:
    storage.set_queue("default", QueueSettings(attempts=2))
    made: Any = getattr(jobs, name).start([1, 2, 3], storage=storage)
    handle: Any = asyncio.run(made) if asyncio.iscoroutine(made) else made
    jobs.allowed.clear()
    counted: list[int] = []
    for number in (1, 2):
        worker(storage).run(until_idle=True)
        entry = storage.entry_of(handle.run_id)
        assert entry is not None and entry.state == "waiting"
        counted.append(entry.failures)
        jobs.allowed.append(number)
        requeued_now(storage, handle.run_id)
    assert counted == [1, 1]
    for _ in range(2):
        worker(storage).run(until_idle=True)
        requeued_now(storage, handle.run_id)
    entry = storage.entry_of(handle.run_id)
    assert entry is not None and (entry.state, entry.failures) == ("dead", 2)


def test_retention_does_not_hide_that_a_run_fails_at_the_same_step(
    storage: SQLiteStorage,
) -> None:
    storage.set_queue("default", QueueSettings(attempts=3))
    graph = jobs.keeping_one.over(jobs.keeping_one.manager_on(storage))
    one = graph.start_sync({}, entry_point=f"{HERE}:keeping_one")
    for _ in range(3):
        worker(storage).run(until_idle=True)
        requeued_now(storage, one.run_id)
    entry = storage.entry_of(one.run_id)
    assert entry is not None and (entry.state, entry.failures) == ("dead", 3)


def requeued_now(storage: SQLiteStorage, run_id: str) -> None:
    """End the pause of a run that failed."""
    entry = storage.entry_of(run_id)
    assert entry is not None
    if entry.state == "waiting":
        ready = msgspec.structs.replace(entry, state="ready", due=None)
        storage.put_entries([(run_id, ready)])


def test_code_that_ends_the_process_is_a_failure(storage: SQLiteStorage) -> None:
    storage.set_queue("default", QueueSettings(attempts=1))
    handle = jobs.exits.start(storage=storage)
    worker(storage).run(until_idle=True)
    entry = storage.entry_of(handle.run_id)
    assert entry is not None and (entry.state, entry.reason) == ("dead", "SystemExit: 3")


def test_a_run_that_kills_its_worker_becomes_a_dead_letter(storage: SQLiteStorage) -> None:
    storage.set_queue("default", QueueSettings(attempts=3))
    handle = jobs.doubled.start([4], storage=storage)
    query = ClaimQuery(queues=("default",), targets=(f"{HERE}:doubled@1",))
    gone = msgspec.structs.replace(this_process(), pid=1, started="never")
    for number in range(1, 4):
        assert len(storage.claim(query, gone, now=time.time(), ttl=3600)) == 1
        worker(storage)._sweep()
        entry = storage.entry_of(handle.run_id)
        assert entry is not None and entry.failures == number
        requeued_now(storage, handle.run_id)
    assert entry is not None and entry.state == "dead"
    with pytest.raises(RunError, match="its worker died"):
        handle.result(timeout=0)


def test_a_death_after_a_new_step_is_no_failure(storage: SQLiteStorage) -> None:
    storage.set_queue("default", QueueSettings(attempts=1))
    handle = jobs.fails_at_each.start([1, 2], storage=storage)
    jobs.allowed[:] = [1]
    query = ClaimQuery(queues=("default",), targets=(f"{HERE}:fails_at_each@1",))
    gone = msgspec.structs.replace(this_process(), pid=1, started="never")
    (claim,) = storage.claim(query, gone, now=time.time(), ttl=3600)
    drive(handle.run_id, storage=storage, lease=GrantedLease(claim.lease))
    worker(storage)._sweep()
    entry = storage.entry_of(handle.run_id)
    assert entry is not None and (entry.state, entry.failures) == ("ready", 0)


def test_a_run_is_let_go_in_the_middle_of_a_step(storage: SQLiteStorage) -> None:
    handle = jobs.gated.start(storage=storage)
    jobs.gate.clear()
    one = worker(storage)
    thread = threading.Thread(target=one.take, args=(handle.run_id,))
    thread.start()
    try:
        until(lambda: one.active == 1)
        one.let_go()
        entry = storage.entry_of(handle.run_id)
        assert entry is not None and (entry.state, entry.failures) == ("ready", 0)
        lease = storage.lease_of(handle.run_id)
        assert lease is not None and lease.owner is None
    finally:
        jobs.gate.set()
        thread.join(PATIENCE)


def test_a_run_that_waits_is_cancelled(storage: SQLiteStorage) -> None:
    handle = jobs.rests.start(3600, storage=storage)
    with Running(worker(storage)):
        until(lambda: handle.status() == "waiting")
        handle.cancel(by="anna")
        with pytest.raises(RunError, match="was cancelled"):
            handle.result(timeout=PATIENCE)
    assert handle.status() == "cancelled"
    assert storage.entry_of(handle.run_id) is None


def test_the_runs_of_a_dead_worker_are_taken_back(storage: SQLiteStorage) -> None:
    handle = jobs.doubled.start([4], storage=storage)
    gone = msgspec.structs.replace(this_process(), pid=1, started="never")
    query = ClaimQuery(queues=("default",), targets=(f"{HERE}:doubled@1",))
    assert len(storage.claim(query, gone, now=time.time(), ttl=3600)) == 1
    worker(storage).run(until_idle=True)
    assert handle.result(timeout=0).value == [8]
    lease = storage.lease_of(handle.run_id)
    assert lease is not None and lease.epoch == 2


def test_a_lease_is_renewed_while_a_step_takes_longer(storage: SQLiteStorage) -> None:
    handle = jobs.gated.start(storage=storage)
    jobs.gate.clear()
    with Running(Worker(storage, served_by([HERE]), lease_seconds=3)):
        try:
            until_prolonged(storage, handle.run_id)
        finally:
            jobs.gate.set()
        assert handle.result(timeout=PATIENCE).status == "completed"
    lease = storage.lease_of(handle.run_id)
    assert lease is not None and lease.epoch == 1


def until_prolonged(storage: SQLiteStorage, run_id: str) -> None:
    ends: list[float] = []
    deadline = time.monotonic() + PATIENCE
    while len({*ends}) < 2:
        assert time.monotonic() < deadline, ends
        lease = storage.lease_of(run_id)
        ends += [lease.expires_at] if lease is not None and lease.owner else []
        time.sleep(0.01)


def test_a_worker_gets_only_versions_that_it_serves(storage: SQLiteStorage) -> None:
    handle = jobs.doubled.start([1], storage=storage)
    Worker(storage, [Served(f"{HERE}:doubled", 2)]).run(until_idle=True)
    assert storage.entry_of(handle.run_id) is not None
    Worker(storage, served_by([f"{HERE}:doubled"])).run(until_idle=True)
    assert handle.result(timeout=0).value == [2]


def test_what_no_worker_serves_is_told(storage: SQLiteStorage) -> None:
    jobs.doubled.start([1], storage=storage)
    jobs.doubled.start([2], storage=storage, queue="mail")
    missing = [(one.queue, one.target, one.runs) for one in unserved(storage)]
    assert missing == [("default", f"{HERE}:doubled@1", 1), ("mail", f"{HERE}:doubled@1", 1)]
    told: list[list[Any]] = []

    def log(event: str, facts: dict[str, Any]) -> None:
        if event == "run.start":
            told.append(unserved(storage))

    Worker(storage, served_by([HERE]), log=log).run(until_idle=True)
    assert [one.queue for one in told[0]] == ["mail"]


def test_what_cannot_be_served_is_refused() -> None:
    with pytest.raises(UsageError, match="has no workflow"):
        served_by(["string"])


def test_a_stopped_worker_lets_go_of_its_runs_between_two_steps(storage: SQLiteStorage) -> None:
    handle = jobs.slow.start(1000, storage=storage)
    with Running(worker(storage)):
        until(lambda: len(jobs.slow_steps) > 3)
    assert handle.status() == "interrupted"
    entry = storage.entry_of(handle.run_id)
    assert entry is not None and (entry.state, entry.failures) == ("ready", 0)


def test_an_offered_run_is_claimed_before_others(storage: SQLiteStorage) -> None:
    handles = [jobs.doubled.start([n], storage=storage) for n in range(3)]
    begun: list[str] = []

    def log(event: str, facts: dict[str, Any]) -> None:
        if event == "run.start":
            begun.append(facts["run_id"])

    one = Worker(storage, served_by([HERE]), concurrency=1, log=log)
    one.offer("absent")
    one.offer(handles[2].run_id)
    one.run(until_idle=True)
    assert sorted(begun) == sorted(handle.run_id for handle in handles)
    assert begun.index(handles[2].run_id) <= 1


def test_a_worker_is_not_idle_before_what_its_last_run_began_is_executed(
    storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.gate.clear()
    first = jobs.gated.start(run_id="first", storage=storage)
    began: list[Any] = []
    one = worker(storage)
    claim = one._claim

    def claim_before_the_run_ends(pool: Any) -> int:
        found = claim(pool)
        if not found and not began:
            began.append(jobs.doubled.start([1], run_id="second", storage=storage))
            jobs.gate.set()
            until(lambda: not one.active)
        return found

    monkeypatch.setattr(one, "_claim", claim_before_the_run_ends)
    one.run(until_idle=True)
    assert [first.status(), began[0].status()] == ["completed", "completed"]


def test_a_worker_that_rests_is_not_idle(storage: SQLiteStorage) -> None:
    handle = jobs.doubled.start([1], run_id="r", storage=storage)
    one = worker(storage)
    one._resting_until = time.monotonic() + 0.1
    one.run(until_idle=True)
    assert handle.status() == "completed"


def test_a_worker_without_claims_executes_what_it_takes(storage: SQLiteStorage) -> None:
    handles = [jobs.doubled.start([n], storage=storage) for n in range(2)]
    one = Worker(storage, served_by([HERE]), claims=False)
    with Running(one):
        assert one.ready(10) == [handle.run_id for handle in handles]
        assert one.take(handles[1].run_id) == "completed"
        assert one.take(handles[1].run_id) == "held"
        assert one.ready(10) == [handles[0].run_id]
    assert handles[0].status() == "queued"


def test_an_idle_worker_looks_again_when_a_run_is_due(storage: SQLiteStorage) -> None:
    one = worker(storage)
    one._due_in = 0.05
    assert one._until_next_look(10.0) < 0.1
    one._due_in = None
    assert one._until_next_look(10.0) >= 5.0


def test_a_sweep_leaves_alone_what_is_being_taken(
    storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = jobs.doubled.start([1], storage=storage)
    events: list[tuple[str, dict[str, Any]]] = []
    one = worker(storage, events)
    claim = storage.claim
    sweeps: list[threading.Thread] = []

    def claim_and_be_swept(*args: Any, **kwargs: Any) -> Any:
        claims = claim(*args, **kwargs)
        sweeps.append(threading.Thread(target=one._sweep))
        sweeps[0].start()
        sweeps[0].join(0.5)
        return claims

    monkeypatch.setattr(storage, "claim", claim_and_be_swept)
    assert one.take(handle.run_id) == "completed"
    sweeps[0].join(PATIENCE)
    assert "run.taken_back" not in [name for name, _ in events]


def test_the_end_of_an_attempt_that_lost_its_lease_leaves_the_next_one_alone(
    storage: SQLiteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = jobs.doubled.start([4], run_id="r", storage=storage)
    events: list[tuple[str, dict[str, Any]]] = []
    one = worker(storage, events)
    ends = {1: threading.Event(), 2: threading.Event()}

    def wait(active: Any) -> Driven:
        epoch = active.claim.lease.epoch
        assert ends[epoch].wait(PATIENCE)
        return Driven(run_id="r", outcome="lost" if epoch == 1 else "completed")

    monkeypatch.setattr(one, "_drive", wait)
    threads = [threading.Thread(target=one.take, args=("r",)) for _ in ends]
    try:
        threads[0].start()
        until(lambda: one.active == 1)
        entry, lease = storage.entry_of("r"), storage.lease_of("r")
        assert entry is not None and lease is not None
        storage.settle(lease, msgspec.structs.replace(entry, state="ready"), now=time.time())
        threads[1].start()
        until(lambda: one.active == 2)
        assert [facts["epoch"] for event, facts in events if event == "lease.lost"] == [1]
        ends[1].set()
        until(lambda: one.active == 1)
        one._sweep()
        assert handle.status() == "running"
        entry = storage.entry_of("r")
        assert entry is not None and entry.state == "running"
    finally:
        for number, thread in enumerate(threads, 1):
            ends[number].set()
            thread.join(PATIENCE)
    assert storage.entry_of("r") is None


class Full(SQLiteStorage):
    """A storage that has room for claims only."""

    full = False

    def append(self, batches: Any) -> Any:
        if self.full:
            raise StorageFullError("no room left")
        return super().append(batches)

    def settle(self, lease: Any, entry: Any, **facts: Any) -> bool:
        if self.full and entry is not None and entry.state == "waiting":
            raise StorageFullError("no room left")
        return super().settle(lease, entry, **facts)


def test_a_storage_that_is_full_counts_as_a_failure_and_makes_the_worker_rest(
    tmp_path: Path,
) -> None:
    with Full(tmp_path / "runs.db") as storage:
        handle = jobs.doubled.start([4], run_id="r", storage=storage)
        storage.full = True
        events: list[tuple[str, dict[str, Any]]] = []
        one = worker(storage, events)
        assert one.take("r") == "failed"
        assert [event for event, _ in events if event != "run.start"] == [
            "worker.rests",
            "run.kept",
            "run.failed",
        ]
        with pytest.raises(StorageFullError):
            one._sweep()
        storage.full = False
        one._sweep()
        entry = storage.entry_of("r")
        assert entry is not None and (entry.state, entry.failures) == ("waiting", 1)
        requeued_now(storage, "r")
        with Running(one):
            assert handle.result(PATIENCE).value == [8]


class Notifying(SQLiteStorage):
    """A storage whose notifications a test sends."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.heard: list[Any] = []

    def subscribe(self, notify: Any) -> Subscription:
        self.heard.append(notify)
        return Subscription()


def test_a_worker_without_runs_is_woken_by_a_notification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surehold.executors.worker._POLL", 3600.0)
    with Notifying(tmp_path / "runs.db") as storage, Running(worker(storage)):
        until(lambda: storage.heard)
        handle = jobs.doubled.start([4], run_id="r", storage=storage)
        storage.heard[-1]("r")
        assert handle.result(PATIENCE).value == [8]


def test_counters_and_outcomes_of_a_worker_are_read_by_name() -> None:
    from surehold.executors.worker_metrics import WorkerMetrics

    metrics = WorkerMetrics()
    metrics.count("claimed", 2)
    for code in ("a:f@1", "b:g@1"):
        metrics.of("default", code).driven("completed", 0.1)
    assert (metrics["claimed"], metrics["completed"], metrics["lost"]) == (2, 2, 0)
