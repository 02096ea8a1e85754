"""Real engines for the tests of executors: each is started once and ends with the session."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.engines import processes
from tests.e2e.engines.clusters import RayCluster, TemporalServer, has_engines


@pytest.fixture(scope="session", autouse=True)
def alone() -> Iterator[None]:
    """A network with loopback alone, and nothing left when the session ends."""
    if not has_engines():
        pytest.skip("the engines are not installed: make e2e")
    if refused := processes.leave_the_network():
        pytest.skip(refused)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    watcher = processes.clean_up_after(os.getpid())
    yield
    processes.kill(pid for pid in processes.started() if pid != watcher.pid)
    watcher.kill()
    watcher.wait()


@pytest.fixture
def ray_cluster() -> Iterator[RayCluster]:
    """A head and three nodes."""
    cluster = RayCluster()
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture
def temporal_server(tmp_path: Path) -> Iterator[TemporalServer]:
    """A development server."""
    server = TemporalServer(tmp_path)
    try:
        yield server.start()
    finally:
        server.stop()
