"""Runs in an object store: requests, fencing, packs, erasure, stores that ignore conditions."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import obstore
import pytest
from tests.cli.conftest import call
from tests.cutting import MOMENTS, CuttingProxy
from tests.fake_objects import FakeObjects
from tests.servers import SeaweedFS, seaweedfs

from surehold import CheckpointManager, Rules, State, errors
from surehold.storage.base import Owner, RecordQuery, RunQuery, Storage
from surehold.storage.cloud import ObjectStorage
from surehold.storage.objects import packs, run_log
from surehold.storage.objects.bucket import ListedObject
from surehold.storage.objects.run_names import RunTip
from surehold.storage.registry import open_storage
from surehold.testing import JournalWriter

ANNA = Owner("somewhere-else", "boot", 1, "1")
BERT = Owner("another-place", "boot", 2, "2")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> SeaweedFS:
    for name, value in seaweedfs().environment().items():
        monkeypatch.setenv(name, value)
    return seaweedfs()


@pytest.fixture
def address(server: SeaweedFS) -> str:
    return f"s3://{server.bucket}/{uuid4().hex[:16]}"


@pytest.fixture
def storage(address: str) -> Iterator[Storage]:
    with ObjectStorage(address) as storage:
        yield storage


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeObjects]:
    """A store in memory, where only our own requests are counted or looked at."""
    with FakeObjects() as made:
        _use(made, monkeypatch)
        yield made


def _use(fake: FakeObjects, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", fake.endpoint)


def _saved(writer: JournalWriter, storage: Storage, count: int) -> None:
    for _ in range(count):
        writer.save(storage)


def _seqs(storage: Storage, run_id: str = "run") -> list[int]:
    return [record.header.seq for record in storage.read(run_id)]


def test_a_save_is_one_request_and_a_resume_three(fake: FakeObjects) -> None:
    with ObjectStorage("s3://bucket/runs") as storage, CheckpointManager(storage) as manager:
        state = State.new({"done": 0}, run_id="run")
        manager.save_checkpoint(state)
        spent = []
        for n in range(1, packs.LOOSE):
            fake.requests.clear()
            state = state.set("done", n)
            manager.save_checkpoint(state)
            spent.append(list(fake.requests))
        assert spent[:-1] == [["PUT"]] * (packs.LOOSE - 2)
        assert spent[-1] == ["PUT", "PUT"], "the last one writes a base of the log too"
    with ObjectStorage("s3://bucket/runs") as storage, CheckpointManager(storage) as manager:
        fake.requests.clear()
        assert manager.resume_from_latest("run")["done"] == packs.LOOSE - 1
        assert len(fake.requests) <= 3, fake.requests


@pytest.mark.parametrize("saves", [40, 200, 700])
def test_a_resume_after_packing_is_three_requests_however_long_the_run(
    fake: FakeObjects, saves: int
) -> None:
    with ObjectStorage("s3://bucket/runs") as storage, CheckpointManager(storage) as manager:
        state = State.new({"log": []}, run_id="run")
        for n in range(saves):
            state = state.append("log", n)
            manager.save_checkpoint(state)
        storage.compact()
    with ObjectStorage("s3://bucket/runs") as storage, CheckpointManager(storage) as manager:
        fake.requests.clear()
        assert len(manager.resume_from_latest("run")["log"]) == saves
        assert len(fake.requests) <= 3, fake.requests


def test_a_resume_from_a_large_keyframe_is_three_requests(fake: FakeObjects) -> None:
    text = os.urandom(200_000).hex()
    with (
        ObjectStorage("s3://bucket/runs", compress=False) as storage,
        CheckpointManager(storage) as manager,
    ):
        state = State.new({"text": text, "log": []}, run_id="run")
        for n in range(3 * packs.LOOSE):
            state = state.append("log", n)
            manager.save_checkpoint(state)
    with ObjectStorage("s3://bucket/runs") as storage, CheckpointManager(storage) as manager:
        fake.requests.clear()
        assert len(manager.resume_from_latest("run")["log"]) == 3 * packs.LOOSE
        assert len(fake.requests) <= 3, fake.requests
        assert all(manager.verify())
        storage.delete("run", erase=[1])
    assert not [key for key, (data, *_) in fake.objects.items() if text.encode() in data]


def test_the_newest_checkpoint_is_found_without_a_look_at_the_older_ones(
    fake: FakeObjects,
) -> None:
    with ObjectStorage("s3://bucket/runs") as storage, CheckpointManager(storage) as manager:
        state = State.new({"n": 0}, run_id="run")
        for n in range(300):
            manager.save_checkpoint(state := state.set("n", n))
    with ObjectStorage("s3://bucket/runs") as storage, CheckpointManager(storage) as manager:
        fake.requests.clear()
        newest = manager.latest("run")
        assert newest is not None
        assert newest.seq == 300
        assert len(fake.requests) <= packs.LOOSE + 4, fake.requests
        assert not storage._packs._indexes, "no pack was opened"


def test_many_saves_cost_little_more_than_one_request_each(fake: FakeObjects) -> None:
    with ObjectStorage("s3://bucket/runs") as storage:
        writer = JournalWriter()
        writer.save(storage)
        fake.requests.clear()
        _saved(writer, storage, 399)
        assert len(fake.requests) < 1.1 * 399
        assert _seqs(storage) == list(range(1, 401))
    with ObjectStorage("s3://bucket/runs") as storage:
        fake.requests.clear()
        newest = list(storage.headers(RecordQuery(run_id="run", limit=20)))
        assert [header.seq for header in newest] == list(range(400, 380, -1))
        assert len(fake.requests) <= 2 + packs.LOOSE, "a page does not read what is before it"
        fake.requests.clear()
        assert _seqs(storage) == list(range(1, 401))
        assert len(fake.requests) < 25, "old records are in few objects"


def test_listing_runs_reads_one_object_of_each_that_is_running(fake: FakeObjects) -> None:
    writers = [JournalWriter(f"run-{n}") for n in range(30)]
    with ObjectStorage("s3://bucket/runs") as storage:
        for _ in range(2):
            storage.append([writer.batch(1) for writer in writers])
    with ObjectStorage("s3://bucket/runs") as storage:
        fake.requests.clear()
        assert len(list(storage.runs(RunQuery(limit=10)))) == 10
        assert len(fake.requests) <= 2 + 2 * 10
        fake.requests.clear()
        assert len(list(storage.runs(RunQuery()))) == 30
        assert len(fake.requests) <= 2 + 1 + 30, "their newest objects are listed together"
        fake.requests.clear()
        assert len(list(storage.runs(RunQuery()))) == 30
        assert len(fake.requests) <= 3, "what has not changed is not read again"


def _ended(storage: Storage, count: int) -> list[JournalWriter]:
    """So many runs that have ended, each with two checkpoints."""
    writers = [JournalWriter(f"run-{n}", name="agent") for n in range(count)]
    storage.append([writer.batch(1) for writer in writers])
    storage.append([writer.batch([writer.record(status="completed")]) for writer in writers])
    return writers


def _statuses(storage: Storage) -> dict[str, str]:
    return {info.run_id: info.status for info in storage.runs(RunQuery())}


@pytest.mark.parametrize("count", [30, 300])
def test_listing_runs_that_have_ended_takes_two_requests(fake: FakeObjects, count: int) -> None:
    with ObjectStorage("s3://bucket/runs") as storage:
        _ended(storage, count)
        before = list(storage.runs(RunQuery()))
        JournalWriter("running").save(storage)
    with ObjectStorage("s3://bucket/runs") as storage:
        fake.requests.clear()
        assert len(list(storage.runs(RunQuery(limit=10)))) == 10
        assert len(fake.requests) <= 2 + 2, "two listings, and two requests for the running one"
        fake.requests.clear()
        assert len(list(storage.runs(RunQuery(name="agent", status="completed")))) == count
        pages = -(-count // 256) + 1
        assert len(fake.requests) <= 2 * pages + 2
        assert list(storage.runs(RunQuery()))[1:] == before
        fake.requests.clear()
        assert len(list(storage.headers(RecordQuery(limit=5)))) == 5
        assert len(fake.requests) <= 2 + 2 + 2 * 5 + 5


def test_the_end_of_a_run_costs_two_requests_more(fake: FakeObjects) -> None:
    with ObjectStorage("s3://bucket/runs") as storage:
        writer = JournalWriter()
        writer.save(storage)
        fake.requests.clear()
        storage.append([writer.batch([writer.record(status="completed")])])
        assert fake.requests == ["PUT", "PUT", "GET"]
        fake.requests.clear()
        storage.append([writer.batch([writer.record(status="running")])])
        assert fake.requests == ["GET", "POST", "PUT", "GET"], "its facts go before it changes"
        fake.requests.clear()
        writer.save(storage)
        assert fake.requests == ["PUT"]


def test_a_listing_is_right_whatever_happens_to_a_run_that_has_ended(fake: FakeObjects) -> None:
    with ObjectStorage("s3://bucket/a") as storage, ObjectStorage("s3://bucket/a") as other:
        one, two, three, four = _ended(storage, 4)
        other.append([one.batch([one.record(status="failed")])])
        other.take_lease(two.run_id, ANNA, now=0, ttl=10)
        other.append([three.batch([three.record(frame="note")])])
        other.delete(four.run_id)
        expected = {"run-0": "failed", "run-1": "completed", "run-2": "completed"}
        assert _statuses(storage) == _statuses(other) == expected
        assert [info.seq for info in storage.runs(RunQuery())] == [3, 2, 3]
        storage.delete(one.run_id, erase=[1])
        assert [info.checkpoints for info in other.runs(RunQuery())] == [2, 2, 2]
        other.compact()
        with ObjectStorage("s3://bucket/a") as new:
            fake.requests.clear()
            assert _statuses(new) == expected
            assert len(fake.requests) == 2, "all facts are in the index again"
        assert storage.check_medium(repair=False) == []


def test_a_lease_on_a_run_that_has_ended_leaves_its_facts_in_the_index(fake: FakeObjects) -> None:
    with ObjectStorage("s3://bucket/a") as storage:
        _ended(storage, 3)
    with ObjectStorage("s3://bucket/a") as storage:
        for n in range(3):
            lease = storage.take_lease(f"run-{n}", ANNA, now=0, ttl=10)
            storage.release_lease(lease)
        fake.requests.clear()
        assert set(_statuses(storage).values()) == {"completed"}
        assert len(fake.requests) == 2
        assert storage.check_medium(repair=False) == []


def test_facts_that_come_too_late_are_removed_again(
    fake: FakeObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process changes the run between its end and the entry in the index."""
    with ObjectStorage("s3://bucket/a") as slow, ObjectStorage("s3://bucket/a") as other:
        writer, rest = JournalWriter(), slow._index.rest
        writer.save(slow)

        def late(name: str, tip: RunTip) -> bool:
            JournalWriter.after(other, "run").save(other)
            return rest(name, tip)

        monkeypatch.setattr(slow._index, "rest", late)
        slow.append([writer.batch([writer.record(status="completed")])])
        assert _statuses(slow) == _statuses(other) == {"run": "running"}


def test_facts_that_come_while_the_run_changes_are_removed(
    fake: FakeObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are put there after the writer has looked, before its change is stored."""
    with ObjectStorage("s3://bucket/a") as storage:
        (writer,) = _ended(storage, 1)
        ((facts, kept),) = [one for one in fake.objects.items() if "/rest/" in one[0]]
        create = storage._bucket.create

        def late(key: str, data: bytes) -> bool:
            fake.objects[facts] = kept
            return create(key, data)

        monkeypatch.setattr(storage._bucket, "create", late)
        writer.save(storage)
        assert _statuses(storage) == {"run-0": "running"}


def test_old_facts_of_a_run_are_found_and_removed(fake: FakeObjects) -> None:
    with ObjectStorage("s3://bucket/a") as storage:
        (writer,) = _ended(storage, 1)
        (facts,) = [key for key in fake.objects if "/rest/" in key]
        kept = fake.objects[facts]
        writer.save(storage)
        fake.objects[facts] = kept
        assert len(storage.check_medium(repair=False)) == 1
        assert "has changed since" in storage.check_medium(repair=True)[0]
        assert storage.check_medium(repair=False) == []
        assert _statuses(storage) == {"run-0": "running"}


def test_a_run_whose_facts_are_too_long_for_a_name_is_read(fake: FakeObjects) -> None:
    with ObjectStorage("s3://bucket/a") as storage:
        writer = JournalWriter("r" * 2000)
        storage.append([writer.batch([writer.record(status="completed")])])
        assert not [key for key in fake.objects if "/rest/" in key]
        assert _statuses(storage) == {"r" * 2000: "completed"}


def test_a_writer_whose_lease_was_taken_over_collides(address: str) -> None:
    """It wakes after the takeover, before the new owner has saved anything."""
    with ObjectStorage(address) as zombie, ObjectStorage(address) as other:
        writer = JournalWriter()
        lease = zombie.take_lease("run", ANNA, now=0, ttl=10)
        assert zombie.append([writer.batch(epoch=lease.epoch)]) == [None]
        other.take_lease("run", BERT, now=20, ttl=10)
        (refused,) = zombie.append([writer.batch(epoch=lease.epoch)])
        assert isinstance(refused, errors.ConflictError)
        assert "epoch 1 was followed by 2" in refused.message
        assert _seqs(other) == [1]


def test_without_the_fence_in_the_log_it_would_not(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ObjectStorage, "_fence", lambda *_: None)
    with ObjectStorage(address) as zombie, ObjectStorage(address) as other:
        writer = JournalWriter()
        lease = zombie.take_lease("run", ANNA, now=0, ttl=10)
        assert zombie.append([writer.batch(epoch=lease.epoch)]) == [None]
        other.take_lease("run", BERT, now=20, ttl=10)
        assert zombie.append([writer.batch(epoch=lease.epoch)]) == [None]


def test_a_writer_that_slept_does_not_fill_a_name_that_was_deleted(
    fake: FakeObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "GRACE", timedelta(0))
    with ObjectStorage("s3://bucket/a") as sleeper, ObjectStorage("s3://bucket/a") as other:
        writer = JournalWriter()
        _saved(writer, sleeper, 3)
        late = writer.batch([writer.record(b"late")])
        _saved(JournalWriter.after(other, "run"), other, 40)
        other.compact()
        assert not [key for key in fake.objects if key.endswith(f"{10**12 - 1 - 4}")]
        monkeypatch.setattr(run_log, "TRUST", 0.0)
        assert isinstance(sleeper.append([late])[0], errors.ConflictError)
        assert _seqs(other) == list(range(1, 44))


def test_without_that_care_a_save_would_be_lost(
    fake: FakeObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "GRACE", timedelta(0))
    with ObjectStorage("s3://bucket/a") as sleeper, ObjectStorage("s3://bucket/a") as other:
        writer = JournalWriter()
        _saved(writer, sleeper, 3)
        late = writer.batch([writer.record(b"late")])
        _saved(JournalWriter.after(other, "run"), other, 40)
        other.compact()
        assert sleeper.append([late]) == [None]
        assert b"late" not in [record.body for record in other.read("run")]


def test_a_writer_suspended_between_its_look_and_its_write_loses_nothing(
    fake: FakeObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "GRACE", timedelta(0))
    clock, ahead = run_log.now, 0.0
    monkeypatch.setattr(run_log, "now", lambda: clock() + ahead)
    with ObjectStorage("s3://bucket/a") as sleeper, ObjectStorage("s3://bucket/a") as other:
        writer = JournalWriter()
        _saved(writer, sleeper, 3)
        late = writer.batch([writer.record(b"late")])
        create = sleeper._bucket.create

        def suspended(key: str, data: bytes) -> bool:
            nonlocal ahead
            if not ahead:
                _saved(JournalWriter.after(other, "run"), other, 40)
                other.compact()
                ahead = run_log.TRUST + 1
                assert create(key, data), "the name is free"
                return True
            return create(key, data)

        monkeypatch.setattr(sleeper._bucket, "create", suspended)
        assert isinstance(sleeper.append([late])[0], errors.ConflictError)
        assert ahead
        assert _seqs(other) == _seqs(sleeper) == list(range(1, 44))


@pytest.mark.parametrize("ignored", ["If-None-Match", "If-Match"])
def test_a_store_that_ignores_conditions_is_refused(
    ignored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeObjects(ignores=[ignored]) as fake:
        _use(fake, monkeypatch)
        with pytest.raises(errors.StorageError, match=f"ignores {ignored}: two") as refused:
            open_storage("s3://bucket/runs")
        assert "use a store that honours" in refused.value.hint
        assert fake.objects == {}, "the probe leaves nothing behind"


def test_an_erased_record_is_in_no_object_any_more(fake: FakeObjects) -> None:
    with ObjectStorage("s3://bucket/runs") as storage:
        writer = JournalWriter()
        for n in range(1, 101):
            writer.save(storage, b"body-%03d." % n)
        gone = [1, 2, 33, 64, 70, 98]
        assert storage.delete("run", erase=gone) == len(gone)
        everything = b"".join(data for data, *_ in fake.objects.values())
        for n in range(1, 101):
            assert (b"body-%03d." % n in everything) == (n not in gone)
        assert _seqs(storage) == [n for n in range(1, 101) if n not in gone]
    with ObjectStorage("s3://bucket/runs") as storage:
        assert _seqs(storage) == [n for n in range(1, 101) if n not in gone]
        assert storage.inspect("run").problems == ()


def test_a_deleted_run_leaves_no_body(fake: FakeObjects) -> None:
    with ObjectStorage("s3://bucket/runs") as storage:
        writer = JournalWriter()
        for n in range(1, 101):
            writer.save(storage, b"body-%03d." % n)
        storage.delete("run")
        assert b"body-" not in b"".join(data for data, *_ in fake.objects.values())
        assert list(storage.runs(RunQuery())) == []


def test_old_objects_of_a_log_are_deleted_and_nothing_is_lost(
    fake: FakeObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "GRACE", timedelta(0))
    with ObjectStorage("s3://bucket/runs") as storage:
        writer = JournalWriter()
        _saved(writer, storage, 400)
        storage.compact()
        assert len(fake.objects) < 16, "400 saves end up in a few objects"
    with ObjectStorage("s3://bucket/runs") as storage:
        assert _seqs(storage) == list(range(1, 401))
        writer.save(storage)
        assert _seqs(storage) == list(range(1, 402))


def test_large_and_small_records_are_kept_apart_and_read_in_order(fake: FakeObjects) -> None:
    bodies = [os.urandom(300_000 if n % 5 == 0 else 50) for n in range(1, 71)]
    with ObjectStorage("s3://bucket/runs") as storage:
        writer = JournalWriter()
        for body in bodies:
            writer.save(storage, body)
        assert [record.body for record in storage.read("run")] == bodies
        storage.delete("run", erase=[5, 6])
    with ObjectStorage("s3://bucket/runs") as storage:
        kept = [body for n, body in enumerate(bodies, 1) if n not in (5, 6)]
        assert [record.body for record in storage.read("run")] == kept


def test_damage_is_noticed_and_repaired(fake: FakeObjects) -> None:
    with ObjectStorage("s3://bucket/runs") as storage:
        writer = JournalWriter()
        for n in range(1, 6):
            writer.save(storage, b"body-%03d." % n)
        JournalWriter("other").save(storage)
    for key, (data, *rest) in fake.objects.items():
        if b"body-003." in data:
            fake.objects[key] = (data.replace(b"body-003.", b"body-XXX."), *rest)
    with ObjectStorage("s3://bucket/runs") as storage:
        with pytest.raises(errors.CorruptError, match="record 3"):
            list(storage.read("run"))
        found = storage.inspect("run")
        assert [record.header.seq for record in found.records] == [1, 2, 4, 5]
        assert len(found.problems) == 1
        assert storage.rewrite("run", found.records[:2], (), head=5)
        assert _seqs(storage) == [1, 2]
        assert any(b"body-004." in data for k, (data, *_) in fake.objects.items() if "aside" in k)


def test_a_damaged_newest_object_is_not_taken_for_whole(
    fake: FakeObjects, caplog: pytest.LogCaptureFixture
) -> None:
    with ObjectStorage("s3://bucket/runs") as storage:
        writer = JournalWriter(name="agent")
        _saved(writer, storage, 3)
        JournalWriter("other").save(storage)
    newest = min(key for key in fake.objects if "/log/run/" in key)
    data, *rest = fake.objects[newest]
    fake.objects[newest] = (data[:30] + b"!" + data[31:], *rest)
    with ObjectStorage("s3://bucket/runs") as storage:
        with pytest.raises(errors.CorruptError):
            list(storage.runs(RunQuery(run_id="run")))
        with pytest.raises(errors.CorruptError):
            list(storage.runs(RunQuery(name="agent")))
        assert [info.run_id for info in storage.runs(RunQuery())] == ["other", "run"]
        assert [header.run_id for header in storage.headers(RecordQuery())] == ["other"]
        assert "run 'run' is damaged" in caplog.text
        (refused, stored) = storage.append([writer.batch(1), JournalWriter("new").batch(1)])
        assert isinstance(refused, errors.ConflictError)
        assert stored is None
        assert storage.known_runs() == ["run", "other", "new"]
        found = storage.inspect("run")
        assert storage.rewrite("run", found.records, found.hidden, head=found.head)
        assert _seqs(storage) in ([1, 2], [1, 2, 3])
        assert JournalWriter.after(storage, "run").save(storage)


def test_a_run_that_begins_while_it_is_looked_for_is_not_taken_for_damaged(
    fake: FakeObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ObjectStorage("s3://bucket/a") as storage, ObjectStorage("s3://bucket/a") as other:
        JournalWriter("first", name="agent").save(storage)
        page, begun = storage._bucket.page, []

        def begins(prefix: str, after: str | None = None) -> list[ListedObject]:
            found = page(prefix, after)
            if prefix == "log/late" and not begun:
                begun.append(JournalWriter("late", name="agent").save(other))
            return found

        monkeypatch.setattr(storage._bucket, "page", begins)
        assert list(storage.runs(RunQuery(run_id="late"))) == []
        assert begun
        begun.clear()
        storage._index.add(1, "never-begun")
        found = [info.run_id for info in storage.runs(RunQuery(name="agent"))]
        assert found == ["late", "first"]


def test_a_lost_index_is_rebuilt_from_the_runs(fake: FakeObjects) -> None:
    with ObjectStorage("s3://bucket/runs") as storage:
        for run_id in ("a", "b", "c"):
            JournalWriter(run_id).save(storage)
        before = list(storage.runs(RunQuery()))
        for key in [key for key in fake.objects if "/begun/" in key]:
            del fake.objects[key]
        assert list(storage.runs(RunQuery())) == []
        assert len(storage.check_medium(repair=False)) == 3
        assert len(storage.check_medium(repair=True)) == 3
        assert storage.check_medium(repair=False) == []
        assert list(storage.runs(RunQuery())) == before


def test_a_change_whose_answer_was_lost_is_settled(
    server: SeaweedFS, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is lost and nothing stored twice, at whichever moment the connection is cut."""
    with CuttingProxy(server.connect) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        with ObjectStorage(address) as storage, CheckpointManager(storage) as manager:
            state = State.new({"done": 0}, run_id="run")
            for n, moment in enumerate(MOMENTS * 2, 1):
                proxy.arm(moment)
                state = state.set("done", n)
                manager.save_checkpoint(state)
                lease = storage.take_lease(f"run-{n}", ANNA, now=0, ttl=10)
                proxy.arm(moment)
                assert storage.renew_lease(lease, now=1, ttl=10).expires_at == 11
            assert proxy.cuts >= 2 * len(MOMENTS)
            assert len(manager.list_checkpoints("run")) == 2 * len(MOMENTS)
            assert manager.resume_from_latest("run")["done"] == 2 * len(MOMENTS)


def test_credentials_are_never_shown(
    server: SeaweedFS, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "do-not-show")
    with pytest.raises(errors.StorageError, match="refused") as refused:
        open_storage(address)
    assert "environment" in refused.value.hint
    for text in (str(refused.value), repr(refused.value), repr(refused.value.__dict__)):
        assert "do-not-show" not in text
    with pytest.raises(errors.UsageError, match="never from the address") as wrong:
        open_storage("s3://me:do-not-show@bucket/runs")
    assert "do-not-show" not in str(wrong.value)


@pytest.mark.parametrize(
    ("status", "code", "kind", "said"),
    [
        ("403 Forbidden", "QuotaExceeded", errors.StorageFullError, "takes no more"),
        ("400 Bad Request", "ExpiredToken", errors.StorageError, "refused: .*check the creden"),
        ("503 Unavailable", "SlowDown", errors.StorageUnavailableError, "cannot be reached"),
        ("400 Bad Request", "InvalidArgument", errors.StorageError, "failed: .*InvalidArgument"),
    ],
)
def test_the_code_in_an_answer_decides_what_a_failure_is(
    status: str, code: str, kind: type[errors.StorageError], said: str, address: str
) -> None:
    body = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>secret</Message></Error>'
    denied = status.startswith("403")
    error = obstore.exceptions.PermissionDeniedError if denied else obstore.exceptions.GenericError
    answer = error(f"Error - status code: {status}: {body}")
    with ObjectStorage(address) as storage:
        failure = storage._bucket._failure(answer)
    assert type(failure) is kind
    assert re.search(said, str(failure))
    assert code in str(failure) and "secret" not in str(failure)


def test_without_credentials_the_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(errors.StorageError, match="no credentials are set") as failed:
        ObjectStorage("s3://runs", timeout=5)
    assert "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in failed.value.hint


def test_a_store_that_is_away_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(errors.StorageUnavailableError, match="cannot be reached"):
        open_storage("s3://bucket/runs?timeout=2")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3://bucket?prefix=x", "no option 'prefix'"),
        ("s3://bucket?timeout=soon", "not a number"),
        ("s3://bucket?timeout=0", "timeout must be positive"),
        ("s3://bucket?compress=lzma", "compress=lzma is not known"),
        ("s3:///runs", "s3://bucket/prefix"),
        ("s3://bucket?endpoint=ftp://host", "endpoint is not an address"),
    ],
)
def test_a_wrong_address_is_named(address: str, said: str) -> None:
    with pytest.raises(errors.UsageError, match=said):
        open_storage(address)


def test_a_storage_is_not_used_across_a_fork(storage: Storage) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            list(storage.runs(RunQuery()))
        except errors.UsageError as error:
            os.write(writer, error.message.encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as heard:
        assert "before this process was forked" in heard.read()
    os.waitpid(child, 0)


def test_doctor_reports_on_a_store(server: SeaweedFS, address: str) -> None:
    code, out, _ = call("doctor", "-s", address)
    assert code == 0
    for said in ("conditional writes", "honoured", "ms a write", server.endpoint):
        assert said in out


def test_a_run_moves_between_files_and_a_bucket(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saved in a file, copied to a bucket, resumed there, exported and imported to SQLite."""
    local, last = f"file:{tmp_path}/runs", f"sqlite:///{tmp_path}/last.db"
    key = {"encryption_key": "6b" * 32}
    monkeypatch.setenv("SUREHOLD_ENCRYPTION_KEY", key["encryption_key"])
    with CheckpointManager(local, **key) as manager:
        state = State.new({"done": 0}, run_id="run")
        for n in range(5):
            state = state.set("done", n)
            manager.save_checkpoint(state)
    assert call("copy", "run", "-s", local, "--to", address)[0] == 0
    with CheckpointManager(address, **key) as manager:
        state = manager.resume_from_latest("run")
        assert state["done"] == 4
        manager.save_checkpoint(state.set("done", 5))
        history = [info.checkpoint_id for info in manager.list_checkpoints("run")]
    assert call("export", "run", "-s", address, "-o", f"{tmp_path}/run.hold")[0] == 0
    assert call("import", f"{tmp_path}/run.hold", "-s", last)[0] == 0
    with CheckpointManager(last, **key) as manager:
        assert [info.checkpoint_id for info in manager.list_checkpoints("run")] == history
        assert manager.resume_from_latest("run")["done"] == 5
        assert all(manager.verify("run"))


def test_retention_on_a_bucket_leaves_what_it_should(address: str) -> None:
    with CheckpointManager(address, retention=Rules(keep_last=3)) as manager:
        state = State.new({"done": 0}, run_id="run")
        for n in range(40):
            state = state.set("done", n)
            manager.save_checkpoint(state)
        assert len(manager.list_checkpoints("run")) == 3
        manager.cleanup_old_checkpoints("run")
        assert manager.resume_from_latest("run")["done"] == 39
        assert all(manager.verify("run"))


def test_a_bucket_behind_a_file_continues_when_the_bucket_is_away(
    server: SeaweedFS, address: str, tmp_path: Path
) -> None:
    with CheckpointManager(f"resilient:{address}|file:{tmp_path}/copy") as manager:
        state = State.new({"done": 1}, run_id="run")
        manager.save_checkpoint(state)
    for one in (address, f"file:{tmp_path}/copy"):
        with CheckpointManager(one) as manager:
            assert manager.resume_from_latest("run")["done"] == 1


@pytest.mark.parametrize("redundancy", [0, 1])
def test_a_record_that_two_objects_hold_is_reported_if_one_is_damaged(
    redundancy: int, fake: FakeObjects
) -> None:
    address = f"s3://bucket/runs?redundancy={redundancy}"
    with CheckpointManager(address) as manager:
        state = State.new({"log": []}, run_id="run")
        for step in range(1, 211):
            state = state.append("log", f"message {step}" * 12).at(step=step)
            manager.save_checkpoint(state)
    with ObjectStorage("s3://bucket/runs") as storage:
        packs_of: dict[int, list[str]] = {}
        for pack in storage._logs.view("run").packs:
            for row in storage._packs.rows_in(pack):
                packs_of.setdefault(row.seq, []).append(pack.key)
        seq = next(seq for seq, keys in packs_of.items() if len(keys) > 1)
        (record,) = storage.read("run", first=seq, last=seq)
    key = next(key for key in fake.objects if key.endswith(f"runs/{packs_of[seq][0]}"))
    fake.put(key, fake.objects[key][0].replace(record.body, b"?" + record.body[1:]), None)
    with CheckpointManager(address) as manager:
        assert all(manager.verify("run")) == (redundancy == 1)
        loaded = manager.resume_from_latest("run")
        assert isinstance(loaded, State)
        assert len(loaded["log"]) == 210
        if redundancy:
            assert [one.header.seq for one in manager.storage.read("run")] == [*range(1, 211)]
    with ObjectStorage("s3://bucket/runs") as storage:
        assert bool(storage.inspect("run").problems) == (redundancy == 0)


@pytest.mark.parametrize("redundancy", [0, 1])
def test_a_damaged_header_in_a_pack_costs_its_own_record(
    redundancy: int, fake: FakeObjects
) -> None:
    address = f"s3://bucket/runs?redundancy={redundancy}"
    writer = JournalWriter()
    with open_storage(address) as storage:
        records = [writer.save(storage) for _ in range(packs.LOOSE * 3)]
    text = records[4].text
    hit = [key for key, (data, *_) in fake.objects.items() if text in data and "/copy/" not in key]
    for key in hit:  # the log has it until it is swept, and a pack
        data = fake.objects[key][0]
        fake.put(key, data.replace(text, text[:40] + bytes([text[40] ^ 1]) + text[41:]), None)
    with open_storage(address) as storage:
        if not redundancy:
            assert len(storage.find(records[5].header.id)) == 1
            assert list(storage.read("run", first=6)) == records[5:]
            with pytest.raises(errors.CorruptError, match="record 5 "):
                list(storage.read("run"))
        else:
            assert len(storage.find(records[4].header.id)) == 1
            assert list(storage.read("run")) == records
