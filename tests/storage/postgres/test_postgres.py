"""What PostgreSQL adds to the contract: time limits, lost connections, restarts, its own clock."""

from __future__ import annotations

import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Barrier
from typing import TypeVar
from uuid import uuid4

import msgspec
import psycopg
import pytest
from tests.cli.conftest import call
from tests.cutting import MOMENTS, CuttingProxy, Moment
from tests.executors import jobs
from tests.servers import Postgres, postgres

import surehold
from surehold import CheckpointManager, State, errors
from surehold.core.policy import QueueEntry
from surehold.executors import Worker, served_by
from surehold.storage.base import Owner, RecordQuery, RunQuery
from surehold.storage.postgres import PostgresStorage
from surehold.storage.postgres.queue import PostgresQueues
from surehold.storage.postgres.schema import VERSION
from surehold.storage.queueing import Claim, ClaimQuery, EntryQuery, WorkerInfo
from surehold.storage.registry import open_storage
from surehold.storage.shared import RunWatch
from surehold.testing import JournalWriter


@pytest.fixture
def server() -> Postgres:
    return postgres()


@pytest.fixture
def schema(server: Postgres) -> Iterator[str]:
    name = f"s{uuid4().hex[:16]}"
    yield name
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE')


@pytest.fixture
def storage(server: Postgres, schema: str) -> Iterator[PostgresStorage]:
    with PostgresStorage(server.url, schema=schema) as storage:
        yield storage


T = TypeVar("T")

ANNA = Owner("somewhere-else", "boot", 1, "1")
BERT = Owner("another-place", "boot", 2, "2")


def test_an_address_opens_it_with_its_options(server: Postgres, schema: str) -> None:
    with open_storage(f"{server.url}&schema={schema}&pool=2&compress=zstd") as storage:
        assert isinstance(storage, PostgresStorage)
        assert storage.body_compression == "zstd"
        assert storage.append([JournalWriter().batch()]) == [None]
    with psycopg.connect(server.url) as db:
        assert db.execute(f"SELECT count(*) FROM {schema}.records").fetchone() == (1,)


def test_an_option_that_is_no_number_is_named(server: Postgres) -> None:
    with pytest.raises(errors.UsageError, match="pool takes a whole number"):
        open_storage(f"{server.url}&pool=many")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("postgresql://u:hunter2@127.0.0.1:1/db?pol=3", 'parameter: "pol" .write postgresql://'),
        ("postgresql://u:hunter2@127.0.0.1:port/db", "is not a number"),
        ("postgresql:u:hunter2@127.0.0.1/db", "two slashes"),
    ],
)
def test_a_wrong_address_is_named_before_the_server_is_asked(address: str, said: str) -> None:
    with pytest.raises(errors.UsageError, match=said) as refused:
        open_storage(address)
    assert "hunter2" not in f"{refused.value!r} {refused.value}"


@pytest.mark.parametrize("wrong", ["user=nobody", "dbname=none", "sslmode=require"])
def test_a_connection_that_the_server_refuses_is_not_tried_again(
    wrong: str, server: Postgres
) -> None:
    with CuttingProxy(server.connect) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres?{wrong}"
        with pytest.raises(errors.StorageError, match=r"refused: .*(exist|SSL)") as refused:
            open_storage(url)
    assert not refused.value.retryable
    assert "check user, password, database" in refused.value.hint


def test_a_shared_append_and_all_that_a_worker_asks_are_one_round_trip_each(
    server: Postgres, schema: str
) -> None:
    query = ClaimQuery(queues=("default",), targets=("tests.executors.jobs:ten_steps@1",), limit=2)
    with (
        CuttingProxy(server.connect) as proxy,
        PostgresStorage(server.through(proxy.port), schema=schema, pool=1) as storage,
    ):
        writers = [JournalWriter(f"run-{number}") for number in range(4)]

        def claim_and_settle() -> None:
            for claim in asked("claim", lambda: storage.claim(query, ANNA, now=0, ttl=60)):
                asked("head", lambda claim=claim: storage.head_and_newest(claim.lease.run_id, ""))
                settled = partial(storage.settle, claim.lease, None, now=0)
                assert asked("settle", settled)

        trips: dict[str, int] = {}

        def asked(what: str, work: Callable[[], T]) -> T:
            before = proxy.round_trips
            done = work()
            trips[what] = proxy.round_trips - before
            return done

        for number in range(7):  # a connection asks at first whether a pooler is in between
            batches = [writer.batch() for writer in writers]
            assert asked("append", partial(storage.append, batches)) == [None] * 4
            jobs.ten_steps.start(run_id=f"job-{number}", storage=storage)
            claim_and_settle()
            asked("stale claims", lambda: storage.stale_claims(now=0))
            asked("cancelled", lambda: [*storage.entries(EntryQuery(cancelled=True))])
            asked("announce", lambda: storage.announce(worker_info(), now=0, ttl=60))
    assert trips == dict.fromkeys(trips, 1)
    assert len(trips) == 7


def worker_info() -> WorkerInfo:
    return WorkerInfo(id="one", owner=ANNA, queues=(), targets=(), concurrency=1, since=0.0)


def test_two_processes_may_create_the_schema_at_once(server: Postgres, schema: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        opened = list(
            pool.map(lambda _: PostgresStorage(server.url, schema=schema, pool=1), range(4))
        )
    for one in opened:
        one.close()


def test_a_schema_of_a_newer_version_is_refused(server: Postgres, schema: str) -> None:
    PostgresStorage(server.url, schema=schema).close()
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"UPDATE {schema}.version SET number = 99")
    with pytest.raises(errors.SchemaError, match="newer Surehold"):
        PostgresStorage(server.url, schema=schema)


def test_a_lease_expires_by_the_clock_of_the_database(
    server: Postgres, schema: str, storage: PostgresStorage
) -> None:
    """A process whose clock is an hour ahead does not take a lease that is still held."""
    held = storage.take_lease("run", ANNA, now=time.time(), ttl=60)

    def ahead() -> float:
        return time.time() + 3600

    with PostgresStorage(server.url, schema=schema, clock=ahead) as other:
        with pytest.raises(errors.LeaseHeldError) as refused:
            other.take_lease("run", BERT, now=ahead(), ttl=60)
        assert refused.value.owner == ANNA
        assert 0 < refused.value.until - ahead() <= 60
        storage.renew_lease(held, now=time.time(), ttl=-1)
        assert other.take_lease("run", BERT, now=ahead(), ttl=60).epoch == held.epoch + 1


def _wake_after_takeover(storage: PostgresStorage) -> errors.ConflictError | None:
    """A writer wakes after the takeover, before the new owner has appended; its answer."""
    writer = JournalWriter()
    old = storage.take_lease("run", ANNA, now=time.time(), ttl=-1)
    assert storage.append([writer.batch(epoch=old.epoch)]) == [None]
    assert storage.take_lease("run", BERT, now=time.time(), ttl=60).epoch == old.epoch + 1
    return storage.append([writer.batch(epoch=old.epoch)])[0]


def test_a_stale_epoch_is_refused_in_the_commit_of_the_append(storage: PostgresStorage) -> None:
    refused = _wake_after_takeover(storage)
    assert isinstance(refused, errors.ConflictError)
    assert "epoch 1 was followed by 2" in str(refused)
    assert [info.seq for info in storage.runs(RunQuery())] == [1]


def test_without_the_fence_a_stale_writer_would_append(
    server: Postgres, schema: str, storage: PostgresStorage
) -> None:
    """A control of the test above."""
    with psycopg.connect(server.url, autocommit=True) as db:
        found = db.execute(
            "SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname ~ '^append(_one)?_v'"
            " AND pronamespace = %s::regnamespace",
            [schema],
        ).fetchall()
        assert len(found) == 2
        for (text,) in found:
            unfenced = re.sub(r"u?\.?epoch <= coalesce\(p_epoch, u?\.?epoch\)", "true", text)
            assert unfenced != text
            db.execute(unfenced.encode())
    assert _wake_after_takeover(storage) is None


def test_an_append_whose_answer_was_lost_is_settled_by_its_digests(
    server: Postgres, schema: str
) -> None:
    """Nothing is lost and nothing stored twice, at whichever moment the connection is cut."""
    rounds = 4
    with CuttingProxy(server.connect) as proxy:
        url = server.through(proxy.port)
        storage = PostgresStorage(url, schema=schema, pool=1)
        with CheckpointManager(storage) as manager:
            state = State.new({"done": 0}, run_id="run")
            saved = 0
            for _, moment in itertools.product(range(rounds), MOMENTS):
                proxy.arm(moment)
                saved += 1
                state = state.set("done", saved)
                manager.save_checkpoint(state)
            assert proxy.cuts >= rounds * len(MOMENTS)
            listed = manager.list_checkpoints("run")
            assert len(listed) == saved
            assert manager.resume_from_latest("run")["done"] == saved
        storage.close()


def _prepared(storage: PostgresStorage) -> list[str]:
    """The statements that are prepared on the connection that the next call takes."""
    asked = "SELECT statement FROM pg_prepared_statements"
    return [text for (text,) in storage._db.run(lambda db: db.execute(asked).fetchall())]


def test_the_statement_of_most_saves_is_prepared_where_it_is_called_often(
    storage: PostgresStorage,
) -> None:
    writer = JournalWriter()
    assert storage.append([writer.batch()]) == [None]
    assert _prepared(storage) == []
    for _ in range(8):
        assert storage.append([writer.batch()]) == [None]
    (statement,) = _prepared(storage)
    assert "append_one_v1" in statement
    assert [record.header.seq for record in storage.read("run")] == [*range(1, 10)]


def test_a_prepared_statement_that_is_gone_is_not_missed(storage: PostgresStorage) -> None:
    """As behind a pooler that cannot be seen."""
    writer = JournalWriter()
    for _ in range(8):
        assert storage.append([writer.batch()]) == [None]
    storage._db.run(lambda db: db.execute("DEALLOCATE ALL"))
    for _ in range(8):
        assert storage.append([writer.batch()]) == [None]
    assert _prepared(storage) == []
    assert [info.seq for info in storage.runs(RunQuery())] == [16]


def test_a_prepared_statement_finds_a_schema_that_was_made_anew(
    server: Postgres, schema: str, storage: PostgresStorage
) -> None:
    writer = JournalWriter()
    for _ in range(8):
        assert storage.append([writer.batch()]) == [None]
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"DROP SCHEMA {schema} CASCADE")
    with pytest.raises(errors.StorageError, match="does not exist"):
        storage.append([writer.batch()])
    PostgresStorage(server.url, schema=schema).close()
    writer = JournalWriter()
    for _ in range(4):
        assert storage.append([writer.batch()]) == [None]
    assert [info.seq for info in storage.runs(RunQuery())] == [4]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_prepared_append_whose_answer_was_lost_is_settled(
    server: Postgres, schema: str, moment: Moment
) -> None:
    with (
        CuttingProxy(server.connect) as proxy,
        PostgresStorage(server.through(proxy.port), schema=schema, pool=1) as storage,
    ):
        writer = JournalWriter()
        for _ in range(8):
            assert storage.append([writer.batch()]) == [None]
        proxy.arm(moment)
        assert storage.append([writer.batch()]) == [None]
        assert proxy.cuts == 1
        assert [info.seq for info in storage.runs(RunQuery())] == [9]


def test_ctrl_c_ends_the_wait_for_a_save_and_the_save(
    server: Postgres, schema: str, storage: PostgresStorage
) -> None:
    writer = JournalWriter()
    for _ in range(8):
        assert storage.append([writer.batch()]) == [None]
    batch = writer.batch()
    with psycopg.connect(server.url) as blocker:
        blocker.execute(f"SELECT 1 FROM {schema}.runs FOR UPDATE")
        interrupt = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            storage.append([batch])
        interrupt.join()
    assert [info.seq for info in storage.runs(RunQuery())] == [8]
    assert storage.append([batch]) == [None]
    assert [info.seq for info in storage.runs(RunQuery())] == [9]


def test_a_body_that_fills_the_socket_is_sent_whole(storage: PostgresStorage) -> None:
    writer = JournalWriter()
    bodies = [b'{"n":"%b"}' % os.urandom(size).hex().encode() for size in (1, *[1 << 20] * 8)]
    for body in bodies:
        assert storage.append([writer.batch([writer.record(body)])]) == [None]
    assert [record.body for record in storage.read("run")] == bodies


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_lease_whose_answer_was_lost_is_held_once(
    server: Postgres, schema: str, storage: PostgresStorage, moment: Moment
) -> None:
    """The process that took it is not refused by its own lease, and no other gets it."""
    with (
        CuttingProxy(server.connect) as proxy,
        PostgresStorage(server.through(proxy.port), schema=schema, pool=1) as cut,
    ):
        assert cut.lease_of("run") is None
        proxy.arm(moment, after=1)  # the lease is read, then written
        lease = cut.take_lease("run", ANNA, now=time.time(), ttl=60)
        assert proxy.cuts == 1
        assert (lease.epoch, lease.owner) == (1, ANNA)
        with pytest.raises(errors.LeaseHeldError):
            storage.take_lease("run", BERT, now=time.time(), ttl=60)
        proxy.arm(moment, after=1)
        lease = cut.renew_lease(lease, now=time.time(), ttl=60)
        proxy.arm(moment, after=1)
        cut.release_lease(lease)
        assert proxy.cuts == 3
    assert storage.take_lease("run", BERT, now=time.time(), ttl=60).epoch == 2


def test_a_listing_leaves_out_what_is_damaged_in_another_run(
    server: Postgres, schema: str, storage: PostgresStorage, caplog: pytest.LogCaptureFixture
) -> None:
    for run_id in ("whole", "damaged"):
        writer = JournalWriter(run_id, name="agent")
        for _ in range(3):
            writer.save(storage)
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(
            f"UPDATE {schema}.records SET header = set_byte(header, 9, 0) WHERE seq = 3"
            f" AND run = (SELECT ordinal FROM {schema}.runs WHERE run_id = 'damaged')"
        )
    listed = list(storage.headers(RecordQuery(name="agent")))
    assert [(one.run_id, one.seq) for one in listed] == [
        *(("damaged", seq) for seq in (2, 1)),
        *(("whole", seq) for seq in (3, 2, 1)),
    ]
    assert "run 'damaged' is damaged and left out of the listing" in caplog.text
    assert {info.run_id: info.seq for info in storage.runs(RunQuery())} == {
        "whole": 3,
        "damaged": 3,
    }
    with pytest.raises(errors.CorruptError):
        list(storage.headers(RecordQuery(run_id="damaged")))
    for query in (RunQuery(run_id="damaged"), RunQuery(name="agent")):
        with pytest.raises(errors.CorruptError):
            list(storage.runs(query))


def back_to_5(db: psycopg.Connection, schema: str) -> None:
    """Make the tables of *schema* those of format 5."""
    db.execute(f"DROP TABLE {schema}.tallies")
    db.execute(f"DROP FUNCTION {schema}.count_run_v1, {schema}.tallies_v1 CASCADE")
    db.execute(f"DROP INDEX {schema}.runs_loose, {schema}.runs_dead, {schema}.records_by_time")
    db.execute(f"UPDATE {schema}.version SET number = 5")


def test_a_schema_is_upgraded_while_others_write_and_a_transaction_is_long(
    server: Postgres, schema: str
) -> None:
    before = PostgresStorage(server.url, schema=schema)
    with psycopg.connect(server.url, autocommit=True) as db:
        back_to_5(db, schema)
    done, pauses = threading.Event(), list[float]()

    def write(number: int) -> int:
        saved = 0
        while not done.is_set():
            began = time.monotonic()
            with surehold.run(f"run-{number}-{saved}", storage=before) as run:
                run.checkpoint(saved=saved)
            pauses.append(time.monotonic() - began)
            saved += 1
        return saved

    with ThreadPoolExecutor(4) as pool, psycopg.connect(server.url) as long:
        writers = [pool.submit(write, number) for number in range(3)]
        try:
            long.execute(f"UPDATE {schema}.runs SET seq = seq WHERE false")
            upgraded = pool.submit(lambda: PostgresStorage(server.url, schema=schema))
            time.sleep(1.5)
            assert not upgraded.done()  # it waits for the long transaction, and no writer does
            long.rollback()
            after = upgraded.result(60)
        finally:
            done.set()
        saved = sum(writer.result(60) for writer in writers)
    with before, after:
        assert max(pauses) < 1.5
        assert saved > 10
        counts = after.count_runs(now=time.time(), most=10).counts
        assert counts == {("completed", ""): saved}
        assert after.check_medium(repair=False) == []


def test_counts_that_are_wrong_are_found_and_repaired(
    server: Postgres, schema: str, storage: PostgresStorage
) -> None:
    JournalWriter("run").save(storage)
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"INSERT INTO {schema}.tallies VALUES ('completed', NULL, NULL, 7)")
    assert storage.check_medium(repair=True) == ["the counts of runs are wrong"]
    assert storage.check_medium(repair=False) == []
    counts = storage.count_runs(now=time.time(), most=10).counts
    assert sum(counts.values()) == 1


def test_many_changes_of_runs_leave_few_rows_of_counts(
    server: Postgres, schema: str, storage: PostgresStorage
) -> None:
    with psycopg.connect(server.url, autocommit=True) as db:
        JournalWriter("run").save(storage)
        db.execute(
            f"DO $$ BEGIN FOR n IN 1..6000 LOOP UPDATE {schema}.runs"
            " SET status = convert_to('s' || n % 3, 'UTF8'); END LOOP; END $$"
        )
        rows = db.execute(f"SELECT count(*) FROM {schema}.tallies").fetchone()
    assert rows is not None
    assert rows[0] < 6000
    counts = storage.count_runs(now=time.time(), most=10).counts
    assert counts == {("s0", ""): 1}


def test_a_schema_of_an_earlier_version_is_upgraded_with_its_runs(
    server: Postgres, schema: str
) -> None:
    with PostgresStorage(server.url, schema=schema) as storage:
        storage.take_lease("run", ANNA, now=time.time(), ttl=60)
        JournalWriter().save(storage)
    with psycopg.connect(server.url, autocommit=True) as db:
        added = "token queue target queue_state priority queue_key rank due failures reason"
        columns = ", ".join(f"DROP COLUMN {name}" for name in f"{added} woken cancelled".split())
        back_to_5(db, schema)
        db.execute(f"ALTER TABLE {schema}.runs {columns}")
        db.execute(f"DROP TABLE {schema}.watchers, {schema}.queues, {schema}.workers")
        db.execute(f"UPDATE {schema}.version SET number = 1")
    address = f"{server.url}&schema={schema}&upgrade=false"  # that of a worker
    with pytest.raises(errors.SchemaError, match="has format 1"):
        open_storage(address)
    check = call("storage", "upgrade", "--check", "-s", address)
    assert (check.code, f"has format 1, and this Surehold needs {VERSION}" in check.out) == (
        8,
        True,
    )
    assert call("storage", "upgrade", "-s", address, "--json").json()["upgraded"]
    assert call("storage", "upgrade", "--check", "-s", address).code == 0
    with PostgresStorage(server.url, schema=schema) as storage:
        JournalWriter.after(storage, "run").save(storage)
        assert len(list(storage.read("run"))) == 2
        with pytest.raises(errors.LeaseHeldError):
            storage.take_lease("run", BERT, now=time.time(), ttl=60)


def test_a_subscription_survives_a_lost_connection_and_leaves_no_watcher(
    server: Postgres, schema: str, storage: PostgresStorage
) -> None:
    heard: Queue[str | None] = Queue()
    with (
        CuttingProxy(server.connect) as proxy,
        PostgresStorage(server.through(proxy.port), schema=schema) as cut,
    ):
        subscription = cut.subscribe(heard.put)
        assert heard.get(timeout=30) is None
        proxy.cut_all()
        assert heard.get(timeout=30) is None  # connected again: any run may have changed
        JournalWriter("run").save(storage)
        assert heard.get(timeout=30) == "run"
        subscription.close()
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"UPDATE {schema}.watchers SET until = now() - interval '1 s'")
        JournalWriter("unheard").save(storage)
        subscription = storage.subscribe(heard.put)
        assert heard.get(timeout=30) is None
        subscription.close()
        while db.execute(f"SELECT 1 FROM {schema}.watchers").fetchone():
            time.sleep(0.01)


@pytest.mark.parametrize("beside", ["", "resilient:memory://|"])
def test_a_check_creates_no_schema(beside: str, server: Postgres, schema: str) -> None:
    address = f"{beside}{server.url}&schema={schema}"
    found = call("storage", "upgrade", "--check", "-s", address)
    assert (found.code, "there is no schema" in found.out) == (8, True)
    with psycopg.connect(server.url) as db:
        assert not db.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]).fetchone()


@pytest.fixture
def worker(server: Postgres, storage: PostgresStorage, schema: str) -> Iterator[str]:
    """The address of a role that has just the rights that the documentation grants."""
    page = Path("docs/how-to/postgres.md").read_text("utf-8")
    grants = page.partition("```sql\n")[2].partition("```")[0].replace("surehold", schema)
    role = f"w{uuid4().hex[:12]}"
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"CREATE ROLE {role} LOGIN")
        db.execute(grants.replace("worker", role))
        yield f"{server.url.replace('postgres@', f'{role}@', 1)}&schema={schema}"
        db.execute(f"DROP OWNED BY {role}")
        db.execute(f"DROP ROLE {role}")


def test_a_role_with_few_rights_can_do_all_that_a_worker_does(
    server: Postgres, worker: str, schema: str
) -> None:
    with open_storage(worker) as storage, CheckpointManager(storage) as manager:
        assert isinstance(storage, PostgresStorage)
        with surehold.run("run", storage=storage) as run:
            run.checkpoint(done=1)
        manager.delete_checkpoint(manager.list_checkpoints("run")[0].checkpoint_id)
        assert all(manager.verify())
        with RunWatch(storage, "other", every=0.01) as watch:
            JournalWriter("other").save(storage)
            assert watch.wait(30)
        storage.delete("other")
        assert not [fact for fact in storage.diagnose() if fact.problem]
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"UPDATE {schema}.version SET number = 1")
    with pytest.raises(errors.SchemaError, match="may not upgrade it") as refused:
        open_storage(worker)
    assert "as the owner of the schema" in refused.value.hint


def test_doctor_tells_what_is_wrong_with_a_server_and_what_to_do(
    server: Postgres, storage: PostgresStorage, schema: str, worker: str
) -> None:
    role = worker.partition("//")[2].partition("@")[0]
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"DROP INDEX {schema}.runs_by_status")
        db.execute(f"REVOKE DELETE ON {schema}.facets FROM {role}")
    result = call("doctor", "--json", "-s", f"{worker}&options=-c%20synchronous_commit%3Doff")
    assert result.code == 1
    facts = {fact["name"]: fact for fact in result.json()["facts"]}
    assert facts["server"]["value"].startswith("PostgreSQL ")
    assert {"latency", "clock", "fsync", "full_page_writes", "connections"} <= facts.keys()
    wrong = {name: fact["hint"] for name, fact in facts.items() if fact["problem"]}
    assert wrong == {
        "synchronous_commit": f"ALTER ROLE {role} SET synchronous_commit = on",
        "indexes": "surehold repair -s URL creates them",
        "rights": f'GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "{schema}"'
        f' TO "{role}"',
    }
    assert storage.check_medium(repair=True) == ["index runs_by_status is missing"]
    assert storage.check_medium(repair=False) == []


@pytest.mark.parametrize("analyzed", [False, True])
def test_a_page_of_a_long_run_reads_no_more_than_the_page(
    server: Postgres, schema: str, storage: PostgresStorage, analyzed: bool
) -> None:
    """Whatever the planner believes of a run: it walks the index and sorts nothing."""
    storage.append([JournalWriter(f"short-{n}").batch() for n in range(200)])
    writer = JournalWriter("long")
    storage.append([writer.batch(1000) for _ in range(3)])
    with psycopg.connect(server.url, autocommit=True) as db:
        if analyzed:
            db.execute(f"ANALYZE {schema}.records")
        for query in (
            RecordQuery(run_id="long"),
            RecordQuery(run_id="long", scope=""),
            RecordQuery(run_id="long", notes=True),
        ):
            plan = storage._sql.listing(query)
            values = {**plan.values, "bound": 1 << 62, "size": 20}
            rows = db.execute(b"EXPLAIN " + plan.sql, values).fetchall()
            text = "\n".join(row[0] for row in rows)
            assert "Index Scan Backward using records_of_run" in text
            assert "Sort" not in text


def test_threads_share_a_pool_of_one_connection(server: Postgres, schema: str) -> None:
    with (
        PostgresStorage(server.url, schema=schema, pool=1, patience=30) as storage,
        ThreadPoolExecutor(8) as threads,
    ):
        looks = [threads.submit(list, storage.runs(RunQuery())) for _ in range(200)]
        assert all(look.result(60) == [] for look in looks)


def test_a_closed_storage_leaves_no_connection(server: Postgres, schema: str) -> None:
    name = f"closing-{schema}"
    with PostgresStorage(f"{server.url}&application_name={name}", schema=schema) as storage:
        assert list(storage.runs(RunQuery())) == []
    with psycopg.connect(server.url, autocommit=True) as db:
        count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        give_up = time.monotonic() + 60
        while db.execute(count, (name,)).fetchone() != (0,):
            assert time.monotonic() < give_up
            time.sleep(0.01)


def test_a_restarted_server_is_found_again(server: Postgres, schema: str) -> None:
    with (
        CuttingProxy(server.connect) as proxy,
        PostgresStorage(server.through(proxy.port), schema=schema, pool=3) as storage,
    ):
        writer = JournalWriter()
        for _ in range(5):
            assert storage.append([writer.batch()]) == [None]
            proxy.cut_all()
        assert [info.seq for info in storage.runs(RunQuery())] == [5]


def test_a_server_that_does_not_answer_is_given_up(schema: str) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(errors.StorageUnavailableError) as failure:
            PostgresStorage(
                f"postgresql://someone:hunter2@127.0.0.1:{port}/db?connect_timeout=2",
                schema=schema,
                timeout=1,
                patience=0,
            )
        assert "hunter2" not in str(failure.value)


def test_a_statement_that_hangs_is_ended(server: Postgres, storage: PostgresStorage) -> None:
    with psycopg.connect(server.url) as blocker:
        assert storage.append([JournalWriter().batch()]) == [None]
        blocker.execute(f"SELECT 1 FROM {storage._schema}.runs FOR UPDATE")
        with (
            PostgresStorage(
                server.url, schema=storage._schema, timeout=0.5, patience=0
            ) as impatient,
            pytest.raises(errors.StorageUnavailableError),
        ):
            impatient.delete("run")
    assert [info.run_id for info in storage.runs(RunQuery())] == ["run"]


def test_a_read_only_server_is_refused_with_the_reason(server: Postgres, schema: str) -> None:
    PostgresStorage(server.url, schema=schema).close()
    options = "&options=-c%20default_transaction_read_only%3Don"
    with (
        PostgresStorage(f"{server.url}{options}", schema=schema, patience=0) as storage,
        pytest.raises(errors.StorageUnavailableError, match="read-only") as refused,
    ):
        storage.append([JournalWriter().batch()])
    assert "target_session_attrs" in str(refused.value)


def test_many_runs_share_a_commit(server: Postgres, figure: Callable[[str], None]) -> None:
    """By the server's own counter of commits, which counts reads and the schema too.

    Up to three commits are under way at once, and more of them begin on a busy machine.
    """
    runs, saves = 64, 24
    database = f"d{uuid4().hex[:12]}"
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"CREATE DATABASE {database}")
        try:
            address = server.url.replace("/postgres?", f"/{database}?")
            with PostgresStorage(address) as storage, CheckpointManager(storage) as manager:
                _save_at_once(manager, runs, saves)
                assert sum(info.checkpoints for info in storage.runs(RunQuery())) == runs * saves
            sessions = "SELECT 1 FROM pg_stat_activity WHERE datname = %s"
            while db.execute(sessions, [database]).fetchone():  # a session counts when it ends
                time.sleep(0.01)
            counted = db.execute(
                "SELECT xact_commit FROM pg_stat_database WHERE datname = %s", [database]
            ).fetchone()
        finally:
            db.execute(f"DROP DATABASE {database} WITH (FORCE)")
    assert counted is not None
    figure(f"{runs} runs on PostgreSQL: {runs * saves / counted[0]:.1f} saves a commit")
    assert runs * saves / counted[0] >= 4


def _save_at_once(manager: CheckpointManager, runs: int, saves: int) -> None:
    barrier = threading.Barrier(runs)

    def work(number: int) -> None:
        barrier.wait()
        state = State.new({"step": 0}, run_id=f"run-{number}")
        for step in range(saves):
            state = state.set("step", step)
            manager.save_checkpoint(state)

    with ThreadPoolExecutor(runs) as pool:
        list(pool.map(work, range(runs)))


def test_credentials_are_never_shown(server: Postgres, schema: str) -> None:
    with pytest.raises(errors.SureholdError) as failure:
        PostgresStorage(
            "postgresql://someone:hunter2@127.0.0.1:1/db", schema=schema, patience=0, timeout=1
        )
    seen: BaseException | None = failure.value
    while seen is not None:  # the driver's own error keeps the settings of the connection
        assert "hunter2" not in f"{seen!r} {seen} {vars(seen)}"
        seen = seen.__cause__ or seen.__context__


def test_a_worker_gets_connections_for_its_threads_unless_a_number_is_given(
    server: Postgres, schema: str
) -> None:
    with PostgresStorage(server.url, schema=schema) as storage:
        assert list(storage.runs(RunQuery())) == []  # the pool is open
        Worker(storage, served_by(["tests.executors.jobs"]), concurrency=12)
        meeting = Barrier(13, timeout=120)

        def meet(db: psycopg.Connection) -> None:
            db.execute("SELECT 1")
            meeting.wait()

        with ThreadPoolExecutor(13) as threads:
            list(threads.map(lambda _: storage._db.run(meet), range(13)))
    with PostgresStorage(server.url, schema=schema, pool=2) as storage:
        storage.fit(12)
        assert storage._db._size == 2


@pytest.mark.parametrize(
    ("pool", "threads", "at_once"),
    [(1, 0, 1), (2, 0, 1), (None, 0, 3), (None, 8, 4), (None, 32, 6)],
)
def test_appends_at_once_leave_a_connection_for_other_calls(
    pool: int | None, threads: int, at_once: int, server: Postgres, schema: str
) -> None:
    with PostgresStorage(server.url, schema=schema, pool=pool) as storage:
        if threads:
            storage.fit(threads)
        assert storage.appends_at_once == at_once


def test_only_the_release_of_a_run_that_is_over_is_not_waited_for(storage: PostgresStorage) -> None:
    said: dict[str, str] = {}
    query = ClaimQuery(queues=("default",), targets=("tests.executors.jobs:ten_steps@1",))
    for state in ("waiting", "over"):
        jobs.ten_steps.start(run_id=state, storage=storage)
        (claim,) = storage.claim(query, ANNA, now=0, ttl=60)
        entry = msgspec.structs.replace(claim.entry, state="waiting", due=1e12)

        def settle(
            db: psycopg.Connection, claim: Claim = claim, entry: QueueEntry = entry
        ) -> tuple[str, str]:
            table = PostgresQueues(db, storage._sql)
            after = entry if claim.entry.run_id == "waiting" else None
            with db.transaction():
                assert table.settle(claim.lease, after, now=0, expired=False)
                within = waits(db)
            return within, waits(db)

        said[state], afterwards = storage._db.run(settle)
        assert afterwards == "on"
    assert said == {"waiting": "on", "over": "off"}


def waits(db: psycopg.Connection) -> str:
    row = db.execute("SHOW synchronous_commit").fetchone()
    assert row is not None
    return str(row[0])
