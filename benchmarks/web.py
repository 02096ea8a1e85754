"""Processor time of the page's server with few and with many checkpoints.

The client is in the same process, so its time is counted as well.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from starlette.testclient import TestClient

import surehold
from benchmarks.cli import fill
from benchmarks.report import Line
from surehold.web import app

__all__ = ["measure", "times"]

_RUNS, _CHECKPOINTS = 1000, 100
_ROWS = 25
_ROUNDS = 40
_LISTS = (
    *("/", "/?name=bench", "/?search=run-0000", "/api/runs", "/waiting", "/api/pending"),
    *("/storage", "/health", "/queues", "/costs", "/forks?id=run-0000"),
)
_PAGES = (
    "/run?id=run-0000",
    "/run?id=run-0000&step=50&tab=state",
    "/run?id=run-0000&tab=state&shape=blame",
    "/run?id=run-0000&tab=timeline",
    "/run?id=run-0000&tab=graph",
    "/compare?a=run-0000@10&b=run-0000",
    "/api/log?run=run-0000",
)
_LIMIT = 200
"""Milliseconds."""
_WAITING = 10
_FIRST = 10


def measure(directory: Path) -> Iterator[Line]:
    """Compare 100,000 checkpoints in 1,000 runs, none of them completed, with 100 checkpoints."""
    many = fill(directory / "many.db", _RUNS, _CHECKPOINTS)
    lists = fill(directory / "lists.db", _ROWS, 100 // _ROWS)
    single = fill(directory / "single.db", 1, 100)
    for paths, few in ((_PAGES, single), (_LISTS, lists)):
        if paths is _LISTS:
            ask(many)
            ask(lists)
        took = times({"many": many, "few": few}, paths)
        for path in paths:
            p95 = took["many", path][1]
            yield Line(f"{path}: p95 of 100,000 checkpoints", p95 * 1000, _LIMIT, unit=" ms")
            ratio = took["many", path][0] / took["few", path][0]
            yield Line(f"{path}: 100,000 / 100 checkpoints", ratio, 1.5)
    yield Line("the first search of a server", first_search(many) * 1000, _LIMIT, unit=" ms")


def first_search(address: str) -> float:
    """The most seconds that a search takes before a server knows the texts of runs."""
    took: list[float] = []
    for _ in range(_FIRST):
        with _client(address) as client:
            client.get("/")
            started = time.process_time()
            assert client.get("/?search=nowhere").status_code == 200
            took.append(time.process_time() - started)
    return max(took)


def ask(address: str) -> None:
    """Leave runs that wait for an answer."""

    @surehold.workflow
    async def publish() -> bool:
        return bool(await surehold.interrupt("Publish?", schema=bool))

    async def all_of_them() -> None:
        for number in range(_WAITING):
            await publish.run(run_id=f"asks-{number}", storage=address)

    asyncio.run(all_of_them())


def times(
    storages: dict[str, str], paths: tuple[str, ...]
) -> dict[tuple[str, str], tuple[float, float]]:
    """Best and 95th percentile of the seconds for each storage and path, in turns."""
    clients = {name: _client(address) for name, address in storages.items()}
    took: dict[tuple[str, str], list[float]] = {}
    for number in range(_ROUNDS + 1):
        for path in paths:
            for name, client in clients.items():
                started = time.process_time()
                answer = client.get(path)
                seconds = time.process_time() - started
                assert answer.status_code == 200, answer.text
                if number:
                    took.setdefault((name, path), []).append(seconds)
    for client in clients.values():
        client.close()
    return {key: (min(all), sorted(all)[int(len(all) * 0.95)]) for key, all in took.items()}


def _client(address: str) -> TestClient:
    site = app(address, auth=lambda _: "bench", hosts=["testserver"])
    return TestClient(site)
