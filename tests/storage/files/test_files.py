from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import random
import shutil
import stat
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zstandard

import surehold
from surehold.errors import (
    ConflictError,
    CorruptError,
    StorageError,
    StorageUnavailableError,
    UsageError,
)
from surehold.storage.base import Batch, Leasing, Owner, RecordQuery, RunQuery, this_process
from surehold.storage.files.reader import JournalFiles
from surehold.storage.files.storage import FilesystemStorage
from surehold.storage.io.dirfd import Folder, open_root
from surehold.testing import JournalWriter

CODECS = [False, "gzip", "zstd"]
OWNER = Owner("elsewhere", "boot", 1, "0")

HEAD = Path(".heads/run")
EXHAUSTIVE = os.environ.get("SUREHOLD_EXHAUSTIVE") == "1"

Compress = bool | str


def run_files(directory: Path) -> list[Path]:
    """The files that hold records, as a person sees them."""
    return sorted(path for path in directory.glob("[!.]*/*") if path.is_file())


def only_file(directory: Path) -> Path:
    (path,) = run_files(directory)
    return path


def seqs(storage: FilesystemStorage, run_id: str = "run") -> list[int]:
    return [record.header.seq for record in storage.read(run_id)]


def text_of(path: Path) -> str:
    """What `cat`, `zcat` or `zstdcat` shows."""
    if path.suffix == ".gz":
        return subprocess.check_output(["gzip", "-dc", path], text=True)
    if path.suffix == ".zst":
        with path.open("rb") as file:
            reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            return reader.read().decode()
    return path.read_text()


def save(directory: Path, count: int, run_id: str = "run", compress: Compress = False) -> None:
    with FilesystemStorage(directory, compress) as storage:
        writer = JournalWriter.after(storage, run_id)
        for _ in range(count):
            writer.save(storage)


class TestLayout:
    @pytest.mark.parametrize(
        ("compress", "suffix"),
        [(False, ".jsonl"), (True, ".jsonl.gz"), ("gzip", ".jsonl.gz"), ("zstd", ".jsonl.zst")],
    )
    def test_a_run_is_a_file_of_lines_in_the_directory_of_its_name(
        self, tmp_path: Path, compress: Compress, suffix: str
    ) -> None:
        with FilesystemStorage(tmp_path, compress) as storage:
            writer = JournalWriter("nightly", name="agent-1")
            first = writer.save(storage, b'{"a":"\xc3\xa9"}')
            writer.save(storage, b"\x00\xff binary")
            storage.append([writer.batch(3)])
        path = only_file(tmp_path)
        assert path.parent == tmp_path / "agent-1"
        stamp, _, rest = path.name.partition("Z-")
        assert rest == f"nightly{suffix}"
        assert abs(time.mktime(time.strptime(stamp[:15], "%Y%m%dT%H%M%S")) - time.time()) < 90_000
        lines = [json.loads(line) for line in text_of(path).splitlines()]
        assert [len(line["records"]) for line in lines] == [1, 1, 3]
        assert lines[0]["records"][0]["body"] == {"a": "é"}
        assert lines[0]["records"][0]["digest"] == first.header.digest
        assert lines[0]["records"][0]["header"]["run_id"] == "nightly"
        assert "base64" in lines[1]["records"][0]

    def test_runs_without_a_name_share_a_directory_that_no_name_has(self, tmp_path: Path) -> None:
        with FilesystemStorage(tmp_path) as storage:
            JournalWriter("a").save(storage)
            JournalWriter("b", name="_").save(storage)
            assert [i.run_id for i in storage.runs(RunQuery(name=""))] == ["a"]
            assert [i.run_id for i in storage.runs(RunQuery(name="_"))] == ["b"]
        assert len(list((tmp_path / "_").iterdir())) == 1

    def test_nobody_else_may_look_and_git_does_not(self, tmp_path: Path) -> None:
        base = tmp_path / "some" / "where"
        save(base, 2, compress=True)
        with FilesystemStorage(base) as storage:
            storage.take_lease("run", OWNER, now=0, ttl=1)
        assert (base / ".gitignore").read_text() == "*\n"
        for path in [tmp_path / "some", base, *base.rglob("*")]:
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path

    def test_a_directory_of_the_users_own_is_not_hidden_from_git(self, tmp_path: Path) -> None:
        (tmp_path / "code.py").touch()
        save(tmp_path, 1)
        assert not (tmp_path / ".gitignore").exists()

    def test_opening_and_reading_write_nothing(self, tmp_path: Path) -> None:
        with FilesystemStorage(tmp_path / "none") as storage:
            assert list(storage.runs(RunQuery())) == seqs(storage) == storage.find("x") == []
            assert storage.delete("run") == 0
            assert storage.lease_of("run") is None
            storage.compact()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("compress", ["lz4", "", "GZIP", None, 1, 0, []])
    def test_an_unknown_compression_is_refused(self, tmp_path: Path, compress: object) -> None:
        with pytest.raises(UsageError, match="compress"):
            FilesystemStorage(tmp_path, compress)  # type: ignore[arg-type]

    def test_it_leases(self, tmp_path: Path) -> None:
        assert isinstance(FilesystemStorage(tmp_path), Leasing)

    @pytest.mark.parametrize("compress", CODECS)
    @pytest.mark.parametrize(
        "body",
        [b"", b"{", b"{}", b"{oops}", b'{"a":\r1}', b'{"a":\n1}', b'{"sum":"","records":[', b"[1]",
         b'{"x":' * 5_000 + b"1" + b"}" * 5_000, bytes(range(256)), b'{"a":"\xff"}'],
        ids=lambda body: repr(body[:12]),
    )  # fmt: skip
    def test_any_body_comes_back_as_it_was(
        self, tmp_path: Path, compress: Compress, body: bytes
    ) -> None:
        with FilesystemStorage(tmp_path, compress) as storage:
            writer = JournalWriter()
            written = [writer.save(storage, body), writer.save(storage)]
        with FilesystemStorage(tmp_path, compress) as storage:
            assert list(storage.read("run")) == written


class TestCompression:
    @pytest.mark.parametrize("compress", [True, "zstd"])
    def test_it_saves_a_third_at_once_and_half_once_packed(
        self, tmp_path: Path, compress: Compress
    ) -> None:
        sizes = {}
        for kind in (False, compress):
            base = tmp_path / str(kind)
            chance = random.Random(7)
            with FilesystemStorage(base, kind) as storage:
                writer = JournalWriter("nightly-report", name="reporter")
                for n in range(200):
                    message = {"role": "user", "content": english(chance, 1024)}
                    body = {"ops": [{"op": "add", "path": "/messages/-", "value": message}]}
                    text = json.dumps(body, separators=(",", ":")).encode()
                    writer.save(storage, text, frame="delta" if n else "key", node="ask")
                sizes[kind] = only_file(base).stat().st_size
                storage.compact()
                sizes[kind, "packed"] = only_file(base).stat().st_size
        print({key: size / sizes[False] for key, size in sizes.items()})
        assert sizes[compress] <= 0.65 * sizes[False]
        assert sizes[compress, "packed"] <= 0.5 * sizes[False]
        assert sizes[False, "packed"] == sizes[False]

    @pytest.mark.parametrize("compress", ["gzip", "zstd"])
    def test_a_completed_run_is_packed_when_the_storage_is_closed(
        self, tmp_path: Path, compress: Compress
    ) -> None:
        with FilesystemStorage(tmp_path, compress) as storage:
            writers = [JournalWriter(run_id, name=run_id) for run_id in ("done", "open")]
            for writer in writers:
                for _ in range(20):
                    writer.save(storage)
            last = writers[0].save(storage, status="completed")
            before = {path.parent.name: path.stat().st_size for path in run_files(tmp_path)}
        after = {path.parent.name: path.stat().st_size for path in run_files(tmp_path)}
        assert after["done"] < before["done"] / 2
        assert after["open"] == before["open"]
        with FilesystemStorage(tmp_path, compress) as storage:
            assert seqs(storage, "done") == list(range(1, 22))
            writers[0].save(storage)
            assert next(storage.read("done", first=21)) == last
        assert text_of(tmp_path.glob("done/*").__next__()).count("\n") == 22

    def test_packing_leaves_alone_what_a_live_process_holds(self, tmp_path: Path) -> None:
        with FilesystemStorage(tmp_path, True) as storage:
            writer = JournalWriter()
            for _ in range(10):
                writer.save(storage)
            size = only_file(tmp_path).stat().st_size
            lease = storage.take_lease("run", this_process(), now=time.time(), ttl=60)
            storage.compact()
            assert only_file(tmp_path).stat().st_size == size
            storage.release_lease(lease)
            storage.compact()
            assert only_file(tmp_path).stat().st_size < size

    def test_a_changed_compression_goes_on_in_a_new_segment(self, tmp_path: Path) -> None:
        kinds = [False, "gzip", "gzip", "zstd", False, "zstd"]
        for number, compress in enumerate(kinds, 1):
            save(tmp_path, 3, compress=compress)
            for view in CODECS:
                with FilesystemStorage(tmp_path, view) as storage:
                    assert seqs(storage) == list(range(1, 3 * number + 1))
                    (info,) = storage.runs(RunQuery())
                    assert info.seq == info.checkpoints == 3 * number
        names = [path.name.partition("-run")[2] for path in run_files(tmp_path)]
        assert sorted(names) == [
            ".2.jsonl.gz", ".3.jsonl.zst", ".4.jsonl", ".5.jsonl.zst", ".jsonl"
        ]  # fmt: skip

    def test_a_segment_that_closed_is_packed(self, tmp_path: Path) -> None:
        save(tmp_path, 20, compress="gzip")
        before = only_file(tmp_path).stat().st_size
        save(tmp_path, 2, compress="zstd")
        assert tmp_path.glob("_/*.gz").__next__().stat().st_size < before / 2

    def test_erasing_across_segments_leaves_the_rest(self, tmp_path: Path) -> None:
        for compress in ("gzip", False, "zstd"):
            save(tmp_path, 4, compress=compress)
        with FilesystemStorage(tmp_path) as storage:
            assert storage.delete("run", hide=[5], erase=[1, 2, 3, 4, 6, 11]) == 7
            storage.compact()
        with FilesystemStorage(tmp_path, "gzip") as storage:
            assert seqs(storage) == [5, 7, 8, 9, 10, 12]
            JournalWriter.after(storage, "run").save(storage)
            assert [h.seq for h in storage.headers(RecordQuery())] == [13, 12, 10, 9, 8, 7]

    def test_a_run_that_changes_its_name_is_found_under_both(self, tmp_path: Path) -> None:
        with FilesystemStorage(tmp_path) as storage:
            writer = JournalWriter(name="old")
            writer.save(storage)
            writer.save(storage, name="new")
        with FilesystemStorage(tmp_path) as storage:
            assert [h.seq for h in storage.headers(RecordQuery(name="old"))] == [1]
            assert [h.seq for h in storage.headers(RecordQuery(name="new"))] == [2]
            assert list(storage.runs(RunQuery(name="old"))) == []
            assert [i.seq for i in storage.runs(RunQuery(name="new"))] == [2]
            assert storage.delete("run") == 2
        assert run_files(tmp_path) == []


WORDS = """
the of and to in is that it was for on are as with they at be this have from or one had by word but
not what all were we when your can said there use an each which she do how their if will up other
about out many then them these so some her would make like him into time has look two more write go
see number no way could people my than first water been call who its now find long down day did get
come made may part over new sound take only little work know place year live me back give most very
after thing our just name good sentence man think say great where help through much before line
right too mean old any same tell follow came want show also around form three small set put end does
another well large must big even such because turn here why ask went men read need land different
home move try kind hand picture again change off play spell air away animal house point agent result
tool search document summary report customer invoice payment schedule
"""


def english(chance: random.Random, size: int) -> str:
    """Text with about the entropy of English: common words, most of them the commonest."""
    words = WORDS.split()
    weights = [1 / (rank + 1) ** 0.7 for rank in range(len(words))]
    text = ""
    while len(text) < size:
        text += chance.choices(words, weights)[0] + (". " if chance.random() < 0.08 else " ")
    return text[:size]


class TestOthersOnTheMedium:
    def test_a_run_that_moves_to_another_name_is_followed(self, tmp_path: Path) -> None:
        with FilesystemStorage(tmp_path) as one, FilesystemStorage(tmp_path, "zstd") as two:
            writer = JournalWriter(name="a")
            names = ["a", "b", "b", "a", "c", "a"]
            for number, name in enumerate(names, 1):
                assert seqs(one) == seqs(two) == list(range(1, number))
                writer.save((one, two)[number % 2], name=name)
                stale = JournalWriter(seq=number - 1, digest="f" * 32).batch()
                for storage in (one, two):
                    assert isinstance(storage.append([stale])[0], ConflictError)
            for storage in (one, two):
                listed = storage.headers(RecordQuery(name="a"))
                assert [header.seq for header in listed] == [6, 4, 1]

    def test_only_what_dead_writers_of_ours_left_is_swept(self, tmp_path: Path) -> None:
        save(tmp_path, 1)
        path = only_file(tmp_path)
        ours = path.with_name(f".{path.name}.tmp")
        others = [path.with_name(name) for name in (".notes.tmp", "notes.txt", f"{path.name}.tmp")]
        with FilesystemStorage(tmp_path) as storage:
            lease = storage.take_lease("run", OWNER, now=0, ttl=60)
        half_a_lease = tmp_path / ".leases" / ".run.json.tmp"
        for file in (ours, half_a_lease, *others):
            file.write_text("x")
        with FilesystemStorage(tmp_path) as storage:
            assert not ours.exists()
            assert not half_a_lease.exists()
            assert storage.lease_of("run") == lease
            assert all(file.exists() for file in others)
            assert seqs(storage) == [1]
            assert storage.delete("run") == 1
        assert run_files(tmp_path) == sorted(others)

    def test_deleting_a_run_leaves_nothing_of_it(self, tmp_path: Path) -> None:
        with FilesystemStorage(tmp_path, "zstd") as storage:
            JournalWriter("a secret", name="of a person").save(storage)
            assert storage.delete("a secret") == 1
        left = [path for path in tmp_path.rglob("*") if path.parent.name != ".locks"]
        assert {path.name for path in left} == {".deleting", ".gitignore", ".heads", ".locks"}

    def test_a_link_is_not_followed_out_of_the_directory(self, tmp_path: Path) -> None:
        base, outside = tmp_path / "base", tmp_path / "outside"
        outside.mkdir()
        save(base, 1)
        for place in ("agent", ".leases"):
            (base / place).symlink_to(outside)
        with FilesystemStorage(base) as storage:
            with pytest.raises(StorageError, match="agent"):
                JournalWriter("new", name="agent").save(storage)
            with pytest.raises(StorageError):
                storage.take_lease("run", OWNER, now=0, ttl=1)
            assert seqs(storage) == [1]
        path = only_file(base / "_" / "..")
        path.rename(outside / path.name)
        path.symlink_to(outside / path.name)
        before = (outside / path.name).read_bytes()
        with FilesystemStorage(base) as storage:
            with pytest.raises(CorruptError, match="missing"):
                seqs(storage)
            assert isinstance(storage.append([JournalWriter().batch()])[0], ConflictError)
        assert [file.name for file in outside.iterdir()] == [path.name]
        assert (outside / path.name).read_bytes() == before

    def test_a_file_in_place_of_the_directory_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for base in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(StorageError, match="file"):
                save(base, 1)

    def test_ordinals_and_order_survive_a_clock_set_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = time.time_ns()
        for number in range(5):
            monkeypatch.setattr(time, "time_ns", lambda n=number: now - n * 3_600 * 10**9)
            with FilesystemStorage(tmp_path) as storage:
                JournalWriter(f"run-{number}", name=f"{number % 2}").save(storage)
                JournalWriter.after(storage, "run-0").save(storage)
        with FilesystemStorage(tmp_path) as storage:
            listed = [info.run_id for info in storage.runs(RunQuery())]
            assert listed == [f"run-{n}" for n in (4, 3, 2, 1, 0)]
            assert [h.seq for h in storage.headers(RecordQuery(run_id="run-0"))] == [
                6,
                5,
                4,
                3,
                2,
                1,
            ]
            storage.delete("run-4")
        with FilesystemStorage(tmp_path) as storage:
            JournalWriter("late").save(storage)
            late, *rest = storage.runs(RunQuery())
            assert (late.run_id, rest[0].run_id) == ("late", "run-3")

    def test_what_appears_and_goes_behind_its_back_is_noticed(self, tmp_path: Path) -> None:
        save(tmp_path / "a", 3)
        with FilesystemStorage(tmp_path / "b") as storage:
            assert list(storage.runs(RunQuery())) == []
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            assert seqs(storage) == [1, 2, 3]
            only_file(tmp_path / "b").unlink()
            with pytest.raises(CorruptError, match="missing"):
                seqs(storage)
            shutil.rmtree(tmp_path / "b")
            assert list(storage.runs(RunQuery())) == []
            JournalWriter().save(storage)
            assert seqs(storage) == [1]

    def test_a_directory_goes_while_another_begins_a_run_in_it(self, tmp_path: Path) -> None:
        def work(who: str) -> None:
            with FilesystemStorage(tmp_path) as storage:
                for n in range(40):
                    JournalWriter(f"{who}-{n}", name="shared").save(storage)
                    assert storage.delete(f"{who}-{n}") == 1

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, "ab"))
        assert not (tmp_path / "shared").exists()

    def test_a_damaged_lease_is_not_taken_for_none(self, tmp_path: Path) -> None:
        with FilesystemStorage(tmp_path) as storage:
            lease = storage.take_lease("run", OWNER, now=0, ttl=60)
            path = tmp_path / ".leases" / "run.json"
            data = path.read_bytes()
            for bit in range(len(data) * 8):
                flip(path, bit)
                try:
                    assert storage.lease_of("run") == lease
                except CorruptError as error:
                    assert error.run_id == "run"
                path.write_bytes(data)


class TestTornWrites:
    @pytest.mark.parametrize("compress", CODECS)
    @pytest.mark.parametrize("kept", [1, 10, 30, -1])
    def test_a_write_cut_short_is_ignored_once_reported_and_then_removed(
        self,
        tmp_path: Path,
        compress: Compress,
        kept: int,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        path = self.torn(tmp_path, compress, kept)
        with FilesystemStorage(tmp_path, compress) as storage:
            for _ in range(3):
                assert seqs(storage) == [1, 2]
                assert [info.seq for info in storage.runs(RunQuery())] == [2]
            assert len(storage.notices) == 1
            assert [record.name for record in caplog.records] == ["surehold.storage"]
            assert caplog.records[0].levelno == logging.WARNING
            JournalWriter.after(storage, "run").save(storage)
            assert seqs(storage) == [1, 2, 3]
            assert len(storage.notices) == 2
            assert path.name in storage.notices[1]
        with FilesystemStorage(tmp_path, compress) as storage:
            assert seqs(storage) == [1, 2, 3]
            assert storage.notices == []

    @pytest.mark.parametrize("compress", CODECS)
    def test_zeros_at_the_end_are_a_write_cut_short(
        self, tmp_path: Path, compress: Compress
    ) -> None:
        save(tmp_path, 2, compress=compress)
        with only_file(tmp_path).open("ab") as file:
            file.write(bytes(4096))
        with FilesystemStorage(tmp_path, compress) as storage:
            assert seqs(storage) == [1, 2]
            assert len(storage.notices) == 1

    def test_a_write_cut_short_is_removed_before_another_segment_begins(
        self, tmp_path: Path
    ) -> None:
        self.torn(tmp_path, False, 30)
        save(tmp_path, 1, compress="zstd")
        with FilesystemStorage(tmp_path) as storage:
            assert seqs(storage) == [1, 2, 3]
            assert storage.notices == []

    def test_a_reader_beside_a_writer_sees_nothing_torn(self, tmp_path: Path) -> None:
        done = threading.Event()

        def write() -> None:
            with FilesystemStorage(tmp_path) as storage:
                writer = JournalWriter()
                for _ in range(60):
                    writer.save(storage, b"x" * 200_000)
            done.set()

        thread = threading.Thread(target=write)
        thread.start()
        with FilesystemStorage(tmp_path) as storage:
            seen = 0
            while not done.is_set():
                for info in storage.runs(RunQuery()):
                    assert info.seq >= seen
                    seen = info.seq
            thread.join()
            assert storage.notices == []
            assert seqs(storage) == list(range(1, 61))

    def torn(self, directory: Path, compress: Compress, kept: int) -> Path:
        """A run of two records and *kept* bytes of a third that was not acknowledged."""
        save(directory, 2, compress=compress)
        path = only_file(directory)
        whole = path.read_bytes()
        head = directory / HEAD
        acknowledged = head.read_bytes()
        save(directory, 1, compress=compress)
        line = path.read_bytes()[len(whole) :]
        path.write_bytes(whole + line[:kept])
        head.write_bytes(acknowledged)
        return path


class TestDamage:
    @pytest.mark.parametrize("compress", CODECS)
    def test_a_damaged_line_is_raised_and_hides_no_other(
        self, tmp_path: Path, compress: Compress
    ) -> None:
        starts = self.two_runs(tmp_path, compress)
        (path,) = (tmp_path / "bad").iterdir()
        flip(path, (starts[2] + 25) * 8)
        with FilesystemStorage(tmp_path, compress) as storage:
            with pytest.raises(CorruptError) as caught:
                list(storage.headers(RecordQuery(run_id="bad")))
            assert (caught.value.run_id, caught.value.seq) == ("bad", 3)
            assert caught.value.path == f"bad/{path.name}"
            assert caught.value.offset == starts[2]
            for call in (
                lambda: storage.find("none"),
                lambda: seqs(storage, "bad"),
            ):
                with pytest.raises(CorruptError):
                    call()
            # What is newest is known, and each checkpoint that is not lost.
            assert [run.seq for run in storage.runs(RunQuery(run_id="bad"))] == [5]
            found = storage.head_and_newest("bad")
            assert found is not None and found[1] is not None and found[1].seq == 5
            # Listings of all records leave the damaged run out.
            assert [run.run_id for run in storage.runs(RunQuery())] == ["good", "bad"]
            listed = [(h.run_id, h.seq) for h in storage.headers(RecordQuery())]
            assert listed == [("good", n) for n in (5, 4, 3, 2, 1)]
            assert [r.header.seq for r in storage.read("bad", last=2)] == [1, 2]
            assert [r.header.seq for r in storage.read("bad", first=4)] == [4, 5]
            got = []
            with pytest.raises(CorruptError) as caught:
                for record in storage.read("bad"):
                    got.append(record.header.seq)
            assert (got, caught.value.seq) == ([1, 2], 3)
            assert seqs(storage, "good") == [1, 2, 3, 4, 5]
            (header,) = storage.headers(RecordQuery(name="good", limit=1))
            assert storage.find(header.id) == [header]
            assert [i.seq for i in storage.runs(RunQuery(name="good"))] == [5]
            with pytest.raises(CorruptError):
                storage.delete("bad", erase=[1])
            assert storage.delete("bad") == 4
            assert len(list(storage.runs(RunQuery()))) == 1

    def test_a_run_goes_on_after_damage_behind_it_but_not_from_a_damaged_end(
        self, tmp_path: Path
    ) -> None:
        starts = self.two_runs(tmp_path, False)
        (path,) = (tmp_path / "bad").iterdir()
        sound = path.read_bytes()
        with FilesystemStorage(tmp_path) as storage:
            writer = JournalWriter.after(storage, "bad")
        for line, expected in ((1, type(None)), (4, ConflictError)):
            path.write_bytes(sound)
            flip(path, (starts[line] + 25) * 8)
            with FilesystemStorage(tmp_path) as storage:
                head = JournalWriter("bad", name="bad", seq=writer.seq, digest=writer.digest)
                other = JournalWriter.after(storage, "good")
                results = storage.append([head.batch(), other.batch()])
                assert type(results[0]) is expected
                assert results[1] is None

    def test_a_damaged_body_fails_alone(self, tmp_path: Path) -> None:
        with FilesystemStorage(tmp_path) as storage:
            writer = JournalWriter()
            for n in range(4):
                writer.save(storage, b'{"body":"number %d"}' % n)
        path = only_file(tmp_path)
        path.write_bytes(path.read_bytes().replace(b"number 2", b"number 7"))
        with FilesystemStorage(tmp_path) as storage:
            assert [h.seq for h in storage.headers(RecordQuery())] == [4, 3, 2, 1]
            for first in (1, 3):
                with pytest.raises(CorruptError) as caught:
                    list(storage.read("run", first=first))
                assert (caught.value.run_id, caught.value.seq) == ("run", 3)
            assert [r.header.seq for r in storage.read("run", first=4)] == [4]

    def test_a_file_that_lost_its_end_is_found_out(self, tmp_path: Path) -> None:
        save(tmp_path, 3)
        path = only_file(tmp_path)
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:2]))
        with FilesystemStorage(tmp_path) as storage:
            with pytest.raises(CorruptError, match="acknowledged"):
                list(storage.runs(RunQuery(run_id="run")))
            writer = JournalWriter(seq=3, digest="f" * 32)
            assert isinstance(storage.append([writer.batch()])[0], ConflictError)
        assert path.read_bytes() == b"".join(lines[:2])

    def test_a_run_in_a_file_named_for_another_is_not_taken_for_it(self, tmp_path: Path) -> None:
        save(tmp_path, 2)
        path = only_file(tmp_path)
        path.rename(path.with_name(path.name.replace("run", "other")))
        with FilesystemStorage(tmp_path) as storage:
            with pytest.raises(CorruptError, match="missing"):
                seqs(storage)
            with pytest.raises(CorruptError, match="another run"):
                seqs(storage, "other")

    def test_a_file_of_the_same_run_twice_is_no_run(self, tmp_path: Path) -> None:
        save(tmp_path, 2)
        path = only_file(tmp_path)
        shutil.copy(path, path.with_name("3" + path.name[1:]))
        with FilesystemStorage(tmp_path) as storage, pytest.raises(CorruptError):
            list(storage.runs(RunQuery(run_id="run")))

    def two_runs(self, directory: Path, compress: Compress) -> list[int]:
        """Two runs of five lines; where the lines of the first, "bad", start."""
        starts = []
        with FilesystemStorage(directory, compress) as storage:
            for run_id in ("bad", "good"):
                writer = JournalWriter(run_id, name=run_id)
                for _ in range(5):
                    files = list((directory / "bad").glob("*"))
                    starts.append(files[0].stat().st_size if files else 0)
                    writer.save(storage)
        return starts[:5]


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def view_of(directory: Path, compress: Compress) -> tuple[object, ...]:
    """All that a storage gives, and whether it reported a write cut short."""
    with FilesystemStorage(directory, compress) as storage:
        everything = (
            list(storage.runs(RunQuery())),
            list(storage.headers(RecordQuery(notes=True))),
            list(storage.headers(RecordQuery(run_id="run"))),
            storage.find("x"),
            list(storage.read("run")),
        )
        return (*everything, bool(storage.notices))


class TestEveryDamage:
    """What happens to a stored file in any single way is detected, or changes nothing."""

    @pytest.fixture(params=CODECS, ids=["plain", "gzip", "zstd"])
    def compress(self, request: pytest.FixtureRequest) -> Compress:
        return request.param  # type: ignore[no-any-return]

    @pytest.fixture(params=[True, False], ids=["head", "no head"])
    def directory(self, request: pytest.FixtureRequest, tmp_path: Path, compress: Compress) -> Path:
        base = tmp_path / "runs"
        with FilesystemStorage(base, compress) as storage:
            writer = JournalWriter()
            writer.save(storage, id="x1", metadata={"k": [1]})
            storage.append([writer.batch([writer.record(b"\x01", id="x2"), writer.record()])])
            storage.delete("run", hide=[1])
            writer.save(storage, id="x3", tags=("t",))
            storage.delete("run", erase=[2])
            writer.save(storage, id="x4")
            storage.append([writer.batch(1, hide=[4])])
        if not request.param:
            (base / HEAD).unlink()
        return base

    def judge(
        self, directory: Path, compress: Compress, data: bytes, sound: tuple[object, ...]
    ) -> str:
        only_file(directory).write_bytes(data)
        try:
            view = view_of(directory, compress)
        except CorruptError:
            return "detected"
        if view == sound:
            return "unchanged"
        assert view[-1], "an undetected change"
        return "reported"

    def test_bits(self, directory: Path, compress: Compress) -> None:
        data, sound = only_file(directory).read_bytes(), view_of(directory, compress)
        bits = list(range(len(data) * 8))
        if not EXHAUSTIVE:
            bits = random.Random(3).sample(bits, 250)
        found = []
        for bit in bits:
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            found.append(self.judge(directory, compress, bytes(damaged), sound))
        print(len(bits), "of", len(data) * 8, {kind: found.count(kind) for kind in set(found)})
        assert found.count("detected") > 0.9 * len(found)

    def test_cuts(self, directory: Path, compress: Compress) -> None:
        data, sound = only_file(directory).read_bytes(), view_of(directory, compress)
        whole = {0}
        for line in members_of(data, compress):
            whole.add(max(whole) + len(line))
        # Between two lines nothing but the head tells that there was more.
        cuts = [n for n in range(len(data)) if n not in whole or (directory / HEAD).exists()]
        if not EXHAUSTIVE:
            cuts = [n for n in cuts if n % 9 == 0 or {n - 1, n, n + 1} & whole]
        found = [self.judge(directory, compress, data[:n], sound) for n in cuts]
        print(len(found), {kind: found.count(kind) for kind in set(found)})
        assert "unchanged" not in found

    def test_lines_swapped_doubled_or_left_out(self, directory: Path, compress: Compress) -> None:
        data, sound = only_file(directory).read_bytes(), view_of(directory, compress)
        lines = members_of(data, compress)
        assert len(lines) >= 3
        for one in range(len(lines)):
            # The last line once more is as a write that was cut short: it changes nothing.
            wanted = "detected" if one < len(lines) - 1 else "reported"
            doubled = [*lines[: one + 1], *lines[one:]]
            assert self.judge(directory, compress, b"".join(doubled), sound) == wanted
            again = [*lines, lines[one]]
            assert self.judge(directory, compress, b"".join(again), sound) == wanted
            if one < len(lines) - 1:
                without = [*lines[:one], *lines[one + 1 :]]
                assert self.judge(directory, compress, b"".join(without), sound) == "detected"
            for two in range(one):
                swapped = list(lines)
                swapped[one], swapped[two] = lines[two], lines[one]
                assert self.judge(directory, compress, b"".join(swapped), sound) == "detected"

    @pytest.mark.parametrize("compress", [False], indirect=True)
    @pytest.mark.parametrize("directory", [True], indirect=True)
    def test_the_head_accuses_nobody_when_it_is_damaged_itself(
        self, directory: Path, compress: Compress
    ) -> None:
        head = directory / HEAD
        data, sound = head.read_bytes(), view_of(directory, compress)
        for bit in range(len(data) * 8):
            flip(head, bit)
            assert view_of(directory, compress) == sound
            head.write_bytes(data)
        for size in range(len(data)):
            head.write_bytes(data[:size])
            assert view_of(directory, compress) == sound


def members_of(data: bytes, compress: Compress) -> list[bytes]:
    if not compress:
        return data.splitlines(keepends=True)
    mark = data[:12]
    return [mark + rest for rest in data.split(mark)[1:]]


class TestDeleting:
    def fill(self, directory: Path) -> None:
        """A run with a file of each compression, and one beside it."""
        with FilesystemStorage(directory) as storage:
            JournalWriter("run", name="agent").save(storage)
            JournalWriter("other", name="agent").save(storage)
        with FilesystemStorage(directory, "gzip") as storage:
            JournalWriter.after(storage, "run").save(storage)

    @pytest.mark.parametrize("dropped", [0, 1, 2])
    def test_a_run_whose_deletion_was_cut_short_is_gone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropped: int
    ) -> None:
        self.fill(tmp_path)
        whole, count = Folder.drop, 0

        def drop(folder: Folder, name: str) -> bool:
            nonlocal count
            if ".jsonl" in name:
                count += 1
                if count > dropped:
                    raise KeyboardInterrupt
            return whole(folder, name)

        with FilesystemStorage(tmp_path) as storage, monkeypatch.context() as patch:
            patch.setattr(Folder, "drop", drop)
            with contextlib.suppress(KeyboardInterrupt):
                storage.delete("run")
        with FilesystemStorage(tmp_path) as storage:
            assert [run.run_id for run in storage.runs(RunQuery())] == ["other"]
            assert [header.run_id for header in storage.headers(RecordQuery())] == ["other"]
            assert seqs(storage) == []
            JournalWriter("run", name="agent").save(storage)
            assert seqs(storage) == [1]
        assert len(run_files(tmp_path)) == 2

    def test_a_run_that_is_being_deleted_is_gone_for_those_who_have_it_open(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fill(tmp_path)
        with FilesystemStorage(tmp_path) as storage, FilesystemStorage(tmp_path) as other:
            assert seqs(other) == [1, 2]
            monkeypatch.setattr(Folder, "drop_folder", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                storage.delete("run")
            assert seqs(other) == []

    def test_opening_leaves_the_note_of_a_deletion_that_is_being_written(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fill(tmp_path)
        rename = os.rename

        def renamed(source: str, target: str, **options: Any) -> None:
            if source == ".run.tmp":  # another process opens the storage just now
                opened = threading.Thread(target=lambda: FilesystemStorage(tmp_path).close())
                opened.start()
                opened.join(0.3)
                waiting.append(opened)
            rename(source, target, **options)

        waiting: list[threading.Thread] = []
        with FilesystemStorage(tmp_path) as storage:
            monkeypatch.setattr(os, "rename", renamed)
            assert storage.delete("run") == 2
            assert seqs(storage) == []
        for thread in waiting:
            thread.join()
        assert len(waiting) == 1


def _interrupted(folder: Folder, name: str) -> None:
    raise KeyboardInterrupt


class TestMissingFiles:
    def test_a_run_whose_file_was_removed_is_noticed(self, tmp_path: Path) -> None:
        save(tmp_path, 3)
        with FilesystemStorage(tmp_path) as storage:
            JournalWriter("Ärger / mit Namen").save(storage)
        for path in run_files(tmp_path):
            (tmp_path / path).unlink()
        with FilesystemStorage(tmp_path) as storage:
            for look in (
                lambda: list(storage.read("run")),
                lambda: list(storage.runs(RunQuery(run_id="run"))),
                lambda: list(storage.headers(RecordQuery(run_id="run"))),
                lambda: storage.head_and_newest("run"),
            ):
                with pytest.raises(CorruptError, match="missing"):
                    look()
            assert sorted(storage.known_runs()) == ["run", "Ärger / mit Namen"]
            found = storage.inspect("run")
            assert found is not None
            assert (found.records, len(found.problems)) == ((), 1)
            assert isinstance(storage.append([JournalWriter().batch()])[0], ConflictError)
            storage.rewrite("run", (), (), head=found.head)
            assert storage.inspect("run") is None
            JournalWriter().save(storage)
            assert seqs(storage) == [1]


def test_a_lock_whose_holder_was_stopped_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surehold.storage.io.dirfd.LOCK_SECONDS", 0.05)
    save(tmp_path, 1)
    with contextlib.ExitStack() as stack:
        for path in (tmp_path / ".locks").iterdir():
            held = stack.enter_context(path.open("r+"))
            fcntl.flock(held, fcntl.LOCK_EX)
        storage = stack.enter_context(FilesystemStorage(tmp_path))
        with pytest.raises(StorageUnavailableError, match="lock"):
            JournalWriter.after(storage, "run").save(storage)
    with FilesystemStorage(tmp_path) as storage:
        JournalWriter.after(storage, "run").save(storage)
        assert seqs(storage) == [1, 2]


def test_a_lock_that_many_hold_in_turn_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class SlowClock:
        """Every sleep takes a second, in which another holder has its turn."""

        now = 0.0
        holders = 60
        time_ns = staticmethod(time.time_ns)

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += 1
            self.holders -= 1
            turn.close()
            if self.holders:
                turn.enter_context(folder.lock("00"))

    clock, turn = SlowClock(), contextlib.ExitStack()
    monkeypatch.setattr("surehold.storage.io.dirfd.time", clock)
    with open_root(tmp_path) as folder:
        assert folder is not None
        turn.enter_context(folder.lock("00"))
        with folder.lock("00"):
            assert clock.now == 60


@pytest.mark.parametrize("ends", [False, True])
def test_a_run_that_begins_while_it_is_looked_for_is_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    with FilesystemStorage(tmp_path) as storage, FilesystemStorage(tmp_path) as other:
        look = JournalFiles.journal

        def journal(files: JournalFiles, *words: Any, **options: Any) -> Any:
            found = look(files, *words, **options)
            monkeypatch.setattr(JournalFiles, "journal", look)
            JournalWriter().save(other)
            if ends:
                other.delete("run")
            return found

        monkeypatch.setattr(JournalFiles, "journal", journal)
        expected = [] if ends else ["run"]
        assert [info.run_id for info in storage.runs(RunQuery(run_id="run"))] == expected
        assert storage.known_runs() == expected


def test_a_gap_of_four_billion_seqs_costs_nothing(tmp_path: Path) -> None:
    far = JournalWriter(seq=(1 << 32) - 2, digest="f" * 32).record()
    batch = Batch(run_id="run", records=(far,), erased=frozenset([(1, (1 << 32) - 2)]))
    with FilesystemStorage(tmp_path) as storage:
        assert storage.append([batch]) == [None]
        JournalWriter(seq=far.header.seq, digest=far.header.digest).save(storage)
    path = only_file(tmp_path)
    flip(path, (path.stat().st_size - 40) * 8)
    with FilesystemStorage(tmp_path) as storage, pytest.raises(CorruptError):
        list(storage.read("run"))


def test_opening_does_not_mind_a_directory_that_another_process_removes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 1)
    (tmp_path / "agent").mkdir()
    whole = Folder.folder

    def folder(self: Folder, name: str, *, create: bool = False) -> Any:
        if name == "agent" and (tmp_path / "agent").exists():
            (tmp_path / "agent").rmdir()
        return whole(self, name, create=create)

    monkeypatch.setattr(Folder, "folder", folder)
    with FilesystemStorage(tmp_path) as storage:
        assert seqs(storage) == [1]


def test_a_run_whose_directory_was_moved_away_is_not_taken_over(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/runs"
    with (
        pytest.raises(ConflictError, match="no longer in the storage") as caught,
        surehold.run("r", storage=url) as run,
    ):
        run.call(len, "a")
        (tmp_path / "runs").rename(tmp_path / "moved")
        run.call(len, "b")
    assert "moved away" in caught.value.hint
    assert "taken over" not in str(caught.value)
