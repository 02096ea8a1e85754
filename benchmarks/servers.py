"""PostgreSQL and Valkey: a save beside a bare commit, bytes, pages, and LangGraph's saver.

The servers are real, start here with their default durability, and keep their data on the disk.
LangGraph's saver for Redis needs modules that neither Valkey nor Debian's Redis has: it is not
measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from tests.servers import Postgres, Redis, valkey_program

from benchmarks.langgraph import LangGraphRun, faster, messages_of, turns
from benchmarks.report import Line
from benchmarks.scale import Work, fill
from benchmarks.workload import Times, content_of, message, text_of
from holdfast import CheckpointManager, State
from holdfast.storage.base import Storage

__all__ = ["measure"]

_PLACES = (100, 1000)
_AROUND = 50
_STEPS = 1000
_LAST = 100
_FEW, _MANY = 100, 100_000
_TURNS = 60


def measure(directory: Path) -> Iterator[Line]:
    """Measure on PostgreSQL, then on Valkey."""
    directory.chmod(0o755)
    with ExitStack() as stack:
        postgres = Postgres(directory / "postgres").start()
        stack.callback(postgres.stop)
        yield from _saves(postgres)
        yield from _beside_langgraph(postgres)
        yield from _pages(postgres)
        valkey = Redis(
            *(valkey_program(), directory / "valkey", "appendonly yes", "appendfsync always")
        )
        stack.callback(valkey.stop)
        yield from _on_valkey(valkey.start())


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

    from holdfast.integrations.langgraph.saver import HoldfastSaver

    messages = messages_of(_STEPS)
    with ExitStack() as stack:
        db = stack.enter_context(psycopg.connect(server.url, autocommit=True))
        db.execute("CREATE DATABASE theirs")
        address = server.url.replace("/postgres?", "/theirs?")
        theirs = stack.enter_context(PostgresSaver.from_conn_string(address))
        theirs.setup()
        ours = stack.enter_context(HoldfastSaver(f"{server.url}&schema=ours"))
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


def _pages(server: Postgres) -> Iterator[Line]:
    """Compare reads with 100,000 checkpoints to the same with 100, in turns."""
    times = Times()
    with ExitStack() as stack:
        work = {}
        for count in (_FEW, _MANY):
            manager = CheckpointManager(stack.enter_context(_open(server, f"pages{count}")))
            fill(manager, count)
            work[count] = Work(manager)
        for turn in range(_TURNS):
            for count in (_FEW, _MANY) if turn % 2 else (_MANY, _FEW):
                for name, call in work[count].reads().items():
                    times.time(f"{name} {count}", call)
        for name in work[_FEW].reads():
            few, many = f"{name} {_FEW}", f"{name} {_MANY}"
            yield Line(
                f"PostgreSQL: {name}, with {_MANY:,} / with {_FEW}",
                times.ratio(many, few),
                1.5,
                note=f"{times.median(many) * 1e3:.2f} ms",
            )


def _on_valkey(server: Redis) -> Iterator[Line]:
    """Save 1,000 steps, then some more in turns with one `HSET` of the message alone."""
    import redis

    from holdfast.storage.redis import RedisStorage

    times, used = Times(), 0
    with (
        redis.Redis(unix_socket_path=server.socket, protocol=2) as client,
        RedisStorage(server.url) as storage,
    ):
        manager = CheckpointManager(storage)
        messages = [message(number) for number in range(_STEPS + _LAST)]
        state = State.new({"messages": []}, run_id="run")
        before = int(client.info("memory")["used_memory"])
        for step, item in enumerate(messages, 1):
            state = state.append("messages", item).at(step=step)
            times.time("save", partial(manager.save_checkpoint, state))
            if step == _STEPS:
                used = int(client.info("memory")["used_memory"]) - before
                times = Times()
            if step > _STEPS:
                times.time("bare", partial(client.hset, "bare", str(step), text_of(item)))
        note = f"{times.median('save') * 1e3:.2f} to {times.median('bare') * 1e3:.2f} ms"
        yield Line("Valkey: save / bare HSET, both synced", times.ratio("save", "bare"), note=note)
        what = f"Valkey: {_STEPS:,} appends of 1 KB: bytes of memory / content"
        yield Line(what, used / content_of(messages[:_STEPS]))


def _open(server: Postgres, schema: str) -> Storage:
    from holdfast.storage.postgres import PostgresStorage

    return PostgresStorage(server.url, schema=schema)


def _bytes(db: Any, schema: str) -> int:
    """Bytes of all tables and indexes of a schema."""
    row = db.execute(
        "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relkind IN ('r', 'S')",
        (schema,),
    ).fetchone()
    return int(row[0])
