"""Group commit: saves per sync with 64 runs saving at once, and its gain on a slow disk.

strace counts and delays the syncs of a child process: `python -m benchmarks.group_commit`.
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
from benchmarks.workload import message
from surehold import SQLiteStorage, State, StateManager

__all__ = ["can_trace", "measure", "saves_per_sync"]

_RUNS = 64
_SAVES = 30
_ALONE = 150
_DELAY = 5000
"""Microseconds added to each sync."""
_ROUNDS = 4
_SYNCS = "fsync,fdatasync"


def can_trace() -> bool:
    """True if strace is installed and may trace."""
    if shutil.which("strace") is None:
        return False
    tried = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False)
    return tried.returncode == 0


def measure(directory: Path) -> Iterator[Line]:
    """Count the syncs, then compare speeds with delayed syncs, in turns.

    The best rounds are compared: with syncs of a fixed length anything else only slows.
    """
    counted = f"{_RUNS} runs at once: saves a sync"
    timed = f"{_RUNS} runs / one run, saves a second with syncs {_DELAY / 1000:g} ms longer"
    if not can_trace():
        for what, limit in ((counted, 8), (timed, 20)):
            yield Line(what, None, limit, at_least=True, note="strace is missing or may not trace")
        return
    yield Line(counted, saves_per_sync(directory / "counted"), 8, at_least=True, unit="")
    together, alone = 0.0, 0.0
    inject = ["-e", f"inject={_SYNCS}:delay_exit={_DELAY}"]
    log = directory / "log"
    for number in range(_ROUNDS):
        speed = _child(directory / f"together-{number}", _RUNS, _SAVES, log, inject)
        together = max(together, speed)
        alone = max(alone, _child(directory / f"alone-{number}", 1, _ALONE, log, inject))
    note = f"{together:,.0f} and {alone:,.0f} a second"
    yield Line(timed, together / alone, 20, at_least=True, note=note)


def saves_per_sync(path: Path, runs: int = _RUNS, saves: int = _SAVES) -> float:
    """Saves divided by all syncs of the process, opening and closing included."""
    log = path.with_suffix(".strace")
    _child(path, runs, saves, log, [])
    syncs = len(re.findall(r"\b(?:fsync|fdatasync)\(", log.read_text()))
    return runs * saves / syncs


def _child(path: Path, runs: int, saves: int, log: Path, options: list[str]) -> float:
    """Run a process under strace, which logs its syncs to *log*; saves per second."""
    trace = ["strace", "-f", "--seccomp-bpf", "-o", str(log), "-e", f"trace={_SYNCS}", *options]
    child = [sys.executable, "-m", "benchmarks.group_commit", str(path), str(runs), str(saves)]
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
    """Seconds until each run has made its saves."""
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
