"""Processes that share a database file: forks, kills, races, and tools of others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from surehold.errors import StorageError
from surehold.storage.base import RecordQuery, RunQuery
from surehold.storage.sqlite.storage import SQLiteStorage
from surehold.testing import JournalWriter

HELLO = b"."


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


class Child:
    """A forked process that does *work* and can wait for, and tell, its parent."""

    def __init__(self, work: Callable[[Child], None]) -> None:
        (there_in, self._there), (here_in, self._here) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid:
            self._reads, self._writes = there_in, self._here
            return
        self._reads, self._writes = here_in, self._there
        try:
            work(self)
        except BaseException as error:
            os.write(2, f"in the child: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)

    def tell(self) -> None:
        os.write(self._writes, HELLO)

    def wait(self) -> None:
        assert os.read(self._reads, 1) == HELLO

    def ended_well(self) -> bool:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]) == 0


def seqs(storage: SQLiteStorage, run_id: str = "run") -> list[int]:
    return [record.header.seq for record in storage.read(run_id)]


class TestForks:
    def test_what_a_child_saves_survives_that_its_parent_closes(self, path: Path) -> None:
        storage = SQLiteStorage(path)
        JournalWriter("parent").save(storage)

        def work(child: Child) -> None:
            writer = JournalWriter("child")
            writer.save(storage)
            child.tell()
            child.wait()
            writer.save(storage)
            storage.close()

        child = Child(work)
        child.wait()
        storage.close()
        child.tell()
        assert child.ended_well()
        with SQLiteStorage(path) as again:
            assert (seqs(again, "parent"), seqs(again, "child")) == ([1], [1, 2])

    def test_a_parent_goes_on_after_its_child_closed(self, path: Path) -> None:
        with SQLiteStorage(path) as storage:
            writer = JournalWriter()
            writer.save(storage)
            pages = storage.headers(RecordQuery())
            assert next(pages).seq == 1

            def work(child: Child) -> None:
                assert seqs(storage) == [1]
                storage.close()

            assert Child(work).ended_well()
            writer.save(storage)
            assert seqs(storage) == [1, 2]
            assert list(pages) == []

    def test_parent_and_child_take_turns(self, path: Path) -> None:
        with SQLiteStorage(path) as storage:

            def work(child: Child) -> None:
                for _ in range(5):
                    child.wait()
                    JournalWriter.after(storage, "run").save(storage)
                    child.tell()

            child = Child(work)
            for _ in range(5):
                JournalWriter.after(storage, "run").save(storage)
                child.tell()
                child.wait()
            assert child.ended_well()
            assert seqs(storage) == list(range(1, 11))

    def test_a_fork_waits_for_what_other_threads_do(self, path: Path) -> None:
        with SQLiteStorage(path) as storage:
            stop = threading.Event()

            def save(run_id: str) -> None:
                writer = JournalWriter(run_id)
                while not stop.is_set():
                    writer.save(storage)
                    list(storage.headers(RecordQuery(limit=3)))

            threads = [threading.Thread(target=save, args=(f"run-{n}",)) for n in range(3)]
            for thread in threads:
                thread.start()
            try:
                for n in range(10):
                    run_id = f"child-{n}"
                    assert Child(lambda _, r=run_id: JournalWriter(r).save(storage)).ended_well()
            finally:
                stop.set()
                for thread in threads:
                    thread.join()
            assert {f"child-{n}" for n in range(10)} < {i.run_id for i in storage.runs(RunQuery())}
            for info in storage.runs(RunQuery()):
                assert seqs(storage, info.run_id) == list(range(1, info.seq + 1))

    def test_multiprocessing_by_fork_works(self, path: Path) -> None:
        with SQLiteStorage(path) as storage:
            JournalWriter("parent").save(storage)
            fork = get_context("fork")
            children = [
                fork.Process(target=lambda n=n: JournalWriter(f"child-{n}").save(storage))
                for n in range(3)
            ]
            for child in children:
                child.start()
            for child in children:
                child.join()
            assert [child.exitcode for child in children] == [0, 0, 0]
            assert len(list(storage.runs(RunQuery()))) == 4

    def test_a_fork_within_a_call_is_refused_in_the_child(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As a signal handler may: the call cannot end before the fork."""
        monkeypatch.setattr("surehold.storage.sqlite.connections._PATIENCE", 0.05)
        with SQLiteStorage(path) as storage:

            def work(child: Child) -> None:
                with pytest.raises(StorageError, match="forked"):
                    JournalWriter().save(storage)
                with pytest.raises(StorageError, match="forked"):
                    list(storage.runs(RunQuery()))
                storage.close()

            with storage._pool.reading():
                child = Child(work)
            assert child.ended_well()
            child = storage._pool.write(lambda db: Child(work))
            assert child.ended_well()
            JournalWriter().save(storage)
            assert seqs(storage) == [1]


def script(text: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


SAVE = """
import sys
from surehold.storage.sqlite.storage import SQLiteStorage
from surehold.testing import JournalWriter
sys.stdin.read(1)
storage = SQLiteStorage(sys.argv[1])
writer = JournalWriter(sys.argv[2], name="agent")
for _ in range(20):
    writer.save(storage, b"x" * 3_000)
"""

READ_WITH_ANOTHER_TOOL = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute("SELECT count(*), max(json_extract(header, '$.seq')) FROM records").fetchone())
db.close()
"""


class TestProcesses:
    def test_processes_that_open_a_missing_file_at_once_all_save(self, tmp_path: Path) -> None:
        path = tmp_path / "new" / "runs.db"
        children = [script(SAVE, str(path), f"run-{n}") for n in range(5)]
        for child in children:
            assert child.stdin is not None
            child.stdin.write("x")
            child.stdin.flush()
        for child in children:
            _, problems = child.communicate(timeout=500)
            assert (child.returncode, problems) == (0, "")
        with SQLiteStorage(path) as storage:
            for n in range(5):
                assert seqs(storage, f"run-{n}") == list(range(1, 21))

    def test_a_process_that_ends_without_closing_loses_and_says_nothing(self, path: Path) -> None:
        child = script(SAVE, str(path), "run")
        output = child.communicate("x", timeout=500)
        assert (child.returncode, output) == (0, ("", ""))
        with SQLiteStorage(path) as storage:
            assert seqs(storage) == list(range(1, 21))
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    def test_a_killed_process_leaves_a_file_that_other_tools_may_read(self, path: Path) -> None:
        """They bring the log into the database, without our checksums: it must still be ours."""
        child = script(SAVE + "print('saved', flush=True); sys.stdin.read()", str(path), "run")
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write("xx")
        child.stdin.flush()
        assert child.stdout.readline() == "saved\n"
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert Path(f"{path}-wal").stat().st_size > 0
        tool = script(READ_WITH_ANOTHER_TOOL, str(path))
        output, problems = tool.communicate(timeout=500)
        assert (output, problems) == ("(20, 20)\n", "")
        assert not Path(f"{path}-wal").exists()
        with SQLiteStorage(path) as storage:
            assert seqs(storage) == list(range(1, 21))
            JournalWriter.after(storage, "run").save(storage)
        with SQLiteStorage(path) as storage:
            assert seqs(storage) == list(range(1, 22))

    @pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
    def test_a_user_without_rights_is_told_so(self) -> None:
        with TemporaryDirectory() as name:
            directory = Path(name)
            directory.chmod(0o755)
            SQLiteStorage(directory / "runs.db").close()

            def work(child: Child) -> None:
                os.setresuid(65534, 65534, 65534)
                for file in ("runs.db", "other.db", "new/runs.db"):
                    with pytest.raises(StorageError) as caught:
                        SQLiteStorage(directory / file)
                    assert "right to write" in caught.value.hint
                    assert str(directory / file) in str(caught.value)

            assert Child(work).ended_well()
