"""The promises of every executor, held to by real engines over PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.engines.clusters import RayCluster, TemporalServer
from tests.executors.contract import ExecutorContract
from tests.servers import postgres

from surehold import Storage, open_storage
from surehold.executors import Executor, RayExecutor, TemporalExecutor

SERVES = "tests.executors.counting"


class OnPostgres(ExecutorContract):
    """One engine for all tests: starting it takes longer than they do."""

    @pytest.fixture(scope="class")
    @classmethod
    def address(cls) -> str:
        return f"{postgres().url}&schema=c{uuid.uuid4().hex[:12]}"

    @pytest.fixture(scope="class")
    @classmethod
    def storage(cls, address: str) -> Iterator[Storage]:
        with open_storage(address) as storage:
            yield storage

    @pytest.fixture(scope="class")
    @classmethod
    def log(cls) -> Iterator[Path]:
        with (
            tempfile.TemporaryDirectory() as made,
            pytest.MonkeyPatch.context() as environment,
        ):
            environment.setenv("SUREHOLD_TEST_LOG", f"{made}/executions")
            yield Path(made) / "executions"


class TestRay(OnPostgres):
    @pytest.fixture(scope="class")
    @classmethod
    def executor(cls, address: str, log: Path) -> Iterator[Executor]:
        cluster = RayCluster(nodes=2)
        try:
            cluster.start()
            with RayExecutor(
                address, SERVES, address=cluster.address, actors=2, concurrency=2
            ) as executor:
                yield executor
        finally:
            cluster.stop()


class TestTemporal(OnPostgres):
    @pytest.fixture(scope="class")
    @classmethod
    def executor(cls, address: str, log: Path) -> Iterator[Executor]:
        with tempfile.TemporaryDirectory() as made:
            server = TemporalServer(Path(made))
            worker = None
            try:
                server.start()
                worker = temporal_worker(address, server)
                with TemporalExecutor(server.address) as executor:
                    yield executor
                worker.terminate()
                assert worker.wait(120) == 0
            finally:
                if worker is not None:
                    worker.kill()
                server.stop()


def temporal_worker(storage: str, server: TemporalServer) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.e2e.engines.temporal_worker", storage, server.address]
    return subprocess.Popen([*command, "30", SERVES])
