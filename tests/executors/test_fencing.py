"""A worker that was away for longer than its lease cannot write, and that is because of its epoch.

A does the work of a step and freezes before its commit; B takes the run over and begins the same
step; A wakes first. Each test has a twin in which the comparison of epochs is taken out of the
append, so that it is seen to decide.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psycopg
import pytest
from tests.servers import postgres

from surehold import SQLiteStorage, Storage
from surehold.errors import ConflictError
from surehold.storage.base import this_process
from surehold.storage.postgres import PostgresStorage
from surehold.storage.queueing import ClaimQuery, Queueing
from surehold.storage.shared import append_rules
from surehold.testing import JournalWriter
from surehold.testing.contract import queueing

SCHEMA = "fencing"
CHECK = "u.epoch <= coalesce(p_epoch, u.epoch)"


@pytest.fixture(params=["sqlite", "postgres"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    if request.param == "sqlite":
        with SQLiteStorage(tmp_path / "runs.db") as made:
            yield made
        return
    with PostgresStorage(postgres().url, schema=SCHEMA) as server:
        yield server
    with psycopg.connect(postgres().url, autocommit=True) as db:
        db.execute(f"DROP SCHEMA {SCHEMA} CASCADE")


def wake_the_zombie(storage: Storage) -> tuple[ConflictError | None, ConflictError | None]:
    """What A and B get for their commits of the same step, A's first."""
    assert isinstance(storage, Queueing)
    writer = queueing.submit(storage, "run")
    elsewhere = msgspec.structs.replace(this_process(), host="elsewhere")
    query = ClaimQuery(queues=("default",), targets=("app:work@1",))
    (a,) = storage.claim(query, elsewhere, now=time.time(), ttl=0.0)
    (stale,) = storage.stale_claims(now=time.time())
    assert storage.settle(stale.lease, a.entry, now=time.time(), expired=True)
    storage.put_entries([("run", msgspec.structs.replace(a.entry, state="ready"))])
    (b,) = storage.claim(query, this_process(), now=time.time(), ttl=60)
    mine = JournalWriter("run", seq=writer.seq, digest=writer.digest)
    theirs = JournalWriter("run", seq=writer.seq, digest=writer.digest)
    effect = {"frame": "note", "kind": "effect"}
    late = mine.batch([mine.record(b'"A"', **effect)], epoch=a.lease.epoch)
    rightful = theirs.batch([theirs.record(b'"B"', **effect)], epoch=b.lease.epoch)
    return storage.append([late])[0], storage.append([rightful])[0]


def test_the_late_commit_is_refused_and_the_new_owner_continues(storage: Storage) -> None:
    late, rightful = wake_the_zombie(storage)
    assert late is not None and "epoch" in str(late)
    assert rightful is None


def test_without_the_epoch_the_zombie_would_win(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, finding: Callable[..., None]
) -> None:
    if isinstance(storage, SQLiteStorage):
        decide = append_rules.decide_append
        monkeypatch.setattr(
            "surehold.storage.sqlite.writes.decide_append",
            lambda batch, records, **facts: decide(batch, records, **{**facts, "epoch": None}),
        )
    else:
        with psycopg.connect(postgres().url, autocommit=True) as db:
            for name in ("append_v1", "append_one_v1"):
                found = f"SELECT pg_get_functiondef('{SCHEMA}.{name}'::regproc)"
                row = db.execute(found.encode()).fetchone()
                assert row is not None and CHECK in row[0]
                db.execute(row[0].replace(CHECK, "true").encode())
    late, rightful = wake_the_zombie(storage)
    assert late is None
    assert rightful is not None
    finding(f"a commit without its epoch, {type(storage).__name__}", 1, "taken", control=True)
