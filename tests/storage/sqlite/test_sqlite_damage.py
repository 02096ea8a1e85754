"""Damage to the database file is found, whatever it hits, or changes nothing that is read."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import apsw
import pytest

from surehold.core.records import Record
from surehold.errors import CorruptError, SureholdError
from surehold.storage.base import RecordQuery, RunQuery, this_process
from surehold.storage.sqlite.page_checksums import (
    PAGE,
    RESERVED,
    checked_pages,
    strictly_checked_pages,
)
from surehold.storage.sqlite.storage import SQLiteStorage
from surehold.testing import JournalWriter

EXHAUSTIVE = os.environ.get("SUREHOLD_EXHAUSTIVE") == "1"
HEADER = 100


def fill(path: Path) -> None:
    """A little of everything: notes, scopes, marks, a large body, hidden and erased records."""
    with SQLiteStorage(path) as storage:
        writers = [
            JournalWriter("run-a", name="agent"),
            JournalWriter("run-b", name="agent"),
            JournalWriter("run-c", name="other"),
        ]
        for n in range(6):
            for writer in writers:
                writer.save(
                    storage,
                    b'{"n":%d}' % n * 20,
                    node="ask",
                    frame="note" if n == 3 else "delta",
                    scope="inner" if n == 4 else "",
                    tags=("tag",) if n == 2 else (),
                    metadata={"key": n} if n % 2 else {},
                    status="completed" if n == 5 and writer is writers[0] else "running",
                )
        writers[0].save(storage, b"k" * 20_000)
        storage.delete("run-b", hide=[2])
        storage.delete("run-c", erase=[2, 3])
        storage.take_lease("run-a", this_process(), now=0, ttl=10)


def look(path: Path) -> list[Any]:
    """All that can be read."""
    with SQLiteStorage(path) as storage:
        headers = list(storage.headers(RecordQuery(notes=True)))
        seen: list[Any] = [headers, list(storage.runs(RunQuery()))]
        for name in ("agent", "other"):
            seen.append(list(storage.runs(RunQuery(name=name, not_status="completed"))))
            seen.append(list(storage.headers(RecordQuery(name=name))))
        for run_id in dict.fromkeys(("run-a", "run-b", "run-c", *storage.known_runs())):
            seen.append(list(storage.runs(RunQuery(run_id=run_id))))
            seen.append(list(storage.headers(RecordQuery(run_id=run_id))))
            seen.append(list(storage.headers(RecordQuery(run_id=run_id, scope="", limit=1))))
            seen.append(list(storage.headers(RecordQuery(run_id=run_id, scope="inner"))))
            seen.append(list(storage.read(run_id)))
            seen.append(storage.lease_of(run_id))
        seen.append(list(storage.headers(RecordQuery(tag="tag"))))
        seen.append(list(storage.headers(RecordQuery(status="completed"))))
        seen.append(list(storage.headers(RecordQuery(metadata={"key": 1}))))
        seen += [storage.find(header.id) for header in headers]
        seen.append(storage.find(headers[0].id[:4]))
        return seen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "runs.db"
    fill(path)
    return path


def silent(path: Path, damages: Iterable[tuple[str, bytes]], expected: list[Any]) -> list[str]:
    """The damages that are not reported and change what is read."""
    missed = []
    for what, data in damages:
        path.write_bytes(data)
        try:
            if look(path) != expected:
                missed.append(what)
        except SureholdError:
            pass
    return missed


def bits(size: int) -> Iterable[int]:
    """All bits of the file, or some of every page and one of every byte of the header."""
    if EXHAUSTIVE:
        return range(size * 8)
    chance = random.Random(20_260_101)
    return [
        *(byte * 8 + chance.randrange(8) for byte in range(HEADER)),
        *(
            chance.randrange(page * 8, (page + PAGE) * 8)
            for page in range(0, size, PAGE)
            for _ in range(12)
        ),
    ]


@pytest.mark.timeout(0 if EXHAUSTIVE else 120)
def test_every_flipped_bit_is_found_or_changes_nothing(path: Path) -> None:
    good, expected = path.read_bytes(), look(path)
    assert path.read_bytes() == good

    def flipped() -> Iterable[tuple[str, bytes]]:
        for bit in bits(len(good)):
            data = bytearray(good)
            data[bit // 8] ^= 1 << bit % 8
            yield f"bit {bit % 8} of byte {bit // 8}", data

    assert silent(path, flipped(), expected) == []


@pytest.mark.timeout(0 if EXHAUSTIVE else 120)
def test_no_page_with_a_flipped_bit_is_read(path: Path) -> None:
    """All bits of some pages, or of all: what SQLite itself is given of the file."""
    good = path.read_bytes()
    flags = [apsw.SQLITE_OPEN_MAIN_DB | apsw.SQLITE_OPEN_READONLY, 0]
    file = apsw.VFSFile(strictly_checked_pages(), str(path), flags)
    fd = os.open(path, os.O_WRONLY)
    for start in range(0, len(good), PAGE if EXHAUSTIVE else 20 * PAGE):
        page = good[start : start + PAGE - RESERVED] + bytes(RESERVED)
        assert file.xRead(PAGE, start) == page
        for byte in range(start, start + PAGE):
            for bit in range(8):
                os.pwrite(fd, bytes([good[byte] ^ 1 << bit]), byte)
                with pytest.raises(apsw.CorruptError):
                    file.xRead(PAGE, start)
            os.pwrite(fd, good[byte : byte + 1], byte)
    file.xClose()
    os.close(fd)


def test_every_cut_is_found(path: Path) -> None:
    good, expected = path.read_bytes(), look(path)
    ends = {*range(PAGE, len(good), PAGE), *(n * 997 for n in range(1, len(good) // 997))}
    for end in sorted(ends):
        path.write_bytes(good[:end])
        with pytest.raises(CorruptError):
            look(path)
    path.write_bytes(good)
    assert look(path) == expected


def test_pages_that_changed_places_are_found(path: Path) -> None:
    good, expected = path.read_bytes(), look(path)
    pages = [good[start : start + PAGE] for start in range(0, len(good), PAGE)]

    def mixed() -> Iterable[tuple[str, bytes]]:
        pairs = list(permutations(range(1, len(pages)), 2))
        for one, two in pairs if EXHAUSTIVE else random.Random(2).sample(pairs, 150):
            copied = [*pages[:two], pages[one], *pages[two + 1 :]]
            yield f"page {one} also at {two}", b"".join(copied)

    assert silent(path, mixed(), expected) == []


def pages_of(path: Path, table: str) -> list[int]:
    db = apsw.Connection(str(path), vfs=checked_pages())
    found = db.execute(
        "SELECT pageno - 1 FROM dbstat WHERE name = ? AND pagetype = 'leaf'", (table,)
    ).fetchall()
    db.close()
    return [page for (page,) in found]


@pytest.mark.parametrize("table", ["marks", "records_of_run", "runs", "erased"])
def test_the_damaged_file_is_named_and_left_as_it_is(path: Path, table: str) -> None:
    start = pages_of(path, table)[0] * PAGE
    data = bytearray(path.read_bytes())
    data[start + PAGE - 20] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="damaged") as caught:
        look(path)
    assert caught.value.path == str(path)
    assert path.read_bytes() == data


@pytest.mark.parametrize("table", ["records", "bodies"])
def test_damage_within_a_record_costs_no_other_record(path: Path, table: str) -> None:
    """Wherever the bit flips in the page: the record that holds it, or no one, is lost."""
    with SQLiteStorage(path) as storage:
        expected = {run: list(storage.read(run)) for run in ("run-a", "run-b", "run-c")}
    good, start = path.read_bytes(), pages_of(path, table)[0] * PAGE
    contained = 0
    for byte in range(start + 100, start + PAGE, 37):
        data = bytearray(good)
        data[byte] ^= 4
        path.write_bytes(data)
        try:
            with SQLiteStorage(path) as storage:
                whole = [record for run in expected for record in each(storage, run)]
        except CorruptError:
            continue  # it goes deeper than a record
        contained += 1
        every = [record for records in expected.values() for record in records]
        assert all(record in every for record in whole)
        assert len(whole) >= len(every) - 1
    assert contained > 60


def each(storage: SQLiteStorage, run_id: str) -> Iterable[Record]:
    """Every whole record, however many others are damaged."""
    for seq in range(1, 8):
        try:
            yield from storage.read(run_id, first=seq, last=seq)
        except CorruptError as error:
            if error.facts.get("run_id") is None:
                raise


def test_a_run_is_saved_and_repaired_beside_damage_in_a_record(path: Path) -> None:
    good = path.read_bytes()
    at = good.index(b'"ask"', pages_of(path, "records")[0] * PAGE)
    path.write_bytes(good[: at + 1] + b"A" + good[at + 2 :])
    with SQLiteStorage(path) as storage:
        assert storage.check_medium(repair=False)
        for run_id in storage.known_runs():
            JournalWriter.after(storage, run_id).save(storage)
        found = [storage.inspect(run_id) for run_id in storage.known_runs()]
        (damaged,) = [one for one in found if one is not None and one.problems]
        storage.rewrite(damaged.run_id, damaged.records, damaged.hidden, head=damaged.head)
        assert storage.check_medium(repair=False) == []
    look(path)


TAMPERINGS = {
    "a header changed": "UPDATE records SET header = replace(header, 'ask', 'axe') WHERE seq = 2",
    "a digest changed": "UPDATE records SET digest = zeroblob(16) WHERE seq = 2",
    "a record moved": "UPDATE records SET seq = 99 WHERE seq = 2",
    "a record given to another": "UPDATE records SET run = 2, seq = 7 WHERE run = 1 AND seq = 7",
    "a record gone": "DELETE FROM records WHERE run = 1 AND seq = 2",
    "the first record gone": "DELETE FROM records WHERE run = 1 AND seq = 1",
    "the newest record gone": "DELETE FROM records WHERE run = 1 AND seq = 7",
    "a body changed": "UPDATE bodies SET body = x'00' WHERE ord = 2",
    "a body that became text": "UPDATE bodies SET body = CAST(x'7bb5' AS TEXT) WHERE ord = 2",
    "a digest that became text": "UPDATE records SET digest = CAST(x'b5' AS TEXT) WHERE seq = 2",
    "a header that is no text": "UPDATE records SET header = CAST(x'7bb5' AS TEXT) WHERE seq = 2",
    "a name that is no text": "UPDATE runs SET name = CAST(x'b5' AS TEXT) WHERE pk = 2",
    "a body gone": "DELETE FROM bodies WHERE ord = 2",
    "bodies exchanged": "UPDATE bodies SET ord = CASE ord WHEN 1 THEN -4 WHEN 4 THEN -1 END"
    " WHERE ord IN (1, 4); UPDATE bodies SET ord = -ord WHERE ord < 0",
    "an older head": "UPDATE runs SET seq = 6 WHERE pk = 1",
    "another head": "UPDATE runs SET digest = 'x' WHERE pk = 1",
    "another status": "UPDATE runs SET status = 'failed' WHERE pk = 2",
    "another name": "UPDATE runs SET name = 'nobody' WHERE pk = 2",
    "another latest": "UPDATE runs SET latest = 5 WHERE pk = 1",
    "no such latest": "UPDATE runs SET latest = 99 WHERE pk = 1",
    "an erasure that was none": "DELETE FROM records WHERE run = 3 AND seq = 4",
    "runs exchanged": "UPDATE runs SET run_id = run_id || 'x'",
    "an id's mark moved": "UPDATE marks SET ord = 1 WHERE substr(key, 1, 1) = x'69' AND ord = 2",
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_rows_that_do_not_fit_together_are_found(path: Path, what: str) -> None:
    db = apsw.Connection(str(path), vfs=checked_pages())
    db.execute(TAMPERINGS[what])
    assert db.total_changes()
    db.close()
    with pytest.raises(CorruptError):
        look(path)


def test_a_damaged_record_is_named(path: Path) -> None:
    db = apsw.Connection(str(path), vfs=checked_pages())
    db.execute("UPDATE records SET header = '{}' WHERE run = 1 AND seq = 3")
    db.execute("DELETE FROM records WHERE run = 2 AND seq = 4")
    db.close()
    with SQLiteStorage(path) as storage:
        for run_id, seq in (("run-a", 3), ("run-b", 4)):
            for act in (
                lambda s, run_id=run_id: list(s.read(run_id)),
                lambda s, run_id=run_id: list(s.headers(RecordQuery(run_id=run_id))),
            ):
                with pytest.raises(CorruptError) as caught:
                    act(storage)
                assert (caught.value.run_id, caught.value.seq) == (run_id, seq)
        assert [record.header.seq for record in storage.read("run-a", first=4)] == [4, 5, 6, 7]


@pytest.mark.parametrize("how", ["hide", "erase", "delete"])
def test_a_damaged_record_can_be_taken_away(path: Path, how: str) -> None:
    db = apsw.Connection(str(path), vfs=checked_pages())
    db.execute("UPDATE records SET header = '{}' WHERE run = 1 AND seq = 3")
    db.close()
    with SQLiteStorage(path) as storage:
        if how == "delete":
            assert storage.delete("run-a") == 7
            assert [info.run_id for info in storage.runs(RunQuery())] == ["run-c", "run-b"]
        else:
            assert storage.delete("run-a", **{how: [3]}) == 1
            listed = [h.seq for h in storage.headers(RecordQuery(run_id="run-a"))]
            assert listed == [7, 6, 5, 2, 1]
        assert [h.run_id for h in storage.headers(RecordQuery(tag="tag"))] == ["run-b"]


def test_what_another_tool_wrote_is_read(path: Path) -> None:
    """A page without a checksum was not written here; its records still have their digests."""
    expected, good = look(path), path.read_bytes()
    pages = (good[start : start + PAGE - RESERVED] for start in range(0, len(good), PAGE))
    path.write_bytes(b"".join(page + bytes(RESERVED) for page in pages))
    assert look(path) == expected


def test_a_page_of_all_runs_is_listed_past_a_damaged_note(path: Path) -> None:
    with SQLiteStorage(path) as storage:
        JournalWriter.after(storage, "run-a").save(storage, frame="note", kind="pin")
    db = apsw.Connection(str(path), vfs=checked_pages())
    db.execute("UPDATE records SET header = '{}' WHERE header LIKE '%\"pin\"%'")
    assert db.total_changes()
    db.close()
    with SQLiteStorage(path) as storage:
        page = storage.page(RecordQuery(), notes=("pin",))
        assert page.headers == tuple(storage.headers(RecordQuery()))
        with pytest.raises(CorruptError):
            storage.page(RecordQuery(run_id="run-a"), notes=("pin",))
