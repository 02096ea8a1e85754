"""What workers and faces do often, with 100,000 waiting and 60,000 completed runs and with 100.

The runs are copies of real ones, each sealed anew under an id of its own, so that every record of
them verifies.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from tests.servers import Postgres

from benchmarks.cli import ratios
from benchmarks.report import Line
from benchmarks.worker_jobs import no_op, paused, sleeper
from benchmarks.workload import Times
from surehold import CheckpointManager, MemoryStorage, State
from surehold.core.policy import QUEUED, QueueSettings, after_drive
from surehold.core.records import Record, seal
from surehold.executors import Worker, list_workers, queues, served_by
from surehold.storage.base import Batch, RecordQuery, RunQuery, Storage, this_process
from surehold.storage.queueing import ClaimQuery, EntryQuery, Queueing
from surehold.views.health import survey_health

__all__ = ["fill", "measure"]

_FEW = 100
_WAITING = int(os.environ.get("SUREHOLD_BENCH_WAITING") or 100_000)
_COMPLETED = int(os.environ.get("SUREHOLD_BENCH_COMPLETED") or 60_000)
_EXPIRED = int(os.environ.get("SUREHOLD_BENCH_EXPIRED") or 50_000)
_AT_ONCE = 200
_TURNS = 15
_ROUNDS = 3
_LIMIT = 1.5
_BESIDE = 2.0
"""The limit of what calls may take beside an expiry, by what they take without."""
_COMMANDS = ("status", "pending", "queue", "runs -n 20")
_TARGET = "benchmarks.worker_jobs:no_op@1"
_LATER = 86_400.0


def measure(directory: Path) -> Iterator[Line]:
    """Time each call, and each command as a process of its own, in turns; then expire runs."""
    directory.chmod(0o755)
    server = Postgres(directory / "postgres").start()
    try:
        yield from compared("PostgreSQL", f"{server.url}&schema=runs{{}}")
    finally:
        server.stop()
    yield from compared("SQLite", f"sqlite:///{directory}/runs-{{}}.db")


def compared(medium: str, address: str) -> Iterator[Line]:
    """The lines of one medium, at an *address* with a place for a number."""
    few, many = address.format("few"), address.format("many")
    fill(few, _FEW // 2, _FEW // 2)
    fill(many, _WAITING, _COMPLETED)
    what = f"{_WAITING:,} waiting and {_COMPLETED:,} completed runs / {_FEW}"
    times = Times()
    with ExitStack() as stack:
        managers = {
            name: stack.enter_context(CheckpointManager(url))
            for name, url in (("few", few), ("many", many))
        }
        for _ in range(_TURNS):
            for name, manager in managers.items():
                for call, work in calls(manager).items():
                    times.time(f"{call} {name}", work)
        for call in calls(managers["few"]):
            ratio = times.ratio(f"{call} many", f"{call} few")
            note = f"{times.median(f'{call} many') * 1e3:.2f} ms"
            yield Line(f"{medium}: {call}, {what}", ratio, _LIMIT, note=note)
    for command, (growth, _, milliseconds) in ratios(few, many, _ROUNDS, _COMMANDS).items():
        line = f"{medium}: surehold {command}, {what}"
        yield Line(line, growth, _LIMIT, note=f"{milliseconds:.0f} ms")
    yield from _expired(medium, many)


def _expired(medium: str, address: str) -> Iterator[Line]:
    """Remove most of the completed runs by another process, and time calls beside it and before."""
    left = max(0, _COMPLETED - _EXPIRED)
    times, gone = Times(), []
    with CheckpointManager(address) as manager:
        work = {**calls(manager), "a save": _saves(manager)}
        for _ in range(2 * _TURNS):
            for call, do in work.items():
                times.time(f"{call} before", do)
        began = time.monotonic()
        expiring = subprocess.Popen(
            [sys.executable, "-c", _EXPIRE, address, str(left)], stdout=subprocess.DEVNULL
        )
        while expiring.poll() is None:
            for call, do in work.items():
                times.time(f"{call} beside", do)
            gone.append((time.monotonic() - began, _completed(manager)))
        gone.append((time.monotonic() - began, _completed(manager)))
        if expiring.returncode or gone[-1][1] != left:
            raise RuntimeError(f"{gone[-1][1]} runs are left, and not {left}")
    for call in work:
        ratio = times.ratio(f"{call} beside", f"{call} before")
        note = f"{times.median(f'{call} beside') * 1e3:.2f} ms"
        what = f"{medium}: {call} beside an expiry of {_EXPIRED:,} runs / without"
        yield Line(what, ratio, _BESIDE, note=note)
    removing = [at for at, count in gone if left < count < _COMPLETED]
    early, late = (
        sum(1 for _, count in gone if low < (_COMPLETED - count) / _EXPIRED <= low + 0.25)
        for low in (0.0, 0.74)
    )
    note = f"{gone[-1][0]:.0f} s in all, {len(removing)} looks at it"
    what = f"{medium}: the last quarter of an expiry of {_EXPIRED:,} runs / the first"
    yield Line(what, late / max(1, early), _BESIDE, note=note)


_EXPIRE = """
import sys
from datetime import timedelta
from surehold import expire
expire(timedelta(milliseconds=1), keep_last=int(sys.argv[2]), storage=sys.argv[1])
"""


def _saves(manager: CheckpointManager) -> Callable[[], Any]:
    """Save the next step of a run that lives meanwhile."""
    states = [State.new({"log": 0}, run_id=f"live-{uuid4().hex}", name="live")]

    def save() -> None:
        step = states[0].step + 1
        states[0] = states[0].set("log", step).at(step=step)
        manager.save_checkpoint(states[0])

    return save


def _completed(manager: CheckpointManager) -> int:
    counts = manager.storage.count_runs(now=time.time(), most=1).counts
    return sum(count for (status, _), count in counts.items() if status == "completed")


def calls(manager: CheckpointManager) -> dict[str, Callable[[], Any]]:
    """What a worker, a command and the page ask of a storage again and again."""
    storage: Any = manager.storage
    query = ClaimQuery(queues=("default",), targets=(_TARGET,))
    now = time.time
    return {
        "claim": partial(_claim_one, storage),
        "idle look": lambda: storage.idle_for(query, now=now()),
        "sweep": lambda: storage.stale_claims(now=now()),
        "cancel look": lambda: [*storage.entries(EntryQuery(state="running", cancelled=True))],
        "newest 50 runs": lambda: [*storage.runs(RunQuery(limit=50))],
        "failed runs": lambda: [*storage.runs(RunQuery(status="failed", limit=50))],
        "newest 50 records": lambda: [*storage.headers(RecordQuery(limit=50))],
        "counts of queues": lambda: queues(storage),
        "workers": lambda: list_workers(storage),
        "Health": lambda: survey_health(manager),
    }


def _claim_one(storage: Queueing) -> None:
    query = ClaimQuery(queues=("default",), targets=(_TARGET,))
    (claim,) = storage.claim(query, this_process(), now=time.time(), ttl=60)
    entry = after_drive(claim.entry, "interrupted", QueueSettings(), now=time.time())
    assert storage.settle(claim.lease, entry, now=time.time())


def fill(address: str, waiting: int, completed: int) -> None:
    """Store runs that wait for a time or an event, or are queued for later, and completed ones.

    One run more is ready.
    """
    with MemoryStorage() as memory, CheckpointManager(address) as manager:
        sleeper.start(0.0, run_id="queued", storage=memory, delay=_LATER)
        for kind in ("time", "event"):
            paused.start(kind, run_id=kind, storage=memory)
        no_op.start(run_id="completed", storage=memory)
        worker = Worker(memory, served_by(["benchmarks.worker_jobs"]))
        for run_id in ("time", "event", "completed"):
            worker.take(run_id)
        kinds = ("queued", "time", "event")
        models = {kind: [*memory.read(kind)] for kind in (*kinds, "completed")}
        storage = manager.storage
        _copy(storage, [models["completed"]], completed, "done")
        _copy(storage, [models[kind] for kind in kinds], waiting, "waiting")
        no_op.start(run_id="ready", storage=storage)


def _copy(storage: Storage, models: list[list[Record]], number: int, name: str) -> None:
    for first in range(0, number, _AT_ONCE):
        batches = [
            _copied(models[one % len(models)], f"{name}-{one:06}")
            for one in range(first, min(first + _AT_ONCE, number))
        ]
        assert not any(storage.append(batches))


def _copied(model: list[Record], run_id: str) -> Batch:
    records: list[Record] = []
    for record in model:
        header, prev = record.header, records[-1].header.digest if records else ""
        metadata = header.metadata
        if header.kind == QUEUED:  # its entry waits, as that of the model does now
            entry = metadata[QUEUED] | {"due": time.time() + _LATER}
            metadata = metadata | {QUEUED: entry}
        changed = msgspec.structs.replace(header, run_id=run_id, id=str(uuid4()), metadata=metadata)
        records.append(seal(changed, record.body, prev=prev))
    return Batch(run_id=run_id, records=tuple(records))
