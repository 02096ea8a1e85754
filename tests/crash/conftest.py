from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.crash.processes import ForkServer


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """Starts workers that can be killed."""
    made = ForkServer()
    yield made
    made.close()
