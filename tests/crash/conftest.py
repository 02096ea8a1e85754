from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.processes import ForkServer


@pytest.fixture(scope="session")
def server() -> Iterator[ForkServer]:
    """Starts workers that can be killed."""
    made = ForkServer()
    yield made
    made.close()


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where syncing costs nothing, if there is such a place.

    A process that is killed leaves to the system what it had written, so nothing is missed there.
    """
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="holdfast-", dir=memory))
    yield made
    shutil.rmtree(made)
