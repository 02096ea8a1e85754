"""Looking back over a long run: blame and the JSON export, with few and with many checkpoints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.report import Line
from benchmarks.workload import Times, text_of
from surehold import CheckpointManager, SQLiteStorage, State

__all__ = ["measure"]

_FEW, _MANY = 500, 10_000
_ROUNDS = 5
_LIMIT = 20
_MEMORY = 200
_KEYS = {"task": "a value that never changed", "/messages/0": "the first message"}
# Not ru_maxrss: a child inherits that from the process that started it.
_EXPORT = """
import sys
from surehold.__main__ import main
code = main(sys.argv[1:])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(peak.split()[1])
sys.exit(code)
"""


def measure(directory: Path) -> Iterator[Line]:
    """Compare a run of 500 checkpoints with one of 10,000, in turns."""
    few, many = (_conversation(directory / f"{n}.db", n) for n in (_FEW, _MANY))
    for key, what in _KEYS.items():
        times = Times()
        for _ in range(_ROUNDS):
            times.time("few", partial(_blame, few, key))
            times.time("many", partial(_blame, many, key))
        growth = min(times.taken["many"]) / min(times.taken["few"])
        note = f"{min(times.taken['many']) * 1e3:.1f} ms"
        yield Line(f"blame of {what}: {_MANY:,} checkpoints / {_FEW}", growth, _LIMIT, note=note)
    yield from _export(many, directory / "run.json")


def _conversation(path: Path, steps: int) -> Path:
    with SQLiteStorage(path) as storage:
        manager = CheckpointManager(storage)
        state = State.new({"task": "find kelp", "messages": [], "n": 0}, run_id="run")
        for step in range(1, steps + 1):
            message = {"role": "assistant", "content": f"step {step}: nothing to report so far"}
            state = state.append("messages", message).set("n", step).at(step=step, node="work")
            manager.save_checkpoint(state)
    return path


def _blame(path: Path, key: str) -> None:
    with CheckpointManager(f"sqlite:///{path}") as manager:
        found = manager.blame("run", key)
    assert found is not None and found.step == 1


def _export(path: Path, target: Path) -> Iterator[Line]:
    """The memory of `surehold export --json`, and its file beside final state and deltas."""
    words = ("-s", f"sqlite:///{path}", "export", "run", "--json", "-o", str(target))
    done = subprocess.run(
        [sys.executable, "-c", _EXPORT, *words], capture_output=True, text=True, check=True
    )
    peak = int(done.stdout.split()[-1]) / 1024
    yield Line(f"export of {_MANY:,} checkpoints as JSON: memory", peak, _MEMORY, unit=" MB")
    with CheckpointManager(f"sqlite:///{path}") as manager:
        final = manager.resume_from_latest("run")
        assert isinstance(final, State)
        plain = len(text_of(final.to_dict()))
        for entry in manager.history("run"):
            plain += len(text_of(entry.changes))
    size = target.stat().st_size
    note = f"{size / 1e6:.1f} MB"
    yield Line("its file / the final state and the deltas", size / plain, 3, note=note)
