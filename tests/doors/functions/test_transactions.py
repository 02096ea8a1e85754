"""A step in the user's own transaction: rows and outcome in one commit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sqlalchemy import create_engine
from sqlalchemy import text as sql
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool
from tests.servers import postgres

import surehold
from surehold import MemoryStorage
from surehold.errors import EncodeError, UsageError

ROWS = "rows_of_the_user"


class Crash(BaseException):
    pass


class Shop(NamedTuple):
    """A database of the user's, and how a step reaches it."""

    source: Any
    query: Callable[[str], Any]
    awaited: bool


@contextmanager
def on_sqlite(path: Path, kind: str) -> Iterator[Shop]:
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    sources: dict[str, Callable[[], Any]] = {
        "sqlite3": lambda: lambda: sqlite3.connect(path),
        "engine": lambda: engine,
        "sessions": lambda: sessionmaker(engine),
        "async engine": lambda: create_async_engine(
            f"sqlite+aiosqlite:///{path}", poolclass=NullPool
        ),
        "async sessions": lambda: async_sessionmaker(
            create_async_engine(f"sqlite+aiosqlite:///{path}", poolclass=NullPool)
        ),
    }

    def query(statement: str) -> Any:
        with engine.begin() as connection:
            found = connection.execute(sql(statement))
            return found.fetchall() if found.returns_rows else None

    yield Shop(sources[kind](), query, kind.startswith("async"))
    engine.dispose()


@contextmanager
def on_postgres(schema: str, kind: str) -> Iterator[Shop]:
    import psycopg
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

    url = postgres().url
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {schema}")
    options = {"options": f"-c search_path={schema}"}
    engine = create_engine(
        url.replace("postgresql://", "postgresql+psycopg://"), connect_args=options
    )

    def query(statement: str) -> Any:
        with engine.begin() as connection:
            found = connection.execute(sql(statement))
            return found.fetchall() if found.returns_rows else None

    if kind == "pool":
        with ConnectionPool(url, kwargs=options, min_size=1) as pool:
            yield Shop(pool, query, False)
    elif kind == "connect":
        yield Shop(lambda: psycopg.connect(url, **options), query, False)
    elif kind == "async pool":

        async def connect() -> Any:
            return await psycopg.AsyncConnection.connect(url, **options)

        assert AsyncConnectionPool  # a pool belongs to one loop: the function stands for it
        yield Shop(connect, query, True)
    else:
        yield Shop(engine, query, False)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"DROP SCHEMA {schema} CASCADE")
    engine.dispose()


ON_SQLITE = ["sqlite3", "engine", "sessions", "async engine", "async sessions"]
ON_POSTGRES = ["pool", "connect", "async pool", "postgres engine"]


@pytest.fixture(params=[*ON_SQLITE, *ON_POSTGRES])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    schema = f"shop_{tmp_path.name[-30:]}".replace("-", "_").replace(".", "_").lower()
    made = (
        on_sqlite(tmp_path / "shop.db", request.param)
        if request.param in ON_SQLITE
        else on_postgres(schema, request.param)
    )
    with made as found:
        found.query(f"CREATE TABLE {ROWS}(number INTEGER)")
        yield found


class Job:
    """A workflow whose one step writes a row, and can be made to misbehave."""

    def __init__(self, shop: Shop) -> None:
        self.storage = MemoryStorage()
        self.calls = 0
        self.before_commit: Callable[[], None] = lambda: None
        self.after_commit: Callable[[], None] = lambda: None
        self.returns: Any = None
        insert = f"INSERT INTO {ROWS}(number) VALUES (7)"
        statement = sql(insert) if "sqlalchemy" in type(shop.source).__module__ else insert

        if shop.awaited:

            @surehold.step(transaction=shop.source)
            async def awrite(connection: Any, number: int) -> Any:
                self.calls += 1
                await connection.execute(statement)
                self.before_commit()
                return self.returns or number

            @surehold.workflow(name="job")
            async def ajob() -> Any:
                return await awrite(7)

            self.start: Callable[[], Any] = lambda: (
                asyncio.run(ajob.run(run_id="r", storage=self.storage)).value
            )
        else:

            @surehold.step(transaction=shop.source)
            def write(connection: Any, number: int) -> Any:
                self.calls += 1
                connection.execute(statement)
                self.before_commit()
                return self.returns or number

            @surehold.workflow(name="job")
            def job() -> Any:
                return write(7)

            self.start = lambda: job.run(run_id="r", storage=self.storage).value

        append = self.storage.append

        def died_first(batches: Any) -> Any:
            kinds = [record.header.kind for batch in batches for record in batch.records]
            if "effect" in kinds:
                self.after_commit()
            return append(batches)

        self.storage.append = died_first  # type: ignore[method-assign]


def crash() -> None:
    raise Crash


def count(shop: Shop) -> int:
    return int(shop.query(f"SELECT count(*) FROM {ROWS}")[0][0])


def test_rows_and_outcome_are_there_once_whenever_the_process_died(shop: Shop) -> None:
    job = Job(shop)
    job.before_commit = crash
    with pytest.raises(Crash):
        job.start()
    assert count(shop) == 0, "rolled back"
    job.before_commit = lambda: None
    job.after_commit = crash
    with suppress(Crash):
        job.start()
    assert (count(shop), job.calls) == (1, 2), "committed, and the journal does not know"
    job.after_commit = lambda: None
    assert job.start() == 7
    assert job.start() == 7, "replayed by the journal"
    assert (count(shop), job.calls) == (1, 2)
    assert surehold.pending(storage=job.storage) == []


def test_a_failure_rolls_back_and_so_does_a_result_that_cannot_be_stored(shop: Shop) -> None:
    def fail() -> None:
        raise ValueError("no")

    job = Job(shop)
    job.before_commit = fail
    with pytest.raises(ValueError, match="no"):
        job.start()
    assert count(shop) == 0
    job.before_commit, job.returns = lambda: None, threading.Lock()
    with pytest.raises(EncodeError):
        job.start()
    assert count(shop) == 0
    job.returns = None
    assert job.start() == 7
    assert count(shop) == 1


@pytest.mark.parametrize("kind", ["sqlite3", "pool"])
def test_two_executions_of_one_call_at_once_write_one_row(kind: str, tmp_path: Path) -> None:
    """A process that lost its lease in the middle, and its successor."""
    made = (
        on_sqlite(tmp_path / "shop.db", kind)
        if kind == "sqlite3"
        else on_postgres(f"both_{threading.get_native_id()}", kind)
    )
    with made as shop:
        shop.query(f"CREATE TABLE {ROWS}(number INTEGER)")
        inside, others = threading.Event(), []
        first, second = Job(shop), Job(shop)

        def meanwhile() -> None:
            thread = threading.Thread(target=lambda: others.append(second.start()))
            thread.start()
            others.append(thread)
            inside.wait(0.3)

        first.before_commit = meanwhile
        assert first.start() == 7
        others[0].join()
        assert others[1:] == [7]
        assert (count(shop), second.calls) == (1, 0)


def test_outside_a_run_it_is_a_plain_transaction(tmp_path: Path) -> None:
    with on_sqlite(tmp_path / "shop.db", "engine") as shop:
        shop.query(f"CREATE TABLE {ROWS}(number INTEGER)")

        @surehold.step(transaction=shop.source)
        def write(connection: Any, number: int, *, fails: bool = False) -> int:
            connection.execute(sql(f"INSERT INTO {ROWS} VALUES ({number})"))
            if fails:
                raise ValueError
            return number

        assert write(3) == 3
        with pytest.raises(ValueError):
            write(4, fails=True)
        assert count(shop) == 1
        assert shop.query("SELECT count(*) FROM surehold_outcomes") == [(0,)]


def test_a_step_that_commits_itself_is_told(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"

    @surehold.step(transaction=lambda: sqlite3.connect(path))
    def write(connection: sqlite3.Connection) -> None:
        connection.execute("CREATE TABLE t(x)")
        connection.commit()

    with pytest.raises(UsageError, match="ended its transaction itself"):
        write()


def test_what_cannot_be_a_source_is_refused_where_the_step_is_defined(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    engine = create_engine("sqlite://")

    def plain(connection: Any) -> None: ...

    async def awaited(connection: Any) -> None: ...

    for source, function, said in (
        ("sqlite:///shop.db", plain, "transaction is 'sqlite:///shop.db'"),
        (connection, plain, "transaction is"),
        (engine, awaited, "and the step is async"),
        (create_async_engine("sqlite+aiosqlite://"), plain, "and the step is not async"),
        (engine, lambda: None, "takes no connection"),
    ):
        with pytest.raises(UsageError, match=said):
            surehold.step(transaction=source, name="write")(function)
    with pytest.raises(UsageError, match="in_doubt='ask'"):
        surehold.step(transaction=engine, in_doubt="ask")(plain)
    connection.close()
