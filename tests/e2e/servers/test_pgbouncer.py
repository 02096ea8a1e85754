"""PostgreSQL through PgBouncer in transaction mode: the contract, kills, watching by polling."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import psycopg
import pytest
from tests.contract.test_postgres import schema_of
from tests.e2e.servers.test_faults import Writers
from tests.servers import PgBouncer, pgbouncer_program, postgres

from surehold import CheckpointManager
from surehold.storage.base import Storage
from surehold.storage.postgres import PostgresStorage
from surehold.storage.shared import RunWatch
from surehold.testing import JournalWriter, StorageContract

pytestmark = pytest.mark.skipif(
    pgbouncer_program() is None, reason="pgbouncer is not installed: make system"
)


@cache
def pooler() -> PgBouncer:
    """One for all tests; its few connections change hands at every transaction."""
    directory = Path(mkdtemp(prefix="surehold-pgbouncer-"))
    return PgBouncer(postgres(), directory, size=3).start()


class TestThroughPgBouncer(StorageContract):
    notifies = False

    def open(self, directory: Path) -> Storage:
        url = _pooler_url()
        return PostgresStorage(url, schema=schema_of(directory), pool=3, lease_clock="caller")

    def clean(self, directory: Path) -> None:
        with psycopg.connect(postgres().url, autocommit=True) as db:
            db.execute(f"DROP SCHEMA IF EXISTS {schema_of(directory)} CASCADE")
        super().clean(directory)


def _pooler_url() -> str:
    """The address of the pooler, which processes of a test have in their environment."""
    if "SUREHOLD_TEST_POOLER" not in os.environ:
        os.environ["SUREHOLD_TEST_POOLER"] = pooler().url
    return os.environ["SUREHOLD_TEST_POOLER"]


@pytest.fixture
def schema(tmp_path: Path) -> Iterator[str]:
    name = f"b{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:16]}"
    yield name
    with psycopg.connect(postgres().url, autocommit=True) as db:
        db.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")


def test_a_pooler_killed_under_load_loses_nothing_and_writers_continue(
    schema: str, home: Path
) -> None:
    home.chmod(0o755)
    own = PgBouncer(postgres(), home / "pooler", size=2).start()
    try:
        with (
            PostgresStorage(own.url, schema=schema, patience=120) as storage,
            CheckpointManager(storage) as manager,
        ):
            writers = Writers(manager)
            for number in range(4):
                writers.wait_for_more(1 + number)
                own.kill()
            writers.wait_for_more(2)
            writers.stop()
            writers.check(manager)
    finally:
        own.stop()


def test_watching_polls_behind_a_pooler(schema: str) -> None:
    with (
        PostgresStorage(pooler().url, schema=schema) as storage,
        RunWatch(storage, "run", every=0.01) as watch,
    ):
        facts = {fact.name: fact.value for fact in storage.diagnose()}
        assert facts["watching"] == "by polling: a pooler"
        JournalWriter("run").save(storage)
        assert watch.wait(30)
        assert not watch.is_live


def test_nothing_is_prepared_behind_a_pooler(schema: str, home: Path) -> None:
    home.chmod(0o755)
    own = PgBouncer(postgres(), home / "pooler", size=1).start()
    try:
        with PostgresStorage(own.url, schema=schema) as storage:
            writer = JournalWriter("run")
            for _ in range(20):
                assert storage.append([writer.batch()]) == [None]
            with psycopg.connect(own.url, autocommit=True, prepare_threshold=None) as db:
                found = db.execute("SELECT name FROM pg_prepared_statements").fetchall()
        assert found == []
    finally:
        own.stop()
