"""Files are written whole, what passes is passed over, what hangs is given up, locks hold."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from stamina.instrumentation import RetryDetails, get_on_retry_hooks, set_on_retry_hooks

from surehold.errors import (
    DecodeError,
    EncodeError,
    NotFoundError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    UsageError,
)
from surehold.storage.files.storage import FilesystemStorage
from surehold.storage.io import resilient_io as io
from surehold.storage.retries import Retry, is_transient, retried, within
from surehold.testing import JournalWriter

FAST = Retry(first_wait=0.001, jitter=0.001)
ONCE = Retry(retries=0)
LARGE = os.urandom(3 * io.CHUNK + 17)


@contextmanager
def child(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs *code* and has said that it is ready."""
    prelude = "import os, sys, time\nfrom surehold.storage.io import resilient_io as io\n"
    with subprocess.Popen(
        [sys.executable, "-c", prelude + code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file can grow beyond *size* meanwhile, as on a disk that is full."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    caches, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # they would be cut short
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        sys.dont_write_bytecode = caches


# Reading and writing


@pytest.mark.parametrize("data", [b"", b"short", LARGE], ids=["nothing", "little", "many chunks"])
def test_what_is_written_is_read_byte_for_byte(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    io.write_file(path, data)
    assert io.read_file(path, encoding=None) == data
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_text_and_chunks_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    io.write_file(path, "grüß dich")
    assert io.read_file(path) == "grüß dich"
    io.write_file(path, (b"%d," % n for n in range(5)))
    assert io.read_file(path) == "0,1,2,3,4,"


def test_what_is_not_text_is_a_decode_error(tmp_path: Path) -> None:
    io.write_file(tmp_path / "file", b"\xff\xfe")
    with pytest.raises(DecodeError, match="utf-8"):
        io.read_file(tmp_path / "file")


def test_json_comes_back_and_what_is_none_is_told(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    io.write_json(path, {"steps": [1, 2.5, None, "é"]}, indent=2)
    assert io.read_json(path) == {"steps": [1, 2.5, None, "é"]}
    assert path.read_text().splitlines()[1].startswith('  "steps"')
    with pytest.raises(EncodeError):
        io.write_json(path, {"value": object()})
    assert io.read_json(path) == {"steps": [1, 2.5, None, "é"]}
    io.write_file(path, '{"cut off')
    with pytest.raises(DecodeError):
        io.read_json(path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    io.write_file(path, "old")
    with largest_file(io.CHUNK + 5), pytest.raises(StorageFullError) as told:
        io.write_file(path, LARGE)
    assert told.value.errno == errno.EFBIG
    assert io.read_file(path) == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_an_error_in_the_block_of_an_atomic_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    io.write_file(path, "old")
    with pytest.raises(ZeroDivisionError), io.atomic_write(path) as file:
        file.write(b"new")
        _ = 1 / 0
    assert io.read_file(path) == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_new_file_is_its_owners_alone_and_a_replaced_one_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    io.write_file(path, "a")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    io.write_file(path, "b")
    assert path.stat().st_mode & 0o777 == 0o644


_WRITES_HALF = """
with io.atomic_write(sys.argv[1]) as file:
    file.write(b"half of it")
    file.flush()
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_writer_that_is_killed_leaves_the_old_file_and_its_rest_is_swept(tmp_path: Path) -> None:
    path = tmp_path / "file"
    io.write_file(path, "old")
    with child(_WRITES_HALF, path) as writer:
        half = {one.name for one in tmp_path.iterdir()} - {"file"}
        assert len(half) == 1
        io.write_file(path, "other")
        assert half < {one.name for one in tmp_path.iterdir()}, "a live writer's file was swept"
        writer.kill()
        writer.wait()
    assert io.read_file(path) == "other"
    io.write_file(path, "new")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_of_writers_at_once_one_wins_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    every = [bytes([n]) * (io.CHUNK + n) for n in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda data: io.write_file(path, data), every))
    assert io.read_file(path, encoding=None) in every
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_name_of_any_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("é[*" * 60)
    io.write_file(path, "long")
    io.write_file(path, "long again")
    assert io.read_file(path) == "long again"


# Appending


def test_appends_add_up_and_make_the_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for n in range(3):
        io.append(path, f"line {n}\n")
    assert io.read_file(path) == "line 0\nline 1\nline 2\n"


def test_an_append_that_fails_leaves_no_part_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "log"
    io.append(path, "first\n")
    with largest_file(io.CHUNK + 100), pytest.raises(StorageFullError):
        io.append(path, LARGE)
    io.append(path, "second\n")
    assert io.read_file(path) == "first\nsecond\n"


def test_threads_that_append_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [f"{n}" * 1000 + "\n" for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda line: [io.append(path, line) for _ in range(5)], lines))
    assert sorted(io.read_file(path).splitlines(keepends=True)) == sorted(lines * 5)


# Copying, moving, deleting, listing


@pytest.fixture
def elsewhere(tmp_path: Path, disk: Path) -> Path:
    """A directory of another file system."""
    if disk.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("all temporary files are in one file system")
    return disk


def test_a_copy_has_the_content_and_the_mode(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    io.write_file(source, LARGE)
    source.chmod(0o640)
    io.copy(source, target)
    assert io.read_file(target, encoding=None) == LARGE
    assert target.stat().st_mode & 0o777 == 0o640
    assert source.exists()


def test_moving_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    io.write_file(source, "new")
    io.write_file(target, "old")
    io.move(source, target)
    assert [one.name for one in tmp_path.iterdir()] == ["b"]
    assert io.read_file(target) == "new"


def test_between_file_systems_a_file_is_copied_then_deleted(
    tmp_path: Path, elsewhere: Path
) -> None:
    source, target = tmp_path / "a", elsewhere / "b"
    io.write_file(source, LARGE)
    with pytest.raises(OSError, match="cross-device"):
        source.rename(target)
    io.move(source, target)
    assert io.read_file(target, encoding=None) == LARGE
    assert (list(tmp_path.iterdir()), [one.name for one in elsewhere.iterdir()]) == ([], ["b"])


def test_a_move_that_fails_names_every_method_it_tried(tmp_path: Path, elsewhere: Path) -> None:
    source = tmp_path / "a"
    io.write_file(source, LARGE)
    with largest_file(io.CHUNK), pytest.raises(StorageFullError) as told:
        io.move(source, elsewhere / "b")
    assert told.value.tried == ("rename", "copy, then delete")
    assert "rename" in str(told.value) and "copy, then delete" in str(told.value)
    assert io.read_file(source, encoding=None) == LARGE
    assert list(elsewhere.iterdir()) == []


def test_deleting_and_listing(tmp_path: Path) -> None:
    for name in ("b.json", "a.json", "c.txt"):
        io.write_file(tmp_path / name, "x")
    assert io.list_dir(tmp_path, "*.json") == [tmp_path / "a.json", tmp_path / "b.json"]
    assert io.delete(tmp_path / "c.txt") is True
    assert io.delete(tmp_path / "c.txt", missing_ok=True) is False
    with pytest.raises(NotFoundError):
        io.delete(tmp_path / "c.txt")
    assert len(io.list_dir(tmp_path)) == 2


# Retrying


MISSING: dict[str, Callable[[Path], object]] = {
    "read_file": io.read_file,
    "read_json": io.read_json,
    "copy": lambda path: io.copy(path, path.with_name("b")),
    "move": lambda path: io.move(path, path.with_name("b")),
    "delete": io.delete,
    "list_dir": io.list_dir,
    "write_file": lambda path: io.write_file(path / "inside", "x"),
    "append": lambda path: io.append(path / "inside", "x"),
}


@pytest.fixture
def retries() -> Iterator[list[RetryDetails]]:
    """The retries that are made, each noted before it is waited for."""
    noted: list[RetryDetails] = []
    before = get_on_retry_hooks()
    set_on_retry_hooks([noted.append])
    yield noted
    set_on_retry_hooks(before)


@pytest.mark.parametrize("what", MISSING)
def test_what_is_missing_fails_at_once(
    tmp_path: Path, what: str, retries: list[RetryDetails]
) -> None:
    with pytest.raises(NotFoundError) as told:
        MISSING[what](tmp_path / "none")
    assert retries == []
    assert told.value.errno == errno.ENOENT
    assert list(tmp_path.iterdir()) == []


_AS_NOBODY = """
from surehold.errors import StorageError
from stamina.instrumentation import set_on_retry_hooks
retries = []
set_on_retry_hooks([retries.append])
os.setgid(65534); os.setuid(65534)
try:
    io.read_file(sys.argv[1])
except StorageError as error:
    assert retries == []
    print("ready" if error.errno == 13 else error, flush=True)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become another user")
def test_a_refused_permission_fails_at_once() -> None:
    path = Path(f"/tmp/surehold-secret-{os.getpid()}")
    io.write_file(path, "mine")
    try:
        with child(_AS_NOBODY, path):
            pass
    finally:
        path.unlink()


def test_what_is_busy_is_tried_again_until_it_is_free(
    disk: Path, retries: list[RetryDetails]
) -> None:
    program = disk / "program"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    program.chmod(0o700)
    with subprocess.Popen([program, "600"]) as running:
        # The kernel refuses to write to a program that runs.
        with pytest.raises(StorageUnavailableError) as told:
            io.append(program, b"x", retry=ONCE)
        assert told.value.errno == errno.ETXTBSY

        def end(details: RetryDetails) -> None:
            retries.append(details)
            running.kill()
            running.wait()

        set_on_retry_hooks([end])
        io.append(program, b"x", retry=Retry(first_wait=0.01, retries=5))
    assert retries
    assert program.read_bytes().endswith(b"x")


def test_retries_are_counted_and_their_waits_double() -> None:
    moments: list[float] = []

    def fails() -> None:
        moments.append(time.monotonic())
        raise BlockingIOError(errno.EAGAIN, "busy")

    told: list[int] = []
    with pytest.raises(BlockingIOError):
        retried(fails, Retry(jitter=0), lambda number, _: told.append(number))
    waits = [b - a for a, b in pairwise(moments)]
    assert told == [1, 2, 3]
    assert all(at_least <= wait for at_least, wait in zip((0.1, 0.2, 0.4), waits, strict=True))


@pytest.mark.parametrize("code", ["EINTR", "EAGAIN", "EBUSY", "ETIMEDOUT", "ESTALE", "ENETDOWN"])
def test_only_what_may_pass_is_transient(code: str) -> None:
    assert is_transient(OSError(getattr(errno, code), code))
    assert is_transient(StorageUnavailableError("busy"))
    for name in ("ENOENT", "EACCES", "EPERM", "ENOSPC", "EIO", "EROFS", "EISDIR"):
        assert not is_transient(OSError(getattr(errno, name), name))
    for other in (ValueError(), StorageFullError("full"), StorageError("broken")):
        assert not is_transient(other)


def test_a_retry_says_what_it_cannot_be() -> None:
    for wrong in ({"retries": -1}, {"factor": 0.5}, {"first_wait": -1}, {"deadline": 0}):
        with pytest.raises(UsageError):
            Retry(**wrong)


@pytest.mark.parametrize("what", ["read_file", "copy"])
def test_a_call_that_hangs_is_given_up_at_the_deadline(tmp_path: Path, what: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    calls: dict[str, Callable[[Retry], object]] = {
        "read_file": lambda retry: io.read_file(pipe, retry=retry),
        "copy": lambda retry: io.copy(pipe, tmp_path / "copy", retry=retry),
    }
    started = time.monotonic()
    with pytest.raises(StorageUnavailableError, match=r"within 0\.2 s"):
        calls[what](Retry(deadline=0.2))
    assert time.monotonic() - started >= 0.2
    # Someone opens the other end, so that the thread that was given up comes back.
    with pipe.open("wb"):
        pass
    for thread in threading.enumerate():
        if thread.name == "surehold-io":
            thread.join()
    assert {one.name for one in tmp_path.iterdir()} == {"pipe"}


def test_work_that_was_given_up_stops_before_it_changes_anything(tmp_path: Path) -> None:
    path = tmp_path / "file"
    io.write_file(path, "old")
    hold = threading.Event()

    def slow() -> Iterator[bytes]:
        yield b"new"
        hold.wait()
        yield b" and late"

    with pytest.raises(StorageUnavailableError):
        io.write_file(path, slow(), retry=Retry(deadline=0.1))
    hold.set()
    for thread in threading.enumerate():
        if thread.name == "surehold-io":
            thread.join()
    assert io.read_file(path) == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_what_moves_on_is_not_given_up(tmp_path: Path) -> None:
    def slow() -> Iterator[bytes]:
        for _ in range(6):
            time.sleep(0.5)
            yield b"x"

    io.write_file(tmp_path / "file", slow(), retry=Retry(deadline=2.5))
    assert io.read_file(tmp_path / "file") == "xxxxxx"


def test_within_gives_what_the_call_gives() -> None:
    assert within(5, lambda _: 42, "thinking") == 42
    assert within(None, lambda _: 42, "thinking") == 42
    with pytest.raises(ZeroDivisionError):
        within(5, lambda _: 1 // 0, "dividing")


_READS_RUNS = """
import sys
from surehold.storage.base import RunQuery
from surehold.storage.files.storage import FilesystemStorage
with FilesystemStorage(sys.argv[1]) as storage:
    print(*(run.run_id for run in storage.runs(RunQuery())))
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("code", ["ESTALE", "EBUSY"])
def test_a_directory_that_is_stale_for_a_moment_does_not_fail_a_filesystem_storage(
    tmp_path: Path, code: str
) -> None:
    with FilesystemStorage(tmp_path / "runs") as storage:
        JournalWriter("run").save(storage)
    # Every second time that the directory is opened.
    fault = f"inject=openat:error={code}:when=1+2"
    done = subprocess.run(
        [
            *("strace", "-f", "-qq", "-o", tmp_path / "trace"),
            *("-e", fault, "-P", tmp_path / "runs"),
            *(sys.executable, "-c", _READS_RUNS, tmp_path / "runs"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "(INJECTED)" in (tmp_path / "trace").read_text()
    assert (done.stdout, done.returncode) == ("run\n", 0), done.stderr


# Locking


_HOLDS = """
with io.file_lock(sys.argv[1]):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_one_holders_at_a_time(tmp_path: Path) -> None:
    inside = []

    def work(n: int) -> None:
        with io.file_lock(tmp_path / "lock"):
            inside.append(n)
            time.sleep(0.002)
            assert inside[-1] == n
            inside.append(n)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert inside[::2] == inside[1::2]


def test_a_lock_that_is_held_names_its_holder(tmp_path: Path) -> None:
    with child(_HOLDS, tmp_path / "lock") as holder:
        with (
            pytest.raises(StorageUnavailableError, match=str(holder.pid)) as told,
            io.file_lock(tmp_path / "lock", timeout=0.05),
        ):
            pass
        assert told.value.owner.pid == holder.pid


def test_a_paused_holder_keeps_its_lock(tmp_path: Path) -> None:
    with child(_HOLDS, tmp_path / "lock") as holder:
        holder.send_signal(signal.SIGSTOP)
        os.utime(tmp_path / "lock", (0, 0))
        with (
            pytest.raises(StorageUnavailableError),
            io.file_lock(tmp_path / "lock", timeout=0.3),
        ):
            pass
        holder.send_signal(signal.SIGCONT)


def test_a_lock_is_free_when_its_holder_is_killed(tmp_path: Path) -> None:
    with child(_HOLDS, tmp_path / "lock") as holder, ThreadPoolExecutor(1) as pool:

        def wait_for_it() -> bool:
            with io.file_lock(tmp_path / "lock", timeout=500):
                return True

        waiting = pool.submit(wait_for_it)
        time.sleep(0.05)
        assert not waiting.done()
        holder.kill()
        assert waiting.result()


_FORKS = """
with io.file_lock(sys.argv[1]):
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_child_that_a_holder_forked_does_not_keep_its_lock(tmp_path: Path) -> None:
    with child(_FORKS, tmp_path / "lock") as holder:
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        holder.kill()
        holder.wait()
        try:
            with io.file_lock(tmp_path / "lock", timeout=300):
                pass
        finally:
            for pid in children:
                os.kill(int(pid), signal.SIGKILL)


def test_a_lock_file_that_was_removed_locks_nobody_out(tmp_path: Path) -> None:
    with io.file_lock(tmp_path / "lock"):
        (tmp_path / "lock").unlink()
        with io.file_lock(tmp_path / "lock", timeout=60):
            pass
    with pytest.raises(UsageError), io.file_lock(tmp_path / "lock", timeout=-1):
        pass


def test_the_lock_file_says_who_held_it(tmp_path: Path) -> None:
    with io.file_lock(tmp_path / "lock"):
        assert msgspec.json.decode((tmp_path / "lock").read_bytes())["pid"] == os.getpid()


def test_what_fails_beside_an_append_does_not_have_it_written_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, failures = os.fsync, [OSError(errno.ESTALE, "stale")]

    def fails_once(fd: int) -> None:
        if failures and stat.S_ISDIR(os.fstat(fd).st_mode):
            raise failures.pop()
        sync(fd)

    monkeypatch.setattr(os, "fsync", fails_once)
    io.append(tmp_path / "log", "paid 5\n")
    assert not failures
    assert (tmp_path / "log").read_text() == "paid 5\n"
