"""Thirty payments in one run, killed at random moments until it is completed.

    python -m tests.crash.own_payments BASE PORT DOOR POLICY KILLS SEED

DOOR is where the payments are made: ``loop`` (`surehold.run`), ``async`` (the same, awaited) or
``workflow``. Half of the kills come at a random moment of time, half at a random one of the
moments around a call or a write. Prints one JSON object: kills, runs, and questions asked.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.crash.graph_payments import ask_server, die, person

import surehold
from surehold import CheckpointManager, open_storage
from surehold.engine.runs.effects import CallPolicy
from surehold.errors import ConflictError, Interrupted
from surehold.storage.base import Batch

PAYMENTS = 30


class Fuse:
    """Kills the process when it has been passed so many times."""

    def __init__(self, length: int | None) -> None:
        self.left = length

    def passed(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left <= 0:
                die()


def fused(storage: Any, fuse: Fuse) -> Any:
    append = storage.append

    def passing(batches: Sequence[Batch]) -> list[ConflictError | None]:
        fuse.passed()
        result: list[ConflictError | None] = append(batches)
        fuse.passed()
        return result

    storage.append = passing
    return storage


def pay_all(store: str, port: int, run_id: str, door: str, policy: Any, fuse: Fuse) -> str:
    def charge(number: int, idempotency_key: str) -> Any:
        fuse.passed()
        receipt = ask_server(port, "POST", f"/charge/{run_id}-{number}", idempotency_key)
        fuse.passed()
        return receipt["run_id"]

    def probe(key: str) -> Any:
        known = ask_server(port, "GET", "/charge/-", key)
        return known["run_id"] if known is not None else None

    options: Any = {"probe": probe} if policy == "probe" else {"in_doubt": policy}
    manager = CheckpointManager(fused(open_storage(store), fuse))
    doors: dict[str, Callable[[], str]] = {
        "loop": lambda: in_loop(manager, run_id, charge, options),
        "async": lambda: asyncio.run(in_async_loop(manager, run_id, charge, options)),
        "workflow": lambda: in_workflow(manager, run_id, charge, options),
    }
    return doors[door]()


def in_loop(manager: CheckpointManager, run_id: str, charge: Any, options: Any) -> str:
    try:
        with surehold.run(run_id, storage=manager) as run:
            for number in run.each(range(PAYMENTS)):
                receipt = run.effect("charge", charge, number, **options)
                run.state.setdefault("receipts", []).append(receipt)
    except Interrupted:
        return run.status
    assert run.state["receipts"] == [f"{run_id}-{number}" for number in range(PAYMENTS)]
    return run.status


async def in_async_loop(manager: CheckpointManager, run_id: str, charge: Any, options: Any) -> str:
    try:
        async with surehold.run(run_id, storage=manager, every=5) as run:
            async for number in run.each(range(PAYMENTS)):
                receipt = await surehold.effect("charge", charge, number, **options)
                run.state.setdefault("receipts", []).append(receipt)
    except Interrupted:
        return run.status
    assert run.state["receipts"] == [f"{run_id}-{number}" for number in range(PAYMENTS)]
    return run.status


def in_workflow(manager: CheckpointManager, run_id: str, charge: Any, options: Any) -> str:
    pay = surehold.step(**options)(charge)
    assert isinstance(pay.call_policy, CallPolicy)

    @surehold.workflow
    def orders() -> list[str]:
        return [pay(number) for number in range(PAYMENTS)]  # type: ignore[call-arg]

    result = orders.run(run_id=run_id, storage=manager)
    if result.completed:
        assert result.value == [f"{run_id}-{number}" for number in range(PAYMENTS)]
    return result.status


def in_a_child(out: Path, length: int | None, seconds: float | None, *args: Any) -> tuple[int, str]:
    out.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            written = pay_all(*args, Fuse(length))
            out.write_text(written)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return status, out.read_text() if out.exists() else ""


def main() -> None:
    base, port, door, policy = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    wanted, chance = int(sys.argv[5]), random.Random(sys.argv[6])
    store = f"sqlite:///{base}/runs.db"
    kills = asked = runs = 0
    while kills < wanted:
        run_id, ended = f"{door}-{policy}-{runs}", ""
        runs += 1
        while ended != "completed":
            length = seconds = None
            if kills < wanted:
                if chance.random() < 0.5:
                    length = chance.randrange(1, 60)
                else:
                    seconds = chance.uniform(0.0, 0.15)
            args = (store, port, run_id, door, policy)
            status, ended = in_a_child(base / "out", length, seconds, *args)
            assert os.WIFSIGNALED(status) or status == 0, status
            kills += os.WIFSIGNALED(status)
            if ended == "waiting":
                asked += 1
                person(store, port, run_id, value="run_id")
    print(json.dumps({"kills": kills, "runs": runs, "asked": asked}))


if __name__ == "__main__":
    main()
