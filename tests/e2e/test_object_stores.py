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
from tests.fake_objects import FakeObjects
from tests.machine.test_machine import Machine, examine
from tests.peers.test_conformance import check_conformance
from tests.servers import azurite, node_modules, seaweedfs

from holdfast.storage.base import Storage
from holdfast.storage.objects import ObjectStorage
from holdfast.testing import StorageContract
from holdfast.testing.contract.racing import race_in_processes

pytestmark = pytest.mark.timeout(14_400 if FULL else 600)


needs_azurite = pytest.mark.skipif(
    not (node_modules() / "azurite").exists(), reason="Azurite is not installed: make e2e"
)


class TestS3(StorageContract):
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in seaweedfs().environment().items():
            monkeypatch.setenv(name, value)

    def open(self, directory: Path) -> Storage:
        return ObjectStorage(f"s3://{seaweedfs().bucket}/{_prefix(directory)}")

    def clean(self, directory: Path) -> None:
        """Leave it: the server's directory goes with the tests, and prefixes are not reused."""


@needs_azurite
class TestAzure(TestS3):
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in azurite().environment().items():
            monkeypatch.setenv(name, value)

    def open(self, directory: Path) -> Storage:
        return ObjectStorage(f"az://{azurite().container}/{_prefix(directory)}")


class TestFakeOfGoogle(TestS3):
    """The whole contract in the protocol of Google Cloud Storage, against a FAKE of it."""

    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with FakeObjects() as fake:
            monkeypatch.setenv("GOOGLE_BASE_URL", fake.endpoint)
            monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "of-no-one")
            yield

    def open(self, directory: Path) -> Storage:
        return ObjectStorage(f"gs://bucket/{_prefix(directory)}")


def _prefix(directory: Path) -> str:
    return hashlib.sha256(str(directory).encode()).hexdigest()[:20]


MEDIA = [pytest.param("s3", 1_000), pytest.param("az", 200, marks=needs_azurite)]
"""The media, each with the kills of its full form."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


@pytest.mark.parametrize(("medium", "full"), MEDIA)
def test_a_kill_at_any_moment_loses_nothing(
    medium: str, full: int, tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    kills = times(20, full, "HOLDFAST_KILLS")
    acknowledged = kill_and_check(medium, tmp_path, server, kills, random.Random(medium))
    finding(f"SIGKILL, {medium}", kills, f"{acknowledged:,} saves acknowledged, 0 lost")
    assert acknowledged > kills


@pytest.mark.parametrize(("medium", "full"), MEDIA)
def test_a_killed_loop_that_is_started_again_at_once_continues(
    medium: str, full: int, tmp_path: Path, server: ForkServer
) -> None:
    tries = times(5, full // 10)
    waits, step = kill_and_resume(medium, tmp_path, server, tries, random.Random(medium))
    assert len(waits) and step > 0


@pytest.mark.parametrize(("medium", "full"), MEDIA)
def test_the_managers_do_what_the_model_says(
    medium: str, full: int, server: ForkServer, finding: Callable[..., None]
) -> None:
    steps = examine(Machine, medium, server, times(8, full // 10))
    finding(
        f"all calls in any order against a model, {medium}",
        steps["histories"],
        "histories, 0 differ",
    )


def test_of_8_processes_that_race_for_a_run_one_wins_each_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finding: Callable[..., None]
) -> None:
    for name, value in seaweedfs().environment().items():
        monkeypatch.setenv(name, value)
    rounds = times(6, 200)
    won = race_in_processes(
        Path(__file__), "TestS3", tmp_path, run_id="run", processes=8, until=rounds, wait=3_000
    )
    assert sorted(seq for seqs in won for seq in seqs) == list(range(1, rounds + 1))
    finding("8 processes race for one run, s3", rounds, "rounds, one winner each")


async def test_langgraph_s_conformance_suite_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seaweedfs().environment().items():
        monkeypatch.setenv(name, value)
    await check_conformance("s3", f"s3://{seaweedfs().bucket}/{_prefix(tmp_path)}")
