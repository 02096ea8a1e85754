"""Worker processes that are killed, frozen and woken while they execute `counting.count`."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.e2e.engines.judging import Log, Verdict
from tests.executors.counting import count

from surehold import Storage
from surehold.storage.queueing import EntryQuery, Queueing

ROOT = Path(__file__).parents[2]


class Workers:
    """Some worker processes over one storage; what they execute is in a log outside."""

    def __init__(
        self, url: str, log: Path, *, number: int, lease: float, pause: float, concurrency: int = 8
    ) -> None:
        self._command = [
            *(sys.executable, "-m", "surehold", "worker", "tests.executors.counting"),
            *("-s", url, "--lease", str(lease), "--concurrency", str(concurrency)),
        ]
        self._environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "SUREHOLD_TEST_LOG": str(log),
            "SUREHOLD_TEST_PAUSE": str(pause),
        }
        self._events = log.with_suffix(".events")
        self.log = Log(log)
        self.lease = lease
        self.processes = [self._started() for _ in range(number)]

    def _started(self) -> subprocess.Popen[bytes]:
        with self._events.open("ab") as events:
            return subprocess.Popen(
                self._command, cwd=ROOT, env=self._environ, stdout=events, stderr=events
            )

    def replace(self, index: int) -> None:
        """Start another worker in the place of a dead one."""
        self.processes[index] = self._started()

    def freeze(self, index: int) -> int:
        """Stop a worker where it is; the number of runs that it was in the middle of."""
        process = self.processes[index]
        os.kill(process.pid, signal.SIGSTOP)
        return self.log.note_fault([process.pid])

    def wake(self, index: int) -> None:
        os.kill(self.processes[index].pid, signal.SIGCONT)

    def kill(self, *indexes: int) -> None:
        """Kill workers with SIGKILL, all at the same moment, and start others."""
        for index in indexes:
            os.kill(self.processes[index].pid, signal.SIGSTOP)
        self.log.note_fault([self.processes[index].pid for index in indexes])
        for index in indexes:
            self.processes[index].kill()
            self.processes[index].wait()
            self.replace(index)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def told(self, event: str) -> int:
        """How often the workers told of an event."""
        return self._events.read_text().count(f'"event":"{event}"')


def until_told(workers: Workers, event: str, number: int, patience: float) -> bool:
    """Wait until the workers told of an event that often; False if they do not."""
    deadline = time.monotonic() + patience
    while workers.told(event) < number:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def submit(storage: Storage, number: int) -> dict[str, int]:
    """Queue runs; their seeds by id."""
    seeds = {f"run-{seed:05}": seed for seed in range(number)}
    for run_id, seed in seeds.items():
        count.start(seed, run_id=run_id, storage=storage)
    return seeds


def until_done(storage: Queueing, patience: float) -> None:
    deadline = time.monotonic() + patience
    while [*storage.entries(EntryQuery(limit=1))]:
        assert time.monotonic() < deadline, [*storage.entries(EntryQuery(limit=20))]
        time.sleep(0.1)


def until_taken_over(workers: Workers, index: int, patience: float) -> bool:
    """Wait until another worker has begun a step of a run of a frozen one; False if none does."""
    pid = workers.processes[index].pid
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        lines = workers.log.lines()
        newest = {line.run_id: line for line in lines if line.pid == pid}
        if any(
            line.run_id in newest and line.pid != pid and line.epoch > newest[line.run_id].epoch
            for line in lines
        ):
            return True
        time.sleep(0.5)  # the log may be long
    return False


def chance(seed: int) -> random.Random:
    return random.Random(seed)


__all__ = [
    "Verdict",
    "Workers",
    "chance",
    "submit",
    "until_done",
    "until_taken_over",
    "until_told",
]
