"""A fleet that is killed at every append in turn; run as a program, it prints what it found.

It forks, as `graph_victim` does. Model calls are counted in a file that the models append to.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.builders.fleets import TEAM, asked_for, ledger, rounds_done, worker
from tests.crash.graph_victim import Killer, in_a_child

from surehold import open_storage
from surehold.agents.fleet.fleet import Fleet
from surehold.agents.fleet.settings import Limits
from surehold.agents.models.model import Message
from surehold.testing.scripted import ScriptedModel

RUN = "victim"
ROUNDS = 12
BEFORE_RESET = 5
"""Rounds until the fleet is stuck, and plans anew."""


def manager(log: Path) -> ScriptedModel:
    def script(messages: Sequence[Message]) -> str:
        kind, done = asked_for(messages), rounds_done(messages)
        if kind == "facts" and "The team is stuck" in messages[-1]["content"]:
            return "facts anew"
        if kind != "ledger":
            return f"{kind} after {done}"
        anew = "facts anew" in messages[1]["content"]
        return ledger(
            TEAM[done % len(TEAM)],
            f"{'new' if anew else 'old'} part {done + 1}",
            satisfied=anew and done >= ROUNDS - BEFORE_RESET,
            progressing=anew or done < BEFORE_RESET - 1,
        )

    return ScriptedModel(script, name="manager", log=log)


def execute(store: str, log: Path, number: int, when: str) -> dict[str, Any]:
    """Start the run, or go on with it; gives its end and how many appends it took."""
    storage = open_storage(store)
    killer = Killer(storage, number, when)

    async def main() -> dict[str, Any]:
        crew = {name: worker(name, log=log) for name in TEAM}
        limits = Limits(rounds=ROUNDS, stalls=1, resets=1)
        async with Fleet(manager(log), crew, storage, limits=limits) as fleet:
            fleet.set_workflow_id(RUN)
            result = await fleet.run("Do it all")
            assert fleet.state is not None
            state = fleet.state.to_dict()
            verdicts = await fleet.graph.manager.verify(RUN)
        state.pop("elapsed")
        for one in state["rounds"]:
            one.pop("seconds")
        return {
            "state": state,
            "answer": result.answer,
            "rounds": result.rounds,
            "status": result.status,
            "usage": {**msgspec.structs.asdict(result.usage), "seconds": 0},
            "problems": [text for one in verdicts for text in one.problems],
        }

    end = asyncio.run(main())
    storage.close()
    return {**end, "appends": killer.count}


def round_of(base: Path, scheme: str, number: int, when: str) -> dict[str, Any]:
    """Kill at one append, resume, and tell what happened."""
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    store = f"sqlite:///{base}/runs.db" if scheme == "sqlite" else f"file://{base}/runs"
    log = base / "calls"
    status, end = in_a_child(base / "out", execute, store, log, number, when)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    if killed:
        status, end = in_a_child(base / "out", execute, store, log, 0, "never")
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    said = Counter(f"{line['messages']} {line['text']}" for line in lines)
    return {"killed": killed, "status": status, "end": end, "calls": said}


def main() -> None:
    base, scheme, when, stride = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
    whole = round_of(base, scheme, 0, "never")
    last = whole["end"]["appends"]
    kills = [round_of(base, scheme, number, when) for number in range(1, last + 1, stride)]
    print(json.dumps({"whole": whole, "kills": kills}))


if __name__ == "__main__":
    main()
