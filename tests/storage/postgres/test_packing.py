"""Headers of notes and bodies take fewer bytes, and come back exactly or not at all."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from tests.servers import Postgres, postgres

import surehold
from surehold.core.records import Header, Record, new_id, open_header, seal, with_body
from surehold.errors import CorruptError
from surehold.storage.base import RecordQuery, RunQuery
from surehold.storage.postgres import PostgresStorage
from surehold.storage.postgres.packing import (
    pack_body,
    pack_header,
    unpack_body,
    unpack_header,
)
from surehold.testing import JournalWriter

BODY = (
    b'{"id":"nothing@1","name":"nothing","key":"a76beee8e3e1bcef35314fb972faa24d","args":'
    b'"5feceb66ffc86f38d952786c6d696c79","policy":"retry","began":"2026-11-19T17:40:18.905112Z",'
    b'"done":true,"value":{"ok":true},"seconds":0.0000831}'
)
NOON = datetime.datetime(2026, 11, 19, 12, tzinfo=datetime.UTC)


def note(body: bytes = BODY, **fields: object) -> Record:
    given = {
        "run_id": "run",
        "seq": 3,
        "id": new_id(1_795_110_395_681_000_000, b"12345678"),
        "frame": "note",
        "saved_at": NOON.replace(microsecond=120),
        "name": "no_op",
        "step": 1,
        "node": "",
        "kind": "effect",
        "epoch": 2,
    }
    return seal(Header(**{**given, **fields}), body, prev="ab" * 16)


UNUSUAL = {
    "a run with another alphabet": {"run_id": 'läuft "gut"\n\x7f'},
    "a whole second": {"saved_at": NOON},
    "a time long ago": {"saved_at": NOON.replace(year=1)},
    "another zone": {"saved_at": NOON.astimezone(datetime.timezone(datetime.timedelta(hours=2)))},
    "an id that is no UUID": {"id": "mine"},
    "an id in capitals": {"id": "01A1F4E5-0AC7-7F39-8079-2785D9EBBD4E"},
    "an id without dashes": {"id": "01a1f4e50ac77f3980792785d9ebbd4e"},
    "metadata and tags": {"metadata": {"a": {"b": "\x01\x02"}}, "tags": ("x", ',"step":')},
    "a checkpoint": {"frame": "key"},
    "no prev": {"seq": 1},
}


@pytest.mark.parametrize("fields", UNUSUAL.values(), ids=UNUSUAL)
def test_every_header_comes_back_exactly(fields: dict[str, object]) -> None:
    record = note(**fields)
    stored = pack_header(record.header, record.text)
    assert unpack_header(record.header.run_id, record.header.seq, stored) == record.text


def test_a_note_of_an_effect_takes_less_than_half() -> None:
    record = note()
    header, body = pack_header(record.header, record.text), pack_body(record.body)
    assert len(header) < len(record.text) / 2
    assert len(body) < len(record.body) * 0.6
    assert unpack_header("run", 3, header) == record.text
    assert unpack_body(body) == record.body


@pytest.mark.parametrize("size", [0, 1, 23, 24, 200, 4096, 4097, 100_000])
def test_every_body_comes_back_exactly(size: int) -> None:
    text = b'{"text":"' + b"again and " * (size // 10) + b'"}'
    for body in (text[:size], b"\x28\xb5\x2f\xfd" + text, b"SHE1" + text):
        assert unpack_body(pack_body(body)) == body


def test_what_was_changed_is_refused_and_never_fails_otherwise() -> None:
    record = note()
    header, body = pack_header(record.header, record.text), pack_body(record.body)
    for at in range(len(header)):
        damaged = header[:at] + bytes([header[at] ^ 1]) + header[at + 1 :]
        with pytest.raises(CorruptError):
            open_header(unpack_header("run", 3, damaged), record.header.digest)
    for at in range(len(body)):
        for damaged in (body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :], body[:at]):
            found = unpack_body(damaged)
            if found != record.body:  # a bit that zstd does not look at changes nothing
                with pytest.raises(CorruptError):
                    with_body(record.header, record.text, found)


@pytest.fixture
def server() -> Postgres:
    return postgres()


@pytest.fixture
def schema(server: Postgres) -> Iterator[str]:
    name = f"packing_{uuid4().hex[:12]}"
    yield name
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


@pytest.fixture
def storage(server: Postgres, schema: str) -> Iterator[PostgresStorage]:
    with PostgresStorage(server.url, schema=schema) as storage:
        yield storage


@surehold.step
def double(number: int) -> int:
    return 2 * number


@surehold.workflow
def doubled(upto: int) -> int:
    return sum(double(number) for number in range(upto))


def test_people_with_psql_see_what_readers_see(
    server: Postgres, schema: str, storage: PostgresStorage
) -> None:
    run_id = 'läuft "gut"'
    doubled.run(3, run_id=run_id, storage=storage)
    with psycopg.connect(server.url, autocommit=True) as db:
        shown = db.execute(
            f"SELECT run_id, seq, header, bytes FROM {schema}.readable ORDER BY seq"
        ).fetchall()
        packed = db.execute(
            f"SELECT count(*) FROM {schema}.records WHERE get_byte(header, 0) = 1"
            " AND get_byte(body, 0) = 2"
        ).fetchone()
    read = list(storage.read(run_id))
    assert packed == (3,)
    assert shown == [(run_id, one.header.seq, json.loads(one.text), len(one.body)) for one in read]
    [info] = storage.runs(RunQuery())
    assert info.stored == sum(len(record.body) for record in read)


def test_effects_are_found_without_rows_of_their_own(
    server: Postgres, schema: str, storage: PostgresStorage
) -> None:
    for run_id in ("one", "two"):
        doubled.run(5, run_id=run_id, storage=storage)
    with psycopg.connect(server.url, autocommit=True) as db:
        rows = db.execute(
            f"SELECT count(*) FROM {schema}.facets f"
            f" JOIN {schema}.records r USING (ord) WHERE r.state & 1 = 1"
        ).fetchone()
    assert rows == (0,)
    every = [one.header for run in ("two", "one") for one in [*storage.read(run)][::-1]]
    effects = [header for header in every if header.kind == "effect"]
    of_two = [header for header in effects if header.run_id == "two"]
    assert len(of_two) == 5
    assert list(storage.headers(RecordQuery(kind="effect", notes=True))) == effects
    query = RecordQuery(run_id="two", kind="effect", notes=True)
    assert list(storage.headers(query)) == of_two
    assert list(storage.notes(["two"], ["effect"], strict=True)) == of_two[::-1]
    for number, header in enumerate(every):
        before = RecordQuery(before=header.id, notes=True)
        assert list(storage.headers(before)) == every[number + 1 :]
    before = RecordQuery(run_id="two", before=of_two[1].id, kind="effect", notes=True)
    assert list(storage.headers(before)) == of_two[2:]


def test_a_run_whose_newest_record_is_a_packed_note_keeps_its_name_without_checkpoints(
    storage: PostgresStorage,
) -> None:
    writer = JournalWriter("run", name="agent")
    writer.save(storage)
    writer.save(storage, b"{}", frame="note", kind="effect")
    storage.delete("run", hide=[1])
    [info] = storage.runs(RunQuery())
    assert (info.name, info.status, info.checkpoints) == ("agent", "running", 0)


def test_bodies_are_stored_as_they_are_without_compression(server: Postgres, schema: str) -> None:
    with PostgresStorage(server.url, schema=schema, compress=False) as storage:
        doubled.run(2, run_id="run", storage=storage)
        bodies = [record.body for record in storage.read("run")]
    with psycopg.connect(server.url, autocommit=True) as db:
        rows = db.execute(f"SELECT body FROM {schema}.records ORDER BY seq").fetchall()
    assert [body for (body,) in rows] == bodies
