"""Object stores on real servers: the contract, kills, and every call in any order."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import call
from tests.crash.media import FULL, open_medium, times
from tests.crash.processes import ForkServer
from tests.crash.test_kills import kill_and_check, kill_and_resume
from tests.cutting import CuttingProxy
from tests.e2e.servers.test_faults import Writers, cut_while_they_save
from tests.e2e.throttling import Throttling
from tests.machine.test_machine import Machine, examine
from tests.servers import Cosmos, azurite, cosmos, fake_google, node_modules, seaweedfs

from surehold import CheckpointManager, errors
from surehold.storage.base import Leasing, Owner, Storage
from surehold.storage.cloud import ObjectStorage
from surehold.storage.objects import BucketStorage
from surehold.storage.registry import open_storage
from surehold.testing import JournalWriter, StorageContract
from surehold.testing.contract.racing import race_in_processes

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
        from surehold.storage.cosmos import CosmosStorage

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


@needs_node
def test_a_range_of_a_large_document_reads_only_the_parts_it_is_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from surehold.storage.cosmos import CosmosStorage, container

    monkeypatch.setenv("AZURE_COSMOS_KEY", cosmos().key)
    monkeypatch.setattr(container, "_PART", 1000)
    address = cosmos().address(_prefix(tmp_path))
    with CosmosStorage(address, endpoint=cosmos().endpoint) as storage:
        bucket, data = storage._bucket, os.urandom(4500)
        bucket.put("data/run/key", data)
        reads: list[str] = []
        read = bucket._read_item
        monkeypatch.setattr(bucket, "_read_item", lambda *one: reads.append(one[0]) or read(*one))
        for start, end, parts in [
            *((0, 10, 1), (0, 1000, 1), (990, 1010, 2), (1000, 2000, 2)),
            *((2500, 3500, 3), (0, 4500, 5), (4400, 9000, 2), (5000, 6000, 1)),
        ]:
            reads.clear()
            assert bucket.get_range("data/run/key", start, end) == data[start:end]
            assert len(reads) == parts
        assert bucket.get_range("data/run/none", 0, 10) is None


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


@pytest.mark.long
@pytest.mark.parametrize(("medium", "full"), MEDIA)
def test_a_kill_at_any_moment_loses_nothing(
    medium: str, full: int, tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    kills = times(20, full, "SUREHOLD_KILLS")
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


@pytest.mark.long
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


@pytest.mark.parametrize(
    "medium",
    ["s3", *(pytest.param(medium, marks=needs_node) for medium in ("az", "cosmos"))],
)
def test_connections_that_are_cut_lose_nothing_and_double_nothing(
    medium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finding: Callable[..., None]
) -> None:
    cuts = times(24, 500, "SUREHOLD_CUTS")
    server = {"s3": seaweedfs, "az": azurite, "cosmos": cosmos}[medium]()
    with CuttingProxy(lambda: socket.create_connection(("127.0.0.1", server.port))) as proxy:
        if isinstance(server, Cosmos):
            variables = {"AZURE_COSMOS_KEY": server.key}
            address = (
                server.address(_prefix(tmp_path)) + f"?endpoint=http://127.0.0.1:{proxy.port}&"
            )
        else:
            variables = server.environment(proxy.port)
            address = f"{medium}://runs/{_prefix(tmp_path)}?"
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with (
            open_storage(f"{address}patience=120") as storage,
            CheckpointManager(storage) as manager,
        ):
            writers = Writers(manager)
            cut_while_they_save(proxy, writers, cuts)
            count = writers.check(manager)
    finding(f"connection cut, {medium}", cuts, f"{count:,} saves acknowledged, 0 lost or doubled")


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
@pytest.mark.parametrize("way", ["erased", "deleted"])
def test_of_a_large_record_that_is_gone_no_document_of_cosmos_is_left(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from azure.cosmos import CosmosClient

    monkeypatch.setenv("AZURE_COSMOS_KEY", cosmos().key)
    address = f"{cosmos().address(_prefix(tmp_path))}?endpoint={cosmos().endpoint}"
    with open_storage(address) as storage:
        writer = JournalWriter()
        writer.save(storage, os.urandom(3_000_000))
        writer.save(storage, b"small")
        storage.delete("run", erase=[1] if way == "erased" else None)
    with CosmosClient(cosmos().endpoint, cosmos().key, enable_endpoint_discovery=False) as client:
        container = client.get_database_client(cosmos().database).get_container_client(
            _prefix(tmp_path)
        )
        documents = list(container.read_all_items())
    assert documents
    assert [one["id"] for one in documents if len(one["data"]) > 100_000] == []


@needs_node
def test_cosmos_lists_while_other_threads_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client's other requests change the headers of an answer that a query still reads."""
    monkeypatch.setenv("AZURE_COSMOS_KEY", cosmos().key)
    from surehold.storage.cosmos.container import DocumentBucket

    cosmos().address(_prefix(tmp_path))
    names = ("tests", cosmos().database, _prefix(tmp_path), "")
    bucket = DocumentBucket(*names, endpoint=cosmos().endpoint, timeout=30, patience=0)
    query, failures = bucket._container.query_items, [RuntimeError("mutated during iteration")]

    def query_items(*args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return query(*args, **options)

    try:
        bucket.put("log/run/1", b"")
        monkeypatch.setattr(bucket._container, "query_items", query_items)
        assert [one.key for one in bucket.page("log/run")] == ["log/run/1"]
        assert not failures
    finally:
        bucket.close()


@needs_node
@pytest.mark.parametrize("key", ["not of base64", None])
def test_a_wrong_key_of_a_cosmos_account_is_refused_at_once(
    key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a key the identity of the machine is asked for, and this one has none."""
    if key is None:
        monkeypatch.delenv("AZURE_COSMOS_KEY", raising=False)
        monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    else:
        monkeypatch.setenv("AZURE_COSMOS_KEY", key)
    with pytest.raises(errors.StorageError, match="refused: ") as refused:
        open_storage("cosmos://account/none/none?endpoint=https://127.0.0.1:9&timeout=1&patience=0")
    assert not refused.value.retryable
    assert "AZURE_COSMOS_KEY" in refused.value.hint


def test_the_client_of_cosmos_prints_nothing() -> None:
    """It checks the account in the background, and complains if it was closed meanwhile."""
    lines = (
        "import logging, surehold.storage.cosmos.container",
        "logging.getLogger('azure.cosmos._GlobalEndpointManager').error('closed')",
        "logging.getLogger('azure.identity._credentials.chained').warning('no identity')",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, check=True)
    assert done.stderr == b""


@needs_node
def test_the_key_of_a_cosmos_account_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_COSMOS_KEY", "ZG8tbm90LXNob3c=")
    with pytest.raises(errors.SureholdError) as failed:
        open_storage("cosmos://account/none/none?endpoint=http://127.0.0.1:9&timeout=1&patience=0")
    for text in (str(failed.value), repr(failed.value), repr(failed.value.__dict__)):
        assert "ZG8tbm90LXNob3c=" not in text
    with pytest.raises(errors.UsageError, match="never from the address"):
        open_storage("cosmos://me:ZG8tbm90LXNob3c=@account/db/runs")
