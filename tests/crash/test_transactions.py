"""Steps in a transaction of the user's own database, killed around the commit.

The user's table is the judge: each step has written one row, and the journal has what it says.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.crash.media import FULL, times
from tests.crash.processes import ForkServer
from tests.servers import postgres

import surehold
from surehold.storage.base import RecordQuery

KILLS = times(4, 500, "SUREHOLD_KILLS")
STEPS = 150 if FULL else 40

pytestmark = pytest.mark.timeout(7_200 if FULL else 600)


@pytest.mark.parametrize("medium", ["sqlite", "postgres"])
def test_a_killed_transaction_step_has_happened_exactly_when_its_rows_are_there(
    medium: str, tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"
    shop, schema, query = _shop(medium, tmp_path)
    chance, kills, between, runs = random.Random(medium), 0, 0, 0
    while kills < KILLS:
        run_id = f"run-{runs}"
        runs += 1
        while (
            value := _start(server, [run_id, storage, shop, schema], chance, kills < KILLS)
        ) is None:
            kills += 1
            rows = query(f"SELECT number, id FROM orders WHERE run = '{run_id}'")
            between += len(rows) > _recorded(storage, run_id)
            assert surehold.pending(storage=storage) == [], "no step is in doubt"
        rows = query(f"SELECT number, id FROM orders WHERE run = '{run_id}' ORDER BY number")
        assert [number for number, _ in rows] == [*range(STEPS)], "each step wrote one row"
        assert value == [id for _, id in rows], "and the journal has what it says"
    finding(
        f"kill -9 around the commit of a transaction step, {medium}",
        kills,
        f"{between} between the commit and its record; {runs} runs of {STEPS} steps: rows and"
        " journal agree, none in doubt",
    )


def _start(
    server: ForkServer, arguments: list[str], chance: random.Random, kill: bool
) -> list[int] | None:
    """Execute the run, and kill its process at a moment by *chance*; its value, None if killed."""
    with server.start("tests.crash.order_victim:execute", *arguments, STEPS) as job:
        heard = job.hear(chance.randrange(1, 13))
        if kill and heard[-1][0] == "ordering":
            time.sleep(chance.uniform(0, 0.004))
            os.kill(job.pid, signal.SIGKILL)  # unless it has ended
        heard += job.hear_all()
        code = job.wait()
    assert (code, heard[-1][0]) in ((0, "ended"), (-9, "ordering"), (-9, "ended")), heard[-1]
    return heard[-1][1] if heard[-1][0] == "ended" else None


def _recorded(storage: str, run_id: str) -> int:
    """The number of steps whose outcome the journal has."""
    with surehold.CheckpointManager(storage) as manager:
        query = RecordQuery(run_id=run_id, kind="effect", notes=True)
        return sum(1 for _ in manager.storage.headers(query))


def _shop(medium: str, directory: Path) -> tuple[str, str, Callable[[str], list[tuple[int, int]]]]:
    """The user's database: its address, its schema, and a way to ask it."""
    table = "CREATE TABLE orders(id {}, run TEXT, number INTEGER, pid INTEGER)"
    if medium == "sqlite":
        path = directory / "shop.db"

        def ask(statement: str) -> list[tuple[int, int]]:
            with closing(sqlite3.connect(path, timeout=60)) as connection:
                return connection.execute(statement).fetchall()

        ask("PRAGMA journal_mode=WAL")
        ask(table.format("INTEGER PRIMARY KEY AUTOINCREMENT"))
        return str(path), "", ask
    import psycopg

    schema = f"orders_{directory.name[-20:]}".replace("-", "_").lower()
    url = postgres().url

    def ask_postgres(statement: str) -> list[tuple[int, int]]:
        with psycopg.connect(url, autocommit=True, options=f"-c search_path={schema}") as admin:
            found = admin.execute(statement)
            return found.fetchall() if found.description else []

    ask_postgres(f"CREATE SCHEMA {schema}")
    ask_postgres(table.format("serial PRIMARY KEY"))
    return url, schema, ask_postgres
