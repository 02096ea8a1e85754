"""Response time of the command line with few and with many checkpoints."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Line
from surehold import State, StateManager

__all__ = ["fill", "measure", "ratios"]

_RUNS, _CHECKPOINTS = 1000, 100
_ROUNDS = 9
COMMANDS = ("runs", "log run-0000", "show run-0000@50")


def fill(path: Path, runs: int, checkpoints: int) -> str:
    """Create a storage with *runs* runs of *checkpoints* checkpoints; return its address."""
    address = f"sqlite:///{path}"

    async def one(manager: StateManager, run_id: str, step: int, state: State) -> State:
        message = {"role": "assistant", "content": f"step {step} of {run_id}"}
        state = state.append("messages", message).set("step", step).at(step=step, node="work")
        await manager.save_checkpoint(state)
        return state

    async def make() -> None:
        async with StateManager(address) as manager:
            states = [
                State.new({"messages": []}, run_id=f"run-{number:04}", name="bench")
                for number in range(runs)
            ]
            for step in range(1, checkpoints + 1):
                states = await asyncio.gather(
                    *(one(manager, state.run_id, step, state) for state in states)
                )

    asyncio.run(make())
    return address


def ratios(
    few: str, many: str, rounds: int = _ROUNDS, commands: tuple[str, ...] = COMMANDS
) -> dict[str, tuple[float, float, float]]:
    """For each command: many / few, many / bare Python, and milliseconds; in turns."""
    bare = [sys.executable, "-c", "pass"]
    times: dict[tuple[str, str], list[float]] = {}
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    for number in range(rounds + 1):
        for words in commands:
            calls = {"bare": bare}
            for name, address in (("few", few), ("many", many)):
                run = [sys.executable, "-m", "surehold", "-s", address, *words.split()]
                calls[name] = run
            for name, call in calls.items():
                started = time.perf_counter()
                subprocess.run(call, capture_output=True, check=True, env=environ)
                if number:  # the first time, bytecode is written and files are read
                    seconds = time.perf_counter() - started
                    times.setdefault((words, name), []).append(seconds)
    # Compare the best of each: other work of the machine can only add.
    best = {key: min(values) for key, values in times.items()}
    return {
        words: (
            best[words, "many"] / best[words, "few"],
            best[words, "many"] / best[words, "bare"],
            best[words, "many"] * 1000,
        )
        for words in commands
    }


def measure(directory: Path) -> Iterator[Line]:
    """Time `runs`, `log` and `show` with 100 and with 100,000 checkpoints."""
    few = fill(directory / "few.db", 1, _CHECKPOINTS)
    many = fill(directory / "many.db", _RUNS, _CHECKPOINTS)
    for words, (growth, bare, milliseconds) in ratios(few, many).items():
        name = words.partition(" ")[0]
        yield Line(
            f"surehold {name}, {_RUNS * _CHECKPOINTS:,} checkpoints / {_CHECKPOINTS}", growth, 1.5
        )
        yield Line(f"surehold {name} / python -c pass", bare, 25, note=f"{milliseconds:.0f} ms")
