"""How many saves share a sync when 64 runs save at once, and what that is worth on a slow disk.

The syncs are counted, and delayed, by strace around a child process: `python -m benchmarks.group`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Line
from benchmarks.work import message
from holdfast import SQLiteStorage, State, StateManager

__all__ = ["measure", "saves_per_sync"]

_RUNS = 64
_SAVES = 30
_ALONE = 150
_DELAY = 5000
"""Microseconds by which each sync is made longer."""
_ROUNDS = 3
_SYNCS = "fsync,fdatasync"


def measure(directory: Path) -> Iterator[Line]:
    """Counted once; the speeds with delayed syncs in turn, several times."""
    what = f"{_RUNS} runs at once: saves a sync"
    if shutil.which("strace") is None:
        yield Line(what, None, 8, at_least=True, unit="", note="strace is not installed")
        return
    yield Line(what, saves_per_sync(directory / "counted"), 8, at_least=True, unit="")
    together, alone = [], []
    inject = ["-e", f"inject={_SYNCS}:delay_exit={_DELAY}"]
    for number in range(_ROUNDS):
        log = directory / "log"
        together.append(_child(directory / f"together-{number}", _RUNS, _SAVES, log, inject))
        alone.append(_child(directory / f"alone-{number}", 1, _ALONE, log, inject))
    fast, slow = sorted(together)[_ROUNDS // 2], sorted(alone)[_ROUNDS // 2]
    yield Line(
        f"{_RUNS} runs / one run, saves a second with syncs {_DELAY / 1000:g} ms longer",
        fast / slow,
        20,
        at_least=True,
        note=f"{fast:,.0f} and {slow:,.0f} a second",
    )


def saves_per_sync(path: Path, runs: int = _RUNS, saves: int = _SAVES) -> float:
    """Saves by all the syncs that the process made, opening and closing included."""
    log = path.with_suffix(".strace")
    _child(path, runs, saves, log, [])
    syncs = len(re.findall(r"\b(?:fsync|fdatasync)\(", log.read_text()))
    return runs * saves / syncs


def _child(path: Path, runs: int, saves: int, log: Path, options: list[str]) -> float:
    """Saves a second of a process under strace, which writes its syncs to *log*."""
    trace = ["strace", "-f", "--seccomp-bpf", "-o", str(log), "-e", f"trace={_SYNCS}", *options]
    child = [sys.executable, "-m", "benchmarks.group", str(path), str(runs), str(saves)]
    home = str(Path(__file__).parent.parent)
    paths = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [*trace, *child],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    return float(json.loads(done.stdout))


async def _save_all(path: str, runs: int, saves: int) -> float:
    """Seconds until each run has saved so often."""
    messages = [message(number) for number in range(saves)]

    async def one(run: int) -> None:
        state = State.new({"messages": []}, run_id=f"run-{run}")
        for step, item in enumerate(messages, 1):
            state = state.append("messages", item).at(step=step)
            await manager.save_checkpoint(state)

    with SQLiteStorage(path) as storage:
        async with StateManager(storage) as manager:
            started = time.perf_counter()
            await asyncio.gather(*(one(run) for run in range(runs)))
            return time.perf_counter() - started


if __name__ == "__main__":
    _runs, _saves = int(sys.argv[2]), int(sys.argv[3])
    print(_runs * _saves / asyncio.run(_save_all(sys.argv[1], _runs, _saves)))
