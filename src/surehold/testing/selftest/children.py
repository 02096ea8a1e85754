"""Child processes of the self-test: programs that are killed, and their killer."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from surehold.agents.resilient import ResilientCheckpointManager
from surehold.core.state import State
from surehold.doors.graph import CheckpointConfig, GraphConfig, StateGraph
from surehold.doors.loop import run as durable
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs.effects import effect
from surehold.errors import StorageError, SureholdError
from surehold.testing.selftest.verdicts import require

STEPS = 12
"""The steps that a loop or a graph makes until it is completed."""
ROOM = 256 << 10
_SAVES_TO_FILL = 1_000
"""Saves of at least 2,000 bytes, of which the room takes far fewer."""
_PATIENCE = 60.0


def item(step: int) -> dict[str, Any]:
    """The data that a step adds. It depends on the step alone, so it can be checked."""
    text = f"step {step} ".ljust(100 + step * 37 % 400, "-")
    return {"step": step, "text": text, "pair": (step, None), "seen": {step}}


def killed_after(
    which: str, address: str, run_id: str, lines: int | None, calls: str = ""
) -> list[str]:
    """The lines a child process printed until SIGKILL, sent after so many lines.

    It has the storage at *address* as its default: an address may hold a password, and arguments
    can be seen by others. Lines that it had printed when it died count. With None it is left to
    end, and must end well. A child that reads a character before each line is at most one line
    ahead of the signal, however late that comes.
    """
    said: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-m", "surehold.testing.selftest", which, run_id, calls],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        env=os.environ | {"SUREHOLD_STORAGE": address},
        text=True,
    ) as child:
        assert child.stdin is not None and child.stdout is not None
        if lines is None:
            child.stdin.close()
        else:
            child.stdin.write("." * (lines + 1))
            child.stdin.flush()
        for line in child.stdout:
            said.append(line.strip())
            if len(said) == lines:
                child.send_signal(signal.SIGKILL)
        code = child.wait(_PATIENCE)
    require(lines is not None or code == 0, f"a child process ended with {code}")
    require(bool(said), f"a child process said nothing, and ended with {code}")
    return said


def _note(calls: Path, what: int) -> None:
    """Write a line that stands for an action which cannot be undone."""
    with calls.open("a") as file:
        file.write(f"{what}\n")
        file.flush()
        os.fsync(file.fileno())


def _wait_for_turn() -> None:
    """Wait until the parent allows another step, or all by closing the pipe."""
    sys.stdin.read(1)


def _loop(address: str, run_id: str, calls: Path) -> None:
    """Twelve steps of a loop of its own; each tells when it is saved."""
    with durable(run_id, storage=address) as run:
        for step in range(run.state.get("done", 0), STEPS):
            _wait_for_turn()
            _note(calls, step)
            run.checkpoint(done=step + 1)
            print(step, flush=True)


def _graph(address: str, run_id: str, calls: Path) -> None:
    """The same as a graph, each call an effect whose outcome is recorded."""

    async def work(state: State) -> dict[str, Any]:
        _wait_for_turn()
        await effect("work", _note, calls, state["done"], in_doubt="retry")
        print(state["done"], flush=True)
        return {"done": state["done"] + 1}

    config = CheckpointConfig(store=address, interval=1, preserve=True)
    graph = StateGraph(GraphConfig(name="count", checkpoint=config))
    graph.add_node("work", work)
    graph.add_node("end", lambda state: None)
    graph.add_edge("work", "end", lambda state: state["done"] >= STEPS)
    graph.add_edge("work", "work")
    graph.set_entry_point("work")
    graph.set_exit_point("end")
    with graph:
        final = graph.execute_sync(State.new({"done": 0}, run_id=run_id))
    require(final["done"] == STEPS, f"it ended at {final['done']}")


def _operation(address: str, run_id: str, calls: Path) -> None:
    """An agent's risky operation that is killed half way."""
    with ResilientCheckpointManager(run_id, address) as manager:
        manager.register_provider("file", calls.read_text, calls.write_text)
        with manager.operation("deploy"):
            calls.write_text("half")
            print("half", flush=True)
            signal.pause()


def _write_on(address: str, run_id: str, calls: Path) -> None:
    """Save step after step, and tell of each once it is acknowledged, until killed."""
    with durable(run_id, storage=address) as run:
        items = run.state.setdefault("items", [])
        while True:
            items.append(item(run.step + 1))
            run.checkpoint()
            print(run.step, flush=True)


def _fill(address: str, run_id: str, calls: Path) -> None:
    """Save until no file has room to grow; then, with room again, once more."""
    import resource

    with CheckpointManager(address) as manager:
        state = manager.resume_from_latest(run_id) or State.new({"items": []}, run_id=run_id)
        sys.dont_write_bytecode = True  # the limit would cut short what Python caches of a module
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
        noise = random.Random(7)
        error: SureholdError | None = None
        while error is None and state.step < _SAVES_TO_FILL:
            step = state.step + 1
            added = {**item(step), "noise": noise.randbytes(2000).hex()}
            new = state.append("items", added).at(step=step)
            try:
                manager.save_checkpoint(new)
            except StorageError as full:
                error = full
            else:
                state = new
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        print(type(error).__name__, state.step, flush=True)
    with CheckpointManager(address) as manager:
        state = manager.resume_from_latest(run_id)
        manager.save_checkpoint(state.append("items", item(0)).at(step=state.step + 1))
        print("again", state.step, flush=True)


CHILDREN: dict[str, Callable[[str, str, Path], None]] = {
    "loop": _loop,
    "graph": _graph,
    "operation": _operation,
    "write": _write_on,
    "fill": _fill,
}
