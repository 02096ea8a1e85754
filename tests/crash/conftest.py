from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from tests.crash.bank import Bank
from tests.crash.processes import ForkServer


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """Starts workers that can be killed."""
    made = ForkServer()
    yield made
    made.close()


@pytest.fixture
def bank() -> Iterator[Bank]:
    made = Bank()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()
