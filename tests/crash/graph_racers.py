"""Processes that resume the same crashed run at once; run as a program, it prints what happened.

Each round: one process is killed inside a node, then several resume its run together. The winner
holds it until the others have been turned away.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from surehold import CheckpointConfig, GraphConfig, State, StateGraph, effect
from surehold.errors import LeaseHeldError

RUN = "contested"


def note(path: Path, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def build(base: Path, scheme: str, racers: int) -> StateGraph:
    store = f"sqlite:///{base}/runs.db" if scheme == "sqlite" else f"file://{base}/runs"

    async def act(state: State) -> dict[str, Any]:
        if racers == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        await effect("act", note, base / "world", "acted", in_doubt="retry")
        deadline = time.monotonic() + 500
        while len(lines(base / "turned_away")) < racers - 1 and time.monotonic() < deadline:
            await asyncio.sleep(0.002)
        return {"acted": True}

    config = CheckpointConfig(store=store, interval=1, preserve=True)
    graph = StateGraph(GraphConfig(checkpoint=config))
    graph.add_node("begin", lambda state: {"begun": True})
    graph.add_node("act", act)
    graph.add_node("end", lambda state: note(base / "world", "ended"))
    graph.add_edge("begin", "act")
    graph.add_edge("act", "end")
    graph.set_entry_point("begin")
    graph.set_exit_point("end")
    return graph


def first(base: Path, scheme: str) -> None:
    build(base, scheme, 0).execute_sync(State.new({}, run_id=RUN))


def racer(base: Path, scheme: str, racers: int) -> None:
    graph = build(base, scheme, racers)
    note(base / "ready", "ready")
    while not (base / "go").exists():
        time.sleep(0.0005)
    try:
        final = graph.resume_sync(RUN)
        note(base / "won", str(final.status))
    except LeaseHeldError as error:
        note(base / "turned_away", str(error.owner.pid))


def forked(work: Any, *args: Any) -> int:
    child = os.fork()
    if child == 0:
        try:
            work(*args)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
    return child


def round_of(base: Path, scheme: str, racers: int) -> dict[str, Any]:
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    os.waitpid(forked(first, base, scheme), 0)
    children = [forked(racer, base, scheme, racers) for _ in range(racers)]
    while len(lines(base / "ready")) < racers:
        time.sleep(0.001)
    (base / "go").touch()
    statuses = [os.waitpid(child, 0)[1] for child in children]
    return {
        "racers": racers,
        "statuses": statuses,
        "world": lines(base / "world"),
        "won": lines(base / "won"),
        "turned_away": len(lines(base / "turned_away")),
    }


def main() -> None:
    base, scheme, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    print(json.dumps([round_of(base, scheme, 2 + number % 7) for number in range(rounds)]))


if __name__ == "__main__":
    main()
