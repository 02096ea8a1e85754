"""Response time of the commands that look at all runs, with 10,000 runs and with 100."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from tests.servers import Postgres, Redis, valkey_program

from benchmarks.cli import ratios
from benchmarks.report import Line
from benchmarks.scale import request_of
from surehold import CheckpointManager, State
from surehold.core.policy import QUEUED, Submission
from surehold.engine.journal.requests import Note

__all__ = ["fill", "measure"]

_FEW, _MANY = 100, 10_000
_AT_ONCE = 500
_ROUNDS = 5
_LIMIT = 1.5
_DURABLE = ("appendonly yes", "appendfsync always")
_COMMANDS = ("status", "pending", "stats", "queue", "runs")


def measure(directory: Path) -> Iterator[Line]:
    """Time each command as a process of its own, on SQLite and on two servers."""
    directory.chmod(0o755)
    postgres = Postgres(directory / "postgres").start()
    valkey = Redis(valkey_program(), directory / "valkey", *_DURABLE).start()
    try:
        yield from _compared("SQLite", f"sqlite:///{directory}/runs-{{}}.db")
        yield from _compared("PostgreSQL", f"{postgres.url}&schema=runs{{}}")
        yield from _compared("Valkey", f"{valkey.url}?prefix=runs{{}}")
    finally:
        postgres.stop()
        valkey.stop()


def _compared(medium: str, address: str) -> Iterator[Line]:
    few, many = (fill(address.format(count), count) for count in (_FEW, _MANY))
    for command, (growth, _, milliseconds) in ratios(few, many, _ROUNDS, _COMMANDS).items():
        what = f"{medium}: surehold {command}, {_MANY:,} runs / {_FEW}"
        yield Line(what, growth, _LIMIT, note=f"{milliseconds:.0f} ms")


def fill(address: str, count: int) -> str:
    """Store *count* runs, half of them completed and half queued for tomorrow."""
    later = Submission(queue="default", target="app:work@1", due=time.time() + 86_400)
    queued = Note(kind=QUEUED, content={}, metadata={QUEUED: msgspec.to_builtins(later)})
    with CheckpointManager(address) as manager:
        for first in range(0, count, _AT_ONCE):
            requests = []
            for number in range(first, min(first + _AT_ONCE, count)):
                ends = number % 2 == 0
                state = State.new({"n": number}, run_id=f"run-{number:05}", name="work")
                request = request_of(state.at(status="completed") if ends else state)
                request.notes = () if ends else (queued,)
                requests.append(request)
            for outcome in manager.face.journal.commit(requests):
                assert outcome.error is None
    return address
