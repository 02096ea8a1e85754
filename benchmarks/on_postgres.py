"""PostgreSQL: a save beside a bare commit, bytes, group commit, pages, and LangGraph's saver."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tests.servers import Postgres

from benchmarks.langgraph import LangGraphRun, faster, messages_of, turns
from benchmarks.report import Line
from benchmarks.scale import pages
from benchmarks.workload import Times, content_of, message, text_of
from surehold import CheckpointManager, State
from surehold.storage.base import Storage

__all__ = ["measure"]

_PLACES = (100, 1000)
_AROUND = 50
_STEPS = 1000
_LAST = 100
_RUNS = 64
_SAVES = 30


def measure(directory: Path) -> Iterator[Line]:
    """Measure on a server with its default settings, whose data are on the disk."""
    server = Postgres(directory / "postgres").start()
    try:
        yield from _saves(server)
        yield from _group_commit(server)
        yield from _beside_langgraph(server)
        with ExitStack() as stack:
            yield from pages("PostgreSQL", lambda n: stack.enter_context(_open(server, f"p{n}")))
    finally:
        server.stop()


def _saves(server: Postgres) -> Iterator[Line]:
    """Save 1,000 steps, each followed by an insert of its message alone, committed."""
    import psycopg

    messages = [message(number) for number in range(_PLACES[-1] + _AROUND)]
    taken = {place: Times() for place in _PLACES}
    with (
        psycopg.connect(server.url, autocommit=True, prepare_threshold=None) as db,
        _open(server, "saves") as storage,
    ):
        db.execute("CREATE TABLE bare(number bigserial PRIMARY KEY, body bytea NOT NULL)")
        bare = partial(db.execute, "INSERT INTO bare(body) VALUES (%s)")
        manager = CheckpointManager(storage)
        state = State.new({"messages": []}, run_id="run")
        for step, item in enumerate(messages, 1):
            state = state.append("messages", item).at(step=step)
            near = [times for place, times in taken.items() if abs(step - place) <= _AROUND]
            times = near[0] if near else Times()
            times.time("save", partial(manager.save_checkpoint, state))
            times.time("bare", partial(bare, (text_of(item),), binary=True))
        for place, times in taken.items():
            yield Line(
                f"PostgreSQL: save of step {place:,} / bare insert with commit",
                times.ratio("save", "bare"),
                1.6,
                note=f"{times.median('save') * 1e3:.2f} to {times.median('bare') * 1e3:.2f} ms",
            )
        size = _bytes(db, "saves") / content_of(messages)
        yield Line(f"PostgreSQL: {len(messages):,} appends of 1 KB: bytes / content", size, 3.5)


def _beside_langgraph(server: Postgres) -> Iterator[Line]:
    """Put the same steps with both savers in turns, then load and list."""
    import psycopg
    from langgraph.checkpoint.postgres import PostgresSaver

    from surehold.integrations.langgraph.saver import SureholdSaver

    messages = messages_of(_STEPS)
    with ExitStack() as stack:
        db = stack.enter_context(psycopg.connect(server.url, autocommit=True))
        db.execute("CREATE DATABASE theirs")
        address = server.url.replace("/postgres?", "/theirs?")
        theirs = stack.enter_context(PostgresSaver.from_conn_string(address))
        theirs.setup()
        ours = stack.enter_context(SureholdSaver(f"{server.url}&schema=ours"))
        runs = [LangGraphRun(theirs), LangGraphRun(ours)]
        for number in range(_STEPS):
            for run in runs:
                run.step(number, messages[: number + 1])
        for run in runs:
            assert run.latest().checkpoint["channel_values"]["messages"] == messages
        puts = [median(run.puts[-_LAST:]) for run in runs]
        yield faster(f"PostgreSQL: put, the last {_LAST} of {_STEPS:,} steps", puts, 1)
        yield faster("PostgreSQL: get_tuple, newest", turns([run.latest for run in runs], 31), 1)
        listings = [partial(run.listed, True) for run in runs]
        yield faster("PostgreSQL: list(limit=10)", turns(listings, 7), 1)
        content = sum(len(one.content) for one in messages)
        row = db.execute("SELECT pg_database_size('theirs')").fetchone()
        assert row is not None
        yield Line(
            f"PostgreSQL: {_STEPS:,} puts of 1 KB more: bytes / content",
            _bytes(db, "ours") / content,
            8,
            peers={"LangGraph": f"{row[0] / content:.0f}x"},
        )


def _group_commit(server: Postgres) -> Iterator[Line]:
    """Save from many runs at once, and read the server's own counter of commits.

    It counts reads and what makes the schema too.
    """
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("CREATE DATABASE grouped")
        with _open(server, "grouped", "grouped") as storage, CheckpointManager(storage) as manager:
            _save_at_once(manager)
        while db.execute("SELECT 1 FROM pg_stat_activity WHERE datname = 'grouped'").fetchone():
            time.sleep(0.01)  # a session counts when it ends
        counter = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'grouped'"
        row = db.execute(counter).fetchone()
        assert row is not None
    what = f"PostgreSQL: {_RUNS} runs at once: saves a commit"
    yield Line(what, _RUNS * _SAVES / row[0], 8, at_least=True, unit="")


def _save_at_once(manager: CheckpointManager) -> None:
    def work(number: int) -> None:
        state = State.new({"messages": []}, run_id=f"run-{number}")
        for step in range(1, _SAVES + 1):
            state = state.append("messages", message(step)).at(step=step)
            manager.save_checkpoint(state)

    with ThreadPoolExecutor(_RUNS) as pool:
        list(pool.map(work, range(_RUNS)))


def _open(server: Postgres, schema: str, database: str = "postgres") -> Storage:
    from surehold.storage.postgres import PostgresStorage

    return PostgresStorage(server.url.replace("/postgres?", f"/{database}?"), schema=schema)


def _bytes(db: Any, schema: str) -> int:
    """Bytes of all tables and indexes of a schema."""
    row = db.execute(
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relkind IN ('r', 'S')",
        (schema,),
    ).fetchone()
    return int(row[0])
