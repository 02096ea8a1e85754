"""Runs as activities of a real Temporal server, through every fault that they can have."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.media import times
from tests.e2e.engines import processes
from tests.e2e.engines.clusters import TemporalServer
from tests.e2e.engines.trial import Trial

from surehold.executors import TemporalExecutor

LEASE = 10.0
WORKERS = 4


@pytest.fixture
def trial(tmp_path: Path) -> Trial:
    return Trial(tmp_path, times(50, 200), pause=0.2)


class Workers:
    """Processes that serve the runs of a trial, each on a host of its own."""

    def __init__(self, trial: Trial, server: TemporalServer) -> None:
        self._command = [sys.executable, "-m", "tests.e2e.engines.temporal_worker"]
        self._command += [trial.address, server.address, str(LEASE), "tests.executors.counting"]
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, count: int) -> None:
        for _ in range(count):
            processes.become_host(f"worker-{len(self._started)}")
            self._started.append(subprocess.Popen(self._command))

    def pids(self) -> list[int]:
        return [one.pid for one in self._started if one.poll() is None]

    def stop(self) -> None:
        for one in self._started:
            one.kill()
            one.wait()


@pytest.fixture
def workers(trial: Trial, temporal_server: TemporalServer) -> Iterator[Workers]:
    made = Workers(trial, temporal_server)
    yield made
    made.stop()


@pytest.mark.timeout(3600)
def test_no_run_is_lost_whatever_dies(
    trial: Trial,
    temporal_server: TemporalServer,
    workers: Workers,
    figure: Callable[[str], None],
) -> None:
    workers.start(WORKERS)
    with TemporalExecutor(temporal_server.address, heartbeat_seconds=LEASE) as executor:
        for run_id in trial.start(0.2):
            executor.submit(run_id)
    trial.reach(0.3)
    trial.kill([trial.busiest()])
    workers.start(1)

    trial.start(0.2)
    trial.reach(0.3)
    frozen = trial.busiest()
    left = trial.freeze(frozen)
    processes.until(lambda: trial.taken_over(left, frozen), "the takeover")
    processes.wake([frozen])

    trial.start(0.2)
    trial.reach(0.3)
    temporal_server.kill()
    temporal_server.start()

    trial.start(0.2)
    trial.reach(0.3)
    trial.restart_postgres(workers.pids())

    trial.start(0.2)
    trial.reach(0.3)
    trial.kill(workers.pids())
    temporal_server.kill()
    temporal_server.start()
    workers.start(WORKERS)

    verdict = trial.finish()
    assert verdict.fenced >= 1
    figure(f"Temporal, workers, the server, PostgreSQL and all of them killed: {verdict}")


def test_keys_and_certificates_reach_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    from temporalio.client import Client

    asked: list[tuple[str, dict[str, object]]] = []

    async def connect(address: str, **options: object) -> Client:
        asked.append((address, options))
        raise RuntimeError("not there")

    monkeypatch.setattr(Client, "connect", connect)
    with TemporalExecutor("cloud:7233", namespace="team", api_key="secret", tls=True) as executor:
        executor.submit("a-run")
    ((address, options),) = asked
    assert address == "cloud:7233"
    assert options == {"namespace": "team", "api_key": "secret", "tls": True, "lazy": True}
