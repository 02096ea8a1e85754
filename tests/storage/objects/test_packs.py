"""Packs of a long run: every listing reads the few blocks that it needs, and misses nothing."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.fake_objects import FakeObjects

from surehold import CheckpointManager, MemoryStorage, State, errors
from surehold.storage.base import RecordQuery, RunQuery, Storage
from surehold.storage.cloud import ObjectStorage
from surehold.storage.objects import packs
from surehold.storage.objects.bucket import ListedObject
from surehold.storage.objects.segments import PackRef
from surehold.testing import JournalWriter

ADDRESS = "s3://bucket/runs"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeObjects]:
    """A store in memory, where only our own requests are counted or looked at."""
    with FakeObjects() as made:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.endpoint)
        yield made


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs and blocks so small that a short run has many."""
    monkeypatch.setattr(packs, "LOOSE", 4)
    monkeypatch.setattr(packs, "_BLOCK", 6)


def _long(storage: Storage, count: int, *, size: int = 20, **fields: Any) -> list[str]:
    """Append *count* records in batches of some; their ids, oldest first."""
    writer, ids = JournalWriter("long", name="agent"), []
    for first in range(0, count, size):
        records = [writer.record(**fields) for _ in range(min(size, count - first))]
        assert storage.append([writer.batch(records)]) == [None]
        ids += [record.header.id for record in records]
    return ids


def _listings(storage: Storage, ids: list[str]) -> dict[str, Any]:
    def listed(**fields: Any) -> list[int]:
        query = RecordQuery(run_id="long", limit=10, **fields)
        return [header.seq for header in storage.headers(query)]

    def manager() -> CheckpointManager:
        return CheckpointManager(storage)

    return {
        "newest": lambda: storage.head_and_newest("long"),
        "facts": lambda: list(storage.runs(RunQuery(run_id="long"))),
        "page": listed,
        "next page": lambda: listed(before=ids[-10]),
        "page in the middle": lambda: listed(before=ids[len(ids) // 2]),
        "last page": lambda: listed(before=ids[10]),
        "by id": lambda: storage.find(ids[len(ids) // 3]),
        "by kind": lambda: listed(kind="final"),
        "by tag": lambda: listed(tag="good"),
        "by status": lambda: listed(status="failed"),
        "by scope": lambda: listed(scope="inner"),
        "by metadata": lambda: listed(metadata={"colour": "blue"}),
        "since": lambda: listed(since=datetime(2100, 1, 1, tzinfo=UTC)),
        "until": lambda: listed(until=datetime(1990, 1, 1, tzinfo=UTC)),
        "of a manager": lambda: manager().list_checkpoints("long", limit=10),
        "newest of a manager": lambda: manager().latest("long"),
        "marks": lambda: storage.notes(["long"], ["tag", "pin"], strict=True),
    }


@pytest.mark.parametrize("listing", _listings(MemoryStorage(), [""]))
def test_a_listing_of_a_long_run_takes_as_few_requests_as_of_a_short_one(
    listing: str, fake: FakeObjects
) -> None:
    spent = []
    for count in (100, 6000):
        fake.objects.clear()
        with ObjectStorage(ADDRESS) as storage:
            ids = _long(storage, count)
            storage.compact()
        with ObjectStorage(ADDRESS) as storage:
            for _ in range(2):
                fake.requests.clear()
                _listings(storage, ids)[listing]()
                spent.append(len(fake.requests))
    cold, warm, cold_long, warm_long = spent
    # A directory and a block of it more than the only pack of a short run.
    assert cold_long <= cold + 3, spent
    assert warm_long <= warm, spent


@pytest.mark.usefixtures("small")
def test_every_query_finds_in_packs_what_it_finds_in_memory(fake: FakeObjects) -> None:
    chance = random.Random(7)
    writer, records, memory = JournalWriter("long", name="agent"), [], MemoryStorage()
    with ObjectStorage(ADDRESS) as storage:
        for _ in range(150):
            some = [writer.record(**_fields(chance)) for _ in range(chance.randint(1, 5))]
            hide = [one.header.seq for one in some if chance.random() < 0.05]
            batch = writer.batch(some, hide=hide)
            assert memory.append([batch]) == storage.append([batch]) == [None]
            records += [one.header for one in some]
        for one in (memory, storage):
            one.delete("long", hide=[7, 40, 100], erase=[*range(20, 30), 111, 200])
        assert any(pack.blocks for pack in storage._logs.view("long").packs)
    times = sorted(one.saved_at for one in records)
    with ObjectStorage(ADDRESS) as storage:
        for query in _queries(chance, [one.id for one in records], times):
            assert _answer(storage, query) == _answer(memory, query), query
        for one in records[::17]:
            for prefix in (one.id, one.id[:11]):
                assert _found(storage, prefix) == _found(memory, prefix)
        for kinds in (["tag"], ["pin", "tag"], ["routine"], ["none"]):
            ours, theirs = (m.notes(["long"], kinds, strict=True) for m in (storage, memory))
            assert ours == theirs
        for scope in ("", "inner", "outer", "none"):
            ours, theirs = (m.head_and_newest("long", scope) for m in (storage, memory))
            assert ours is not None and theirs is not None
            assert ours[1] == theirs[1]
        assert list(storage.read("long")) == list(memory.read("long"))


def _fields(chance: random.Random) -> dict[str, Any]:
    def rarely(value: Any, usual: Any) -> Any:
        return value if chance.random() < 0.03 else usual

    return {
        "frame": rarely("note", "key"),
        "kind": chance.choice(["tag", "pin"]) if chance.random() < 0.04 else "routine",
        "status": rarely("failed", "running"),
        "scope": rarely("outer", rarely("inner", "")),
        "tags": rarely(("good",), ()),
        "metadata": rarely({"colour": "blue"}, {"step": chance.randint(1, 1000)}),
    }


def _queries(chance: random.Random, ids: list[str], times: list[datetime]) -> Iterator[RecordQuery]:
    some: list[dict[str, Any]] = [
        {},
        *({"kind": one} for one in ("tag", "pin", "routine", "none")),
        *({"status": one} for one in ("failed", "running", "none")),
        *({"scope": one} for one in ("", "inner", "outer", "none")),
        *({"metadata": {"step": n}} for n in range(1, 1000, 100)),
        *({"tag": "good"}, {"tag": "none"}, {"metadata": {"colour": "blue"}}),
        *({"since": one} for one in times[::90]),
        *({"until": one} for one in times[::90]),
        {"tag": "good", "status": "running", "since": times[100]},
    ]
    for fields in some:
        for before in (None, chance.choice(ids)):
            yield RecordQuery(
                run_id="long",
                before=before,
                limit=chance.choice([1, 10, None]),
                notes=chance.choice([True, False]),
                **fields,
            )


def _answer(storage: Storage, query: RecordQuery) -> list[int] | str:
    try:
        return [header.seq for header in storage.headers(query)]
    except errors.NotFoundError as error:
        return error.message


def _found(storage: Storage, prefix: str) -> list[int]:
    return [header.seq for header in storage.find(prefix)]


@pytest.mark.usefixtures("small")
def test_erased_records_leave_blocks_and_zones(fake: FakeObjects) -> None:
    with ObjectStorage(ADDRESS) as storage:
        writer = JournalWriter("long")
        for n in range(1, 201):
            writer.save(storage, b"body-%03d." % n, metadata={"name": f"name-{n:03}."})
        assert any(pack.blocks for pack in storage._logs.view("long").packs)
        gone = [1, 2, 33, 64, 70, 98, 150]
        assert storage.delete("long", erase=gone) == len(gone)
    everything = b"".join(data for data, *_ in fake.objects.values())
    for n in range(1, 201):
        assert (b"body-%03d." % n in everything) == (n not in gone)
        assert (b"name-%03d." % n in everything) == (n not in gone)
    with ObjectStorage(ADDRESS) as storage:
        left = [record.header.seq for record in storage.read("long")]
        assert left == [n for n in range(1, 201) if n not in gone]
        assert storage.inspect("long").problems == ()
        for n in gone:
            query = RecordQuery(run_id="long", metadata={"name": f"name-{n:03}."})
            assert list(storage.headers(query)) == []


@pytest.mark.usefixtures("small")
def test_a_damaged_directory_costs_no_record(fake: FakeObjects) -> None:
    with ObjectStorage(ADDRESS) as storage:
        ids = _long(storage, 200, size=1)
        (pack, *_) = (one for one in storage._logs.view("long").packs if one.blocks)
    key = f"runs/{pack.key}"
    data = fake.objects[key][0]
    for at in (0, pack.index // 2, pack.index - 1):
        fake.put(key, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], None)
        with ObjectStorage(ADDRESS) as storage:
            assert [record.header.id for record in storage.read("long")] == ids
            assert [header.id for header in storage.find(ids[pack.first])] == [ids[pack.first]]
            inspected = storage.inspect("long")
            assert len(inspected.records) == len(ids)
            assert len(inspected.problems) == 1
            assert pack.key in inspected.problems[0]


@pytest.mark.usefixtures("small")
def test_a_damaged_block_costs_its_own_records(fake: FakeObjects) -> None:
    with ObjectStorage(ADDRESS) as storage:
        ids = _long(storage, 200, size=1)
        (pack, *_) = (one for one in storage._logs.view("long").packs if one.blocks)
        block = storage._packs.parts(pack)[1]
    key = f"runs/{pack.key}"
    data = fake.objects[key][0]
    start, end = block.start, block.start + block.index
    fake.put(key, data[:start] + os.urandom(end - start) + data[end:], None)
    lost = set(range(block.first, block.last + 1))
    with ObjectStorage(ADDRESS) as storage:
        first = [record.header.id for record in storage.read("long", last=block.first - 1)]
        assert first == ids[: block.first - 1]
        assert [r.header.id for r in storage.read("long", first=block.last + 1)] == ids[
            block.last :
        ]
        with pytest.raises(errors.CorruptError):
            list(storage.read("long"))
        kept = {record.header.seq for record in storage.inspect("long").records}
        assert {*range(1, 201)} - kept <= lost


def test_a_run_packed_before_there_were_zones_is_read_and_packed_on(
    fake: FakeObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = PackRef("data/run/key", 1, 9, 100, 50, 1)
    facts = msgspec.to_builtins(old)[:6]
    assert msgspec.convert(facts, PackRef) == old
    with monkeypatch.context() as patch, ObjectStorage(ADDRESS) as storage:
        patch.setattr(packs, "LOOSE", 4)
        patch.setattr(packs, "_BLOCK", 1 << 30)
        patch.setattr(packs, "_zone_of", lambda view, rows: None)
        ids = _long(storage, 150, size=1)
        view = storage._logs.view("long")
        assert not any(pack.blocks or pack.zone for pack in view.packs)
    monkeypatch.setattr(packs, "LOOSE", 4)
    monkeypatch.setattr(packs, "_BLOCK", 6)
    with ObjectStorage(ADDRESS) as storage:
        assert [header.id for header in storage.find(ids[20])] == [ids[20]]
        writer = JournalWriter.after(storage, "long")
        ids += [writer.save(storage, kind="final").header.id for _ in range(150)]
        assert any(pack.blocks for pack in storage._logs.view("long").packs)
    with ObjectStorage(ADDRESS) as storage:
        assert [record.header.id for record in storage.read("long")] == ids
        assert len(list(storage.headers(RecordQuery(run_id="long", kind="final")))) == 150


def test_a_newer_layout_is_refused_and_one_without_a_mark_is_read(fake: FakeObjects) -> None:
    with ObjectStorage(ADDRESS) as storage:
        assert fake.objects == {}, "nothing is written before the first run"
        ids = _long(storage, 3)
        assert fake.objects["runs/format"][0] == b"2"
    for newer in (b"3", b"10", b"x"):
        fake.put("runs/format", newer, None)
        told = f"newer Surehold .format {newer.decode()}, "
        with pytest.raises(errors.SchemaError, match=told) as refused:
            ObjectStorage(ADDRESS)
        assert refused.value.hint == "update surehold"
    del fake.objects["runs/format"]
    with ObjectStorage(ADDRESS) as storage:
        assert [record.header.id for record in storage.read("long")] == ids
        JournalWriter("other").save(storage)
    assert fake.objects["runs/format"][0] == b"2"


def test_large_batches_are_packed_before_a_reader_has_much_to_read(fake: FakeObjects) -> None:
    with ObjectStorage(ADDRESS) as storage:
        _long(storage, 10_000, size=500)
    with ObjectStorage(ADDRESS) as storage:
        assert len(list(storage.headers(RecordQuery(run_id="long", limit=10)))) == 10
        assert len(storage._logs.view("long").rows) <= 500


def test_a_page_in_a_process_that_knows_the_run_lists_nothing(fake: FakeObjects) -> None:
    with ObjectStorage(ADDRESS) as storage, CheckpointManager(storage) as manager:
        state = State.new({"n": 0}, run_id="run")
        for n in range(packs.LOOSE + 5):
            manager.save_checkpoint(state := state.set("n", n))
        fake.requests.clear()
        assert len(manager.list_checkpoints("run", limit=5)) == 5
        assert fake.requests == ["GET", "GET"]


def test_saves_in_quick_succession_do_not_list_all_names_again_and_again(
    fake: FakeObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ObjectStorage(ADDRESS) as storage:
        each, looks = storage._bucket.each, []

        def listed(prefix: str, after: str | None = None) -> Iterator[ListedObject]:
            looks.append(prefix)
            return each(prefix, after)

        monkeypatch.setattr(storage._bucket, "each", listed)
        _long(storage, 3 * 8 * packs.LOOSE + packs.LOOSE, size=1)
        assert looks == ["log/long"]
        clock = packs.now
        monkeypatch.setattr(packs, "now", lambda: clock() + packs.GRACE.total_seconds() / 10)
        writer = JournalWriter.after(storage, "long")
        for _ in range(8 * packs.LOOSE):
            writer.save(storage)
        assert looks == ["log/long"] * 2


def test_old_objects_go_from_the_log_of_a_long_run(
    fake: FakeObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "GRACE", timedelta(0))
    with ObjectStorage(ADDRESS) as storage:
        ids = _long(storage, 3000, size=5)
        storage.compact()
        assert len(fake.objects) < 25
        assert [record.header.id for record in storage.read("long")] == ids
