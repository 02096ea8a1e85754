"""Servers that are killed and connections that are cut while processes save."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path

import pytest
from tests.crash.media import FULL, times
from tests.cutting import MOMENTS, CuttingProxy
from tests.servers import Postgres, Redis, valkey_program

from surehold import CheckpointManager, State
from surehold.storage.base import RunQuery, Storage
from surehold.storage.redis import RedisStorage

pytestmark = pytest.mark.timeout(7_200 if FULL else 600)

WRITERS = 4
_WAIT = 180.0

Open = Callable[[Postgres | Redis, str], Storage]


class Writers:
    """Threads that save to a run each until they are stopped, and note what was acknowledged."""

    def __init__(self, manager: CheckpointManager) -> None:
        self.saved: dict[str, list[str]] = {f"run-{n}": [] for n in range(WRITERS)}
        self.failures: list[BaseException] = []
        self._manager = manager
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(run,)) for run in self.saved]
        for thread in self._threads:
            thread.start()

    def wait_for_more(self, saves: int) -> None:
        """Wait until every writer has saved so often again."""
        targets = {run: len(saved) + saves for run, saved in self.saved.items()}
        give_up = time.monotonic() + _WAIT
        while any(len(self.saved[run]) < target for run, target in targets.items()):
            assert not self.failures, self.failures[0]
            assert time.monotonic() < give_up, "a writer does not continue"
            time.sleep(0.002)

    def wait_for_any(self) -> None:
        """Wait until some writer has saved again."""
        done = sum(map(len, self.saved.values()))
        give_up = time.monotonic() + _WAIT
        while sum(map(len, self.saved.values())) == done:
            assert not self.failures, self.failures[0]
            assert time.monotonic() < give_up, "no writer continues"
            time.sleep(0.001)

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_WAIT)
        assert not self.failures, self.failures[0]

    def check(self, manager: CheckpointManager) -> int:
        """Compare what is stored with what was acknowledged; returns how much that is."""
        assert all(manager.verify())
        for run, ids in self.saved.items():
            stored = [entry.checkpoint_id for entry in reversed(manager.list_checkpoints(run))]
            assert stored == ids, "an acknowledged save is lost, or one is stored twice"
            state = manager.resume_from_latest(run)
            assert state is not None
            assert state["done"] == len(ids)
        return sum(map(len, self.saved.values()))

    def _work(self, run: str) -> None:
        state = State.new({"done": 0}, run_id=run)
        try:
            while not self._stop.is_set():
                state = state.set("done", len(self.saved[run]) + 1)
                self.saved[run].append(self._manager.save_checkpoint(state))
        except BaseException as failure:
            self.failures.append(failure)


def test_a_server_killed_under_load_loses_nothing_and_writers_continue(
    own_server: Postgres | Redis, open_on: Open, finding: Callable[..., None]
) -> None:
    kills = times(4, 100)
    medium = type(own_server).__name__.lower()
    with open_on(own_server, own_server.url) as storage, CheckpointManager(storage) as manager:
        writers = Writers(manager)
        for number in range(kills):
            writers.wait_for_more(1 + number % 7)
            own_server.kill()
        writers.wait_for_more(3)
        writers.stop()
        count = writers.check(manager)
    finding(f"server kill -9 under load, {medium}", kills, f"{count:,} saves acknowledged, 0 lost")


def test_the_test_sees_a_server_that_loses_what_it_acknowledged(
    home: Path, finding: Callable[..., None]
) -> None:
    """One that keeps no append-only file, accepted with durability=relaxed."""
    server = Redis(valkey_program(), home / "server", "appendonly no", 'save ""').start()
    try:
        with RedisStorage(server.url, durability="relaxed", patience=120) as storage:
            manager = CheckpointManager(storage)
            writers = Writers(manager)
            writers.wait_for_more(2)
            writers.stop()
            server.kill()
            with pytest.raises(AssertionError, match="an acknowledged save is lost"):
                writers.check(manager)
    finally:
        server.stop()
    finding("a server that keeps nothing on disk", 1, "its loss noticed", control=True)


def cut_while_they_save(proxy: CuttingProxy, writers: Writers, cuts: int) -> None:
    """Cut so many connections, each at the next moment of an exchange, and stop the writers."""
    give_up = time.monotonic() + times(300, 3_000)
    for moment in islice(cycle(MOMENTS), cuts):
        writers.wait_for_any()  # else it is only connecting that is cut
        done = proxy.cuts
        proxy.arm(moment)
        while proxy.cuts == done:
            assert not writers.failures, writers.failures[0]
            assert time.monotonic() < give_up
            time.sleep(0.001)
    writers.wait_for_more(2)
    writers.stop()


def test_cut_connections_lose_nothing_and_double_nothing(
    own_server: Postgres | Redis, open_on: Open, finding: Callable[..., None]
) -> None:
    cuts = times(24, 500, "SUREHOLD_CUTS")
    medium = type(own_server).__name__.lower()
    with (
        CuttingProxy(own_server.connect) as proxy,
        open_on(own_server, own_server.through(proxy.port)) as storage,
        CheckpointManager(storage) as manager,
    ):
        writers = Writers(manager)
        cut_while_they_save(proxy, writers, cuts)
        count = writers.check(manager)
        assert {info.run_id for info in storage.runs(RunQuery())} == set(writers.saved)
    finding(f"connection cut, {medium}", cuts, f"{count:,} saves acknowledged, 0 lost or doubled")
