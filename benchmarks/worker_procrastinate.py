"""Procrastinate doing the work of `benchmarks.workers`: a job for each no-op step."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import procrastinate
import psycopg

from benchmarks.worker_jobs import STEPS
from benchmarks.workers import _rate

RUNS = int(os.environ.get("BENCH_RUNS", "0"))
URL = os.environ.get("BENCH_URL", "")
app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL))


@app.task(name="nothing")
async def nothing(number: int) -> dict[str, bool]:
    return {"ok": True}


async def submit() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        await nothing.batch_defer_async(*({"number": number} for number in range(RUNS * STEPS)))


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=8, install_signal_handlers=False)


def left() -> float:
    with psycopg.connect(URL, autocommit=True) as db:
        row = db.execute(
            "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')"
        ).fetchone()
    return (row[0] if row else 0) / (RUNS * STEPS)


if __name__ == "__main__":
    match sys.argv[1]:
        case "submit":
            asyncio.run(submit())
        case "work":
            asyncio.run(work())
        case _:
            print(json.dumps({"rate": _rate(left, RUNS * STEPS)}))
