"""Steps in a transaction of the user's own database, killed around the commit.

The user's table is the judge: each step has written one row, and the journal has what it says.
"""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.crash.media import FULL, times
from tests.crash.processes import child_environment
from tests.servers import postgres

import surehold

KILLS = times(4, 500, "SUREHOLD_KILLS")
STEPS = 150 if FULL else 40

pytestmark = pytest.mark.timeout(7_200 if FULL else 600)

PROGRAM = """
import os, sqlite3, sys
import surehold
run_id, storage, shop, schema = sys.argv[1:]

if schema:
    import psycopg
    def connect():
        return psycopg.connect(shop, options=f"-c search_path={schema}")
    INSERT = "INSERT INTO orders(run, number, pid) VALUES (%s, %s, %s) RETURNING id"
else:
    def connect():
        return sqlite3.connect(shop, timeout=60)
    INSERT = "INSERT INTO orders(run, number, pid) VALUES (?, ?, ?) RETURNING id"

@surehold.step(transaction=connect)
def order(connection, number):
    print("ordering", flush=True)
    return connection.execute(INSERT, (run_id, number, os.getpid())).fetchone()[0]

@surehold.workflow(name="orders")
def orders(steps: int) -> list[int]:
    return [order(number) for number in range(steps)]

if __name__ == "__main__":
    print("begun", flush=True)
    print(orders.run(STEPS, run_id=run_id, storage=storage).value, flush=True)
"""


@pytest.mark.parametrize("medium", ["sqlite", "postgres"])
def test_a_killed_transaction_step_has_happened_exactly_when_its_rows_are_there(
    medium: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    program = tmp_path / "orders.py"
    program.write_text(PROGRAM.replace("STEPS", str(STEPS)))
    storage = f"sqlite:///{tmp_path}/runs.db"
    shop, schema, query = _shop(medium, tmp_path)
    chance, kills, runs = random.Random(medium), 0, 0
    while kills < KILLS:
        run_id = f"run-{runs}"
        runs += 1
        while True:
            killed, output = _start(program, [run_id, storage, shop, schema], chance, kills < KILLS)
            kills += killed
            if not killed:
                break
            assert surehold.pending(storage=storage) == [], "no step is in doubt"
        rows = query(f"SELECT number, id FROM orders WHERE run = '{run_id}' ORDER BY number")
        assert [number for number, _ in rows] == [*range(STEPS)], "each step wrote one row"
        assert output[-1] == str([id for _, id in rows]), "and the journal has what it says"
    finding(
        f"kill -9 around the commit of a transaction step, {medium}",
        kills,
        f"{runs} runs of {STEPS} steps: rows and journal agree, none in doubt",
    )


def _start(
    program: Path, arguments: list[str], chance: random.Random, kill: bool
) -> tuple[bool, list[str]]:
    """Start the program, and kill it at a moment by *chance*; its output."""
    command = [sys.executable, str(program), *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment(),
    ) as job:
        assert job.stdout is not None and job.stderr is not None
        assert job.stdout.readline() == "begun\n", job.stderr.read()
        lines = []
        after = chance.randrange(12)
        for line in job.stdout:
            lines.append(line.rstrip())
            if kill and len(lines) > after:
                try:
                    job.wait(chance.uniform(0, 0.004))
                except subprocess.TimeoutExpired:
                    job.kill()
                break
        lines += job.stdout.read().splitlines()
        code = job.wait()
        assert code in (0, -9), job.stderr.read()
    return code == -9, lines


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
