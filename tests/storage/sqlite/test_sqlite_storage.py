"""What `SQLiteStorage` promises beyond the contract: its file, its costs, its errors."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from surehold.core.records.record import Header
from surehold.errors import (
    ConflictError,
    CorruptError,
    SchemaError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    UsageError,
)
from surehold.storage.base import Batch, Leasing, RecordQuery, RunQuery, this_process
from surehold.storage.memory.storage import MemoryStorage
from surehold.storage.sqlite.page_checksums import PAGE, RESERVED, checked_pages
from surehold.storage.sqlite.storage import SQLiteStorage
from surehold.testing import JournalWriter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def storage(path: Path) -> Iterator[SQLiteStorage]:
    with SQLiteStorage(path) as storage:
        yield storage


def raw(path: Path) -> apsw.Connection:
    """A connection past the storage, to see or do what it would not."""
    return apsw.Connection(str(path), vfs=checked_pages())


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


class TestFile:
    def test_commits_are_logged_and_synced(self, storage: SQLiteStorage) -> None:
        for lend in (storage._pool.maintaining, storage._pool.reading):
            with lend() as db:
                assert db.pragma("journal_mode") == "wal"
                assert db.pragma("synchronous") == 2
                assert db.pragma("auto_vacuum") == 2
                assert db.pragma("page_size") == PAGE
                assert 0 < db.pragma("journal_size_limit") <= 1 << 19
                assert db.pragma("wal_autocheckpoint") == 0  # `write` brings the log in

    def test_readers_cannot_write(self, storage: SQLiteStorage) -> None:
        with pytest.raises(StorageError), storage._pool.reading() as db:
            db.execute("DELETE FROM runs")

    def test_it_can_lease(self, storage: SQLiteStorage) -> None:
        assert isinstance(storage, Leasing)

    def test_a_missing_directory_is_made_for_this_user_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b" / "runs.db"
        with SQLiteStorage(path) as storage:
            JournalWriter().save(storage)
            assert mode(path.parent) == mode(path.parent.parent) == 0o700
            for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                assert mode(file) == 0o600
        assert (path.parent / ".gitignore").read_text() == "*\n"
        assert sorted(file.name for file in path.parent.iterdir()) == [".gitignore", "runs.db"]

    def test_a_directory_that_is_there_is_left_as_it_is(self, tmp_path: Path) -> None:
        before = mode(tmp_path)
        SQLiteStorage(tmp_path / "runs.db").close()
        assert [file.name for file in tmp_path.iterdir()] == ["runs.db"]
        assert mode(tmp_path) == before

    def test_a_relative_path_stays_where_it_was_opened(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with SQLiteStorage("runs.db") as storage:
            monkeypatch.chdir("/")
            JournalWriter().save(storage)
            assert storage.path == tmp_path / "runs.db"
            assert len(list(storage.read("run"))) == 1

    def test_the_log_is_gone_after_closing(self, path: Path) -> None:
        with SQLiteStorage(path) as storage:
            JournalWriter().save(storage, b"x" * 100_000)
            list(storage.read("run"))
            assert Path(f"{path}-wal").stat().st_size > 100_000
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    def test_a_long_journal_stays_within_its_content(self, path: Path) -> None:
        """1,000 steps of 1 KB, with a keyframe whenever the deltas weigh twice the last one."""
        chance, writer, messages = random.Random(1), JournalWriter("nightly", name="agent"), []
        content = given = since = key = 0
        with SQLiteStorage(path) as storage:
            empty = storage.path.stat().st_size
            for step in range(1_000):
                message = b'{"role":"user","content":"%b"}' % chance.randbytes(512).hex().encode()
                messages.append(message)
                content += len(message)
                body = b'[{"op":"add","path":"/messages/-","value":%b}]' % message
                since += len(body)
                if since > 2 * key:
                    state = b'{"messages":[%b]}' % b",".join(messages)
                    body, key, since = body + state, len(state), 0
                record = writer.save(storage, body, step=step, frame="delta", node="ask")
                given += len(record.text) + len(record.body)
            size = sum(Path(f"{path}{end}").stat().st_size for end in ("", "-wal"))
            assert size <= 3.5 * content
        assert path.stat().st_size <= 3.2 * content
        assert path.stat().st_size - empty <= 1.2 * given

    def test_a_plain_append_touches_few_pages(self, path: Path) -> None:
        writer = JournalWriter("run", name="agent")
        with SQLiteStorage(path) as storage:
            assert storage.append([writer.batch(2_000)]) == [None]
            storage.compact()
            for _ in range(15):
                writer.save(storage, b"x" * 1_000)
            frames = Path(f"{path}-wal").stat().st_size // (PAGE + 24)
        # A table or index gets a new page now and then, so this is about the mean.
        assert 15 < frames <= 9 * 15

    @pytest.mark.parametrize(
        ("compress", "bodies"), [(False, None), (True, "gzip"), ("gzip", "gzip"), ("zstd", "zstd")]
    )
    def test_it_says_how_bodies_are_to_be_compressed(
        self, path: Path, compress: bool | str, bodies: str | None
    ) -> None:
        with SQLiteStorage(path, compress=compress) as storage:
            assert storage.body_compression == bodies
        with pytest.raises(UsageError):
            SQLiteStorage(path, compress="lzma")

    def test_the_log_does_not_grow_with_the_journal(self, path: Path) -> None:
        writer, most = JournalWriter(), 0
        with SQLiteStorage(path) as storage:
            for _ in range(300):
                writer.save(storage, b"x" * 1_000)
                most = max(most, Path(f"{path}-wal").stat().st_size)
        assert most < 1 << 20


QUERIES: dict[str, Callable[[SQLiteStorage], Any]] = {
    "a run": lambda s: list(s.runs(RunQuery(run_id="run-3"))),
    "runs": lambda s: list(s.runs(RunQuery(limit=3))),
    "runs of a name": lambda s: list(s.runs(RunQuery(name="name-1", limit=3))),
    "the run to resume": lambda s: list(
        s.runs(RunQuery(name="name-1", not_status="completed", limit=1))
    ),
    "runs of a status": lambda s: list(s.runs(RunQuery(status="failed", limit=1))),
    "all": lambda s: list(s.headers(RecordQuery(limit=5))),
    "all with notes": lambda s: list(s.headers(RecordQuery(limit=5, notes=True))),
    "of a run": lambda s: list(s.headers(RecordQuery(run_id="run-3", limit=5))),
    "latest": lambda s: list(s.headers(RecordQuery(run_id="run-3", scope="", limit=1))),
    "latest within": lambda s: list(s.headers(RecordQuery(run_id="run-3", scope="inner", limit=1))),
    "of a name": lambda s: list(s.headers(RecordQuery(name="name-1", limit=5))),
    "of a name with notes": lambda s: list(
        s.headers(RecordQuery(name="name-1", limit=5, notes=True))
    ),
    "tag": lambda s: list(s.headers(RecordQuery(tag="rare", limit=5))),
    "status": lambda s: list(s.headers(RecordQuery(status="failed", limit=1))),
    "kind": lambda s: list(s.headers(RecordQuery(kind="final", limit=1))),
    "metadata": lambda s: list(s.headers(RecordQuery(metadata={"customer": 7}, limit=5))),
    "next page": lambda s: list(s.headers(RecordQuery(before="run-3/4", limit=5))),
    "find": lambda s: s.find("run-3/4"),
    "find by prefix": lambda s: s.find("run-3/"),
    "read": lambda s: list(s.read("run-3", first=2, last=4)),
    "lease": lambda s: s.lease_of("run-3"),
}


class TestCosts:
    """Counted in steps of SQLite's virtual machine, which do not depend on the load."""

    def fill(self, storage: SQLiteStorage, rounds: int) -> None:
        """The same ten runs at the end, behind ever more of others."""
        for n in range(rounds, -1, -1):
            batches = []
            for run in range(10):
                run_id = f"run-{run}" if n == 0 else f"old-{n}-{run}"
                writer = JournalWriter(run_id, name=f"name-{run % 3}")
                records = [
                    writer.record(
                        id=f"{run_id}/{k}",
                        tags=("rare",) if k == 2 else (),
                        metadata={"customer": 7} if k == 3 else {},
                        frame="note" if k in (1, 7) else "key",
                        scope="inner" if k == 5 else "",
                        kind="final" if (k, run) == (6, 4) else "routine",
                        status=("failed" if run == 4 else "completed") if k == 6 else "running",
                    )
                    for k in range(8)
                ]
                batches.append(writer.batch(records))
            assert storage.append(batches) == [None] * 10

    def steps(self, storage: SQLiteStorage, act: Callable[[SQLiteStorage], Any]) -> int:
        act(storage)
        count = 0

        def step() -> bool:
            nonlocal count
            count += 1
            return False

        lent = (storage._pool.reading, storage._pool.maintaining)
        for lend in lent:
            with lend() as db:
                db.set_progress_handler(step, 1)
        act(storage)
        for lend in lent:
            with lend() as db:
                db.set_progress_handler(None)
        assert count
        return count

    def test_a_page_costs_what_it_holds_not_what_the_storage_holds(self, tmp_path: Path) -> None:
        few, many = SQLiteStorage(tmp_path / "few.db"), SQLiteStorage(tmp_path / "many.db")
        with few, many:
            self.fill(few, 1)
            self.fill(many, 60)
            for what, act in QUERIES.items():
                small, large = self.steps(few, act), self.steps(many, act)
                assert large <= 1.2 * small + 20, what

    def test_an_append_costs_what_it_brings(self, tmp_path: Path) -> None:
        few, many = SQLiteStorage(tmp_path / "few.db"), SQLiteStorage(tmp_path / "many.db")
        with few, many:
            self.fill(few, 1)
            self.fill(many, 60)

            def save(storage: SQLiteStorage) -> None:
                JournalWriter.after(storage, "run-3").save(storage)

            assert self.steps(many, save) <= 1.2 * self.steps(few, save)

    def test_an_append_asks_for_nothing_that_the_statements_decide_themselves(
        self, storage: SQLiteStorage
    ) -> None:
        asked: list[str] = []

        def statements(batch: Batch) -> list[str]:
            asked.clear()
            assert storage.append([batch]) == [None]
            return [sql.split()[0] for sql in asked]

        def note(cursor: apsw.Cursor, sql: str, values: Any) -> bool:
            asked.append(sql)
            return True

        with storage._pool.maintaining() as db:
            db.exec_trace = note
        store = ["INSERT", "INSERT", "INSERT", "COMMIT"]
        writer = JournalWriter()
        assert statements(writer.batch()) == ["BEGIN", "INSERT", *store]
        assert statements(writer.batch()) == ["BEGIN", "UPDATE", *store]
        assert "leases" not in " ".join(asked)
        lease = storage.take_lease("run", this_process(), now=0, ttl=30)
        assert statements(writer.batch(epoch=lease.epoch)) == ["BEGIN", "UPDATE", *store]
        assert "leases" in " ".join(asked)

    def test_the_head_of_a_run_that_begins_with_something_else_than_a_checkpoint(
        self, storage: SQLiteStorage
    ) -> None:
        JournalWriter("noted").save(storage, frame="note", kind="pin", status="failed")
        JournalWriter("nested").save(storage, scope="inner", status="failed")
        JournalWriter("plain").save(storage, status="failed")
        found = {run.run_id: run for run in storage.runs(RunQuery())}
        assert {k: (run.status, run.checkpoints) for k, run in found.items()} == {
            "noted": ("running", 0),
            "nested": ("running", 1),
            "plain": ("failed", 1),
        }

    def test_a_runs_notes_of_a_kind_are_found_among_any_number_of_records(
        self, storage: SQLiteStorage
    ) -> None:
        writer, other = JournalWriter(), JournalWriter("other")
        pins = [writer.save(storage, frame="note", kind="pin").header for _ in range(2)]
        other.save(storage, frame="note", kind="pin")

        def pinned(storage: SQLiteStorage) -> None:
            query = RecordQuery(run_id="run", kind="pin", notes=True)
            assert list(storage.headers(query)) == pins[::-1]

        few = self.steps(storage, pinned)
        assert storage.append([writer.batch(3_000), other.batch(100)]) == [None, None]
        assert self.steps(storage, pinned) <= 1.2 * few

    @pytest.mark.parametrize("scope", ["", "inner"])
    def test_the_newest_checkpoint_is_found_behind_any_number_of_notes(
        self, storage: SQLiteStorage, scope: str
    ) -> None:
        writer = JournalWriter()
        newest = writer.save(storage, scope=scope).header

        def latest(storage: SQLiteStorage) -> None:
            query = RecordQuery(run_id="run", scope=scope, limit=1)
            assert list(storage.headers(query)) == [newest]

        few = self.steps(storage, latest)
        notes = [writer.record(frame="note", kind="effect", scope=scope) for _ in range(3_000)]
        others = [writer.record(scope="other") for _ in range(1_000)]
        assert storage.append([writer.batch(notes + others)]) == [None]
        assert self.steps(storage, latest) <= few + 20


class TestDeleting:
    def test_what_is_erased_shrinks_the_file(self, path: Path) -> None:
        with SQLiteStorage(path) as storage:
            writer = JournalWriter()
            for _ in range(200):
                writer.save(storage, b"x" * 20_000)
            storage.compact()
            before = path.stat().st_size
            assert storage.delete("run", erase=range(1, 200)) == 199
            storage.compact()
            assert path.stat().st_size < before / 10
            assert Path(f"{path}-wal").stat().st_size == 0
            assert [record.header.seq for record in storage.read("run")] == [200]

    def test_an_erasure_gives_some_room_back_without_compacting(self, path: Path) -> None:
        with SQLiteStorage(path) as storage:
            writer = JournalWriter()
            for _ in range(20):
                writer.save(storage, b"x" * 20_000)
            storage.delete("run", erase=range(1, 20))
            with storage._pool.reading() as db:
                assert db.pragma("freelist_count") == 0
        assert path.stat().st_size < 200_000

    def test_a_deleted_run_leaves_nothing_but_its_lease(self, storage: SQLiteStorage) -> None:
        writer = JournalWriter("run", name="agent")
        lease = storage.take_lease("run", this_process(), now=0, ttl=1)
        for n in range(700):
            writer.record(tags=("a", "b"), metadata={"n": n}, scope="inner" if n % 2 else "")
        writer = JournalWriter("run", name="agent")
        records = [
            writer.record(tags=("a",), metadata={"n": n}, kind="k", scope="in" * (n % 2))
            for n in range(700)
        ]
        assert storage.append([writer.batch(records)]) == [None]
        storage.delete("run", hide=[3, 4], erase=[1, 2, 5])
        assert storage.delete("run") == 697
        with storage._pool.reading() as db:
            for table in ("runs", "records", "bodies", "marks", "erased"):
                assert db.execute(f"SELECT count(*) FROM {table}").fetchall() == [(0,)], table
        assert storage.lease_of("run") == lease

    def test_a_run_that_others_deleted_and_began_anew_takes_no_record_of_the_old_one(
        self, storage: SQLiteStorage, path: Path
    ) -> None:
        old = JournalWriter("run")
        for _ in range(2):
            old.save(storage)
        with SQLiteStorage(path) as other:
            other.delete("run")
            new = JournalWriter("run", name="new")
            new.save(other)
            new.save(other)
            new.save(other)
        with pytest.raises(ConflictError):
            old.save(storage)
        new.save(storage)
        assert [r.header.name for r in storage.read("run")] == ["new"] * 4

    def test_a_writer_that_knows_the_run_is_refused_once_another_has_its_lease(
        self, storage: SQLiteStorage, path: Path
    ) -> None:
        lease = storage.take_lease("run", this_process(), now=0, ttl=1)
        writer = JournalWriter("run")
        for _ in range(2):
            assert storage.append([writer.batch(epoch=lease.epoch)]) == [None]
        with SQLiteStorage(path) as other:
            other.release_lease(lease)
            newer = other.take_lease("run", this_process(), now=2, ttl=1)
        (refused,) = storage.append([writer.batch(epoch=lease.epoch)])
        assert isinstance(refused, ConflictError)
        again = JournalWriter.after(storage, "run")
        assert again.seq == 2
        assert storage.append([again.batch(epoch=newer.epoch)]) == [None]

    def test_neighbouring_erasures_become_one_range(self, storage: SQLiteStorage) -> None:
        writer = JournalWriter()
        assert storage.append([writer.batch(30)]) == [None]
        for seqs in ([5, 6, 9], [7], [20], [8], [1], [22, 21], [2, 3, 4]):
            storage.delete("run", erase=seqs)
        with storage._pool.reading() as db:
            ranges = db.execute("SELECT first, last FROM erased ORDER BY first").fetchall()
        assert ranges == [(1, 9), (20, 22)]
        gone = {*range(1, 10), 20, 21, 22}
        assert [r.header.seq for r in storage.read("run")] == sorted({*range(1, 31)} - gone)


class TestIterating:
    """Records that go while others are being read; a page is 256 of them."""

    @pytest.fixture
    def filled(self, storage: SQLiteStorage) -> SQLiteStorage:
        assert storage.append([JournalWriter().batch(1_000)]) == [None]
        return storage

    @pytest.mark.parametrize("what", ["read", "headers"])
    def test_a_run_that_is_deleted_ends_there(self, filled: SQLiteStorage, what: str) -> None:
        left = filled.read("run") if what == "read" else filled.headers(RecordQuery(run_id="run"))
        next(left)
        filled.delete("run")
        JournalWriter().save(filled, b"of another run by the same name")
        assert len(list(left)) < 300

    def test_what_is_erased_ahead_is_passed_over(self, filled: SQLiteStorage) -> None:
        up, down = filled.read("run"), filled.headers(RecordQuery(run_id="run"))
        assert (next(up).header.seq, next(down).seq) == (1, 1_000)
        filled.delete("run", erase=[400, 401, *range(500, 900)])
        rest = [seq for seq in range(2, 1_001) if seq not in {400, 401, *range(500, 900)}]
        assert [record.header.seq for record in up] == rest
        seen = [header.seq for header in down]
        assert seen == sorted(seen, reverse=True)
        assert {*rest[:-1], 1} <= set(seen)

    def test_what_is_erased_at_the_start_is_passed_over(self, filled: SQLiteStorage) -> None:
        filled.delete("run", erase=range(1, 400))
        assert [r.header.seq for r in filled.read("run", first=100)] == list(range(400, 1_001))
        assert list(filled.read("run", first=100, last=200)) == []
        listed = [header.seq for header in filled.headers(RecordQuery(run_id="run"))]
        assert listed == list(range(1_000, 399, -1))

    def test_large_bodies_come_in_small_pages(self, storage: SQLiteStorage) -> None:
        writer = JournalWriter()
        for size in (3_000_000, 10, 2_000_000, 3_000_000, 10):
            writer.save(storage, b"x" * size)
        head = storage._head("run")
        assert head is not None
        lent, following = storage._records(head, 5, 1, 256)
        assert following == 4
        assert [row[0] for row in lent] == [1, 2, 3]
        assert [len(record.body) for record in storage.read("run")] == [
            3_000_000,
            10,
            2_000_000,
            3_000_000,
            10,
        ]

    def test_a_place_that_several_records_have_is_a_usage_error(
        self, storage: SQLiteStorage
    ) -> None:
        for run_id in "ab":
            JournalWriter(run_id).save(storage, id="same")
        with pytest.raises(UsageError, match="several runs"):
            storage.headers(RecordQuery(before="same"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from("abc"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xy"), inner),
    max_leaves=4,
)
METADATA = st.dictionaries(st.sampled_from(["k", "l", "k' OR 1=1 --", ""]), JSON, max_size=2)


class TestQueries:
    @settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(stored=st.lists(METADATA, min_size=1, max_size=8), asked=METADATA)
    def test_metadata_is_found_as_python_compares_it(
        self, storage: SQLiteStorage, stored: list[dict[str, Any]], asked: dict[str, Any]
    ) -> None:
        storage.delete("run")
        writer = JournalWriter()
        records = [writer.record(metadata=metadata) for metadata in stored]
        assert storage.append([writer.batch(records)]) == [None]
        for metadata in (asked, stored[0]):
            query = RecordQuery(metadata=metadata)
            expected = [r.header for r in reversed(records) if query.matches(r.header)]
            assert list(storage.headers(query)) == expected

    @pytest.mark.parametrize(
        ("stored", "asked"),
        [(1, True), (1, 1.0), (0.0, False), ([1, {"a": 2.0}], [True, {"a": 2}]), ("x", "x")],
    )
    def test_equal_numbers_are_found_by_each_other(
        self, storage: SQLiteStorage, stored: object, asked: object
    ) -> None:
        JournalWriter().save(storage, metadata={"k": stored})
        assert len(list(storage.headers(RecordQuery(metadata={"k": asked})))) == 1

    @pytest.mark.parametrize("value", [(1,), {1}, object(), {1: 2}, b"x", float("nan")])
    def test_what_json_cannot_say_is_found_nowhere(
        self, storage: SQLiteStorage, value: object
    ) -> None:
        JournalWriter().save(storage, metadata={"k": [1], "l": None})
        for key in ("k", "l", "m"):
            assert list(storage.headers(RecordQuery(metadata={key: value}))) == []

    def test_metadata_may_be_deep(self, storage: SQLiteStorage) -> None:
        deep: Any = "end"
        for _ in range(200):
            deep = [deep]
        JournalWriter().save(storage, metadata={"k": deep})
        assert len(list(storage.headers(RecordQuery(metadata={"k": deep})))) == 1
        assert list(storage.headers(RecordQuery(metadata={"k": [deep]}))) == []

    def test_long_words_are_told_apart(self, storage: SQLiteStorage) -> None:
        writers = [JournalWriter(c * 4_096, name=c * 4_096) for c in "ab"]
        for writer, c in zip(writers, "ab", strict=True):
            writer.save(storage, id=c * 20_000, tags=(c * 5_000,), scope=c * 5_000)
        for c in "ab":
            for query in (
                RecordQuery(run_id=c * 4_096),
                RecordQuery(name=c * 4_096),
                RecordQuery(tag=c * 5_000),
                RecordQuery(run_id=c * 4_096, scope=c * 5_000),
            ):
                assert [h.id for h in storage.headers(query)] == [c * 20_000]
            assert [h.run_id for h in storage.find(c * 10_000)] == [c * 4_096]

    def test_times_are_compared_to_the_microsecond(self, storage: SQLiteStorage) -> None:
        record = JournalWriter().save(storage)
        moment = record.header.saved_at
        for query in (RecordQuery(since=moment), RecordQuery(until=moment)):
            assert len(list(storage.headers(query))) == 1
        later = moment.replace(microsecond=1)
        assert list(storage.headers(RecordQuery(since=later))) == []

    @pytest.mark.parametrize("word", ["\ud800", "x" * 100_000, "\0"])
    def test_words_that_no_record_has_are_found_nowhere(
        self, storage: SQLiteStorage, word: str
    ) -> None:
        JournalWriter().save(storage)
        assert storage.find(word) == []
        for field in ("name", "kind", "status", "tag"):
            assert list(storage.headers(RecordQuery(**{field: word}))) == []

    def test_what_cannot_be_asked_is_a_usage_error(self, storage: SQLiteStorage) -> None:
        with pytest.raises(UsageError):
            list(storage.runs(RunQuery(before=1 << 70)))
        with pytest.raises(UsageError):
            list(storage.headers(RecordQuery(run_id="\ud800")))


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "hide", "erase", "delete"]),
        st.sampled_from(["a", "b"]),
        st.lists(st.integers(1, 12), max_size=4),
        st.sampled_from([("key", ""), ("note", ""), ("delta", "in"), ("note", "in")]),
        st.sampled_from(["running", "completed"]),
    ),
    max_size=25,
)


class TestLikeMemory:
    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(actions=ACTIONS)
    def test_any_history_reads_as_it_does_from_memory(
        self, storage: SQLiteStorage, actions: list[Any]
    ) -> None:
        memory = MemoryStorage()
        for run_id in "ab":
            storage.delete(run_id)
        for n, (what, run_id, seqs, (frame, scope), status) in enumerate(actions):
            if what == "append":
                writer = JournalWriter.after(memory, run_id)
                record = writer.record(
                    frame=frame, scope=scope, status=status, name=f"name-{n % 3}", tags=("t",)
                )
                batch = Batch(run_id=run_id, records=(record,), hide=tuple(seqs))
                assert storage.append([batch]) == memory.append([batch])
                continue
            for one in (storage, memory):
                head = [info.seq for info in one.runs(RunQuery(run_id=run_id))]
                if what == "delete":
                    one.delete(run_id)
                elif what == "hide":
                    one.delete(run_id, hide=seqs)
                else:
                    one.delete(run_id, erase=[seq for seq in seqs if [seq] != head])
        assert view(storage) == view(memory)


def view(storage: SQLiteStorage | MemoryStorage) -> list[Any]:
    def plain(header: Header) -> tuple[str, int, str]:
        return header.run_id, header.seq, header.digest

    # Ordinals differ: the one storage has seen more runs than the other.
    infos = [(i.run_id, i.name, i.seq, i.digest, i.checkpoints) for i in storage.runs(RunQuery())]
    infos += [(i.status, i.stored, i.step, i.saved_at) for i in storage.runs(RunQuery())]  # type: ignore[misc]
    queries = [
        RecordQuery(),
        RecordQuery(notes=True),
        *(RecordQuery(name=f"name-{n}") for n in range(3)),
        *(RecordQuery(status="completed", notes=notes) for notes in (False, True)),
        *(
            RecordQuery(run_id=run_id, scope=scope, notes=notes, limit=limit)
            for run_id in "ab"
            for scope in (None, "", "in")
            for notes in (False, True)
            for limit in (None, 1, 2)
        ),
    ]
    listed = [[plain(header) for header in storage.headers(query)] for query in queries]
    read = [[plain(record.header) for record in storage.read(run_id)] for run_id in "ab"]
    open_ = [
        [i.run_id for i in storage.runs(RunQuery(name=f"name-{n}", not_status="completed"))]
        for n in range(3)
    ]
    return [infos, listed, read, open_, [plain(header) for header in storage.find("0")]]


class TestErrors:
    @pytest.mark.parametrize("content", [b"hello", b"x" * 10_000, b"SQLite format 3"])
    def test_a_file_that_is_no_database_is_refused_and_left_alone(
        self, path: Path, content: bytes
    ) -> None:
        path.write_bytes(content)
        with pytest.raises(CorruptError, match="not a SQLite database") as caught:
            SQLiteStorage(path)
        assert caught.value.path == str(path)
        assert path.read_bytes() == content
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    @pytest.mark.parametrize(
        "setup",
        [
            "CREATE TABLE mine(a)",
            "PRAGMA user_version = 1",
            f"PRAGMA page_size = {PAGE}; CREATE TABLE mine(a)",
            f"PRAGMA page_size = {PAGE}; PRAGMA journal_mode = WAL; CREATE TABLE mine(a)",
        ],
    )
    def test_a_database_of_another_program_is_refused_and_left_alone(
        self, path: Path, setup: str
    ) -> None:
        db = apsw.Connection(str(path))
        db.execute(setup).fetchall()
        db.close()
        before = path.read_bytes()
        with pytest.raises(CorruptError, match="not one of Surehold's"):
            SQLiteStorage(path)
        assert path.read_bytes() == before
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    @pytest.mark.parametrize("settings", [0, 1, 2])
    def test_a_file_that_was_only_begun_becomes_a_database(self, path: Path, settings: int) -> None:
        """As one whose maker was killed: SQLite writes a page as soon as it is told to vacuum."""
        path.touch()
        if settings:
            db = raw(path)
            db.reserve_bytes("main", RESERVED)
            db.pragma("page_size", PAGE)
            if settings > 1:
                db.pragma("auto_vacuum", "incremental")
                assert db.pragma("page_count") == 1
            db.close()
        with SQLiteStorage(path) as storage:
            JournalWriter().save(storage)
            with storage._pool.reading() as db:
                assert db.pragma("auto_vacuum") == 2
                assert db.pragma("page_size") == PAGE

    @pytest.mark.parametrize("version", [1, 2])
    def test_a_file_of_an_earlier_format_is_upgraded_with_its_runs(
        self, path: Path, version: int
    ) -> None:
        with SQLiteStorage(path) as storage:
            JournalWriter().save(storage)
        db = raw(path)
        db.execute("DROP TABLE workers")
        if version == 1:
            db.execute("DROP TABLE entries; DROP TABLE queues")
        db.pragma("user_version", version)
        db.close()
        with SQLiteStorage(path) as storage:
            assert len(list(storage.read("run"))) == 1
            assert storage.queues() == [] and storage.workers(now=0) == []
        db = raw(path)
        assert db.pragma("user_version") == 4
        db.close()

    def test_a_newer_format_is_refused(self, path: Path) -> None:
        SQLiteStorage(path).close()
        db = raw(path)
        db.pragma("user_version", 99)
        db.close()
        with pytest.raises(SchemaError, match="newer Surehold") as caught:
            SQLiteStorage(path)
        assert "update" in caught.value.hint

    @pytest.mark.parametrize("name", ["", ":memory:"])
    def test_a_path_that_is_no_file_is_refused(self, name: str) -> None:
        with pytest.raises(UsageError):
            SQLiteStorage(name)

    @pytest.mark.parametrize("below", ["runs.db", "deep/runs.db"])
    def test_a_file_in_place_of_a_directory_is_named(self, tmp_path: Path, below: str) -> None:
        (tmp_path / "taken").touch()
        with pytest.raises(StorageError, match=f"{tmp_path}/taken is not a directory") as refused:
            SQLiteStorage(tmp_path / "taken" / below)
        assert "choose another place" in refused.value.hint

    def test_a_directory_is_refused_with_the_address_of_a_file_in_it(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=f"{tmp_path} is a directory") as refused:
            SQLiteStorage(tmp_path)
        assert refused.value.hint == f"name a file in it: sqlite:///{tmp_path}/runs.db"
        assert refused.value.path == str(tmp_path)
        assert not [*tmp_path.iterdir()]

    def test_a_negative_timeout_is_refused(self, path: Path) -> None:
        with pytest.raises(UsageError):
            SQLiteStorage(path, busy_timeout=-1)
        assert not path.exists()

    def test_a_full_medium_says_so_and_keeps_what_it_has(self, storage: SQLiteStorage) -> None:
        writer = JournalWriter()
        first = writer.save(storage)
        with storage._pool.maintaining() as db:
            db.pragma("max_page_count", db.pragma("page_count") + 2)
        big = writer.batch([writer.record(b"x" * 100_000)])
        with pytest.raises(StorageFullError):
            storage.append([big])
        assert list(storage.read("run")) == [first]
        with storage._pool.maintaining() as db:
            db.pragma("max_page_count", 1 << 30)
        assert storage.append([big]) == [None]
        assert len(list(storage.read("run"))) == 2

    def test_a_locked_file_is_unavailable_for_now(self, path: Path) -> None:
        with SQLiteStorage(path, busy_timeout=0.05) as storage:
            other = raw(path)
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StorageUnavailableError, match="locked") as caught:
                JournalWriter().save(storage)
            assert caught.value.retryable
            assert list(storage.runs(RunQuery())) == []
            other.execute("ROLLBACK")
            JournalWriter().save(storage)
            other.close()

    @pytest.mark.parametrize("how", ["deleted", "replaced"])
    def test_a_file_that_is_gone_takes_no_more_records(
        self, path: Path, how: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("surehold.storage.sqlite.connections._LOOKS_EVERY", 0.0)
        storage, writer = SQLiteStorage(path), JournalWriter()
        writer.save(storage)
        path.rename(path.with_suffix(".old"))
        if how == "replaced":
            path.touch()
        with pytest.raises(StorageError, match="deleted or replaced"):
            writer.save(storage)
        assert not path.exists() or path.stat().st_size == 0
        storage.close()

    def test_a_log_that_is_gone_takes_no_more_records(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("surehold.storage.sqlite.connections._LOOKS_EVERY", 0.0)
        storage, writer = SQLiteStorage(path), JournalWriter()
        for _ in range(3):
            writer.save(storage)
        storage.compact()
        writer.save(storage)
        Path(f"{path}-wal").unlink()
        with pytest.raises(StorageError, match="wal was deleted or replaced"):
            writer.save(storage)
        storage.close()

    def test_a_symbolic_link_leads_to_the_database_and_its_log(self, path: Path) -> None:
        link = path.with_name("link.db")
        link.symlink_to(path.name)
        with SQLiteStorage(path) as storage, SQLiteStorage(link) as linked:
            JournalWriter().save(linked)
            assert len(list(storage.read("run"))) == 1
            assert not Path(f"{link}-wal").exists()
        link.unlink()
        link.symlink_to("circle.db")
        path.with_name("circle.db").symlink_to(link.name)
        with pytest.raises(StorageError, match="link"):
            SQLiteStorage(link)

    def test_a_file_with_two_names_is_refused_under_both(self, path: Path) -> None:
        """Each name would have a log of its own, and one would lose what the other saves."""
        SQLiteStorage(path).close()
        other = path.with_name("other.db")
        other.hardlink_to(path)
        for name in (path, other):
            with pytest.raises(StorageError, match=f"{name.name} is one of 2 names of a file"):
                SQLiteStorage(name)
        other.unlink()
        SQLiteStorage(path).close()

    def test_an_interrupt_in_a_transaction_leaves_none_behind(self, storage: SQLiteStorage) -> None:
        with storage._pool.maintaining() as db:
            db.execute("BEGIN IMMEDIATE")
        JournalWriter().save(storage)
        assert len(list(storage.read("run"))) == 1

    def test_an_error_within_a_transaction_undoes_it(self, storage: SQLiteStorage) -> None:
        def work(db: apsw.Connection) -> None:
            db.execute("INSERT INTO erased VALUES (1, 1, 1)")
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            storage._pool.write(work)
        with storage._pool.reading() as db:
            assert db.execute("SELECT * FROM erased").fetchall() == []

    def test_an_error_amid_a_statement_leaves_the_storage_usable(
        self, storage: SQLiteStorage
    ) -> None:
        def work(cursor: apsw.Cursor) -> None:
            cursor.execute("INSERT INTO erased VALUES (1, 1, 1), (2, 1, 1)")
            next(cursor.execute("SELECT * FROM erased; SELECT 1"))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            storage._pool.append(work)
        JournalWriter().save(storage)
        with storage._pool.reading() as db:
            assert db.execute("SELECT * FROM erased").fetchall() == []

    def test_bad_input_is_refused_before_anything_is_written(self, storage: SQLiteStorage) -> None:
        good, bad = JournalWriter("good").batch(), JournalWriter("bad").batch()
        torn = bad.records[0].__class__(bad.records[0].header, bad.records[0].text, b"other")
        with pytest.raises(CorruptError):
            storage.append([good, Batch(run_id="bad", records=(torn,))])
        with pytest.raises(UsageError):
            storage.append([good, Batch(run_id="", records=())])
        assert list(storage.runs(RunQuery())) == []

    @pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
    def test_a_directory_without_rights_is_named(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        with pytest.raises(StorageError, match="Permission") as caught:
            SQLiteStorage(tmp_path / "sub" / "runs.db")
        assert "right to write" in caught.value.hint
