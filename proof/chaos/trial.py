"""A trial: workers execute runs while faults happen to them, their links and the database."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from tests.servers import PgBouncer, Postgres, owned_by_postgres

from proof.chaos.link import Link
from proof.chaos.oracle import Verdict, judge, read
from proof.chaos.work import FORGETFUL, LEASE, ORACLE, expected, paid
from surehold.core.policy import QueueSettings
from surehold.errors import StorageError
from surehold.storage.base import RunQuery
from surehold.storage.postgres import PostgresStorage

__all__ = ["FAULTS", "Outcome", "can_fill", "try_out"]

FAULTS = ("kill", "stop", "cut", "hole", "database", "full")
WORKERS = 3
CONCURRENCY = 4
SECONDS = 2.0
"""The length of a lease."""
_ROOM = 48 << 20
_PATIENCE = 300.0
_ROOT = Path(__file__).parents[2]


class Outcome(NamedTuple):
    """What was tried and what came of it."""

    runs: int
    faults: Counter[str]
    lost: list[str]
    unfinished: list[str]
    wrong: list[str]
    verdict: Verdict
    seconds: float

    @property
    def is_sound(self) -> bool:
        return not (self.lost or self.unfinished or self.wrong) and self.verdict.is_sound

    def __str__(self) -> str:
        seen = self.verdict
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.faults.items()))
        return (
            f"{self.runs} runs, {self.faults.total()} faults ({kinds}), {self.seconds:.0f} s:"
            f" {len(self.lost)} lost, {len(self.unfinished)} unfinished, {len(self.wrong)} wrong,"
            f" {seen.executions - seen.steps} executions beyond one of {seen.steps} steps,"
            f" {len(seen.again)} acknowledged steps begun again,"
            f" {len(seen.late)} steps begun after the lease had ended"
        )


def can_fill() -> bool:
    """True if this user may mount the small file system that is filled."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


def try_out(
    home: Path,
    *,
    runs: int,
    faults: int,
    kinds: tuple[str, ...] = FAULTS,
    pooler: bool = False,
    forgetful: bool = False,
    seed: int = 30,
) -> Outcome:
    """Execute *runs* while *faults* happen, in an empty directory with a short name.

    With *pooler* the workers reach the database through PgBouncer, which is killed too. With
    *forgetful* they do not look at the clock before a step begins: then the judge must object.
    """
    with ExitStack() as stack:
        trial = _Trial(home, stack, pooler=pooler, forgetful=forgetful, seed=seed)
        return trial.run(runs, faults, kinds)


class _Worker:
    """One worker after the other, behind one link."""

    def __init__(self, link: Link, command: list[str], environ: dict[str, str], log: Path) -> None:
        self.link = link
        self.busy = threading.Lock()
        """Held while a fault happens to it."""
        self._command, self._environ, self._log = command, environ, log
        self.pids: list[int] = []
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, cwd=_ROOT, env=self._environ, stdout=log, stderr=log
            )
        self.pids.append(self.process.pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


class _Trial:
    def __init__(
        self, home: Path, stack: ExitStack, *, pooler: bool, forgetful: bool, seed: int
    ) -> None:
        self._chance = random.Random(seed)
        self._oracle = home / "oracle"
        self._oracle.touch()
        home.chmod(0o755)
        self._server = Postgres(home / "pg").start()
        stack.callback(self._server.stop)
        self._small = stack.enter_context(_small(home, self._server))
        connect: Callable[[], socket.socket] = self._server.connect
        self._pooler: PgBouncer | None = None
        if pooler:
            self._pooler = PgBouncer(self._server, home / "pooler", size=8).start()
            stack.callback(self._pooler.stop)
            address = ("127.0.0.1", self._pooler.port)
            connect = lambda: socket.create_connection(address)  # noqa: E731
        self._storage = stack.enter_context(PostgresStorage(self._server.url, patience=120))
        environ = {**os.environ, ORACLE: str(self._oracle), LEASE: str(SECONDS)}
        if forgetful:
            environ[FORGETFUL] = "1"
        self._workers = [self._made(stack, connect, environ, home, n) for n in range(WORKERS)]
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def _made(
        self,
        stack: ExitStack,
        connect: Callable[[], socket.socket],
        environ: dict[str, str],
        home: Path,
        number: int,
    ) -> _Worker:
        link = Link(connect)
        stack.callback(link.close)
        url = f"{self._server.through(link.port)}&patience=10"
        command = [
            *(sys.executable, "-m", "surehold", "worker", "proof.chaos.work", "-s", url),
            *("--lease", str(SECONDS), "--concurrency", str(CONCURRENCY)),
        ]
        worker = _Worker(link, command, environ, home / f"worker-{number}.log")
        stack.callback(worker.kill)
        return worker

    def run(self, runs: int, faults: int, kinds: tuple[str, ...]) -> Outcome:
        began = time.monotonic()
        # Each fault counts as a failure of the runs that it hits, and here there are many.
        self._storage.set_queue("default", QueueSettings(attempts=100))
        for run in range(runs):
            paid.start(run, run_id=f"run-{run:05}", storage=self._storage)
        happened: Counter[str] = Counter()
        plan = [kinds[number % len(kinds)] for number in range(faults)]
        self._chance.shuffle(plan)
        for number, kind in enumerate(plan):
            self._until_done(runs * (number + 0.5) / (faults + 1))
            if self._happen(kind):
                happened[kind] += 1
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        self._until_done(runs)
        for worker in self._workers:
            worker.kill()
        return self._judged(runs, happened, time.monotonic() - began)

    def _until_done(self, count: float) -> None:
        """Wait until so many runs are completed; workers that ended are started again."""
        give_up = time.monotonic() + _PATIENCE
        while time.monotonic() < give_up:
            for worker in self._workers:
                if worker.process.poll() is not None and worker.busy.acquire(blocking=False):
                    worker.start()
                    worker.busy.release()
            with suppress(StorageError):
                counts = self._storage.count_runs(now=time.time(), most=1).counts
                if sum(n for (status, _), n in counts.items() if status == "completed") >= count:
                    return
            time.sleep(0.2)

    # Faults

    def _happen(self, kind: str) -> bool:
        """Let a fault happen, in a thread of its own if others may happen meanwhile."""
        if kind == "full" and self._small is None:
            return False
        if kind in ("database", "full"):
            getattr(self, f"_{kind}")()
            return True
        free = [one for one in self._workers if one.busy.acquire(blocking=False)]
        if not free:
            self._threads.pop(0).join()
            return self._happen(kind)
        worker = self._chance.choice(free)
        for other in free:
            if other is not worker:
                other.busy.release()
        thread = threading.Thread(target=self._to_one, args=(kind, worker))
        self._threads.append(thread)
        thread.start()
        return True

    def _to_one(self, kind: str, worker: _Worker) -> None:
        try:
            getattr(self, f"_{kind}")(worker)
        except BaseException as error:
            self._errors.append(error)
        finally:
            worker.busy.release()

    def _kill(self, worker: _Worker) -> None:
        worker.kill()
        worker.start()

    def _stop(self, worker: _Worker) -> None:
        """Freeze a worker for longer than its lease."""
        worker.process.send_signal(signal.SIGSTOP)
        time.sleep(SECONDS * random.uniform(1.2, 2.0))
        worker.process.send_signal(signal.SIGCONT)

    def _cut(self, worker: _Worker) -> None:
        worker.link.cut()

    def _hole(self, worker: _Worker) -> None:
        worker.link.hole(SECONDS * random.uniform(1.2, 2.5))

    def _database(self) -> None:
        """Kill the server, or the pooler before it."""
        if self._pooler is not None and self._chance.random() < 0.5:
            self._pooler.kill()
        else:
            self._server.kill()

    def _full(self) -> None:
        """Leave the data of the database no room for some seconds."""
        assert self._small is not None
        filler = self._small / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()
        time.sleep(SECONDS * 2)
        filler.unlink()

    # Judging

    def _judged(self, runs: int, happened: Counter[str], seconds: float) -> Outcome:
        found = {run.run_id: run for run in self._storage.runs(RunQuery())}
        names = {f"run-{run:05}": run for run in range(runs)}
        lost = sorted(names.keys() - found.keys())
        unfinished = [
            f"{name} is {found[name].status}"
            for name in names
            if name in found and found[name].status != "completed"
        ]
        wrong = [
            name
            for name, run in names.items()
            if name in found
            and found[name].status == "completed"
            and paid.result(name, storage=self._storage).value != expected(run)
        ]
        heard: dict[int, list[float]] = {}
        for worker in self._workers:
            heard |= dict.fromkeys(worker.pids, worker.link.heard)
        verdict = judge(read(self._oracle), heard, SECONDS)
        return Outcome(runs, happened, lost, unfinished, wrong, verdict, seconds)


@contextmanager
def _small(home: Path, server: Postgres) -> Iterator[Path | None]:
    """A file system with little room, on which the server keeps its tables; None without."""
    if not can_fill():
        yield None
        return
    place = home / "small"
    place.mkdir()
    options = f"size={_ROOM}"
    mounted: Any = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=False
    )
    if mounted.returncode:
        yield None
        return
    try:
        owned_by_postgres(place)
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute(f"CREATE TABLESPACE small LOCATION '{place}'")
            db.execute("ALTER DATABASE postgres SET default_tablespace = small")
        yield place
    finally:
        server.stop()
        subprocess.run(["umount", "-l", str(place)], check=False)
