"""Object stores on real servers: the contract, kills, and every call in any order."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import call
from tests.crash.media import FULL, open_medium, times
from tests.crash.processes import ForkServer
from tests.crash.test_kills import kill_and_check, kill_and_resume
from tests.cutting import CuttingProxy
from tests.e2e.servers.test_faults import Writers, cut_while_they_save
from tests.e2e.throttling import Throttling
from tests.machine.test_machine import Machine, examine
from tests.servers import azurite, cosmos, fake_google, node_modules, seaweedfs

from holdfast import CheckpointManager, errors
from holdfast.storage.base import Leasing, Owner, Storage
from holdfast.storage.objects import BucketStorage, ObjectStorage
from holdfast.storage.registry import open_storage
from holdfast.testing import JournalWriter, StorageContract
from holdfast.testing.contract.racing import race_in_processes

pytestmark = pytest.mark.timeout(14_400 if FULL else 600)

ANNA = Owner("somewhere-else", "boot", 1, "1")
BERT = Owner("another-place", "boot", 2, "2")

needs_node = pytest.mark.skipif(
    not node_modules().exists(), reason="Azurite and the like are not installed: make e2e"
)


class TestS3(StorageContract):
    @staticmethod
    def variables() -> dict[str, str]:
        """The environment in which the store is reached."""
        return seaweedfs().environment()

    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in self.variables().items():
            monkeypatch.setenv(name, value)

    def open(self, directory: Path) -> Storage:
        return ObjectStorage(f"s3://{seaweedfs().bucket}/{_prefix(directory)}")

    def clean(self, directory: Path) -> None:
        """Leave it: the server's directory goes with the tests, and prefixes are not reused."""


@needs_node
class TestAzure(TestS3):
    @staticmethod
    def variables() -> dict[str, str]:
        return azurite().environment()

    def open(self, directory: Path) -> Storage:
        return ObjectStorage(f"az://{azurite().container}/{_prefix(directory)}")


@needs_node
class TestCosmos(TestS3):
    @staticmethod
    def variables() -> dict[str, str]:
        return {"AZURE_COSMOS_KEY": cosmos().key}

    def open(self, directory: Path) -> Storage:
        from holdfast.storage.cosmos import CosmosStorage

        server = cosmos()
        return CosmosStorage(server.address(_prefix(directory)), endpoint=server.endpoint)


class TestFakeOfGoogle(TestS3):
    """The whole contract in the protocol of Google Cloud Storage, against a FAKE of it."""

    @staticmethod
    def variables() -> dict[str, str]:
        return fake_google().environment()

    def open(self, directory: Path) -> Storage:
        return ObjectStorage(f"gs://{fake_google().bucket}/{_prefix(directory)}")


def _prefix(directory: Path) -> str:
    return hashlib.sha256(str(directory).encode()).hexdigest()[:20]


MEDIA = [
    pytest.param("s3", 1_000),
    pytest.param("az", 200, marks=needs_node),
    pytest.param("cosmos", 200, marks=needs_node),
    pytest.param("gs", 200),
]
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


@pytest.mark.parametrize(
    ("contract", "full"),
    [
        pytest.param(TestS3, 200),
        pytest.param(TestAzure, 50, marks=needs_node),
        pytest.param(TestCosmos, 50, marks=needs_node),
        pytest.param(TestFakeOfGoogle, 50),
    ],
)
def test_of_8_processes_that_race_for_a_run_one_wins_each_step(
    contract: type[TestS3],
    full: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    finding: Callable[..., None],
) -> None:
    for name, value in contract.variables().items():
        monkeypatch.setenv(name, value)
    rounds = times(6, full)
    won = race_in_processes(
        *(Path(__file__), contract.__name__, tmp_path),
        **{"run_id": "run", "processes": 8, "until": rounds, "wait": 3_000},
    )
    assert sorted(seq for seqs in won for seq in seqs) == list(range(1, rounds + 1))
    finding(f"8 processes race for one run, {contract.__name__}", rounds, "one winner each")


@pytest.mark.parametrize("medium", [pytest.param(one.values[0], marks=one.marks) for one in MEDIA])
@pytest.mark.parametrize("fenced", [True, False])
def test_a_writer_whose_lease_was_taken_over_is_refused_by_the_fence_alone(
    medium: str,
    fenced: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    finding: Callable[..., None],
) -> None:
    """It wakes after the takeover, before the new owner has saved anything."""
    if not fenced:
        monkeypatch.setattr(BucketStorage, "_fence", lambda *_: None)
    with open_medium(medium, tmp_path) as zombie, open_medium(medium, tmp_path) as other:
        assert isinstance(zombie, Leasing) and isinstance(other, Leasing)
        writer = JournalWriter()
        lease = zombie.take_lease("run", ANNA, now=0, ttl=10)
        assert zombie.append([writer.batch(epoch=lease.epoch)]) == [None]
        other.take_lease("run", BERT, now=20, ttl=10)
        (refused,) = zombie.append([writer.batch(epoch=lease.epoch)])
        assert (refused is not None) is fenced
        assert len(list(other.read("run"))) == (1 if fenced else 2)
    if not fenced:
        finding(f"a lease without its fence, {medium}", 1, "a stale append noticed", control=True)


def test_connections_that_are_cut_lose_nothing_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finding: Callable[..., None]
) -> None:
    cuts = times(24, 500, "HOLDFAST_CUTS")
    with CuttingProxy(seaweedfs().connect) as proxy:
        for name, value in seaweedfs().environment(proxy.port).items():
            monkeypatch.setenv(name, value)
        address = f"s3://{seaweedfs().bucket}/{_prefix(tmp_path)}"
        with (
            ObjectStorage(address, patience=120) as storage,
            CheckpointManager(storage) as manager,
        ):
            writers = Writers(manager)
            cut_while_they_save(proxy, writers, cuts)
            count = writers.check(manager)
    finding("connection cut, s3", cuts, f"{count:,} saves acknowledged, 0 lost or doubled")


async def test_langgraph_s_conformance_suite_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.peers.test_conformance import check_conformance

    for name, value in seaweedfs().environment().items():
        monkeypatch.setenv(name, value)
    await check_conformance("s3", f"s3://{seaweedfs().bucket}/{_prefix(tmp_path)}")


@pytest.mark.parametrize(
    ("contract", "address"),
    [
        pytest.param(TestAzure, lambda: f"az://{azurite().container}", marks=needs_node),
        pytest.param(
            TestCosmos,
            lambda: f"{cosmos().address('doctor')}?endpoint={cosmos().endpoint}",
            marks=needs_node,
        ),
        pytest.param(TestFakeOfGoogle, lambda: f"gs://{fake_google().bucket}"),
    ],
)
def test_doctor_reports_on_a_store(
    contract: type[TestS3], address: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in contract.variables().items():
        monkeypatch.setenv(name, value)
    told = call("doctor", "--json", "-s", address())
    assert told.code == 0
    facts = {fact["name"]: fact for fact in told.json()["facts"]}
    assert facts["conditional writes"]["value"] == "honoured"
    assert facts.keys() >= {"store", "latency", "clock", "encryption"}
    assert not [fact for fact in facts.values() if fact["problem"]]
    secrets = [value for name, value in contract.variables().items() if "KEY" in name]
    assert not [secret for secret in secrets if secret in told.out + told.err]


@needs_node
def test_cosmos_requests_that_are_throttled_are_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_COSMOS_KEY", cosmos().key)
    with Throttling(cosmos().port) as proxy:
        address = f"{cosmos().address(_prefix(tmp_path))}?endpoint={proxy.endpoint}"
        with open_storage(address) as storage:
            writer = JournalWriter()
            for _ in range(20):
                writer.save(storage)
            assert [record.header.seq for record in storage.read("run")] == list(range(1, 21))
        assert proxy.refused >= 6


@needs_node
def test_a_record_larger_than_a_document_of_cosmos_is_kept_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_COSMOS_KEY", cosmos().key)
    address = f"{cosmos().address(_prefix(tmp_path))}?endpoint={cosmos().endpoint}"
    body = os.urandom(3_000_000)
    with open_storage(address) as storage:
        JournalWriter().save(storage, body)
    with open_storage(address) as storage:
        assert [record.body for record in storage.read("run")] == [body]


@needs_node
def test_the_key_of_a_cosmos_account_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_COSMOS_KEY", "ZG8tbm90LXNob3c=")
    with pytest.raises(errors.HoldfastError) as failed:
        open_storage("cosmos://account/none/none?endpoint=http://127.0.0.1:9&timeout=1&patience=0")
    for text in (str(failed.value), repr(failed.value), repr(failed.value.__dict__)):
        assert "ZG8tbm90LXNob3c=" not in text
    with pytest.raises(errors.UsageError, match="never from the address"):
        open_storage("cosmos://me:ZG8tbm90LXNob3c=@account/db/runs")
