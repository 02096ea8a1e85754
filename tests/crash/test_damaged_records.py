"""One damaged record costs the checkpoints up to the next keyframe; with a second copy, none."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterator
from hashlib import sha512
from pathlib import Path

import apsw
import pytest
from tests.crash.media import FULL, spread, times

from holdfast import CheckpointManager, FilesystemStorage, State
from holdfast.errors import CorruptError
from holdfast.storage.base import RecordQuery

MEDIA = ("sqlite", "file", "file-gzip", "file-zstd") if FULL else ("sqlite", "file", "file-zstd")
STEPS = times(140, 1000)
MOST = 128

pytestmark = pytest.mark.timeout(36_000 if FULL else 300)


def address(medium: str, directory: Path, *, redundancy: int = 0) -> str:
    scheme, _, codec = medium.partition("-")
    place = f"{directory}/runs.db" if scheme == "sqlite" else f"{directory}/runs"
    compress = f"&compress={codec}" if codec else ""
    return f"{scheme}:{'///' * (scheme == 'sqlite')}{place}?redundancy={redundancy}{compress}"


class Stored:
    """A run on a medium, of which copies are damaged."""

    def __init__(self, medium: str, tmp_path: Path, redundancy: int) -> None:
        self.medium, self.redundancy = medium, redundancy
        self.whole, self.damaged = tmp_path / "whole", tmp_path / "damaged"
        self.ids: list[str] = []
        with CheckpointManager(self.address(self.whole)) as manager:
            state = State.new({"log": []}, run_id="run", name="job")
            for step in range(1, STEPS + 1):
                state = state.append("log", f"{step} {sha512(b'%d' % step).hexdigest()}").at(
                    step=step
                )
                self.ids.append(manager.save_checkpoint(state))
            manager.storage.compact()
            self.records = list(manager.storage.read("run"))
            headers = manager.storage.headers(RecordQuery(run_id="run"))
            keys = sorted(header.seq for header in headers if header.frame == "key")
        self.chains = [range(a, b) for a, b in zip(keys, [*keys[1:], STEPS + 1], strict=True)]
        self.members = dict(self._members())
        """Where the member of a file begins and ends that each record is packed in."""

    def address(self, directory: Path) -> str:
        return address(self.medium, directory, redundancy=self.redundancy)

    def damage(self, seq: int) -> None:
        """Flip a bit of a record in a copy: in its header, its body, or what holds them."""
        shutil.rmtree(self.damaged, ignore_errors=True)
        shutil.copytree(self.whole, self.damaged)
        (path,) = [*self.damaged.glob("runs.db"), *self.damaged.glob("runs/job/*.jsonl*")]
        whole = path.read_bytes()
        for at in self._places(whole, seq):
            data = bytearray(whole)
            data[at] ^= 1 << seq % 8
            path.write_bytes(data)
            if self.medium != "sqlite" or self._is_hit(path, seq):
                return
        raise AssertionError(f"record {seq} was not found in {path}")

    def _places(self, data: bytes, seq: int) -> Iterator[int]:
        record = self.records[seq - 1]
        if self.medium == "file":  # the body stands behind the header
            within = len(record.text) // 3 if seq % 2 else len(record.text) + len(record.body) // 3
            yield data.index(record.text) + within
        elif self.medium == "sqlite":
            part = record.text if seq % 2 else record.body
            # Long ones are spread over pages, and some bytes are left where a record was before.
            for start in range(0, len(part), 30):
                piece = re.escape(part[start : start + 30])
                yield from (found.start() for found in re.finditer(piece, data))
        else:
            start, end = self.members[seq]
            yield (start + 2 * end) // 3

    def _is_hit(self, path: Path, seq: int) -> bool:
        """True if SQLite reads something else than the record, its pages not checked."""
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        sql = "SELECT CAST(header AS BLOB), body FROM records JOIN bodies USING (ord) WHERE seq = ?"
        found = db.execute(sql, (seq,)).fetchall()
        db.close()
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        record = self.records[seq - 1]
        return len(found) == 1 and found != [(record.text, record.body)]

    def _members(self) -> Iterator[tuple[int, tuple[int, int]]]:
        if self.medium not in ("file-gzip", "file-zstd"):
            return
        with FilesystemStorage(self.whole / "runs") as storage, storage._reading() as root:
            assert root is not None
            journal = storage._files.journal(root, "run")
            assert journal is not None
            for seq, entry in journal.entries.items():
                yield seq, (entry.place.start, entry.place.end)

    def lost_with(self, seq: int) -> range:
        """The checkpoints that are built on a record, or on one that is packed with it."""
        packed = [one for one, member in self.members.items() if member == self.members[seq]]
        last = max(packed, default=seq)
        chain = next(chain for chain in self.chains if last in chain)
        return range(min(packed, default=seq), chain.stop)

    def log_at(self, manager: CheckpointManager, step: int) -> list[str]:
        loaded = manager.load_checkpoint(self.ids[step - 1])
        assert isinstance(loaded, State)
        return [int(text.split()[0]) for text in loaded["log"]]


@pytest.fixture(params=MEDIA)
def medium(request: pytest.FixtureRequest) -> Iterator[str]:
    logging.disable(logging.WARNING)
    yield request.param
    logging.disable(logging.NOTSET)


def test_a_damaged_record_costs_at_most_the_checkpoints_up_to_the_next_keyframe(
    medium: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    stored = Stored(medium, tmp_path, 0)
    worst = tried = 0
    for seq in sorted({*spread(range(1, STEPS + 1), 2), STEPS}):
        stored.damage(seq)
        lost = stored.lost_with(seq)
        with CheckpointManager(stored.address(stored.damaged)) as manager:
            # Loading the last of a chain reads every record of it.
            for chain in stored.chains:
                whole = [step for step in chain if step not in lost]
                if whole:
                    assert stored.log_at(manager, whole[-1]) == [*range(1, whole[-1] + 1)]
            for step in {lost[0], lost[-1]}:
                with pytest.raises(CorruptError):
                    manager.load_checkpoint(stored.ids[step - 1])
            assert not all(manager.verify())
        go_on(stored, lost.start - 1 if lost.stop > STEPS else STEPS)
        worst, tried = max(worst, len(lost)), tried + 1
    assert worst <= MOST
    finding(f"a damaged record, {medium}", tried, f"records: at most {worst} checkpoints lost")


def test_with_a_second_copy_a_damaged_record_costs_nothing(
    medium: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    stored = Stored(medium, tmp_path, 1)
    tried = 0
    for seq in sorted({*spread(range(1, STEPS + 1), 1), STEPS}):
        stored.damage(seq)
        with CheckpointManager(stored.address(stored.damaged)) as manager:
            for chain in stored.chains:
                assert stored.log_at(manager, chain[-1]) == [*range(1, chain.stop)]
            assert all(manager.exists(checkpoint_id) for checkpoint_id in stored.ids)
            assert all(manager.verify())
        go_on(stored, STEPS)
        tried += 1
    finding(f"a damaged record with a second copy, {medium}", tried, "records: 0 checkpoints lost")


def go_on(stored: Stored, newest: int) -> None:
    """The run resumes from its newest whole checkpoint, and what is saved then is not lost."""
    with CheckpointManager(stored.address(stored.damaged), on_corrupt="fallback") as manager:
        state = manager.resume_from_latest("run")
        assert isinstance(state, State) and state.step == newest
        saved = manager.save_checkpoint(state.append("log", "0 next").at(step=newest + 1))
    with CheckpointManager(stored.address(stored.damaged)) as manager:
        loaded = manager.load_checkpoint(saved)
        assert isinstance(loaded, State) and len(loaded["log"]) == newest + 1
        assert manager.resume_from_latest("run") == loaded
