"""DBOS doing the work of `benchmarks.workers`: queued workflows of no-op steps on PostgreSQL."""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
from dbos import DBOS

from benchmarks.worker_jobs import STEPS, tell
from benchmarks.workers import _rate

RUNS = int(os.environ.get("BENCH_RUNS", "0"))
CONCURRENCY = int(os.environ.get("BENCH_CONCURRENCY", "8"))


@DBOS.step()
def nothing(number: int) -> dict[str, bool]:
    tell()
    return {"ok": True}


@DBOS.workflow()
def no_op() -> int:
    for number in range(STEPS):
        nothing(number)
    return STEPS


def main(role: str) -> None:
    url = os.environ["BENCH_URL"]
    config: Any = {
        "name": "bench",
        "system_database_url": url.replace("postgresql://", "postgresql+psycopg://"),
        "run_admin_server": False,
        "log_level": "ERROR",
        "executor_id": f"{role}-{os.getpid()}",
        "application_version": "1",
    }
    if role == "left":
        print(json.dumps({"rate": _rate(lambda: left(url), RUNS * STEPS)}))
        return
    DBOS(config=config)
    DBOS.listen_queues(["bench"] if role == "work" else [])
    DBOS.launch()
    DBOS.register_queue("bench", worker_concurrency=CONCURRENCY, polling_interval_sec=0.1)
    if role == "submit":
        with ThreadPoolExecutor(8) as pool:
            for one in [pool.submit(DBOS.enqueue_workflow, "bench", no_op) for _ in range(RUNS)]:
                one.result()
        DBOS.destroy()
        return
    while True:
        time.sleep(1)


def left(url: str) -> float:
    with psycopg.connect(url, autocommit=True) as db:
        row = db.execute(
            "SELECT count(*) FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING')"
        ).fetchone()
    return (row[0] if row else 0) / RUNS


if __name__ == "__main__":
    main(sys.argv[1])
