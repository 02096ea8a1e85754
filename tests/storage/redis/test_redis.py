"""Redis beyond the contract: persistence, lost connections, restarts, its clock, its keys."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha1
from pathlib import Path
from queue import Queue
from uuid import uuid4

import pytest
import redis
from tests.cli.conftest import call
from tests.cutting import MOMENTS, CuttingProxy
from tests.servers import Redis, redis_program, valkey, valkey_program

from surehold import CheckpointManager, State, errors
from surehold.executors import Worker, served_by
from surehold.storage.base import Owner, RecordQuery, RunQuery
from surehold.storage.redis import RedisStorage, scripts
from surehold.storage.redis.acknowledgements import Acknowledgements
from surehold.storage.redis.durability import Facts, decide
from surehold.storage.redis.scripts import Script
from surehold.storage.registry import open_storage
from surehold.storage.shared import RunWatch
from surehold.testing import JournalWriter

ANNA = Owner("somewhere-else", "boot", 1, "1")
BERT = Owner("another-place", "boot", 2, "2")
DURABLE = ("appendonly yes", "appendfsync always")


@pytest.fixture
def server() -> Redis:
    return valkey()


@pytest.fixture
def prefix(server: Redis) -> Iterator[str]:
    name = f"s{uuid4().hex[:16]}"
    yield name
    server.drop(name)


@pytest.fixture
def storage(server: Redis, prefix: str) -> Iterator[RedisStorage]:
    with RedisStorage(server.url, prefix=prefix) as storage:
        yield storage


@pytest.fixture
def raw(server: Redis) -> Iterator[redis.Redis]:
    with redis.Redis(unix_socket_path=server.socket, protocol=2) as client:
        yield client


@pytest.fixture(params=["valkey", "redis"])
def program(request: pytest.FixtureRequest) -> str:
    """Each server that there is: Valkey always, Redis if the system has it."""
    if request.param == "valkey":
        return valkey_program()
    if (found := redis_program()) is None:
        pytest.skip("redis-server is not installed: make system")
    return found


@pytest.fixture
def start(program: str, tmp_path: Path) -> Iterator[Callable[..., Redis]]:
    """Starts servers with settings of their own."""
    started: list[Redis] = []

    def start(*settings: str) -> Redis:
        server = Redis(program, tmp_path / f"server-{len(started)}", *settings)
        started.append(server)
        return server.start()

    yield start
    for server in started:
        server.stop()


def test_an_address_opens_it_with_its_options(server: Redis, prefix: str, raw: redis.Redis) -> None:
    address = f"{server.url}?prefix={prefix}&pool=2&compress=zstd"
    with open_storage(address) as storage:
        assert isinstance(storage, RedisStorage)
        assert storage.body_compression == "zstd"
        assert storage.append([JournalWriter().batch()]) == [None]
    assert raw.hlen(f"{prefix}:run:{{run}}:headers") == 1


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("pool=many", "pool takes a whole number"),
        ("durability=none", 'give "disk" or "relaxed"'),
        ("prefix=a{b}", "prefix is"),
        ("sentinel=x", "no option 'sentinel'"),
        ("ssl_ca_certs=/nowhere/ca.crt", "there is no file /nowhere/ca.crt"),
    ],
)
def test_a_wrong_option_is_named(server: Redis, option: str, said: str) -> None:
    with pytest.raises(errors.UsageError) as refused:
        open_storage(f"{server.url}?{option}")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("redis://127.0.0.1:1/zero", "number of a database"),
        ("redis://127.0.0.1:1?durability=none", 'give "disk" or "relaxed"'),
        ("redis://127.0.0.1:port", "is not an address of a server"),
    ],
)
def test_a_wrong_address_is_named_before_the_server_is_asked(address: str, said: str) -> None:
    with pytest.raises(errors.UsageError, match=said):
        open_storage(address)


@pytest.mark.parametrize("settings", [("appendonly no",), ("appendonly no", "save 1 1")])
def test_a_server_that_would_lose_appends_is_refused_with_the_reason(
    start: Callable[..., Redis], settings: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    url = start(*settings).url
    with pytest.raises(errors.StorageError, match="keeps no append-only file") as refused:
        RedisStorage(url)
    assert "CONFIG SET appendonly yes" in refused.value.hint
    assert "durability=relaxed" in refused.value.hint
    with (
        caplog.at_level(logging.WARNING, "surehold.storage"),
        open_storage(f"{url}?durability=relaxed") as storage,
    ):
        assert "keeps no append-only file" in caplog.text
        assert storage.append([JournalWriter().batch()]) == [None]


def test_a_server_that_drops_any_key_is_refused(start: Callable[..., Redis]) -> None:
    server = start(*DURABLE, "maxmemory-policy allkeys-lru")
    with pytest.raises(errors.StorageError, match="maxmemory-policy allkeys-lru"):
        RedisStorage(server.url)


def test_a_server_that_hides_its_settings_is_judged_by_what_it_tells(
    start: Callable[..., Redis],
) -> None:
    server = start("appendonly yes", 'rename-command CONFIG ""')
    facts = Facts(version="x", appends=True, syncs=None, waits_for_disk=True)
    assert decide(facts, replicas=0) == (Acknowledgements(disk=True), [])
    if server.program == valkey_program():
        RedisStorage(server.url).close()
        return
    with pytest.raises(errors.StorageError, match="at an unknown time"):
        RedisStorage(server.url)


@pytest.mark.parametrize(
    ("facts", "waiting", "lost"),
    [
        (Facts(version="x", appends=True, syncs="always"), Acknowledgements(replicas=2), 0),
        (
            Facts(version="x", appends=True, syncs="everysec", waits_for_disk=True),
            Acknowledgements(disk=True, replicas=2),
            0,
        ),
        (Facts(version="x", appends=True, syncs="everysec"), Acknowledgements(replicas=2), 1),
        (
            Facts(version="x", appends=True, syncs="no", waits_for_disk=True),
            Acknowledgements(replicas=2),
            1,
        ),
        (Facts(version="x", appends=False, evicts="allkeys-lfu"), Acknowledgements(replicas=2), 2),
    ],
)
def test_the_settings_decide_what_an_append_waits_for(
    facts: Facts, waiting: Acknowledgements, lost: int
) -> None:
    decided, reasons = decide(facts, replicas=2)
    assert (decided, len(reasons)) == (waiting, lost)


def test_an_append_waits_for_the_disk_of_a_server_that_syncs_every_second(
    tmp_path: Path,
) -> None:
    server = Redis(valkey_program(), tmp_path / "server", "appendonly yes", "appendfsync everysec")
    server.start()
    try:
        with RedisStorage(server.url) as storage:
            writer = JournalWriter()
            for number in (1, 2):
                assert storage.append([writer.batch()]) == [None]
                with redis.Redis(unix_socket_path=server.socket, protocol=2) as client:
                    assert client.info("commandstats")["cmdstat_waitaof"]["calls"] >= number
            assert storage.append([writer.batch()]) == [None]
    finally:
        server.stop()


def test_an_append_that_too_few_replicas_have_is_not_acknowledged(
    server: Redis, prefix: str
) -> None:
    with (
        RedisStorage(server.url, prefix=prefix, replicas=1, timeout=2, patience=0) as storage,
        pytest.raises(errors.StorageUnavailableError, match="1 replicas"),
    ):
        storage.append([JournalWriter().batch()])


def test_every_key_of_a_run_has_its_hash_tag(
    storage: RedisStorage, prefix: str, raw: redis.Redis
) -> None:
    """A cluster keeps the keys of a run together, whatever characters its id has."""
    names = {"nightly": b"nightly", "}{a}": b"%7D%7Ba%7D", "50%": b"50%25", "é": "é".encode()}
    for run_id in names:
        writer = JournalWriter(run_id, name="agent")
        storage.take_lease(run_id, ANNA, now=time.time(), ttl=60)
        writer.save(storage)
        writer.save(storage, scope="inner")
        writer.save(storage, frame="note", kind="tag")
        writer.save(storage)
        storage.delete(run_id, erase=[1])
    keys = list(raw.scan_iter(match=f"{prefix}:*"))
    tags = [key.partition(b"{")[2].partition(b"}")[0] for key in keys]
    assert set(tags) == {*names.values(), prefix.encode()}
    assert all(tags.count(tag) == 9 for tag in names.values())
    assert sorted(storage.known_runs()) == sorted(names)


def test_nothing_ever_expires(storage: RedisStorage, prefix: str, raw: redis.Redis) -> None:
    storage.take_lease("run", ANNA, now=time.time(), ttl=1)
    JournalWriter().save(storage)
    keys = list(raw.scan_iter(match=f"{prefix}:*"))
    assert keys
    assert {raw.ttl(key) for key in keys} == {-1}


def test_a_deleted_run_leaves_its_lease_and_nothing_else(
    storage: RedisStorage, prefix: str, raw: redis.Redis
) -> None:
    storage.take_lease("run", ANNA, now=time.time(), ttl=1)
    writer = JournalWriter(name="agent")
    for status in ("running", "completed", "failed"):
        writer.save(storage, status=status, tags=("t",), metadata={"a": 1}, scope="")
    storage.delete("run", hide=[1])
    storage.delete("run")
    left = {key.rpartition(b":")[2] for key in raw.scan_iter(match=f"{prefix}:*")}
    assert left == {b"lease", b"ordinals", b"format"}


def test_a_lease_expires_by_the_clock_of_the_server(
    server: Redis, prefix: str, storage: RedisStorage
) -> None:
    """A process whose clock is an hour ahead does not take a lease that is still held."""
    held = storage.take_lease("run", ANNA, now=time.time(), ttl=60)

    def ahead() -> float:
        return time.time() + 3600

    with RedisStorage(server.url, prefix=prefix, clock=ahead) as other:
        with pytest.raises(errors.LeaseHeldError) as refused:
            other.take_lease("run", BERT, now=ahead(), ttl=60)
        assert refused.value.owner == ANNA
        assert 0 < refused.value.until - ahead() <= 60
        storage.renew_lease(held, now=time.time(), ttl=-1)
        assert other.take_lease("run", BERT, now=ahead(), ttl=60).epoch == held.epoch + 1


def _wake_after_takeover(storage: RedisStorage) -> errors.ConflictError | None:
    """A writer wakes after the takeover, before the new owner has appended; its answer."""
    writer = JournalWriter()
    old = storage.take_lease("run", ANNA, now=time.time(), ttl=-1)
    assert storage.append([writer.batch(epoch=old.epoch)]) == [None]
    assert storage.take_lease("run", BERT, now=time.time(), ttl=60).epoch == old.epoch + 1
    return storage.append([writer.batch(epoch=old.epoch)])[0]


def test_a_stale_epoch_is_refused_in_the_step_of_the_append(storage: RedisStorage) -> None:
    refused = _wake_after_takeover(storage)
    assert isinstance(refused, errors.ConflictError)
    assert "epoch 1 was followed by 2" in str(refused)
    assert [info.seq for info in storage.runs(RunQuery())] == [1]


def test_without_the_fence_a_stale_writer_would_append(
    storage: RedisStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A control of the test above."""
    unfenced = Script(scripts.APPEND.text.removeprefix(scripts._COMMON))
    unfenced.text = unfenced.text.replace("tonumber(epoch) < newest", "false")
    assert unfenced.text != scripts.APPEND.text
    unfenced.digest = sha1(unfenced.text.encode()).hexdigest()
    monkeypatch.setattr("surehold.storage.redis.storage.APPEND", unfenced)
    assert _wake_after_takeover(storage) is None


def test_a_lease_whose_answer_was_lost_is_held(server: Redis, prefix: str) -> None:
    with (
        CuttingProxy(server.connect) as proxy,
        RedisStorage(server.through(proxy.port), prefix=prefix, pool=1) as storage,
    ):
        for n, moment in enumerate(MOMENTS):
            taken = _Cut(storage, proxy, moment).take_lease(
                f"run-{n}", ANNA, now=time.time(), ttl=60
            )
            assert storage.lease_of(f"run-{n}").epoch == taken.epoch == 1
        assert proxy.cuts == len(MOMENTS)


class _Cut:
    """Takes a lease, and cuts the connection when the lease is stored."""

    def __init__(self, storage: RedisStorage, proxy: CuttingProxy, moment: str) -> None:
        self._storage, self._proxy, self._moment = storage, proxy, moment

    def take_lease(self, *args: object, **kwargs: object):
        change = self._storage.change_lease

        def cut(run_id, make):
            def then(held):
                lease = make(held)
                self._proxy.arm(self._moment)
                return lease

            return change(run_id, then)

        self._storage.change_lease = cut
        try:
            return self._storage.take_lease(*args, **kwargs)
        finally:
            del self._storage.change_lease


def test_an_append_whose_answer_was_lost_is_settled_by_its_digests(
    server: Redis, prefix: str
) -> None:
    """Nothing is lost and nothing stored twice, at whichever moment the connection is cut."""
    rounds = 4
    with CuttingProxy(server.connect) as proxy:
        storage = RedisStorage(server.through(proxy.port), prefix=prefix, pool=1)
        with CheckpointManager(storage) as manager:
            state = State.new({"done": 0}, run_id="run")
            saved = 0
            for _, moment in itertools.product(range(rounds), MOMENTS):
                proxy.arm(moment)
                saved += 1
                state = state.set("done", saved)
                manager.save_checkpoint(state)
            assert proxy.cuts >= rounds * len(MOMENTS)
            assert len(manager.list_checkpoints("run")) == saved
            assert manager.resume_from_latest("run")["done"] == saved
        storage.close()


def test_a_server_killed_under_load_loses_nothing_that_it_acknowledged(
    start: Callable[..., Redis],
) -> None:
    """Writers continue by themselves once the server is back."""
    kills, writers = 5, 3
    server = start(*DURABLE)
    acknowledged = dict.fromkeys(range(writers), 0)
    stop = threading.Event()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            with RedisStorage(server.url, pool=1) as storage:
                writer = JournalWriter(f"run-{number}")
                while not stop.is_set():
                    batch = writer.batch()
                    assert storage.append([batch]) == [None]
                    acknowledged[number] = batch.records[-1].header.seq
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(writers)]
    for thread in threads:
        thread.start()
    for _ in range(kills):
        target = {n: count + 20 for n, count in acknowledged.items()}
        while not failures and any(acknowledged[n] < target[n] for n in target):
            time.sleep(0.01)
        server.kill()
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failures
    with RedisStorage(server.url) as storage:
        for number, count in acknowledged.items():
            assert count >= 20 * kills
            seqs = [record.header.seq for record in storage.read(f"run-{number}")]
            assert seqs == list(range(1, len(seqs) + 1))
            assert len(seqs) >= count
            listed = list(storage.headers(RecordQuery(run_id=f"run-{number}")))
            assert len(listed) == len(seqs)
        assert storage.check_medium(repair=False) == []


def test_a_server_that_does_not_answer_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(errors.StorageUnavailableError) as failure:
            RedisStorage(f"redis://someone:hunter2@127.0.0.1:{port}/0", timeout=0.5, patience=0)
    assert "hunter2" not in f"{failure.value!r} {failure.value}"


def test_credentials_are_never_shown(start: Callable[..., Redis]) -> None:
    server = start(*DURABLE, "requirepass right")
    with CuttingProxy(server.connect) as proxy:
        for secret in ("hunter2", ""):
            with pytest.raises(errors.StorageError) as failure:
                RedisStorage(f"redis://:{secret}@127.0.0.1:{proxy.port}/0", patience=0)
            assert not isinstance(failure.value, errors.StorageUnavailableError)
            assert "hunter2" not in f"{failure.value!r} {failure.value}"


def test_a_password_may_be_in_the_environment(
    start: Callable[..., Redis], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start(*DURABLE, "requirepass right")
    monkeypatch.setenv("REDISCLI_AUTH", "right")
    with RedisStorage(server.url) as storage:
        assert storage.append([JournalWriter().batch()]) == [None]


def test_a_full_server_is_told_apart(start: Callable[..., Redis]) -> None:
    server = start(*DURABLE, "maxmemory 3mb")
    writer = JournalWriter()
    with RedisStorage(server.url) as storage, pytest.raises(errors.StorageFullError):
        for _ in range(100):
            batch = writer.batch([writer.record(b"x" * 100_000)])
            assert storage.append([batch]) == [None]


def test_lost_indexes_are_rebuilt_from_the_runs(
    storage: RedisStorage, prefix: str, raw: redis.Redis
) -> None:
    writers = [JournalWriter(f"run-{n}", name="agent") for n in range(3)]
    for n, writer in enumerate(writers * 3):
        writer.save(storage, status="completed" if n > 7 else "running", tags=(f"t{n}",))
        writer.save(storage, frame="note", kind="tag")
    storage.delete("run-1", hide=[1], erase=[2])
    assert storage.check_medium(repair=False) == []
    queries = [
        RecordQuery(notes=True),
        RecordQuery(name="agent"),
        RecordQuery(tag="t4"),
        RecordQuery(kind="tag", notes=True),
    ]
    runs = [RunQuery(), RunQuery(name="agent"), RunQuery(not_status="completed")]

    def seen() -> list[object]:
        return [
            *(list(storage.headers(query)) for query in queries),
            *(list(storage.runs(query)) for query in runs),
            storage.find(""),
        ]

    before = seen()
    for key in raw.scan_iter(match=f"{prefix}:index:*"):
        raw.unlink(key)
    assert list(storage.runs(RunQuery())) == []
    assert len(storage.check_medium(repair=False)) == 3
    assert "rebuilt" in storage.check_medium(repair=True)[-1]
    assert seen() == before
    assert storage.check_medium(repair=False) == []
    JournalWriter("later").save(storage)
    assert [info.ordinal for info in storage.runs(RunQuery())] == [4, 3, 2, 1]


def test_entries_without_a_record_are_found_and_removed(
    storage: RedisStorage, prefix: str, raw: redis.Redis
) -> None:
    JournalWriter().save(storage)
    index = f"{prefix}:index:{{{prefix}}}:"
    raw.zadd(f"{index}c", {"7:gone": 1})
    raw.zadd(f"{index}runs", {"gone": 99})
    assert len(list(storage.headers(RecordQuery()))) == 1
    assert len(list(storage.runs(RunQuery()))) == 1
    assert len(storage.check_medium(repair=False)) == 2
    storage.check_medium(repair=True)
    assert storage.check_medium(repair=False) == []
    assert len(list(storage.headers(RecordQuery()))) == 1


@pytest.mark.parametrize("part", ["headers", "bodies"])
@pytest.mark.parametrize("damage", ["changed", "missing"])
def test_damage_is_noticed_and_set_aside(
    storage: RedisStorage, prefix: str, raw: redis.Redis, part: str, damage: str
) -> None:
    writer = JournalWriter()
    records = [writer.save(storage) for _ in range(4)]
    JournalWriter("other").save(storage)
    key = f"{prefix}:run:{{run}}:{part}"
    if damage == "missing":
        raw.hdel(key, "2")
    else:
        data = raw.hget(key, "2")
        raw.hset(key, "2", data[:-2] + b"~~")
    with pytest.raises(errors.CorruptError):
        list(storage.read("run"))
    if part == "headers":
        with pytest.raises(errors.CorruptError):
            list(storage.headers(RecordQuery(run_id="run")))
        listed = [(one.run_id, one.seq) for one in storage.headers(RecordQuery())]
        assert listed == [("other", 1), ("run", 4), ("run", 3), ("run", 1)]
    found = storage.inspect("run")
    assert found is not None
    assert found.records == (records[0], *records[2:])
    assert len(found.problems) == 1
    aside = storage.rewrite("run", found.records[:1], (), head=found.head)
    assert [record.header.seq for record in storage.read("run")] == [1]
    kept = {name.decode() for name in raw.hkeys(aside)}
    assert {"headers:3", "bodies:3", "meta:2", "headers:4"} <= kept
    assert storage.check_medium(repair=False) == []


def test_a_damaged_head_is_listed_and_not_taken_for_whole(
    storage: RedisStorage, prefix: str, raw: redis.Redis
) -> None:
    JournalWriter(name="agent").save(storage)
    raw.hset(f"{prefix}:run:{{run}}:head", "digest", "0" * 32)
    assert [info.run_id for info in storage.runs(RunQuery())] == ["run"]
    for query in (RunQuery(run_id="run"), RunQuery(name="agent")):
        with pytest.raises(errors.CorruptError):
            list(storage.runs(query))


def test_a_page_of_a_listing_asks_the_index_for_no_more_than_the_page(
    storage: RedisStorage, prefix: str, raw: redis.Redis
) -> None:
    storage.append([JournalWriter(f"run-{n}", name="agent").batch(3) for n in range(20)])
    headers = list(storage.headers(RecordQuery(name="agent")))
    with raw.monitor() as monitor:
        first = list(storage.headers(RecordQuery(name="agent", limit=5)))
        then = RecordQuery(name="agent", limit=5, before=first[-1].id)
        assert [*first, *storage.headers(then)] == headers[:10]
        raw.echo(f"end of {prefix}")
        told = (one["command"] for one in monitor.listen() if prefix in one["command"])
        asked = [*itertools.takewhile(lambda one: not one.startswith("ECHO"), told)]
    pages = [one.split()[2:] for one in asked if one.startswith("ZREVRANGEBYSCORE")]
    assert [one[-1] for one in pages if "LIMIT" in one] == ["5", "5"]
    ((upper, lower, _),) = (one for one in pages if "LIMIT" not in one)
    assert upper == lower


def test_records_of_many_runs_at_one_place_are_all_listed(
    storage: RedisStorage, prefix: str, raw: redis.Redis
) -> None:
    runs = {f"run-{number}" for number in range(600)}
    storage.append([JournalWriter(run).batch(1) for run in runs])
    index = f"{prefix}:index:{{{prefix}}}:c"
    raw.zadd(index, dict.fromkeys(raw.zrange(index, 0, -1), 1))
    found = [header.run_id for header in storage.headers(RecordQuery())]
    assert len(found) == 600
    assert {*found} == runs


def test_a_newer_layout_is_refused_and_one_without_a_mark_is_the_first(
    server: Redis, storage: RedisStorage, prefix: str, raw: redis.Redis
) -> None:
    mark = f"{prefix}:index:{{{prefix}}}:format"
    assert raw.get(mark) is None, "nothing is written before the first run"
    JournalWriter().save(storage)
    assert raw.get(mark) == b"1"
    for newer in ("2", "10", "x"):
        raw.set(mark, newer)
        with pytest.raises(errors.SchemaError, match=f"newer Surehold .format {newer}, ") as told:
            RedisStorage(server.url, prefix=prefix)
        assert told.value.hint == "update surehold"
    raw.delete(mark)
    with RedisStorage(server.url, prefix=prefix) as old:
        assert [record.header.seq for record in old.read("run")] == [1]
        JournalWriter("other").save(old)
        storage.check_medium(repair=True)
    assert raw.get(mark) == b"1"


def test_scripts_that_the_server_forgot_are_sent_again(
    storage: RedisStorage, raw: redis.Redis
) -> None:
    writer = JournalWriter()
    for _ in range(3):
        assert storage.append([writer.batch(), JournalWriter(uuid4().hex).batch()]) == [None] * 2
        raw.script_flush()
    assert len(list(storage.read("run"))) == 3


def test_a_subscription_survives_a_lost_connection(
    server: Redis, prefix: str, storage: RedisStorage
) -> None:
    heard: Queue[str | None] = Queue()
    with (
        CuttingProxy(server.connect) as proxy,
        RedisStorage(server.through(proxy.port), prefix=prefix) as cut,
    ):
        subscription = cut.subscribe(heard.put)
        assert heard.get(timeout=30) is None
        proxy.cut_all()
        assert heard.get(timeout=30) is None  # connected again: any run may have changed
        JournalWriter("run").save(storage)
        assert heard.get(timeout=30) == "run"
        subscription.close()


def test_a_user_who_may_not_publish_appends_and_polls(
    server: Redis, prefix: str, raw: redis.Redis
) -> None:
    raw.execute_command(
        *("ACL", "SETUSER", prefix, "on", ">secret", f"~{prefix}:*", "resetchannels"),
        *("+@read", "+@write", "+@scripting", "+@connection", "+info", "+config|get", "+time"),
    )
    with (
        CuttingProxy(server.connect) as proxy,
        RedisStorage(f"redis://{prefix}:secret@127.0.0.1:{proxy.port}", prefix=prefix) as storage,
        RunWatch(storage, "run", every=0.01) as watch,
    ):
        JournalWriter("run").save(storage)
        assert watch.wait(30)
        assert not watch.is_live
    raw.execute_command("ACL", "DELUSER", prefix)


def test_a_user_without_rights_is_refused_with_a_hint(
    server: Redis, prefix: str, raw: redis.Redis
) -> None:
    raw.execute_command("ACL", "SETUSER", prefix, "on", ">secret", f"~{prefix}:*", "+@read")
    with (
        CuttingProxy(server.connect) as proxy,
        pytest.raises(errors.StorageError, match=r"refused: .* 'info'") as refused,
    ):
        RedisStorage(f"redis://{prefix}:secret@127.0.0.1:{proxy.port}", prefix=prefix)
    assert "check user, password and rights" in refused.value.hint
    raw.execute_command("ACL", "DELUSER", prefix)


def test_doctor_tells_what_is_wrong_with_a_server_and_what_to_do(
    start: Callable[..., Redis],
) -> None:
    server = start("appendonly no", "maxmemory 900000000")
    refused = call("doctor", "-s", server.url)
    assert (refused.code, "CONFIG SET appendonly yes" in refused.out) == (10, True)
    assert refused.out.splitlines()[-1].count(server.url) == 1
    accepted = call("doctor", "-s", f"{server.url}?durability=relaxed")
    assert accepted.out.splitlines()[-1].endswith(": reachable, see above: durability")
    assert accepted.code == 1
    result = call("doctor", "--json", "-s", f"{server.url}?durability=relaxed")
    facts = {fact["name"]: fact for fact in result.json()["facts"]}
    assert facts["server"]["value"].startswith(("Valkey ", "Redis "))
    assert facts["memory"]["value"].endswith(" of 900 MB, noeviction")
    assert {"latency", "clock", "replicas", "encryption"} <= facts.keys()
    wrong = {name: fact["hint"] for name, fact in facts.items() if fact["problem"]}
    assert wrong.keys() == {"durability"}
    assert wrong["durability"].startswith("CONFIG SET appendonly yes")


def test_a_storage_survives_a_fork(storage: RedisStorage) -> None:
    import multiprocessing

    JournalWriter().save(storage)
    context = multiprocessing.get_context("fork")
    with suppress(DeprecationWarning):
        child = context.Process(target=_save_in_child, args=(storage,))
        child.start()
        child.join(30)
    assert child.exitcode == 0
    JournalWriter.after(storage, "run").save(storage)
    assert len(list(storage.read("run"))) == 3


def _save_in_child(storage: RedisStorage) -> None:
    JournalWriter.after(storage, "run").save(storage)


def test_a_worker_gets_connections_for_its_threads_unless_a_number_is_given(
    server: Redis, prefix: str
) -> None:
    with RedisStorage(server.url, prefix=prefix) as storage:
        assert list(storage.runs(RunQuery())) == []
        Worker(storage, served_by(["tests.executors.jobs"]), concurrency=12)
        pool = storage._db._pool
        taken = [pool.get_connection() for _ in range(13)]
        for one in taken:
            pool.release(one)
        assert list(storage.runs(RunQuery())) == []
    with RedisStorage(server.url, prefix=prefix, pool=2) as storage:
        storage.fit(12)
        assert storage._db._pool.max_connections == 2
