"""End to end on this installation: real processes, killed and resumed.

```console
$ python -m surehold.testing.integration
```

PASS or FAIL, a line a promise; the exit code is 1 if anything failed. It works in a directory of
its own, which it removes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from surehold.agents.resilient import ResilientCheckpointManager
from surehold.core.state import State
from surehold.doors.graph import CheckpointConfig, GraphConfig, StateGraph
from surehold.doors.loop import run as durable
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs.effects import effect
from surehold.errors import ConflictError, LeaseHeldError
from surehold.testing.selftest import Skipped, Verdicts, killed_after, require

STEPS = 12
KEY = "5a" * 32


# What the child processes do


def _note(calls: Path, what: int) -> None:
    """Do something that cannot be undone, as far as this test is concerned."""
    with calls.open("a") as file:
        file.write(f"{what}\n")
        file.flush()
        os.fsync(file.fileno())


def _wait_for_turn() -> None:
    """Wait until the parent allows another step, or all by closing the pipe."""
    sys.stdin.read(1)


def _loop(address: str, calls: Path) -> None:
    """Twelve steps of a loop of its own; each tells when it is saved."""
    with durable("loop", storage=address) as run:
        for step in range(run.state.get("done", 0), STEPS):
            _wait_for_turn()
            _note(calls, step)
            run.checkpoint(done=step + 1)
            print(step, flush=True)


def _graph(address: str, calls: Path) -> None:
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
        final = graph.execute_sync(State.new({"done": 0}, run_id="graph"))
    require(final["done"] == STEPS, f"it ended at {final['done']}")


def _operation(address: str, calls: Path) -> None:
    """An agent's risky operation that is killed half way."""
    with ResilientCheckpointManager("agent", address) as manager:
        manager.register_provider("file", calls.read_text, calls.write_text)
        with manager.operation("deploy"):
            calls.write_text("half")
            print("half", flush=True)
            signal.pause()


_CHILDREN: dict[str, Callable[[str, Path], None]] = {
    "loop": _loop,
    "graph": _graph,
    "operation": _operation,
}


# What is promised


def _start(which: str, address: str, calls: Path, lines: int | None) -> None:
    module = "surehold.testing.integration"
    killed_after(module, ["--child", which, address, str(calls)], address, lines)


def _resumes(which: str, address: str, calls: Path) -> str:
    """Kill it twice, let it end, and count what it did."""
    for lines in (3, 4, None):
        _start(which, address, calls, lines)
    done = calls.read_text().split()
    require(sorted(set(map(int, done))) == list(range(STEPS)), f"it did {done}")
    again = len(done) - len(set(done))
    require(again <= 2, f"{again} steps were done twice after two kills")
    with CheckpointManager(address) as manager:
        state = manager.resume_from_latest(which)
        require(state is not None and state.status == "completed", "it is not completed")
        require(state["done"] == STEPS, f"its state says {state['done']}")
        verdict = manager.verify(which)[0]
    require(bool(verdict), f"its journal is damaged: {verdict.problems}")
    return f"{STEPS} steps, killed twice, {again} cut off and done again"


def _rolls_back(address: str, calls: Path) -> str:
    calls.write_text("whole")
    _start("operation", address, calls, 1)
    require(calls.read_text() == "half", "it was not killed half way")
    with ResilientCheckpointManager("agent", address) as manager:
        manager.register_provider("file", calls.read_text, calls.write_text)
        undone = manager.roll_back_unfinished()
    require([one.operation for one in undone] == ["deploy"], f"it found {undone}")
    require(calls.read_text() == "whole", "it was not rolled back")
    return "found in the transaction log, and undone"


def _one_process(address: str, calls: Path) -> str:
    with durable("held", storage=address):
        try:
            with durable("held", storage=address):
                require(False, "two at once have it")
        except LeaseHeldError as error:
            return f"the other learns who: {error.message}"
    return ""


def _no_overwriting(address: str, calls: Path) -> str:
    with CheckpointManager(address) as one, CheckpointManager(address) as two:
        one.save_checkpoint(State.new({"n": 0}, run_id="shared"))
        first, second = one.resume_from_latest("shared"), two.resume_from_latest("shared")
        one.save_checkpoint(first.set("n", 1).at(step=1))
        try:
            two.save_checkpoint(second.set("n", 2).at(step=1))
        except ConflictError:
            require(two.resume_from_latest("shared")["n"] == 1, "the first was overwritten")
            return "the second writer must load again"
    require(False, "the second writer was not told")
    return ""


def _travels(address: str, calls: Path) -> str:
    file = calls.with_suffix(".surehold")
    with CheckpointManager(address) as here, CheckpointManager("memory://") as there:
        here.save_checkpoint(State.new({"seen": {1, 2}, "pair": (1, None)}, run_id="case"))
        manifest = here.export_run("case", file)
        there.import_run(file)
        state = there.resume_from_latest("case")
        require((state["seen"], state["pair"]) == ({1, 2}, (1, None)), f"it came as {state}")
        require(all(there.verify("case")), "it came damaged")
    return f"{manifest.records} records in a file, every type as it was"


def _encrypted(address: str, calls: Path) -> str:
    if find_spec("cryptography") is None:
        raise Skipped("pip install 'surehold[crypto]'")
    with CheckpointManager(address, encryption_key=KEY) as manager:
        manager.save_checkpoint(State.new({"diary": "dulse and kelp"}, run_id="private"))
        require(manager.resume_from_latest("private")["diary"] == "dulse and kelp", "not readable")
    files = [path for path in calls.parent.rglob("*") if path.is_file()]
    found = [path.name for path in files if b"dulse and kelp" in path.read_bytes()]
    require(not found, f"it stands in the clear in {found}")
    return f"not to be found in {len(files)} files"


_PROMISES: dict[str, Callable[[str, Path], str]] = {
    "a loop that is killed resumes at the next step": partial(_resumes, "loop"),
    "a graph that is killed resumes, and repeats no recorded effect": partial(_resumes, "graph"),
    "an operation that is killed is found and rolled back": _rolls_back,
    "one process has a run": _one_process,
    "no writer overwrites another": _no_overwriting,
    "a run goes to a file and back": _travels,
    "what is encrypted cannot be read": _encrypted,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Make all checks on files and on SQLite; gives the exit code."""
    parser = argparse.ArgumentParser(
        "surehold.testing.integration", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    child = parser.parse_args(arguments).child
    if child:
        which, address, calls = child
        _CHILDREN[which](address, Path(calls))
        return 0
    print(f"surehold {version('surehold')} in {Path(__file__).parents[1]}")
    verdicts = Verdicts()
    for medium, spelt in (("file", "file://{}/runs"), ("sqlite", "sqlite:///{}/runs.db")):
        for promise, check in _PROMISES.items():
            with tempfile.TemporaryDirectory(prefix="surehold-integration-") as directory:
                calls = Path(directory, "calls")
                made = partial(check, spelt.format(directory), calls)
                verdicts.check(f"{medium}: {promise}", made)
    return verdicts.sum_up()


if __name__ == "__main__":
    sys.exit(main())
