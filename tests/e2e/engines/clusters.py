"""A Ray cluster and a Temporal server, started by the tests and killed by them."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e.engines import processes

# A dead node is noticed after about two seconds instead of twenty.
_RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
    # A busy machine takes its time to start the processes of a node.
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_agent_register_timeout_ms": "120000",
    # Log lines of actors are not copied to the driver's output.
    "RAY_DEDUP_LOGS": "0",
}
_STORE_BYTES = 80 << 20
_TRIES = 5
_numbers = itertools.count(1)


class RayCluster:
    """A head without work and nodes with two logical processors each, in this network."""

    def __init__(self, nodes: int = 3) -> None:
        os.environ.update(_RAY_SETTINGS)
        # The paths of its sockets would be too long in a test's own directory.
        self.directory = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
        os.environ["RAY_TMPDIR"] = str(self.directory)
        self._wanted = nodes
        self._cluster: Any = None
        self._nodes: list[Any] = []

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def start(self) -> RayCluster:
        """Start the head and the nodes."""
        from ray.cluster_utils import Cluster

        self._cluster = Cluster()
        _patiently(
            lambda: self._cluster.add_node(
                num_cpus=0, object_store_memory=_STORE_BYTES, include_dashboard=False
            )
        )
        for _ in range(self._wanted):
            self.add_node()
        return self

    def add_node(self) -> None:
        """Start one more node, which is a host of its own."""
        processes.become_host(f"node-{next(_numbers)}")
        start = partial(self._cluster.add_node, num_cpus=2, object_store_memory=_STORE_BYTES)
        self._nodes.append(_patiently(start))

    def node_processes(self, index: int) -> list[int]:
        """A node's raylet and everything that it started."""
        return processes.tree(*_pids(self._nodes[index]))

    def every_process(self) -> list[int]:
        """The head, the nodes and everything that they started."""
        nodes = [node for node in (*self._nodes, self._cluster.head_node) if node is not None]
        return [pid for node in nodes for pid in processes.tree(*_pids(node))]

    def kill_node(self, index: int) -> None:
        """Kill a node's raylet and everything that it started, at once."""
        node = self._nodes.pop(index)
        processes.kill(processes.tree(*_pids(node)))
        self._cluster.remove_node(node, allow_graceful=False)

    def kill(self) -> None:
        """Kill the head and all nodes at once."""
        import ray

        processes.kill(self.every_process())
        ray.shutdown()
        self._cluster.shutdown()
        self._cluster, self._nodes = None, []

    def stop(self) -> None:
        """End it, if it runs."""
        if self._cluster is not None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def _patiently(start: Callable[[], Any]) -> Any:
    """Start a node; on a busy machine it may be late for a limit of 30 s that Ray has."""
    for _ in range(_TRIES - 1):
        before = set(processes.started())
        try:
            return start()
        except Exception as error:
            print(f"a Ray node did not start: {error}", file=sys.stderr)
            processes.kill(set(processes.started()) - before)
    return start()


def _pids(node: Any) -> list[int]:
    return [info.process.pid for every in node.all_processes.values() for info in every]


class TemporalServer:
    """A development server with its own file, on loopback, without its page."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> TemporalServer:
        """Start the server on its file, and wait until it answers."""
        program = Path(sys.executable).parent / "temporal"
        command = [str(program), "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
        command += ["--port", str(self.port), "--http-port", str(_free_port())]
        command += ["--metrics-port", str(_free_port()), "--log-level", "error"]
        command += ["--db-filename", str(self.directory / "temporal.db")]
        with (self.directory / "temporal.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        processes.until(self._answers, "the Temporal server", 120)
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "temporal.log").read_text()[-2000:]
        program = str(self._process.args[0])  # type: ignore[index]
        asked = [program, "operator", "namespace", "describe", "--address", self.address, "default"]
        return subprocess.run(asked, check=False, capture_output=True, timeout=60).returncode == 0

    def kill(self) -> None:
        """Kill the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    stop = kill


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def has_engines() -> bool:
    """True where Ray, Temporal's library and its server are installed."""
    from importlib.util import find_spec

    there = all(find_spec(name) is not None for name in ("ray", "temporalio"))
    return there and shutil.which("temporal", path=str(Path(sys.executable).parent)) is not None
