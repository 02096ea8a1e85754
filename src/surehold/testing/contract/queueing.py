"""The promises of `Queueing`: entries in their records' commit, claims, limits."""

from __future__ import annotations

import threading
import time
from typing import Any

import msgspec
import pytest

from surehold.core.policy import (
    ANSWERED,
    CANCEL,
    DEAD,
    QUEUED,
    QueueSettings,
    Submission,
    after_drive,
)
from surehold.core.records import Door
from surehold.errors import ConflictError
from surehold.storage.base import Leasing, RunQuery, Storage, this_process
from surehold.storage.queueing import Claim, ClaimQuery, EntryQuery, Queueing, WorkerInfo, queues_in
from surehold.testing.contract.medium import Medium
from surehold.testing.journal import JournalWriter

_TARGET = "app:work@1"


class QueuePromises(Medium):
    """The promises of a medium that keeps queues; skipped for others."""

    def queueing(self, storage: Storage) -> Queueing:
        """*storage* as one that keeps queues; skips the test where it is none."""
        kept = queues_in(storage)
        if kept is None:
            pytest.skip("this medium keeps no queues")
        return kept

    def test_a_submission_and_its_entry_are_one_commit(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        submit(storage, "a", priority=3, key="tenant")
        entry = queue.entry_of("a")
        assert entry is not None
        assert (entry.queue, entry.target, entry.state) == ("default", _TARGET, "ready")
        assert (entry.priority, entry.key, entry.failures) == (3, "tenant", 0)
        assert queue.entry_of("b") is None

    def test_runs_are_counted_by_status_and_hold(self, storage: Storage) -> None:
        queue, now = self.queueing(storage), time.time()
        assert isinstance(storage, Leasing)
        for run_id in ("claimed", "ready", "later", "dead", "left"):
            writer = submit(storage, run_id, due=now + 3600 if run_id == "later" else None)
            if run_id == "dead":
                storage.append([writer.batch([_event(writer, "D")])])
            elif run_id != "later":
                claimed = claim(queue, run_id=run_id)[0]
                fate = claimed.entry if run_id == "ready" else None
                if run_id != "claimed":
                    entry = fate and after_drive(fate, "interrupted", QueueSettings(), now=now)
                    assert queue.settle(claimed.lease, entry, now=now)
        JournalWriter("done").save(storage, status="completed")
        JournalWriter("saved").save(storage, door=Door("manager"))
        JournalWriter("never").save(storage, metadata={"text": '"door":["manager"'})
        ordinals = {run.run_id: run.ordinal for run in storage.runs(RunQuery())}
        for view in self.views(storage):
            tally = view.count_runs(now=now, most=1)
            if tally is None:
                pytest.skip("this medium does not count its runs")
            assert tally.counts == {
                ("completed", ""): 1,
                **{("running", hold): 1 for hold in ("held", "ready", "waiting", "dead")},
                **{("running", hold): 1 for hold in ("ended", "manager", "")},
            }
            names = {"held": "claimed", "ended": "left", "dead": "dead"}
            assert tally.newest == {hold: [ordinals[one]] for hold, one in names.items()}

    def test_a_run_that_was_only_queued_is_not_listed_as_open(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        submit(storage, "a")
        submit(storage, "b")
        wait(queue, claim(queue, run_id="a")[0])
        for view in self.views(storage):
            assert [run.run_id for run in view.runs(RunQuery(open=True))] == ["a"]

    def test_a_claim_takes_the_lease_and_fences_the_earlier_owner(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        writer = submit(storage, "a")
        (first,) = claim(queue)
        assert first.lease.epoch == 1
        assert claim(queue) == []
        held = queue.entry_of("a")
        assert held is not None and held.state == "running"
        assert queue.settle(
            first.lease,
            after_drive(first.entry, "interrupted", QueueSettings(), now=time.time()),
            now=time.time(),
        )
        (second,) = claim(queue)
        assert second.lease.epoch == 2
        late = writer.batch([writer.record(frame="note", kind="effect")], epoch=first.lease.epoch)
        assert isinstance(storage.append([late])[0], ConflictError)
        assert not queue.settle(first.lease, None, now=time.time())
        assert queue.renew_claims([first.lease], now=time.time(), ttl=30) == ["a"]
        assert queue.renew_claims([second.lease], now=time.time(), ttl=30) == []

    def test_a_worker_is_listed_until_its_announcement_expires(self, storage: Storage) -> None:
        queue, now = self.queueing(storage), time.time()
        first, second = announced("one", since=1.0), announced("two", since=2.0)
        queue.announce(second, now=now, ttl=600)
        queue.announce(first, now=now, ttl=600)
        found = queue.workers(now=now)
        assert [msgspec.structs.replace(one, seen=0.0) for one in found] == [first, second]
        assert all(abs(one.seen - now) < 60 for one in found)
        again = msgspec.structs.replace(second, queues=("mail",))
        queue.announce(again, now=now, ttl=600)
        queue.announce(first, now=now, ttl=0)
        (left,) = queue.workers(now=now)
        assert (left.id, left.queues) == ("two", ("mail",))
        assert left.targets == second.targets and left.owner == this_process()

    def test_a_completed_run_leaves_the_queue_in_its_last_commit(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        writer = submit(storage, "a")
        (held,) = claim(queue)
        writer.save(storage, b"{}", status="completed", epoch=held.lease.epoch)
        assert queue.entry_of("a") is None
        assert queue.settle(held.lease, None, now=time.time())
        assert claim(queue) == []

    def test_order_is_priority_then_turns_of_keys_then_age(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        for name in ("a1", "a2", "a3"):
            submit(storage, name, key="a")
        submit(storage, "b1", key="b")
        submit(storage, "urgent", key="a", priority=1)
        order = [one.entry.run_id for one in claim(queue, limit=5)]
        assert order[0] == "urgent"
        assert order[1] == "a1"
        assert order.index("b1") < order.index("a2") < order.index("a3")

    def test_only_code_that_fits_gets_a_run(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        submit(storage, "old", target="app:work@1")
        submit(storage, "new", target="app:work@2")
        assert [one.entry.run_id for one in claim(queue, targets=("app:work@2",))] == ["new"]
        assert claim(queue, targets=("app:other@1",)) == []
        assert [one.entry.run_id for one in claim(queue, targets=("app:work@1",))] == ["old"]

    def test_a_run_is_claimed_by_its_id_within_the_limits(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        submit(storage, "first")
        submit(storage, "second")
        submit(storage, "other", target="app:other@1")
        submit(storage, "later", due=time.time() + 3600)

        def ids(run_id: str) -> list[str]:
            return [one.entry.run_id for one in claim(queue, run_id=run_id)]

        assert ids("other") == ids("later") == ids("absent") == []
        assert ids("second") == ["second"]
        assert ids("second") == []
        queue.set_queue("default", QueueSettings(concurrency=1))
        assert ids("first") == []
        queue.set_queue("default", QueueSettings(concurrency=2))
        assert ids("first") == ["first"]

    def test_ready_runs_are_listed_and_not_taken(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        submit(storage, "due", due=time.time() - 1)
        submit(storage, "later", due=time.time() + 3600)
        submit(storage, "other", target="app:other@1")
        query = ClaimQuery(queues=("default", "none"), targets=(_TARGET,), limit=2)
        for _ in range(2):
            listed = queue.ready(query, now=time.time())
            assert [entry.run_id for entry in listed] == ["due"]
        assert len(claim(queue)) == 1
        assert queue.ready(query, now=time.time()) == []

    def test_the_time_until_a_claim_may_succeed_is_known(self, storage: Storage) -> None:
        queue, now = self.queueing(storage), time.time()
        query = ClaimQuery(queues=("default", "none"), targets=(_TARGET,))
        assert queue.idle_for(query, now=now) is None
        submit(storage, "later", due=now + 3600)
        seconds = queue.idle_for(query, now=time.time())
        assert seconds is not None and 3000 < seconds <= 3600
        submit(storage, "other", target="app:other@1")
        assert queue.idle_for(query, now=time.time())
        submit(storage, "due", due=now - 1)
        assert queue.idle_for(query, now=time.time()) == 0
        claim(queue)
        assert queue.idle_for(query, now=time.time())
        submit(storage, "ready")
        assert queue.idle_for(query, now=time.time()) == 0

    def test_a_delayed_run_starts_when_it_is_due(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        submit(storage, "later", due=time.time() + 3600)
        submit(storage, "due", due=time.time() - 1)
        assert [one.entry.run_id for one in claim(queue)] == ["due"]
        waiting = queue.entry_of("later")
        assert waiting is not None and waiting.state == "waiting" and waiting.due is not None

    def test_an_answer_makes_a_waiting_run_ready(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        writer = submit(storage, "a")
        for kind in ("answer", ANSWERED):
            (held,) = claim(queue)
            wait(queue, held)
            assert claim(queue) == []
            storage.append([writer.batch([writer.record(frame="note", kind=kind)])])
        assert len(claim(queue)) == 1

    def test_an_answer_that_comes_before_the_wait_is_not_lost(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        writer = submit(storage, "a")
        (held,) = claim(queue)
        storage.append([writer.batch([writer.record(frame="note", kind="answer")])])
        wait(queue, held)
        assert len(claim(queue)) == 1

    def test_a_cancelled_run_is_given_out_once_more_to_be_ended(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        writer = submit(storage, "a", due=time.time() + 3600)
        storage.append([writer.batch([writer.record(frame="note", kind=CANCEL)])])
        (held,) = claim(queue)
        assert held.entry.cancelled
        wait(queue, held)
        ended = queue.entry_of("a")
        assert ended is not None and ended.state == "cancelled"
        assert claim(queue) == []

    def test_a_cancellation_that_comes_before_the_wait_is_not_lost(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        writer = submit(storage, "a")
        (held,) = claim(queue)
        storage.append([writer.batch([writer.record(frame="note", kind=CANCEL)])])
        wait(queue, held, due=time.time() + 3600)
        (again,) = claim(queue)
        assert again.entry.cancelled and not held.entry.cancelled
        wait(queue, again, due=time.time() + 3600)
        assert claim(queue) == []

    def test_a_dead_letter_stays_until_it_is_queued_again(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        writer = submit(storage, "a")
        note = writer.record(frame="note", kind=DEAD, metadata={"reason": "no luck"})
        storage.append([writer.batch([note])])
        dead = queue.entry_of("a")
        assert dead is not None and (dead.state, dead.reason) == ("dead", "no luck")
        assert claim(queue) == []
        storage.append([writer.batch([queued(writer)])])
        assert len(claim(queue)) == 1

    def test_a_run_that_is_stored_in_one_batch_is_queued_as_it_was(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        found: dict[str, tuple[str, bool, str] | None] = {}
        for history in ("QD", "QDQ", "QC", "QDC", "QE", "QEQ"):
            writer = JournalWriter(history)
            storage.append([writer.batch([_event(writer, kind) for kind in history])])
            entry = queue.entry_of(history)
            seen = None if entry is None else (entry.state, entry.cancelled, entry.reason)
            found[history] = seen
        assert found == {
            "QD": ("dead", False, "no luck"),
            "QDQ": ("ready", False, ""),
            "QC": ("ready", True, ""),
            "QDC": ("ready", True, ""),
            "QE": None,
            "QEQ": ("ready", False, ""),
        }

    def test_batches_of_one_run_that_change_its_entry_are_stored_in_order(
        self, storage: Storage
    ) -> None:
        queue = self.queueing(storage)
        writer = JournalWriter("a")
        batches = [writer.batch([_event(writer, kind)]) for kind in "QDQD"]
        assert storage.append(batches) == [None] * 4
        entry = queue.entry_of("a")
        assert entry is not None and entry.state == "dead"
        assert len(list(storage.read("a"))) == 4

    def test_limits_of_queues_and_keys_hold(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        queue.set_queue("default", QueueSettings(concurrency=3, key_concurrency=1))
        for number in range(4):
            submit(storage, f"a{number}", key="a")
            submit(storage, f"b{number}", key="b")
        held = claim(queue, limit=8)
        assert sorted(one.entry.key for one in held) == ["a", "b"]
        wait(queue, held[0], due=time.time() + 3600)
        again = claim(queue, limit=8)
        assert [one.entry.key for one in again] == [held[0].entry.key]
        queue.set_queue("default", QueueSettings(paused=True))
        assert claim(queue, limit=8) == []
        queue.set_queue("default", QueueSettings(rate=2, period=3600))
        assert len(claim(queue, limit=8)) == 2
        assert claim(queue, limit=8) == []

    def test_many_claimers_never_share_a_run(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        queue.set_queue("limited", QueueSettings(concurrency=5))
        for number in range(40):
            submit(storage, f"run{number}", queue="default" if number % 2 else "limited")
        got: list[list[Claim]] = [[] for _ in range(4)]

        def work(mine: list[Claim]) -> None:
            for _ in range(30):
                mine += claim(queue, queues=("default", "limited"), limit=3)

        threads = [threading.Thread(target=work, args=(mine,)) for mine in got]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        runs = [one.entry.run_id for mine in got for one in mine]
        assert len(runs) == len(set(runs))
        assert sum(one.entry.queue == "limited" for mine in got for one in mine) == 5
        assert sum(one.entry.queue == "default" for mine in got for one in mine) == 20

    def test_a_run_that_another_process_holds_is_passed_over(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        submit(storage, "a")
        submit(storage, "b")
        assert isinstance(storage, Leasing)
        other = msgspec.structs.replace(this_process(), host="elsewhere")
        storage.take_lease("a", other, now=time.time(), ttl=60)
        assert [one.entry.run_id for one in claim(queue, limit=2)] == ["b"]

    def test_a_stale_claim_is_found_and_taken_back_once(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        submit(storage, "a")
        submit(storage, "b")
        other = msgspec.structs.replace(this_process(), host="elsewhere")
        query = ClaimQuery(queues=("default",), targets=(_TARGET,))
        (dead,) = queue.claim(query, other, now=time.time(), ttl=0.0)
        (live,) = queue.claim(query, other, now=time.time(), ttl=60.0)
        stale = {one.entry.run_id: one for one in queue.stale_claims(now=time.time())}
        assert stale["a"].expired and not stale["b"].expired
        for host, held in (("elsewhere", {"a", "b"}), ("here", {"a"})):
            near = queue.stale_claims(now=time.time(), host=host)
            assert {one.entry.run_id for one in near} == held
        ready = after_drive(dead.entry, "interrupted", QueueSettings(), now=time.time())
        assert not queue.settle(live.lease, ready, now=time.time(), expired=True)
        assert queue.settle(stale["a"].lease, ready, now=time.time(), expired=True)
        assert not queue.settle(stale["a"].lease, ready, now=time.time(), expired=True)
        (again,) = claim(queue)
        assert again.lease.epoch == dead.lease.epoch + 1

    def test_queues_are_counted_and_listed(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        submit(storage, "a")
        submit(storage, "b", queue="mail")
        submit(storage, "c", queue="mail", due=time.time() + 60)
        queue.set_queue("idle", QueueSettings(concurrency=1))
        found = {info.name: info for info in queue.queues()}
        assert (found["default"].ready, found["mail"].ready, found["mail"].waiting) == (1, 1, 1)
        assert found["idle"].settings.concurrency == 1
        listed = [entry.run_id for entry in queue.entries(EntryQuery(queue="mail"))]
        assert listed == ["b", "c"]
        some = EntryQuery(run_ids=("a", "c", "none"))
        assert {entry.run_id for entry in queue.entries(some)} == {"a", "c"}
        some = msgspec.structs.replace(some, state="ready", cancelled=False)
        assert [entry.run_id for entry in queue.entries(some)] == ["a"]
        assert not [*queue.entries(msgspec.structs.replace(some, cancelled=True))]
        waiting = queue.entries(EntryQuery(state="waiting"))
        assert [entry.run_id for entry in waiting] == ["c"]

    def test_a_deleted_run_is_not_queued(self, storage: Storage) -> None:
        queue = self.queueing(storage)
        submit(storage, "a")
        (held,) = claim(queue)
        wait(queue, held, due=time.time() - 1)
        storage.delete("a")
        assert queue.entry_of("a") is None
        assert claim(queue) == []


def queued(writer: JournalWriter, **facts: Any) -> Any:
    facts.setdefault("target", _TARGET)
    told = msgspec.to_builtins(Submission(**facts))
    return writer.record(frame="note", kind=QUEUED, metadata={QUEUED: told})


def _event(writer: JournalWriter, kind: str) -> Any:
    """A record that queues (Q), buries (D), cancels (C) or ends (E) a run."""
    if kind == "Q":
        return queued(writer)
    if kind == "E":
        return writer.record(b"{}", status="completed")
    note, metadata = (DEAD, {"reason": "no luck"}) if kind == "D" else (CANCEL, {})
    return writer.record(frame="note", kind=note, metadata=metadata)


def announced(id: str, *, since: float) -> WorkerInfo:
    """A worker of this process."""
    return WorkerInfo(
        id=id,
        owner=this_process(),
        queues=("default", "mail"),
        targets=(_TARGET,),
        concurrency=8,
        since=since,
    )


def submit(storage: Storage, run_id: str, **facts: Any) -> JournalWriter:
    """Store the first checkpoint of a run with its submission."""
    writer = JournalWriter(run_id, name="work")
    records = [writer.record(b"{}"), queued(writer, **facts)]
    assert storage.append([writer.batch(records)]) == [None]
    return writer


def claim(
    queue: Queueing,
    *,
    queues: tuple[str, ...] = ("default",),
    targets: tuple[str, ...] = (_TARGET,),
    run_id: str | None = None,
    limit: int = 2,
) -> list[Claim]:
    query = ClaimQuery(queues=queues, targets=targets, run_id=run_id, limit=limit)
    return queue.claim(query, this_process(), now=time.time(), ttl=60)


def wait(queue: Queueing, held: Claim, due: float | None = None) -> None:
    now = time.time()
    entry = after_drive(held.entry, "waiting", QueueSettings(), now=now, due=due)
    assert queue.settle(held.lease, entry, now=now)
