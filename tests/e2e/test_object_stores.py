"""Object stores on real servers: the contract, kills, and every call in any order."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.media import FULL, times
from tests.crash.processes import ForkServer
from tests.crash.test_kills import kill_and_check, kill_and_resume
from tests.machine.test_machine import Machine, examine
from tests.servers import seaweedfs

from holdfast.storage.base import Storage
from holdfast.storage.objects import ObjectStorage
from holdfast.testing import StorageContract

pytestmark = pytest.mark.timeout(14_400 if FULL else 600)


class TestS3(StorageContract):
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in seaweedfs().environment().items():
            monkeypatch.setenv(name, value)

    def open(self, directory: Path) -> Storage:
        return ObjectStorage(f"s3://{seaweedfs().bucket}/{_prefix(directory)}")

    def clean(self, directory: Path) -> None:
        """Leave it: the server's directory goes with the tests, and prefixes are not reused."""


def _prefix(directory: Path) -> str:
    return hashlib.sha256(str(directory).encode()).hexdigest()[:20]


MEDIA = {"s3": 1_000}
"""The media, each with the kills of its full form."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


@pytest.mark.parametrize("medium", MEDIA)
def test_a_kill_at_any_moment_loses_nothing(
    medium: str, tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    kills = times(20, MEDIA[medium], "HOLDFAST_KILLS")
    acknowledged = kill_and_check(medium, tmp_path, server, kills, random.Random(medium))
    finding(f"SIGKILL, {medium}", kills, f"{acknowledged:,} saves acknowledged, 0 lost")
    assert acknowledged > kills


@pytest.mark.parametrize("medium", MEDIA)
def test_a_killed_loop_that_is_started_again_at_once_continues(
    medium: str, tmp_path: Path, server: ForkServer
) -> None:
    waits, step = kill_and_resume(medium, tmp_path, server, times(5, 100), random.Random(medium))
    assert len(waits) and step > 0


@pytest.mark.parametrize("medium", MEDIA)
def test_the_managers_do_what_the_model_says(
    medium: str, server: ForkServer, finding: Callable[..., None]
) -> None:
    steps = examine(Machine, medium, server, times(8, 100))
    finding(
        f"all calls in any order against a model, {medium}",
        steps["histories"],
        "histories, 0 differ",
    )
