"""Addresses: which storage they mean, and what is said of those that mean none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.shelf import Shelf

import surehold
from surehold import CheckpointManager, State
from surehold.errors import NotFoundError, StorageError, SureholdError, UsageError
from surehold.storage import registry
from surehold.storage.addresses import StorageURL, mask_url
from surehold.storage.base import RunQuery, Storage
from surehold.storage.files.storage import FilesystemStorage
from surehold.storage.memory.storage import MemoryStorage
from surehold.storage.registry import (
    checkpoint_stores,
    get_checkpoint_store,
    open_storage,
    register_checkpoint_store,
)
from surehold.storage.sqlite.storage import SQLiteStorage
from surehold.testing import JournalWriter


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory of its own, no address in the environment, and no names left behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUREHOLD_STORAGE", raising=False)
    monkeypatch.setattr(registry, "_named", {"memory": registry._named["memory"]})
    yield tmp_path


def saved_by(address: str) -> None:
    """Save a record through the address, and read it through the address opened again."""
    with open_storage(address) as storage:
        JournalWriter("run").save(storage)
    with open_storage(address) as storage:
        assert [info.run_id for info in storage.runs(RunQuery())] == ["run"]


def test_a_storage_is_its_own_address() -> None:
    storage = MemoryStorage()
    assert open_storage(storage) is storage


def test_the_memory_url_opens_a_new_one_each_time() -> None:
    assert isinstance(open_storage("memory://"), MemoryStorage)
    assert open_storage("memory://") is not open_storage("memory://")


def test_the_name_memory_is_one_per_process() -> None:
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda _: open_storage("memory"), range(32)))
    assert len({id(storage) for storage in opened}) == 1
    assert isinstance(opened[0], MemoryStorage)
    assert get_checkpoint_store("memory") is opened[0]


@pytest.mark.parametrize(
    ("address", "file"),
    [
        ("sqlite:///runs.db", "runs.db"),
        ("sqlite:///sub/runs", "sub/runs"),
        ("sqlite:///./my%20runs%3F.db", "my runs?.db"),
        ("SQLite:///runs.db", "runs.db"),
    ],
)
def test_a_sqlite_url_of_three_slashes_is_relative(place: Path, address: str, file: str) -> None:
    (place / "sub").mkdir()
    saved_by(address)
    assert (place / file).is_file()


def test_a_sqlite_url_of_four_slashes_is_absolute(place: Path) -> None:
    saved_by(f"sqlite:///{place}/runs.db")
    assert (place / "runs.db").is_file()


@pytest.mark.parametrize(
    "address", ["file:runs", "file:./runs", "file://./runs", "file:x/../runs", "file:%72uns"]
)
def test_a_file_url_may_be_relative(place: Path, address: str) -> None:
    (place / "x").mkdir()
    saved_by(address)
    assert (place / "runs").is_dir()


def test_a_file_url_may_go_up(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "deep").mkdir()
    monkeypatch.chdir(place / "deep")
    saved_by("file://../runs")
    assert (place / "runs").is_dir()


def test_a_file_url_of_three_slashes_is_absolute(place: Path) -> None:
    saved_by(f"file://{place}/runs")
    assert (place / "runs").is_dir()
    with open_storage(f"file:{place}/runs") as storage:
        assert len(list(storage.runs(RunQuery()))) == 1


@pytest.mark.parametrize("compress", ["true", "gzip", "zstd", "false"])
def test_a_file_url_says_how_to_compress(place: Path, compress: str) -> None:
    with open_storage(f"file:runs?compress={compress}") as storage:
        JournalWriter("run").save(storage)
    endings = {"true": ".gz", "gzip": ".gz", "zstd": ".zst", "false": ".jsonl"}
    written = [path.name for path in (place / "runs").rglob("*.jsonl*")]
    assert len(written) == 1
    assert written[0].endswith(endings[compress])


@pytest.mark.parametrize(
    ("options", "compression"),
    [
        ("", "zstd"),
        ("?compress=zstd", "zstd"),
        ("?compress=true", "gzip"),
        ("?compress=false", None),
    ],
)
def test_a_sqlite_url_says_how_to_compress(options: str, compression: str | None) -> None:
    with open_storage(f"sqlite:///runs.db{options}") as storage:
        assert storage.body_compression == compression


def test_none_is_the_default_place(place: Path) -> None:
    with open_storage() as storage:
        assert isinstance(storage, SQLiteStorage)
        JournalWriter("run").save(storage)
    assert (place / ".surehold" / "surehold.db").is_file()


def test_none_is_what_the_environment_says(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREHOLD_STORAGE", "file:elsewhere")
    with open_storage() as storage:
        assert isinstance(storage, FilesystemStorage)
    monkeypatch.setenv("SUREHOLD_STORAGE", "memory")
    assert open_storage(None) is get_checkpoint_store("memory")
    monkeypatch.setenv("SUREHOLD_STORAGE", "")
    with open_storage() as storage:
        assert isinstance(storage, SQLiteStorage)


def test_an_error_says_that_the_address_came_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SUREHOLD_STORAGE", "nowhere")
    with pytest.raises(NotFoundError) as caught:
        open_storage()
    assert "SUREHOLD_STORAGE" in "".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("runs.db", "sqlite:///runs.db"),
        ("./sub/runs.sqlite", "sqlite:///./sub/runs.sqlite"),
        ("/srv/runs.db", "sqlite:////srv/runs.db"),
        ("my runs?.db", "sqlite:///my%20runs%3F.db"),
        ("runs/", "file:runs/"),
        ("~/runs", "file:~/runs"),
        ("/srv/runs", "file:///srv/runs"),
        (Path("runs.db"), "sqlite:///runs.db"),
        (Path("/srv/runs"), "file:///srv/runs"),
    ],
)
def test_a_path_is_refused_with_the_url_to_write(address: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_storage(address)
    assert caught.value.hint == f"write {hint}"


@pytest.mark.parametrize(
    ("address", "hint"),
    [
        ("sqlite:runs.db", "write sqlite:///runs.db,"),
        ("sqlite:/srv/runs.db", "with a fourth slash"),
        ("sqlite://runs.db", "write sqlite:///runs.db,"),
        ("sqlite://sub/runs.db", "write sqlite:///sub/runs.db,"),
        ("sqlite://", "write sqlite:///runs.db,"),
        ("sqlite:///", "write sqlite:///runs.db,"),
        ("sqlite:///sub/", "write sqlite:///sub,"),
        ("sqlite:///:memory:", "write memory://"),
        ("sqlite:///a.db?mode=ro", "they have: compress"),
        ("sqlite:///a.db?compress=lz4", "it can be: false, true, gzip, zstd"),
        ("file:", "write file:runs,"),
        ("file:///", "write file:runs,"),
        ("file://sub/runs", "write file:sub/runs, or file:///sub/runs"),
        ("file:runs?compression=gzip", "did you mean compress? they have: compress"),
        ("file:runs?compress=gzp", "did you mean gzip? it can be: false, true, gzip, zstd"),
        ("file:runs?compress=", "it can be: false, true, gzip, zstd"),
        ("file:runs?compress", ""),
        ("file:runs?compress=gzip&compress=zstd", ""),
        ("file:runs#1", "%23"),
        ("memory://x", "memory:// opens a new one"),
        ("memory:///x", "memory:// opens a new one"),
        ("memory://?size=3", "they have none"),
    ],
)
def test_a_url_that_is_wrong_says_what_is_right(place: Path, address: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_storage(address)
    assert hint in caught.value.hint
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("address", [7, b"memory://", ["memory://"]])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="address"):
        open_storage(address)


@pytest.mark.parametrize("address", ["", " "])
def test_an_empty_address_names_nothing(address: str) -> None:
    with pytest.raises(NotFoundError, match="registered: memory"):
        open_storage(address)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (
            "sqlit:///x.db",
            "did you mean sqlite? there are: az, cosmos, file, gs, memory, postgresql, redis,",
        ),
        ("sqlite3:///x.db", "did you mean sqlite?"),
        (
            "ftp://x",
            "there are: az, cosmos, file, gs, memory, postgresql, redis, resilient, s3, sqlite",
        ),
    ],
)
def test_an_unknown_scheme_lists_those_that_exist(address: str, said: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        open_storage(address)
    assert said in str(caught.value)
    assert caught.value.scheme == address.partition(":")[0]


def test_an_unknown_name_lists_those_that_are_registered() -> None:
    register_checkpoint_store("nightly", MemoryStorage())
    for look_up in (get_checkpoint_store, open_storage):
        with pytest.raises(NotFoundError) as caught:
            look_up("nightli")
        assert "did you mean nightly? registered: memory, nightly" in str(caught.value)


def test_a_registered_storage_is_found_by_its_name() -> None:
    storage = MemoryStorage()
    register_checkpoint_store("mine", storage)
    assert get_checkpoint_store("mine") is storage
    assert open_storage("mine") is storage
    assert checkpoint_stores() == ("memory", "mine")


def test_a_name_may_look_like_a_path() -> None:
    storage = MemoryStorage()
    register_checkpoint_store("runs.db", storage)
    assert open_storage("runs.db") is storage


def test_a_name_registered_again_means_the_later() -> None:
    first, second = MemoryStorage(), MemoryStorage()
    register_checkpoint_store("mine", first)
    register_checkpoint_store("mine", second)
    assert get_checkpoint_store("mine") is second
    first.find("x")


def test_a_factory_is_called_on_first_use_and_once() -> None:
    made: list[Storage] = []
    slow = threading.Barrier(2)

    def factory() -> Storage:
        slow.wait(300)
        made.append(MemoryStorage())
        return made[-1]

    register_checkpoint_store("mine", factory)
    assert made == []
    with ThreadPoolExecutor(9) as pool:
        opened = [pool.submit(get_checkpoint_store, "mine") for _ in range(8)]
        slow.wait(300)
    assert [future.result() for future in opened] == [made[0]] * 8
    assert len(made) == 1


def test_a_slow_factory_keeps_no_other_name_waiting() -> None:
    started, go_on = threading.Event(), threading.Event()

    def factory() -> Storage:
        started.set()
        assert go_on.wait(300)
        return MemoryStorage()

    register_checkpoint_store("slow", factory)
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(get_checkpoint_store, "slow")
        assert started.wait(300)
        assert isinstance(get_checkpoint_store("memory"), MemoryStorage)
        go_on.set()
        assert isinstance(opened.result(10), MemoryStorage)


def test_a_factory_that_failed_is_tried_again() -> None:
    outcomes: list[Storage | OSError] = [MemoryStorage(), OSError("not yet")]

    def factory() -> Storage:
        outcome = outcomes.pop()
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    register_checkpoint_store("mine", factory)
    with pytest.raises(OSError, match="not yet"):
        get_checkpoint_store("mine")
    assert isinstance(get_checkpoint_store("mine"), MemoryStorage)


@pytest.mark.parametrize(
    ("name", "storage"),
    [
        ("", MemoryStorage),
        ("x://y", MemoryStorage),
        ("mine:", MemoryStorage),
        (7, MemoryStorage),
        ("x", "memory://"),
    ],
)
def test_what_cannot_be_registered_is_refused(name: str, storage: type[Storage]) -> None:
    with pytest.raises(UsageError):
        register_checkpoint_store(name, storage)
    assert checkpoint_stores() == ("memory",)


def test_a_factory_must_make_a_storage() -> None:
    register_checkpoint_store("mine", dict)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'mine' gave a dict"):
        get_checkpoint_store("mine")


@pytest.fixture
def plugins(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package that brings four storages, of which one works."""
    site = tmp_path_factory.mktemp("site")
    (site / "surehold_testing_plugin.py").write_text(
        "from surehold.storage.memory.storage import MemoryStorage\n"
        "class Good(MemoryStorage):\n"
        "    def __init__(self, url):\n"
        "        super().__init__()\n"
        "        self.url = url\n"
        "def nothing(url): return None\n"
    )
    (site / "surehold_testing_broken.py").write_text("import no_such_module_at_all\n")
    metadata = site / "surehold_plugin-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: surehold-plugin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(
        "[surehold.storages]\n"
        "good = surehold_testing_plugin:Good\n"
        "broken = surehold_testing_broken:Storage\n"
        "gone = surehold_testing_plugin:Gone\n"
        "nothing = surehold_testing_plugin:nothing\n"
        "sqlite = surehold_testing_plugin:Good\n"
    )
    monkeypatch.syspath_prepend(str(site))


@pytest.mark.usefixtures("plugins")
def test_a_package_can_bring_a_scheme() -> None:
    storage = open_storage("good://me:secret@host:1/a%20b?x=1")
    url: StorageURL = storage.url  # type: ignore[attr-defined]
    assert (url.scheme, url.host, url.path) == ("good", "me:secret@host:1", "/a b")
    assert dict(url.options) == {"x": "1"}
    assert url.full == "good://me:secret@host:1/a%20b?x=1"
    assert "secret" not in f"{url} {url!r}"


@pytest.mark.usefixtures("plugins")
@pytest.mark.parametrize("scheme", ["broken", "gone"])
def test_a_broken_package_breaks_no_other(place: Path, scheme: str) -> None:
    with pytest.raises(UsageError, match="surehold-plugin") as caught:
        open_storage(f"{scheme}://")
    assert caught.value.__cause__ is not None
    assert open_storage("good://").find("x") == []
    assert open_storage("memory://").find("x") == []
    saved_by("sqlite:///runs.db")
    assert (place / "runs.db").is_file()


@pytest.mark.usefixtures("plugins")
def test_what_a_package_brings_is_listed_and_must_be_a_storage() -> None:
    listed = "az, broken, cosmos, file, gone, good, gs, memory, nothing, postgresql, redis"
    with pytest.raises(NotFoundError, match=listed):
        open_storage("other://")
    with pytest.raises(UsageError, match="NoneType"):
        open_storage("nothing://")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:s3cret@host:6379/0", "redis://:***@host:6379/0"),
        ("postgresql://me:s3cret@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me:s3/c?r#e@t@host/db", "postgresql://me:***@host/db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        (
            "postgresql://host/db?user=me&password=s3cret",
            "postgresql://host/db?user=me&password=***",
        ),
        ("s3://bucket/x?secret_access_key=s3cret&x=1", "s3://bucket/x?secret_access_key=***&x=1"),
        ("az://x?SAS_Token=s3cret", "az://x?SAS_Token=***"),
        ("AccountEndpoint=x;AccountKey=s3cret==;", "AccountEndpoint=x;AccountKey=***;"),
        ("me_too:s3cret@host/db", "me_too:***@host/db"),
        ("file:///srv/a:b@c", "file:///srv/a:b@c"),
        ("sqlite:///runs.db", "sqlite:///runs.db"),
        ("runs", "runs"),
    ],
)
def test_a_masked_url_shows_no_password(url: str, shown: str) -> None:
    assert mask_url(url) == shown


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:s3cret@host/db",
        "nowhere://me:s3cret@host/db",
        "nowhere://me:s3#cret@host/db",
        "sqlite://me:s3cret@host/db.db",
        "sqlite:me:s3cret@host/db.db",
        "file://me:s3cret@host/runs",
        "file:runs?password=s3cret",
        "file://me:s3cret@host/runs?compress=x",
        "memory://me:s3cret@host",
        "me_too:s3cret@host/db",
        "_x:s3cret@host",
        "/x?password=s3cret",
        "x?password=s3cret&y",
        "sqlite:///x.db?password=s3cret&password=s3cret",
    ],
)
def test_no_error_shows_a_password(address: str) -> None:
    with pytest.raises(SureholdError) as caught:
        open_storage(address)
    error: BaseException | None = caught.value
    while error is not None:
        assert not re.search("s3.?cret", f"{error!s} {error!r} {vars(error)}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def test_a_medium_without_its_package_names_the_extra() -> None:
    code = """
import sys
from surehold.errors import MissingExtraError
from surehold.storage.registry import open_storage
for package in ("psycopg", "redis", "obstore", "azure.cosmos"):
    sys.modules[package] = None
for address in ("postgresql://u@h/d", "redis://h", "s3://b", "cosmos://a/b/c"):
    try:
        open_storage(address)
    except MissingExtraError as error:
        print(error.hint)
"""
    extras = ("postgres", "redis", "objects", "cosmos")
    assert _printed(code) == [f"pip install 'surehold[{extra}]'" for extra in extras]


def test_media_are_imported_on_first_use() -> None:
    code = """
import sys
from surehold.storage import registry
def imported():
    media = ["surehold.storage.%s.storage" % name for name in ("memory", "sqlite", "files")]
    print([name for name in [*media, "apsw", "zstandard"] if name in sys.modules])
registry.checkpoint_stores()
imported()
registry.open_storage("memory://")
imported()
"""
    assert _printed(code) == ["[]", "['surehold.storage.memory.storage']"]


def _printed(code: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    ).stdout.splitlines()


def test_a_manager_on_the_default_storage_leaves_one_that_is_shared_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register_checkpoint_store("shared-by-default", MemoryStorage)
    monkeypatch.setenv("SUREHOLD_STORAGE", "shared-by-default")
    for run_id in ("one", "two"):
        with CheckpointManager() as manager:
            manager.save_checkpoint(State.new({"n": 1}, run_id=run_id))
    runs = get_checkpoint_store("shared-by-default").runs(RunQuery())
    assert [run.run_id for run in runs] == ["two", "one"]


@pytest.mark.parametrize("address", ["sqlite:///{}/runs.db", "file:{}/runs"])
def test_redundancy_heals_a_run_whose_files_are_gone(address: str, tmp_path: Path) -> None:
    address = f"{address.format(tmp_path)}?redundancy=1"
    with CheckpointManager(address) as manager:
        saved = manager.save_checkpoint(State.new({"n": 1}, run_id="run"))
    for path in [*tmp_path.glob("runs.db"), *tmp_path.glob("runs/_/*")]:
        path.unlink()
    with CheckpointManager(address) as manager:
        assert manager.resume_from_latest("run")["n"] == 1
        assert manager.load_checkpoint(saved)["n"] == 1
        assert all(manager.verify())


@pytest.mark.parametrize("address", ["memory://?redundancy=1", "file:runs?redundancy=2"])
def test_redundancy_that_there_is_not_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="redundancy"):
        open_storage(address)


def test_a_store_with_four_methods_is_registered_and_keeps_whole_runs(tmp_path: Path) -> None:
    paid: list[str] = []
    register_checkpoint_store("shelf", Shelf(tmp_path))

    def work(fail: bool) -> None:
        with surehold.run("r", storage="shelf") as run:
            for item in run.each(["a", "b"]):
                run.effect("pay", paid.append, item)
                if fail and item == "b":
                    raise ConnectionError("no network")

    with pytest.raises(ConnectionError):
        work(fail=True)
    assert Shelf(tmp_path).list() == ["r"]
    register_checkpoint_store("shelf", lambda: Shelf(tmp_path))  # another process
    work(fail=False)
    assert paid == ["a", "b"]
    with CheckpointManager("shelf") as manager:
        assert [one for one in manager.verify() if one.problems] == []
        manager.delete_run("r")
    assert Shelf(tmp_path).list() == []


def test_a_failed_save_of_a_store_is_told_and_not_acknowledged(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    register_checkpoint_store("shelf", shelf)
    with CheckpointManager("shelf") as manager:
        state = State.new({"n": 1}, run_id="r")
        manager.save_checkpoint(state)
        shelf.fails = 1
        with pytest.raises(StorageError, match="save of Shelf failed"):
            manager.save_checkpoint(state.set("n", 2))
        manager.save_checkpoint(state.set("n", 2))
    register_checkpoint_store("shelf", Shelf(tmp_path))
    with CheckpointManager("shelf") as manager:
        found = manager.resume_from_latest("r")
        assert found is not None and found["n"] == 2
    (tmp_path / "other.json").write_text('{"run_id": "x", "values": {}}')
    with pytest.raises(StorageError, match="load of Shelf failed"):
        register_checkpoint_store("shelf", Shelf(tmp_path))
        open_storage("shelf")
    with pytest.raises(UsageError, match="save, load, delete and list"):
        register_checkpoint_store("shelf", object())  # type: ignore[arg-type]


def test_a_manager_in_place_of_a_storage_is_told_where_its_storage_is() -> None:
    with surehold.CheckpointManager(MemoryStorage()) as manager:
        with pytest.raises(UsageError, match=r"is not a storage \(give its storage"):
            surehold.StateGraph("report", storage=manager)  # type: ignore[arg-type]
        assert surehold.StateGraph("report", storage=manager.storage)
