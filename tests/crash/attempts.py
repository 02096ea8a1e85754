"""A call that fails twice, in a step, a node or a tool, killed at random moments.

    python -m tests.crash.attempts BASE DOOR KILLS SEED

Every attempt is a line of the file ``RUN.attempts``, every payment before it one of ``RUN.paid``.
Prints one JSON object: kills and runs.
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
from pathlib import Path
from typing import Any

import surehold
from surehold import Agent, Reply, RetryPolicy, State, StateGraph, ToolCall
from surehold.testing.scripted import ScriptedModel

POLICY = RetryPolicy(retries=2, backoff=0.005)
FAILURES = 2


def execute(base: Path, run_id: str, door: str) -> None:
    storage = f"sqlite:///{base}/runs.db"
    paid = base / f"{run_id}.paid"

    def line(kind: str, text: str) -> int:
        with (base / f"{run_id}.{kind}").open("a") as file:
            file.write(text + "\n")
        return len((base / f"{run_id}.{kind}").read_text().splitlines())

    def fetch(idempotency_key: str) -> str:
        if line("attempts", idempotency_key) <= FAILURES:
            raise ConnectionError("no network")
        return "there"

    def pay(idempotency_key: str) -> str:
        line("paid", idempotency_key)
        return idempotency_key

    def probe(key: str) -> str | None:
        return key if paid.exists() and key in paid.read_text().split() else None

    if door == "step":
        paying = surehold.step(probe=probe)(pay)
        fetching = surehold.step(policy=POLICY, in_doubt="retry")(fetch)

        @surehold.workflow
        def job() -> Any:
            paying()  # type: ignore[call-arg]
            return fetching()  # type: ignore[call-arg]

        assert job.run(run_id=run_id, storage=storage).value == "there"
    elif door == "node":

        async def node(state: State) -> dict[str, Any]:
            key = await surehold.effect("pay", pay, probe=probe)
            return {"text": fetch(key)}

        graph = StateGraph("job", storage=storage)
        graph.add_node("node", node, policy=POLICY)
        graph.set_entry_point("node")
        graph.set_exit_point("node")
        with graph:
            assert graph.run_sync(run_id=run_id)["text"] == "there"
    else:

        def script(messages: Any) -> Reply | str:
            asked = [one for one in messages if one["role"] == "tool"]
            if not asked:
                return Reply(tool_calls=(ToolCall("c1", "pay", {}),))
            if len(asked) == 1:
                return Reply(tool_calls=(ToolCall("c2", "fetch", {}),))
            return str(asked[-1]["content"])

        tools = [
            surehold.tool(idempotent=True)(pay),
            surehold.tool(idempotent=True, policy=POLICY)(fetch),
        ]
        agent = Agent("job", tools=tools, model=ScriptedModel(script), storage=storage)
        assert asyncio.run(agent.run("Go", run_id=run_id)).answer == "there"


def main() -> None:
    base, door, wanted = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    chance = random.Random(sys.argv[4])
    kills = runs = 0
    while kills < wanted:
        run_id, status, runs = f"{door}-{runs}", -1, runs + 1
        killed = 0
        while status != 0:
            child = os.fork()
            if child == 0:
                try:
                    execute(base, run_id, door)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(70)
            if killed < 3:
                time.sleep(chance.uniform(0.0, 0.12))
                os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status) or status == 0, status
            killed += os.WIFSIGNALED(status)
        kills += killed
        attempts = (base / f"{run_id}.attempts").read_text().split()
        paid = (base / f"{run_id}.paid").read_text().split()
        assert FAILURES < len(attempts) <= FAILURES + 1 + killed, (run_id, attempts, killed)
        assert len({*attempts}) == 1 and len({*paid}) == 1
        assert len(paid) == 1 or door == "tool", paid
    print(json.dumps({"kills": kills, "runs": runs}))


if __name__ == "__main__":
    main()
