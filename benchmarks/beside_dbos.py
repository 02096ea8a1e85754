"""One worker process beside one of DBOS on PostgreSQL: steps a second, transactions, bytes.

Both have a backlog of the same runs, each in a database of its own on one server, and work in
turns: one is stopped while the other works, so that both meet the same machine.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psycopg
from tests.servers import Postgres

from benchmarks.far import Far
from benchmarks.peers import MISSING
from benchmarks.report import Line
from benchmarks.worker_jobs import STEPS, no_op
from surehold.storage.postgres import PostgresStorage

__all__ = ["measure"]

_OURS, _DBOS = "surehold", "dbos"
_RUNS = {_OURS: 4_000, _DBOS: 2_500}
"""The backlogs: more than is done in the time."""
_AT_ONCE = 8
_STORED = 400
"""Runs whose bytes are compared."""
_NEAR = {1: 3.0, 8: 3.0, 32: 2.0}
"""The limit of our steps a second by DBOS's, by concurrency."""
_FAR = {8: 2.0, 32: 2.0}
_ROUND_TRIP = 0.010
_ROUNDS = 5
_SECONDS = 2.0
_WARM = 1.5
_HERE = Path(__file__).parents[1]


def measure(directory: Path) -> Iterator[Line]:
    """Start a server, fill two databases, and let the two work in turns."""
    directory.chmod(0o755)
    server = Postgres(directory / "postgres").start()
    try:
        try:
            __import__(_DBOS)
        except ImportError:
            yield Line("steps/s, DBOS", None, note=f"DBOS is {MISSING}")
            return
        yield _bytes(server, directory)
        for name, runs in _RUNS.items():
            _submit(server, name, "backlog", runs)
        for concurrency, limit in _NEAR.items():
            yield from _compared(server, directory, concurrency, limit)
        with Far(server.connect, _ROUND_TRIP) as far:
            for concurrency, limit in _FAR.items():
                yield from _compared(server, directory, concurrency, limit, far)
    finally:
        server.stop()


class _Turn(NamedTuple):
    """The steps and costs of one side in one turn."""

    steps: int
    seconds: float
    cpu: float


class _Side:
    """The worker process of one library, stopped but in its turns."""

    def __init__(self, name: str, url: str, directory: Path, concurrency: int) -> None:
        self._told = directory / f"told-{name}-{time.monotonic_ns()}"
        self._told.touch()
        environ = {
            **os.environ,
            "BENCH_URL": url,
            "BENCH_CONCURRENCY": str(concurrency),
            "BENCH_TOLD": str(self._told),
        }
        command = [sys.executable, "-m", "benchmarks.worker_dbos", "work"]
        if name == _OURS:
            code = ["surehold", "worker", "benchmarks.worker_jobs", "-s", url]
            command = [sys.executable, "-m", *code, "--concurrency", str(concurrency)]
        self.process = subprocess.Popen(
            command, cwd=_HERE, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    @property
    def steps(self) -> int:
        return self._told.stat().st_size

    def begin(self) -> None:
        """Wait for its first steps, then stop it."""
        give_up = time.monotonic() + 120
        while not self.steps:
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError(f"no worker: {shlex.join(map(str, self.process.args))}")
            time.sleep(0.05)
        time.sleep(_WARM)
        self.process.send_signal(signal.SIGSTOP)

    def turn(self) -> _Turn:
        self.process.send_signal(signal.SIGCONT)
        time.sleep(0.1)
        before, cpu, began = self.steps, _cpu(self.process.pid), time.monotonic()
        time.sleep(_SECONDS)
        took = _Turn(self.steps - before, time.monotonic() - began, _cpu(self.process.pid) - cpu)
        self.process.send_signal(signal.SIGSTOP)
        return took

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def _compared(
    server: Postgres, directory: Path, concurrency: int, limit: float, far: Far | None = None
) -> Iterator[Line]:
    turns: dict[str, list[_Turn]] = {_OURS: [], _DBOS: []}
    commits: dict[str, float] = {}
    with ExitStack() as stack:
        sides = {}
        for name in turns:
            url = _url(server, f"{name}_backlog", far)
            commits[name] = -_commits(server, name)
            sides[name] = side = _Side(name, url, directory, concurrency)
            stack.callback(side.end)
            side.begin()
        for number in range(_ROUNDS):
            for name in [*sides] if number % 2 else [*reversed(sides)]:
                turns[name].append(sides[name].turn())
        done = {name: side.steps for name, side in sides.items()}
    time.sleep(1)  # a server process tells what it did when it ends
    for name in turns:
        commits[name] = (commits[name] + _commits(server, name)) / done[name]
    rates = {name: median(one.steps / one.seconds for one in turns[name]) for name in turns}
    cpu = {
        name: 1e3 * sum(one.cpu for one in turns[name]) / max(1, sum(t.steps for t in turns[name]))
        for name in turns
    }
    where = f", {1e3 * _ROUND_TRIP:g} ms round trips" if far else ""
    what = f"concurrency {concurrency}{where}"
    note = f"{rates[_OURS]:.0f}/s and {rates[_DBOS]:.0f}/s"
    ratio = rates[_OURS] / max(rates[_DBOS], 1e-9)
    yield Line(f"steps/s / DBOS's, {what}", ratio, limit, at_least=True, note=note)
    note = f"{cpu[_OURS]:.2f} ms and {cpu[_DBOS]:.2f} ms"
    yield Line(f"CPU of the worker a step / DBOS's, {what}", cpu[_OURS] / cpu[_DBOS], note=note)
    most = 0.9 if concurrency == 32 and far is None else None
    note = f"DBOS {commits[_DBOS]:.2f}"
    yield Line(f"transactions a step, {what}", commits[_OURS], most, unit="", note=note)


def _bytes(server: Postgres, directory: Path) -> Line:
    """Bytes that a database grows by for each run of ten steps, done."""
    grown = {}
    for name in (_OURS, _DBOS):
        _submit(server, name, "stored", 1)  # the tables
        with _until_done(server, name, directory, 1):
            before = _size(server, name)
        _submit(server, name, "stored", _STORED)
        with _until_done(server, name, directory, _STORED):
            grown[name] = (_size(server, name) - before) / _STORED
    note = f"{grown[_OURS] / 1e3:.1f} kB and {grown[_DBOS] / 1e3:.1f} kB"
    return Line("bytes of a run / DBOS's", grown[_OURS] / grown[_DBOS], 2.0, note=note)


@contextmanager
def _until_done(server: Postgres, name: str, directory: Path, runs: int) -> Iterator[None]:
    """Execute *runs*, and wait a moment for what follows the last step."""
    side = _Side(name, _url(server, f"{name}_stored"), directory, 8)
    try:
        give_up = time.monotonic() + 300
        while side.steps < runs * STEPS:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{name} did {side.steps} steps of {runs * STEPS}")
            time.sleep(0.1)
        time.sleep(1)
    finally:
        side.end()
    yield


def _size(server: Postgres, name: str) -> int:
    """The bytes of its database, without what updates left behind."""
    with psycopg.connect(_url(server, f"{name}_stored"), autocommit=True) as db:
        db.execute("VACUUM")
        row = db.execute("SELECT pg_database_size(current_database())").fetchone()
    assert row is not None
    return int(row[0])


def _submit(server: Postgres, name: str, kind: str, runs: int) -> None:
    with psycopg.connect(server.url, autocommit=True) as db:
        if not db.execute(
            "SELECT 1 FROM pg_database WHERE datname = %s", (f"{name}_{kind}",)
        ).fetchone():
            db.execute(f"CREATE DATABASE {name}_{kind}")
    url = _url(server, f"{name}_{kind}")
    if name == _OURS:
        with PostgresStorage(url) as storage, ThreadPoolExecutor(_AT_ONCE) as pool:
            for one in [pool.submit(no_op.start, storage=storage) for _ in range(runs)]:
                one.result()
        return
    command = [sys.executable, "-m", "benchmarks.worker_dbos", "submit"]
    environ = {**os.environ, "BENCH_URL": url, "BENCH_RUNS": str(runs)}
    subprocess.run(command, check=True, cwd=_HERE, env=environ, stderr=subprocess.DEVNULL)


def _url(server: Postgres, database: str, far: Far | None = None) -> str:
    url = server.through(far.port) if far else server.url
    return url.replace("/postgres?", f"/{database}?")


def _commits(server: Postgres, name: str) -> float:
    with psycopg.connect(server.url, autocommit=True) as db:
        row = db.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = %s", (f"{name}_backlog",)
        ).fetchone()
    assert row is not None
    return float(row[0])


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
