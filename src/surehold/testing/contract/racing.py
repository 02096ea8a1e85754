"""Writers that race for the seqs of one run, in threads or processes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from surehold.storage.base import Storage
from surehold.testing.journal import JournalWriter

_WAIT = 300.0


def race(storage: Storage, run_id: str, who: str, *, until: int) -> list[int]:
    """Append to the run against others up to seq *until*; what *who* won."""
    won = []
    while (writer := JournalWriter.after(storage, run_id)).seq < until:
        record = writer.record(who.encode(), id=f"{who}-{writer.seq + 1}")
        if storage.append([writer.batch([record])])[0] is None:
            won.append(record.header.seq)
    return won


def race_in_processes(
    source: Path,
    medium: str,
    directory: Path,
    *,
    run_id: str,
    processes: int,
    until: int,
    wait: float = _WAIT,
) -> list[list[int]]:
    """`race` in that many processes, started together; what each of them won.

    Each opens *directory* as the class *medium* of the file *source* does. They have *wait*
    seconds.
    """
    # The child finds the test module by its file, as pytest may have imported it under any name.
    command = [sys.executable, "-m", __name__, str(source), medium, str(directory), run_id]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with ExitStack() as stack:
        children = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, str(until), f"process-{n}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                )
            )
            for n in range(processes)
        ]
        for child in children:
            stack.callback(child.kill)
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        return [json.loads(child.communicate(timeout=wait)[0]) for child in children]


def _main(source: str, medium: str, directory: str, run_id: str, until: str, who: str) -> None:
    spec = importlib.util.spec_from_file_location("surehold_medium_under_test", source)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    with getattr(module, medium)().open(Path(directory)) as storage:
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(race(storage, run_id, who, until=int(until))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
