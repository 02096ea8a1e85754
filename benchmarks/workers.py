"""Workers on PostgreSQL: a fenced step, claims, timers, and throughput beside DBOS and others.

Every figure is a ratio within this run, or is judged against a limit that a busy machine only makes
harder to keep. The peers do the same work on the same server, one after the other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from statistics import median
from typing import IO, Any

import psycopg

import surehold
from benchmarks.peers import MISSING
from benchmarks.report import Line
from benchmarks.worker_jobs import STEPS, no_op, sleeper
from benchmarks.workload import Times
from surehold import SQLiteStorage
from surehold.core.policy import QueueSettings, after_drive
from surehold.errors import ConflictError
from surehold.executors import Worker, served_by
from surehold.storage.base import Batch, Storage, this_process
from surehold.storage.postgres import PostgresStorage
from surehold.storage.queueing import ClaimQuery

__all__ = ["measure"]

_STEPS = 400
_RUNS = int(os.environ.get("SUREHOLD_BENCH_RUNS") or 200)
_WORKERS = 4
_THREADS, _SHARED = 8, 64
_FEW, _MANY = 100, int(os.environ.get("SUREHOLD_BENCH_QUEUED") or 100_000)
_WAITING = int(os.environ.get("SUREHOLD_BENCH_WAITING") or 10_000)
_IDLE_SECONDS = 10.0
_TIMERS, _APART = 60, 0.25
_PICKED_UP = 100
_HERE = Path(__file__).parents[1]


def measure(directory: Path) -> Iterator[Line]:
    """Start a server of its own, and measure one thing after the other."""
    from tests.servers import Postgres

    with SQLiteStorage(directory / "shared.db") as storage:
        yield _commits(storage, 0.4)
    directory.chmod(0o755)
    server = Postgres(directory / "pg").start()
    try:
        with PostgresStorage(server.url, schema="shared", pool=_THREADS + 2) as storage:
            yield _commits(storage, 0.7)
        yield _fenced_step(server.url)
        yield _claims(server.url)
        yield from _picked_up(server.url)
        yield from _waiting(server.url)
        yield from _throughput(server.url, directory)
    finally:
        server.stop()


def _commits(storage: Storage, most: float) -> Line:
    """Commits a step of one worker process with several threads, counted at the storage."""
    for number in range(_SHARED):
        no_op.start(run_id=f"run{number}", storage=storage)
    append, appended = storage.append, []

    def counted(batches: Sequence[Batch]) -> list[ConflictError | None]:
        appended.append(len(batches))
        return append(batches)

    storage.append = counted  # type: ignore[method-assign]
    try:
        Worker(storage, served_by([no_op.__module__]), concurrency=_THREADS).run(until_idle=True)
    finally:
        del storage.append  # type: ignore[method-assign]
    what = f"{type(storage).__name__}, a worker of {_THREADS} threads: commits a step"
    return Line(what, len(appended) / (_SHARED * STEPS), most, unit="")


def _fenced_step(url: str) -> Line:
    """A recorded step of a leased run, in turns with a raw insert of the same bytes."""
    times = Times()
    body = b"x" * 200
    with (
        PostgresStorage(url, schema="step") as storage,
        psycopg.connect(url, autocommit=True, prepare_threshold=None) as db,
    ):
        db.execute("CREATE TABLE raw(id bigserial PRIMARY KEY, header bytea, body bytea)")

        @surehold.step(in_doubt="retry")
        def work(number: int) -> int:
            return number

        @surehold.workflow(name="bench fenced")
        def many() -> None:
            for number in range(_STEPS):
                times.time("step", lambda number=number: work(number))  # type: ignore[misc]
                times.time("raw", lambda: db.execute(_INSERT, (body, body)))

        many.run(run_id="bench", storage=storage)
    what = "fenced step on PostgreSQL / raw insert"
    step, raw = times.median("step") * 1e3, times.median("raw") * 1e3
    note = f"{step:.3f} ms, a raw insert {raw:.3f} ms"
    return Line(what, times.ratio("step", "raw"), 1.6, note=note)


_INSERT = "INSERT INTO raw(header, body) VALUES (%s, %s)"


def _claims(url: str) -> Line:
    """The time of a claim in a long queue and in a short one, in turns."""
    few, many = _queued(url, "few", _FEW), _queued(url, "many", _MANY)
    times = Times()
    try:
        for _ in range(60):
            for name, storage in (("few", few), ("many", many)):
                times.time(name, lambda storage=storage: _claim_one(storage))  # type: ignore[misc]
    finally:
        few.close()
        many.close()
    note = f"{times.median('many') * 1e3:.2f} ms, with {_FEW}: {times.median('few') * 1e3:.2f} ms"
    return Line(
        f"a claim with {_MANY:,} queued / with {_FEW}", times.ratio("many", "few"), 1.5, note=note
    )


def _queued(url: str, schema: str, number: int) -> PostgresStorage:
    """A storage with so many queued runs, most of them copied in SQL from one that was started."""
    storage = PostgresStorage(url, schema=f"claims_{schema}")
    no_op.start(run_id="first", storage=storage)
    _copy(url, f"claims_{schema}", number, "rank")
    return storage


def _claim_one(storage: PostgresStorage) -> None:
    query = ClaimQuery(queues=("default",), targets=("benchmarks.worker_jobs:no_op@1",))
    (claim,) = storage.claim(query, this_process(), now=time.time(), ttl=60)
    entry = after_drive(claim.entry, "interrupted", QueueSettings(), now=time.time())
    assert storage.settle(claim.lease, entry, now=time.time())


def _picked_up(url: str) -> Iterator[Line]:
    """The time from the start of a run to its first line of code, in a worker without runs."""
    with (
        PostgresStorage(url, schema="idle") as storage,
        _workers(f"{url}&schema=idle", 1),
    ):
        time.sleep(2)
        late = []
        for _ in range(_PICKED_UP):
            time.sleep(0.3)
            late.append(sleeper.start(time.time(), storage=storage).result(timeout=60).value)
    late.sort()
    what = "an idle worker picks a started run up after"
    yield Line(f"{what}, median", 1e3 * median(late), 50, unit=" ms")
    p99 = late[ceil(len(late) * 0.99) - 1]
    yield Line(f"{what}, 99th percentile", 1e3 * p99, 200, unit=" ms")


def _waiting(url: str) -> Iterator[Line]:
    """An idle worker beside many waiting runs, and how late timers are among them."""
    with PostgresStorage(url, schema="waiting") as storage:
        sleeper.start(0.0, run_id="first", storage=storage, delay=3600)
        _copy(url, "waiting", _WAITING, "due")
        with _workers(f"{url}&schema=waiting", 1) as (process,):
            time.sleep(2)
            before, began = _cpu(process.pid), time.monotonic()
            time.sleep(_IDLE_SECONDS)
            share = (_cpu(process.pid) - before) / (time.monotonic() - began)
            what = f"an idle worker with {_WAITING:,} waiting runs, % of a core"
            yield Line(what, 100 * share, 2.0, unit="%")
            late = _lateness(storage)
    note = f"median {median(late):.2f} s, of {len(late)} timers among {_WAITING:,}"
    p99 = sorted(late)[ceil(len(late) * 0.99) - 1]
    yield Line("a due timer is late by, 99th percentile", p99, 1.0, unit=" s", note=note)


def _copy(url: str, schema: str, number: int, column: str) -> None:
    """Copy the one run of a schema, each a second after the one before it by *column*."""
    with psycopg.connect(url, autocommit=True) as db:
        found = db.execute(
            "SELECT string_agg(column_name, ', ') FROM information_schema.columns"
            " WHERE table_schema = %s AND table_name = 'runs'"
            " AND column_name NOT IN ('run_id', 'ordinal', %s)",
            (schema, column),
        ).fetchone()
        assert found is not None
        db.execute(
            f"INSERT INTO {schema}.runs(run_id, ordinal, {column}, {found[0]})"
            f" SELECT ('run' || n)::bytea, nextval('{schema}.ordinals'), {column} + n, {found[0]}"
            f" FROM {schema}.runs, generate_series(1, {number - 1}) n"
        )
        db.execute(f"VACUUM ANALYZE {schema}.runs")


def _lateness(storage: PostgresStorage) -> list[float]:
    """Seconds between the time at which a run is due and its first step."""
    handles = [
        sleeper.start(time.time() + delay, storage=storage, delay=delay)
        for delay in (4 + number * _APART for number in range(_TIMERS))
    ]
    results = [handle.result(timeout=120).value for handle in handles]
    return [late for late in results if late is not None]


@contextmanager
def _workers(
    url: str, number: int, code: str = "benchmarks.worker_jobs"
) -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "surehold", "worker", code, "-s", url]
    started = [subprocess.Popen(command, cwd=_HERE, stdout=subprocess.PIPE) for _ in range(number)]
    try:
        for process in started:
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
            threading.Thread(target=_drain, args=(process.stdout,), daemon=True).start()
        yield started
    finally:
        _end(started)


def _drain(output: IO[bytes]) -> None:
    for _ in output:
        pass


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _throughput(url: str, directory: Path) -> Iterator[Line]:
    """Runs of no-op steps by four processes, each library after the other."""
    ours = _ours(url)
    rates = {"DBOS": _peer("dbos", url), "procrastinate": _peer("procrastinate", url)}
    for name, rate in rates.items():
        unit = "jobs of one step" if name == "procrastinate" else "steps"
        what = f"{_WORKERS} workers, {STEPS} no-op steps a run: steps/s / {name}'s {unit}/s"
        if rate is None:
            yield Line(what, None, note=f"{name} is {MISSING}")
        else:
            note = f"{ours:.0f}/s and {rate:.0f}/s"
            yield Line(what, ours / rate, 1.0, at_least=True, note=note)


def _ours(url: str) -> float:
    with PostgresStorage(url, schema="ours") as storage:
        for number in range(_RUNS):
            no_op.start(run_id=f"run{number}", storage=storage)
        with _workers(f"{url}&schema=ours", _WORKERS):
            return _rate(lambda: _left(storage), _RUNS * STEPS)


def _left(storage: PostgresStorage) -> float:
    """The share of the runs that are still queued or executed."""
    return sum(info.ready + info.running + info.waiting for info in storage.queues()) / _RUNS


def _rate(left: Callable[[], float], work: int) -> float:
    """Work per second between the first and the last tenth of it, so that no start counts."""
    first = _until(lambda: left() <= 0.9)
    last = _until(lambda: left() <= 0.1)
    return 0.8 * work / max(last - first, 1e-6)


def _until(holds: Callable[[], bool]) -> float:
    give_up = time.monotonic() + 600
    while not holds():
        if time.monotonic() > give_up:
            raise TimeoutError("the workers did not end in ten minutes")
        time.sleep(0.02)
    return time.monotonic()


def _peer(name: str, url: str) -> float | None:
    try:
        __import__(name)
    except ImportError:
        return None
    module = f"benchmarks.worker_{name}"
    environ = {**os.environ, "BENCH_URL": url, "BENCH_RUNS": str(_RUNS)}
    run: dict[str, Any] = {"cwd": _HERE, "env": environ, "stderr": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-m", module, "submit"], check=True, **run)
    workers = [
        subprocess.Popen([sys.executable, "-m", module, "work"], stdout=subprocess.DEVNULL, **run)
        for _ in range(_WORKERS)
    ]
    try:
        told = subprocess.run(
            [sys.executable, "-m", module, "left"], check=True, stdout=subprocess.PIPE, **run
        )
        return float(json.loads(told.stdout)["rate"])
    finally:
        _end(workers)
