"""Files that are not what they say: refused quickly, in little memory, and without a trace."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import pytest
from tests.crash.media import crossed

from surehold import CheckpointManager, SQLiteStorage, State
from surehold.core.records.frame import compress
from surehold.core.records.record import Header, Record, seal
from surehold.engine.transfer.limits import ImportLimits
from surehold.errors import (
    CorruptError,
    DataError,
    NotFoundError,
    SchemaError,
    SureholdError,
    WrongKeyError,
)
from surehold.storage.base import RunQuery
from surehold.storage.sqlite.page_checksums import PAGE, checked_pages, page_matches

MOMENT = datetime(2026, 5, 1, tzinfo=UTC)
KEY = "6b" * 32
RUN = "nightly"


def chain(bodies: Iterable[bytes], **fields: Any) -> list[Record]:
    """A sound journal of keyframes with these bodies."""
    records: list[Record] = []
    for seq, body in enumerate(bodies, 1):
        given = {"run_id": RUN, "id": f"c{seq}", "frame": "key", "saved_at": MOMENT, "step": seq}
        size = len(body) - len(body_of(b"")) if body.startswith(b"{") else 0
        header = Header(**({"size": max(size, 0)} | given | fields), seq=seq)
        records.append(seal(header, body, prev=records[-1].header.digest if records else ""))
    return records


Row = tuple[Any, Any, Any, Any]
"""Digest, header, body and state of a record, as a table has them."""


def rows_of(journal: Iterable[Record]) -> list[Row]:
    return [(bytes.fromhex(r.header.digest), r.text.decode(), r.body, 0) for r in journal]


@cache
def empty_storage() -> bytes:
    with tempfile.TemporaryDirectory() as directory:
        SQLiteStorage(f"{directory}/a.db").close()
        return Path(directory, "a.db").read_bytes()


@contextmanager
def inside(path: Path) -> Iterator[apsw.Connection]:
    """The database at a path, to write what no storage writes; its checksums are right."""
    with closing(apsw.Connection(str(path), vfs=checked_pages())) as db:
        db.pragma("synchronous", 0)
        yield db


def write(path: Path, journal: list[Record], rows: list[Row] | None = None, **said: Any) -> Path:
    """A file of these records, or of other rows; that of its run says what it is told to."""
    found = {
        "run_id": RUN,
        "name": "",
        "status": "running",
        "seq": journal[-1].header.seq if journal else 1,
        "digest": journal[-1].header.digest if journal else "",
        "latest": 1,
        "checkpoints": sum(record.header.frame != "note" for record in journal),
        "stored": 1,
        "started_at": MOMENT.isoformat(),
        "saved_at": MOMENT.isoformat(),
    } | said
    path.write_bytes(empty_storage())
    with inside(path) as db, db:
        db.execute(
            f"INSERT INTO runs({', '.join(found)}) VALUES ({', '.join('?' * len(found))})",
            tuple(found.values()),
        )
        for place, row in enumerate(rows_of(journal) if rows is None else rows, 1):
            digest, text, body, state = row
            values = (place, 1, place, state, 0, digest, text)
            db.execute("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            db.execute("INSERT INTO bodies VALUES (?, ?)", (place, body))
    return path


def alter(path: Path, change: Callable[[bytearray], None]) -> None:
    """Change the bytes of a file as one who knows its checksums."""
    data = bytearray(path.read_bytes())
    change(data)
    for start in range(0, len(data), PAGE):
        content = data[start : start + PAGE - 4]
        data[start + PAGE - 4 : start + PAGE] = crc32(content, start // PAGE).to_bytes(4, "big")
    path.write_bytes(data)


def schema_of(data: bytes) -> list[tuple[str, str]]:
    """The names and statements of what a database has."""
    with closing(apsw.Connection(":memory:")) as db:
        db.deserialize("main", data[:18] + b"\1\1" + data[20:])
        return list(db.execute("SELECT name, sql FROM sqlite_schema"))


def page_of(path: Path, table: str) -> int:
    """Where the first page of a table or index starts."""
    with inside(path) as db:
        root = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,)).get
    return (root - 1) * PAGE


def body_of(state: bytes) -> bytes:
    return b'{"state":%b,"patch":[]}' % state


# Each makes a file under a path, and gives what its refusal says.


def pages_in_a_circle(path: Path) -> str:
    """An index of 5 levels of which each page names the next 300 times: 10 ** 12 records."""
    write(path, chain([body_of(b'{"n":%d}' % n) for n in range(2000)]))
    root = page_of(path, "records_of_run")

    def change(data: bytearray) -> None:
        cells = int.from_bytes(data[root + 3 : root + 5], "big")
        assert data[root] == 2 and cells > 2
        first = int.from_bytes(data[root + 12 : root + 14], "big")
        leaf = data[root + first : root + first + 4]
        levels = [len(data) // PAGE + number for number in range(1, 5)]
        for number, level in enumerate(levels):
            page = bytearray(data[root : root + PAGE])
            below = leaf if level == levels[-1] else levels[number + 1].to_bytes(4, "big")
            page[8:12] = below
            for cell in range(cells):
                at = int.from_bytes(page[12 + 2 * cell : 14 + 2 * cell], "big")
                page[at : at + 4] = below
            data += page
        data[root : root + PAGE] = data[(levels[0] - 1) * PAGE : levels[0] * PAGE]
        data[28:32] = (len(data) // PAGE).to_bytes(4, "big")

    alter(path, change)
    return "more bytes than it has|more work|cannot be read"


def body_in_a_circle(path: Path) -> str:
    """A body of 100 kB that says it is ten times as long, and whose last page names its first."""
    write(path, chain([body_of(b'{"a":"%b"}' % (b"a" * 100_000))]))
    root = page_of(path, "bodies")

    def change(data: bytearray) -> None:
        def varint(number: int) -> bytes:
            return bytes([number >> 14 | 0x80, number >> 7 & 0x7F | 0x80, number & 0x7F])

        at = root + int.from_bytes(data[root + 8 : root + 10], "big")
        size = len(body_of(b'{"a":"%b"}' % (b"a" * 100_000)))
        header = bytes([5, 0]) + varint(2 * size + 12)
        assert data[at + 4 : at + 9] == header
        data[at : at + 3] = varint(1_000_005)
        data[at + 6 : at + 9] = varint(2 * 1_000_000 + 12)
        page = data.index(b"a" * 4000, root + PAGE) // PAGE * PAGE
        first = page // PAGE + 1
        while following := int.from_bytes(data[page : page + 4], "big"):
            page = (following - 1) * PAGE
        data[page : page + 4] = first.to_bytes(4, "big")

    alter(path, change)
    return "more bytes than it has|cannot be read"


def bomb_in_a_body(path: Path) -> str:
    text = body_of(b'{"a":"%b"}' % (b"a" * (60 << 20)))
    body = compress(text, "zstd")
    assert len(text) > 1000 * len(body)
    write(path, chain([body]))
    return "times its size"


def bombs_in_many_bodies(path: Path) -> str:
    """Each a little below a MiB, which one alone may be."""
    body = compress(body_of(b'{"a":"%b"}' % (b"a" * 1_000_000)), "zstd")
    write(path, chain([body] * 400))
    return "times its size"


def gzip_bomb_in_a_body(path: Path) -> str:
    body = compress(body_of(b'{"a":"%b"}' % (b"a" * (60 << 20))), "gzip")
    write(path, chain([body]))
    return "unpacks to"


def many_tables(path: Path) -> str:
    write(path, chain([body_of(b"{}")]))
    with inside(path) as db, db:
        for number in range(6000):
            db.execute(f"CREATE TABLE a{number}(b)")
    return "more work"


def table_of_its_own(path: Path) -> str:
    write(path, chain([body_of(b"{}")]))
    with inside(path) as db:
        db.execute("CREATE TABLE more(a, b AS (a || a))")
    return "other tables"


def view_for_a_table(path: Path) -> str:
    write(path, chain([body_of(b"{}")]))
    with inside(path) as db:
        db.execute("ALTER TABLE bodies RENAME TO others")
        db.execute(
            "CREATE VIEW bodies AS WITH RECURSIVE a(ord, body) AS"
            " (SELECT 1, x'' UNION ALL SELECT ord + 1, body || zeroblob(1000) FROM a)"
            " SELECT * FROM a"
        )
    return "other tables"


def trigger_of_its_own(path: Path) -> str:
    write(path, chain([body_of(b"{}")]))
    with inside(path) as db:
        db.execute("CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM runs; END")
    return "other tables"


def deep_schema(path: Path) -> str:
    write(path, chain([body_of(b"{}")]))
    with inside(path) as db:
        db.execute(f"CREATE TABLE more(a CHECK({'abs(' * 90}1{')' * 90}))")
    return "other tables|cannot be read"


def log_beside_it(path: Path) -> str:
    write(path, chain([body_of(b"{}")]))
    Path(f"{path}-wal").write_bytes(b"a log")
    return "was not closed"


def deep_state(path: Path) -> str:
    deep = b'{"a":%b%b}' % (b"[" * 100_000, b"]" * 100_000)
    write(path, chain([body_of(deep)]))
    return "nested deeper"


def deep_compressed_state(path: Path) -> str:
    deep = b'{"a":%b%b}' % (b'{"a":' * 100_000, b"1" + b"}" * 100_000)
    write(path, chain([compress(body_of(deep), "zstd")]))
    return "nested deeper|times its size"


def deep_header(path: Path) -> str:
    record = chain([body_of(b"{}")])[0]
    deep = b"[" * 100_000 + b"]" * 100_000
    text = record.text[:-1] + b',"metadata":{"a":%b}}' % deep
    digest = hashlib.sha256(text).hexdigest()[:32]
    write(path, [record], [(bytes.fromhex(digest), text.decode(), record.body, 0)], digest=digest)
    return "nested deeper|times its size"


def deep_patch(path: Path) -> str:
    key, _ = chain([body_of(b'{"a":[]}'), b""])
    deep = b"[" * 100_000 + b"]" * 100_000
    body = b'{"patch":[{"op":"add","path":"/a/-","value":%b}]}' % deep
    fields = {"run_id": RUN, "id": "c2", "saved_at": MOMENT}
    header = Header(**fields, frame="delta", seq=2, base_seq=1, key_seq=1)
    write(path, [key, seal(header, body, prev=key.header.digest)])
    return "nested deeper|times its size"


def symlink(path: Path) -> str:
    write(path.with_suffix(".real"), chain([body_of(b"{}")]))
    path.symlink_to(path.with_suffix(".real"))
    return "symbolic link"


def absolute_path(path: Path) -> str:
    write(path, chain([body_of(b"{}")], run_id="/etc/cron.d/x"), run_id="/etc/cron.d/x")
    return "a path for a run_id"


def path_that_climbs(path: Path) -> str:
    write(path, chain([body_of(b"{}")], name="../../x"), name="../../x")
    return "a path for a name"


def path_in_a_record(path: Path) -> str:
    write(path, chain([body_of(b"{}")], name="/etc/passwd"))
    return "a path for a name"


def truncated(path: Path) -> str:
    states = (body_of(b'{"a":"%d"}' % n + b" " * 5000) for n in range(2000))
    data = write(path, chain(states)).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return "cut short"


def truncated_inside(path: Path) -> str:
    """The middle is missing, and the end is there."""
    data = write(path, chain([body_of(b'{"a":%d}' % n) for n in range(2000)])).read_bytes()
    path.write_bytes(data[: len(data) // 8192 * PAGE] + data[-PAGE:])
    return "cut short"


def branches_without_end(path: Path) -> str:
    """Thousands of deltas, and thousands of branches that begin at the last of them."""
    records = chain([body_of(b'{"a":[]}')])
    patch = b'{"patch":[{"op":"add","path":"/a/-","value":1}]}'
    for seq in range(2, 8000):
        base = seq - 1 if seq < 4000 else 3999
        header = Header(
            run_id=RUN,
            id=f"c{seq}",
            saved_at=MOMENT,
            frame="delta",
            seq=seq,
            base_seq=base,
            key_seq=1,
        )
        records.append(seal(header, patch, prev=records[-1].header.digest))
    write(path, records)
    return "more work|times its size"


HOSTILE: list[Callable[[Path], str]] = [
    pages_in_a_circle,
    body_in_a_circle,
    bomb_in_a_body,
    bombs_in_many_bodies,
    gzip_bomb_in_a_body,
    many_tables,
    table_of_its_own,
    view_for_a_table,
    trigger_of_its_own,
    deep_schema,
    log_beside_it,
    deep_state,
    deep_compressed_state,
    deep_header,
    deep_patch,
    symlink,
    absolute_path,
    path_that_climbs,
    path_in_a_record,
    truncated,
    truncated_inside,
]

CHILD = """
import json, pathlib, sys, time
from surehold import CheckpointManager
from surehold.errors import SureholdError
from surehold.storage.base import RunQuery

with CheckpointManager(sys.argv[1]) as manager:
    list(manager.storage.runs(RunQuery()))
    began = time.process_time()
    try:
        manager.import_run(pathlib.Path(sys.argv[2]))
        error = None
    except SureholdError as refused:
        error = refused
    seconds = time.process_time() - began
    runs = len(list(manager.storage.runs(RunQuery())))
for line in open("/proc/self/status"):
    if line.startswith("VmHWM:"):
        kilobytes = int(line.split()[1])
told = {"kind": type(error).__name__, "text": str(error), "seconds": seconds}
print(json.dumps({**told, "mebibytes": kilobytes / 1024, "runs": runs}))
"""


@pytest.mark.parametrize(
    ("hostile", "address"),
    crossed(HOSTILE, ("sqlite:///{}/runs.db", "file://{}/runs")),
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_a_hostile_file_is_refused_within_a_second_and_128_mib_without_a_trace(
    hostile: Callable[[Path], str], address: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    folder, home = tmp_path / "files", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    path = folder / "hostile.surehold"
    says = hostile(path)
    files = sorted(os.listdir(folder))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, address.format(home), str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=500,
    )
    told = json.loads(done.stdout)
    cost = {"seconds": told["seconds"], "mebibytes": told["mebibytes"]}
    what = f"a bomb or a hostile file, {address.partition(':')[0]}"
    finding(what, 1, "refused, in {seconds:.2f} s and {mebibytes:.0f} MiB at most", **cost)
    assert told["kind"] in ("CorruptError", "DataError")
    assert any(part in told["text"] for part in says.split("|")), told["text"]
    assert told["seconds"] < 1
    assert told["mebibytes"] < 128
    assert told["runs"] == 0
    assert sorted(os.listdir(folder)) == files
    left = {str(one.relative_to(home)) for one in home.rglob("*")}
    assert not any(RUN in name or "hostile" in name for name in left)


@pytest.fixture
def manager() -> Iterable[CheckpointManager]:
    with CheckpointManager("memory://") as opened:
        yield opened


def runs(manager: CheckpointManager) -> int:
    return len(list(manager.storage.runs(RunQuery())))


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_no_byte_of_a_file_can_be_changed_unnoticed(key: str | None, tmp_path: Path) -> None:
    with (
        CheckpointManager("memory://", encryption_key=key) as source,
        CheckpointManager("memory://", encryption_key=key) as target,
    ):
        state = State.new({"messages": ["one"]}, run_id=RUN)
        source.save_checkpoint(state)
        source.save_checkpoint(state.append("messages", "two").at(step=1))
        path = tmp_path / "a.surehold"
        source.export_run(RUN, path)
        data = path.read_bytes()
        for place in range(len(data)):
            start = place // PAGE * PAGE
            page = bytearray(data[start : start + PAGE])
            page[place - start] ^= 0x04
            assert not page_matches(bytes(page), start // PAGE)
            if place % 61 == 0 or place < 100:
                path.write_bytes(data[:start] + page + data[start + PAGE :])
                with pytest.raises((DataError, WrongKeyError)):
                    target.import_run(path)
        for length in range(0, len(data), 511):
            path.write_bytes(data[:length])
            with pytest.raises(DataError):
                target.import_run(path)
        assert runs(target) == 0
        path.write_bytes(data)
        target.import_run(path)
        assert target.resume_from_latest(RUN)["messages"] == ["one", "two"]


def test_no_byte_can_be_changed_by_one_who_knows_the_checksums_either(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    """Whatever is in a record, the answer is a run that loads or an error of ours."""
    records = chain([body_of(b'{"a":[1,{"b":"c"}]}'), body_of(b'{"a":"d"}')])
    imported = 0
    for number, record in enumerate(records):
        for place in range(len(record.text)):
            for flip in (0x01, 0x10):
                text = bytearray(record.text)
                text[place] ^= flip
                parts = [
                    (bytes(text), record.body) if n == number else (r.text, r.body)
                    for n, r in enumerate(records)
                ]
                digests = [hashlib.sha256(text).digest()[:16] for text, _ in parts]
                try:
                    rows = [
                        (digest, text.decode(), body, 0)
                        for digest, (text, body) in zip(digests, parts, strict=True)
                    ]
                except UnicodeDecodeError:
                    continue
                path = write(tmp_path / "a", records, rows, digest=digests[-1].hex())
                try:
                    run_id = manager.import_run(path, f"run{imported}")
                except SureholdError:
                    continue
                imported += 1
                manager.resume_from_latest(run_id)
                assert not manager.verify(run_id)[0].problems
    assert imported


@pytest.mark.parametrize(
    "patch",
    [
        b'[{"op":"add","path":"/a/-"}]',
        b'[{"op":"move","path":"/a","value":1}]',
        b'[{"op":"add","path":"/a/b/c","value":1}]',
        b'[{"op":"remove","path":"/nothing"}]',
        b'[{"op":"replace","path":"/a/99","value":1}]',
        b'[{"op":"add","path":"/t/0","value":1}]',
        b'{"op":"add"}',
        b"[1]",
    ],
)
def test_a_delta_that_does_not_fit_is_refused(
    manager: CheckpointManager, tmp_path: Path, patch: bytes
) -> None:
    key = chain([body_of(b'{"a":[1],"t":"text"}')])[0]
    header = Header(
        run_id=RUN, id="c2", saved_at=MOMENT, frame="delta", seq=2, base_seq=1, key_seq=1
    )
    delta = seal(header, b'{"patch":%b}' % patch, prev=key.header.digest)
    with pytest.raises(CorruptError, match="record 2"):
        manager.import_run(write(tmp_path / "a", [key, delta]))
    assert runs(manager) == 0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"saved_at": datetime(2026, 5, 1)}, "sealed|seals"),
        ({"step": 1 << 60}, "number"),
        ({"id": ""}, "id is empty"),
        ({"id": "a\0b"}, "NUL"),
        ({"frame": "delta"}, "without a base"),
        ({"frame": "delta", "base_seq": 7, "key_seq": 7}, "without a base"),
        ({"frame": "note", "kind": "prune"}, "note"),
        ({"frame": "note", "kind": "key"}, "encrypted|note"),
        ({"frame": "note", "kind": "pin", "metadata": {"target": "x"}}, "note"),
    ],
)
def test_a_record_that_no_writer_writes_is_refused(
    manager: CheckpointManager, tmp_path: Path, fields: dict[str, Any], says: str
) -> None:
    path = write(tmp_path / "a", chain([body_of(b"{}")], **fields))
    with pytest.raises(CorruptError) as caught:
        manager.import_run(path)
    assert any(part in str(caught.value) for part in says.split("|")), str(caught.value)
    assert runs(manager) == 0


def test_records_that_are_missing_must_be_accounted_for(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    records = chain([body_of(b'{"n":%d}' % n) for n in range(4)])
    with pytest.raises(CorruptError, match="records 2 to 3"):
        manager.import_run(write(tmp_path / "a", [records[0], records[3]]))
    with pytest.raises(CorruptError, match="out of order"):
        manager.import_run(write(tmp_path / "a", [records[0], records[2], records[1]]))
    with pytest.raises(CorruptError, match="does not follow"):
        other = chain([body_of(b'{"x":1}')] * 2)
        manager.import_run(write(tmp_path / "a", [records[0], other[1]]))
    assert runs(manager) == 0


@pytest.mark.parametrize(
    "said",
    [
        {"seq": 1},
        {"seq": 3},
        {"digest": "0" * 32},
        {"digest": b"0"},
        {"checkpoints": 1},
        {"run_id": "other"},
        {"run_id": "a\0b"},
        {"run_id": b"nightly"},
        {"seq": "many"},
    ],
)
def test_a_run_that_is_not_as_its_row_says_is_found_out(
    manager: CheckpointManager, tmp_path: Path, said: dict[str, Any]
) -> None:
    path = write(tmp_path / "a", chain([body_of(b"{}"), body_of(b'{"a":1}')]), **said)
    with pytest.raises(DataError):
        manager.import_run(path)
    assert runs(manager) == 0


@pytest.mark.parametrize("row", [(1, None), (1, 5), (2, None), (0, "text"), (0, None), (3, "x")])
def test_a_row_that_is_no_record_is_refused(
    manager: CheckpointManager, tmp_path: Path, row: tuple[int, Any]
) -> None:
    path = write(tmp_path / "a", chain([body_of(b"{}")]))
    column = ("digest", "header", "body", "state")[row[0]]
    with inside(path) as db:
        db.pragma("writable_schema", True)
        db.execute("UPDATE sqlite_schema SET sql = replace(sql, ' NOT NULL', '')")
    with inside(path) as db:
        table = "bodies" if column == "body" else "records"
        db.execute(f"UPDATE {table} SET {column} = ?", (row[1],))
        db.pragma("writable_schema", True)
        made = {name: sql for name, sql in schema_of(empty_storage())}
        for name, sql in made.items():
            db.execute("UPDATE sqlite_schema SET sql = ? WHERE name = ?", (sql, name))
    with pytest.raises(CorruptError):
        manager.import_run(path)
    assert runs(manager) == 0


def test_a_file_of_no_run_or_of_several_is_refused(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    (tmp_path / "none").write_bytes(empty_storage())
    with CheckpointManager(f"sqlite:///{tmp_path}/two") as two:
        for run_id in ("a", "b"):
            two.save_checkpoint(State.new({}, run_id=run_id))
    for name in ("none", "two"):
        with pytest.raises(CorruptError, match="not of one run") as caught:
            manager.import_run(tmp_path / name)
        assert "copy --to URL" in caught.value.hint


def test_what_is_no_file_of_ours_is_refused(manager: CheckpointManager, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("SQLite format 3 of the mill\n" * 10)
    newer = write(tmp_path / "newer", chain([body_of(b"{}")]))
    with inside(newer) as db:
        db.pragma("user_version", 1000)
    with closing(apsw.Connection(str(tmp_path / "foreign"))) as db:
        db.execute("CREATE TABLE records(a)")
    with pytest.raises(NotFoundError):
        manager.import_run(tmp_path / "nothing")
    for name in ("fifo", "empty", "text", "foreign"):
        with pytest.raises(CorruptError):
            manager.import_run(tmp_path / name)
    with pytest.raises(SchemaError, match="newer"):
        manager.import_run(newer)
    with pytest.raises(SureholdError):
        manager.import_run(tmp_path)
    with pytest.raises(SureholdError):
        manager.import_run("/dev/zero")


def test_limits_are_as_wide_as_they_are_told_to_be(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    path = write(tmp_path / "a", chain([body_of(b'{"n":%d}' % n) for n in range(20)]))
    narrow = [
        ImportLimits(records=19),
        ImportLimits(total_bytes=1000),
        ImportLimits(record_bytes=100),
        ImportLimits(depth=1),
    ]
    for limits in narrow:
        with pytest.raises(DataError) as caught:
            manager.import_run(path, limits=limits)
        assert f"ImportLimits({caught.value.limit}=" in caught.value.hint
    assert runs(manager) == 0
    manager.import_run(path, limits=ImportLimits(records=20))
    state = b'{"a":"%b"}' % (b"a" * (4 << 20))
    body = compress(body_of(state), "zstd")
    bomb = write(tmp_path / "b", chain([body], run_id="big", size=len(state)), run_id="big")
    with pytest.raises(DataError):
        manager.import_run(bomb)
    manager.import_run(bomb, limits=ImportLimits(ratio=100_000))
    assert len(manager.resume_from_latest("big")["a"]) == 4 << 20


def test_branches_are_followed_but_not_without_end(
    manager: CheckpointManager, tmp_path: Path
) -> None:
    path = tmp_path / "a"
    branches_without_end(path)
    limits = ImportLimits(ratio=100_000)
    with pytest.raises(DataError, match="more work"):
        manager.import_run(path, limits=limits)
    assert runs(manager) == 0
