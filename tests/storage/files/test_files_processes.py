"""`FilesystemStorage` among processes that die, disks that fail and limits that are reached."""

from __future__ import annotations

import errno
import os
import random
import signal
import statistics
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from surehold.errors import StorageError, StorageFullError, StorageUnavailableError
from surehold.storage.base import RunQuery, this_process
from surehold.storage.files.storage import FilesystemStorage
from surehold.storage.io.dirfd import os_errors
from surehold.testing import JournalWriter

EXHAUSTIVE = os.environ.get("SUREHOLD_EXHAUSTIVE") == "1"
KILLS = 1_000 if EXHAUSTIVE else 15
SOURCE = Path(__file__).parents[3] / "src"


def start(code: str, *arguments: object, under: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*under, sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def run(code: str, *arguments: object, under: tuple[str, ...] = ()) -> str:
    """What *code* prints in a process of its own; it must end well."""
    with start(code, *arguments, under=under) as child:
        out, err = child.communicate(timeout=500)
    assert child.returncode == 0, err
    return out


WORKER = """
    import os, sys, time
    from surehold.storage.base import this_process
    from surehold.storage.files.storage import FilesystemStorage
    from surehold.testing import JournalWriter

    def tell(*words):
        os.write(1, (" ".join(map(str, words)) + "\\n").encode())

    storage = FilesystemStorage(sys.argv[1], sys.argv[2] if sys.argv[2] != "no" else False)
    storage.take_lease("run", this_process(), now=time.time(), ttl=600)
    writer = JournalWriter.after(storage, "run")
    tell("ready")
    for n in range(10_000):
        record = writer.save(storage, b'{"x":"%b"}' % (b"y" * (n % 5_000)))
        tell("saved", "run", record.header.seq, record.header.digest)
        if n % 3 == 2:
            other = JournalWriter(f"{os.getpid()}-{n}", name=f"name-{n % 2}").save(storage)
            tell("saved", other.header.run_id, 1, other.header.digest)
        if n % 4 == 3:
            tell("erasing", record.header.seq - 2)
            storage.delete("run", hide=[record.header.seq - 1], erase=[record.header.seq - 2])
        if n % 10 == 9:
            storage.compact()
"""


@pytest.mark.parametrize("compress", ["no", "gzip", "zstd"])
def test_killed_at_any_moment_it_loses_and_leaves_nothing(tmp_path: Path, compress: str) -> None:
    chance = random.Random(11)
    saved: dict[tuple[str, int], str] = {}
    erasing: set[tuple[str, int]] = set()
    waits: list[float] = []
    for _ in range(KILLS // 3):
        with start(WORKER, tmp_path, compress) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            # At least so many calls are made, and it is killed somewhere in a later one.
            told = [child.stdout.readline() for _ in range(chance.randint(1, 40))]
            time.sleep(chance.random() * 0.002)
            child.kill()
            told += child.stdout.read().splitlines()
        touched = {"run"}
        for line in told:
            match line.split():
                case ["saved", run_id, seq, digest]:
                    saved[run_id, int(seq)] = digest
                    touched.add(run_id)
                case ["erasing", seq]:
                    erasing.add(("run", int(seq)))
        with FilesystemStorage(tmp_path, False if compress == "no" else compress) as storage:
            killed = time.monotonic()
            lease = storage.take_lease("run", this_process(), now=time.time(), ttl=60)
            waits.append(time.monotonic() - killed)
            storage.release_lease(lease)
            found = digests(storage, touched)
        assert lost(saved, found, touched) <= erasing
        assert list(tmp_path.rglob("*.tmp")) == []
    with FilesystemStorage(tmp_path) as storage:
        everything = {info.run_id for info in storage.runs(RunQuery())}
        assert lost(saved, digests(storage, everything), everything) <= erasing
    assert {run_id for run_id, _ in saved} <= everything
    assert len(saved) > KILLS
    assert statistics.median(waits) < 5, "a dead holder is not waited for"


def digests(storage: FilesystemStorage, run_ids: set[str]) -> dict[tuple[str, int], str]:
    return {
        (run_id, record.header.seq): record.header.digest
        for run_id in run_ids
        for record in storage.read(run_id)
    }


def lost(
    saved: dict[tuple[str, int], str], found: dict[tuple[str, int], str], run_ids: set[str]
) -> set[tuple[str, int]]:
    return {key for key in saved if key[0] in run_ids and found.get(key) != saved[key]}


@pytest.mark.parametrize("compress", ["no", "gzip"] if EXHAUSTIVE else ["gzip"])
@pytest.mark.parametrize(
    ("call", "code"),
    [
        ("fdatasync", "EIO"),
        ("fsync", "EIO"),
        ("pwrite64", "ENOSPC"),
        ("/rename.*", "ENOSPC"),
    ],
)
def test_a_call_that_fails_acknowledges_nothing_and_can_be_tried_again(
    tmp_path: Path, call: str, code: str, compress: str
) -> None:
    script = """
        import sys
        from surehold.errors import StorageError
        from surehold.storage.files.storage import FilesystemStorage
        from surehold.testing import JournalWriter
        compress = sys.argv[2] if sys.argv[2] != "no" else False
        storage, writer = FilesystemStorage(sys.argv[1], compress), JournalWriter()
        for n in range(6):
            batch = writer.batch()
            for attempt in range(3):
                try:
                    assert storage.append([batch]) == [None]
                    break
                except StorageError as error:
                    print(type(error).__name__, error.errno, n, flush=True)
            if n == 3:
                try:
                    storage.delete("run", erase=[2])
                except StorageError as error:
                    print(type(error).__name__, error.errno, "erase", flush=True)
                    storage.delete("run", erase=[2])
        print("done", [r.header.seq for r in storage.read("run")])
    """
    kind = "StorageError" if code == "EIO" else "StorageFullError"
    failed = 0
    for when in range(1, 40) if EXHAUSTIVE else (2, 3, 8):
        base = tmp_path / str(when)
        inject = f"inject={call}:error={code}:when={when}"
        under = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject)
        *failures, done = run(script, base, compress, under=under).splitlines()
        assert done == "done [1, 3, 4, 5, 6]"
        assert len(failures) <= 1
        failed += len(failures)
        assert all(line.startswith(f"{kind} {getattr(errno, code)}") for line in failures)
        with FilesystemStorage(base) as storage:
            assert [record.header.seq for record in storage.read("run")] == [1, 3, 4, 5, 6]
            assert storage.notices == []
        assert list(base.rglob("*.tmp")) == []
    assert failed > 0


def test_what_can_neither_be_synced_nor_taken_back_is_written_anew(tmp_path: Path) -> None:
    script = """
        import sys
        from surehold.errors import StorageError
        from surehold.storage.files.storage import FilesystemStorage
        from surehold.testing import JournalWriter
        storage, writer = FilesystemStorage(sys.argv[1]), JournalWriter()
        writer.save(storage)
        batch = writer.batch()
        try:
            storage.append([batch])
        except StorageError:
            print("failed")
        print(storage.append([batch]), [r.header.seq for r in storage.read("run")])
    """
    log = tmp_path / "log"
    under = (
        *("strace", "-f", "-qq", "-o", str(log), "-e", "trace=fdatasync,ftruncate,/rename.*"),
        *("-e", "inject=fdatasync:error=EIO:when=2", "-e", "inject=ftruncate:error=EIO"),
    )
    assert run(script, tmp_path / "base", under=under).splitlines() == ["failed", "[None] [1, 2]"]
    calls = [line.split(maxsplit=1)[1].partition("(")[0] for line in log.read_text().splitlines()]
    after = calls[calls.index("ftruncate") + 1 :]
    assert after.index("fdatasync") < next(n for n, c in enumerate(after) if "rename" in c)


def test_a_file_that_may_not_grow_is_full_and_keeps_what_it_has(tmp_path: Path) -> None:
    script = """
        import resource, sys
        from surehold.errors import StorageFullError
        from surehold.storage.files.storage import FilesystemStorage
        from surehold.testing import JournalWriter
        storage, writer = FilesystemStorage(sys.argv[1]), JournalWriter()
        writer.save(storage)
        sys.dont_write_bytecode = True  # it would be cut short by the limit
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        batch = writer.batch([writer.record(b"x" * 30_000)])
        for _ in range(2):
            try:
                storage.append([batch])
            except StorageFullError as error:
                print("full", [r.header.seq for r in storage.read("run")])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        print(storage.append([batch]), storage.notices)
    """
    assert run(script, tmp_path).splitlines() == ["full [1]", "full [1]", "[None] []"]


def test_too_many_open_files_may_be_tried_again(tmp_path: Path) -> None:
    script = """
        import os, resource, sys
        from surehold.errors import StorageUnavailableError
        from surehold.storage.files.storage import FilesystemStorage
        from surehold.testing import JournalWriter
        storage, writer = FilesystemStorage(sys.argv[1]), JournalWriter()
        writer.save(storage)
        batch, failed = writer.batch(), 0
        first = os.open("/dev/null", os.O_RDONLY)
        for spare in range(9):
            resource.setrlimit(resource.RLIMIT_NOFILE, (first + spare, 4096))
            try:
                storage.append([batch])
            except StorageUnavailableError as error:
                assert error.retryable
                failed += 1
        print(failed > 0, storage.append([batch]), [r.header.seq for r in storage.read("run")])
        print(len(os.listdir("/proc/self/fd")) <= first + 2)
    """
    assert run(script, tmp_path).splitlines() == ["True [None] [1, 2]", "True"]


def test_a_child_forked_while_threads_save_can_save_as_well(tmp_path: Path) -> None:
    script = """
        import os, sys, threading, warnings
        from surehold.storage.files.storage import FilesystemStorage
        from surehold.testing import JournalWriter
        warnings.simplefilter("ignore", DeprecationWarning)
        storage, stop = FilesystemStorage(sys.argv[1]), threading.Event()

        def work(run_id):
            writer = JournalWriter(run_id)
            while not stop.is_set():
                writer.save(storage)

        threads = [threading.Thread(target=work, args=(f"thread-{n}",)) for n in range(2)]
        for thread in threads:
            thread.start()
        for n in range(12):
            pid = os.fork()
            if pid == 0:
                writer = JournalWriter(f"child-{n}")
                for _ in range(3):
                    writer.save(storage)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        counts = [len(list(storage.read(f"child-{n}"))) for n in range(12)]
        print(counts, all(list(storage.read(f"thread-{n}")) for n in range(2)))
    """
    assert run(script, tmp_path).splitlines() == [f"{[3] * 12} True"]


def test_a_lock_is_free_when_its_holder_is_killed(tmp_path: Path) -> None:
    hold = """
        import sys, time
        from pathlib import Path
        from surehold.storage.io.dirfd import open_root
        from surehold.storage.files.reader import JournalFiles
        with open_root(Path(sys.argv[1])) as root, JournalFiles("", print).lock(root, "run"):
            print("held", flush=True)
            time.sleep(600)
    """
    with FilesystemStorage(tmp_path) as storage:
        writer = JournalWriter()
        writer.save(storage)
        with start(hold, tmp_path) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "held\n"
            child.send_signal(signal.SIGKILL)
        writer.save(storage)


def test_a_read_only_medium_can_be_read(tmp_path: Path) -> None:
    script = """
        import sys
        from surehold.errors import StorageError
        from surehold.storage.base import RunQuery
        from surehold.storage.files.storage import FilesystemStorage
        from surehold.testing import JournalWriter
        with FilesystemStorage(sys.argv[1]) as storage:
            print([info.seq for info in storage.runs(RunQuery())], len(storage.notices))
            try:
                JournalWriter.after(storage, "run").save(storage)
            except StorageError as error:
                print(error.retryable, "read-only" in error.hint)
    """
    with FilesystemStorage(tmp_path / "base") as storage:
        JournalWriter().save(storage)
    (path,) = (tmp_path / "base" / "_").iterdir()
    with path.open("ab") as file:
        file.write(b"torn")
    bind = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'
    base = str(tmp_path / "base")
    trial = ["unshare", "-m", "sh", "-c", bind, "sh", base]
    allowed = subprocess.run(trial, check=False, capture_output=True)
    if allowed.returncode:
        pytest.skip("may not mount")
    shell = ("unshare", "-m", "sh", "-c", f'{bind} && shift && exec "$@"', "sh", base)
    assert run(script, base, under=shell).splitlines() == ["[1] 1", "False True"]


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (errno.ENOSPC, StorageFullError, False),
        (errno.EDQUOT, StorageFullError, False),
        (errno.EFBIG, StorageFullError, False),
        (errno.EROFS, StorageError, False),
        (errno.EACCES, StorageError, False),
        (errno.EPERM, StorageError, False),
        (errno.EIO, StorageError, False),
        (errno.ENAMETOOLONG, StorageError, False),
        (errno.EAGAIN, StorageUnavailableError, True),
        (errno.EINTR, StorageUnavailableError, True),
        (errno.EMFILE, StorageUnavailableError, True),
        (errno.ENFILE, StorageUnavailableError, True),
    ],
)
def test_an_error_of_the_system_says_what_it_means(
    code: int, kind: type[StorageError], retryable: bool
) -> None:
    with pytest.raises(StorageError) as caught, os_errors(Path("/base")):
        raise OSError(code, os.strerror(code), "name")
    assert type(caught.value) is kind
    assert caught.value.retryable is retryable
    assert caught.value.path == "/base/name"
    assert caught.value.errno == code
    if code in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC):
        assert caught.value.hint
