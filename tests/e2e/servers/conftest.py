from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.crash.processes import ForkServer
from tests.servers import Postgres, Redis, valkey_program

from surehold.storage.base import Storage
from surehold.storage.postgres import PostgresStorage
from surehold.storage.redis import RedisStorage


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Starts workers that can be killed."""
    made = ForkServer()
    yield made
    made.close()


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory whose name is short enough for a socket."""
    with TemporaryDirectory(prefix="surehold-") as made:
        yield Path(made)


@pytest.fixture(params=["postgres", "valkey"])
def own_server(request: pytest.FixtureRequest, home: Path) -> Iterator[Postgres | Redis]:
    """A server of this test alone, which may kill it."""
    home.chmod(0o755)
    server: Postgres | Redis
    if request.param == "postgres":
        server = Postgres(home / "server")
    else:
        server = Redis(valkey_program(), home / "server", "appendonly yes", "appendfsync always")
    yield server.start()
    server.stop()


@pytest.fixture
def open_on() -> Callable[[Postgres | Redis, str], Storage]:
    """Opens the storage of a server at an address."""

    def open_on(server: Postgres | Redis, url: str) -> Storage:
        if isinstance(server, Postgres):
            return PostgresStorage(url, pool=4, patience=120)
        return RedisStorage(url, pool=4, patience=120)

    return open_on
