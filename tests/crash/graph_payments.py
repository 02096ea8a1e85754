"""Orders that are paid for while the process is killed; run as a program, it prints what happened.

Each round is one order. The process is killed at one of the points around the call: before or
after the intent, before or after the server has charged, before or after the outcome.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surehold import (
    CheckpointConfig,
    CheckpointManager,
    GraphConfig,
    State,
    StateGraph,
    StateManager,
    answer,
    effect,
    open_storage,
    pending,
)
from surehold.core.records import decompress
from surehold.errors import ConflictError, Interrupted
from surehold.storage.base import Batch

POINTS = ("intent-", "intent+", "call-", "call+", "outcome-", "outcome+")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def ask_server(port: int, method: str, path: str, key: str) -> Any:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=500)
    line.request(method, path, headers={"Idempotency-Key": key})
    answer = json.loads(line.getresponse().read())
    line.close()
    return answer


def kill_at(storage: Any, point: str) -> None:
    """Die at the append of the effect's intent or outcome."""
    append = storage.append

    def killing(batches: Sequence[Batch]) -> list[ConflictError | None]:
        kinds = [
            "outcome" if b'"done":true' in decompress(record.body) else "intent"
            for batch in batches
            for record in batch.records
            if record.header.kind == "effect"
        ]
        if kinds and point == f"{kinds[0]}-":
            die()
        result: list[ConflictError | None] = append(batches)
        if kinds and point == f"{kinds[0]}+":
            die()
        return result

    storage.append = killing


def order(store: str, port: int, run_id: str, policy: Any, point: str) -> str:
    storage = open_storage(store)
    kill_at(storage, point)

    def charge(amount: int, idempotency_key: str) -> Any:
        if point == "call-":
            die()
        receipt = ask_server(port, "POST", f"/charge/{run_id}", idempotency_key)
        if point == "call+":
            die()
        return receipt

    async def pay(state: State) -> dict[str, Any]:
        return {"receipt": await effect("charge", charge, 5, in_doubt=policy)}

    config = GraphConfig(checkpoint=CheckpointConfig(interval=1, preserve=True))
    graph = StateGraph(config, manager=StateManager(storage))
    graph.add_node("pay", pay)
    graph.add_node("end", lambda state: None)
    graph.add_edge("pay", "end")
    graph.set_entry_point("pay")
    graph.set_exit_point("end")
    try:
        return graph.execute_sync(State.new({}, run_id=run_id)).status
    except Interrupted:
        return "parked"


def in_a_child(out: Path, *args: Any) -> tuple[int, str]:
    out.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            out.write_text(order(*args))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
    _, status = os.waitpid(child, 0)
    return status, out.read_text() if out.exists() else ""


def person(store: str, port: int, run_id: str, value: str | None = None) -> None:
    """Find out at the server what became of the charge, and say so: with one *value* of it."""
    manager = CheckpointManager(store)
    (waiting,) = pending(run_id, storage=manager)
    known = ask_server(port, "GET", f"/charge/{run_id}", waiting.key)
    if known is None:
        answer(run_id, waiting.id, repeat=True, storage=manager)
    else:
        answer(run_id, waiting.id, known[value] if value else known, storage=manager)
    manager.close()


def round_of(base: Path, port: int, number: int, policy: str) -> dict[str, Any]:
    store, run_id = f"sqlite:///{base}/runs.db", f"{policy}-{number}"
    point = POINTS[number % len(POINTS)]
    status, _ = in_a_child(base / "out", store, port, run_id, policy, point)
    killed = os.WIFSIGNALED(status)
    status, first = in_a_child(base / "out", store, port, run_id, policy, "never")
    last = first
    if first == "parked":
        # Opening the store starts no thread that a later fork could break.
        person(store, port, run_id)
        status, last = in_a_child(base / "out", store, port, run_id, policy, "never")
    return {
        "run_id": run_id,
        "point": point,
        "killed": killed,
        "first": first,
        "last": last,
        "status": status,
    }


def main() -> None:
    base, port, policy = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    rounds = int(sys.argv[4])
    print(json.dumps([round_of(base, port, number, policy) for number in range(rounds)]))


if __name__ == "__main__":
    main()
