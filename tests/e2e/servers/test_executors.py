"""The promises of every executor, held to by a worker over PostgreSQL and over Valkey."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from tests.executors import test_contract
from tests.executors.jobs import doubled
from tests.servers import postgres, valkey, valkey_cluster

from surehold import Storage
from surehold.errors import UsageError
from surehold.storage.postgres import PostgresStorage
from surehold.storage.redis import RedisStorage


class TestWorkerOnPostgres(test_contract.TestWorker):
    @pytest.fixture
    def storage(self) -> Iterator[Storage]:
        with PostgresStorage(postgres().url, schema=f"w{uuid.uuid4().hex[:12]}") as storage:
            yield storage


class TestWorkerOnValkey(test_contract.TestWorker):
    @pytest.fixture
    def storage(self) -> Iterator[Storage]:
        prefix = f"w{uuid.uuid4().hex[:12]}"
        with RedisStorage(valkey().url, prefix=prefix) as storage:
            yield storage
        valkey().drop(prefix)


def test_a_cluster_says_that_it_keeps_no_queues() -> None:
    with (
        RedisStorage(valkey_cluster().url, prefix=f"w{uuid.uuid4().hex[:12]}") as storage,
        pytest.raises(UsageError, match=r"on a cluster keeps no queues.*one Redis or Valkey"),
    ):
        doubled.start([1], run_id="a", storage=storage)
