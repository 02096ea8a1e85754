"""Verification of a run that is saved and pruned while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.conftest import MEDIA

from surehold import CheckpointManager, Rules, State, Storage
from surehold.core.records import Record
from surehold.engine.repair import verification


@pytest.fixture(params=["memory", "sqlite", "file"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with MEDIA[request.param](tmp_path) as opened:
        yield opened


def save(manager: CheckpointManager, first: int, last: int) -> None:
    for step in range(first, last):
        state = State.new({"n": step, "text": "kelp " * step}, run_id="r").at(step=step)
        latest = manager.resume_from_latest("r")
        if latest is not None:
            state = latest.set("n", step).set("text", "kelp " * step).at(step=step)
        manager.save_checkpoint(state)


@pytest.mark.parametrize("after", [0, 1, 2, 5, 8])
def test_a_run_that_is_pruned_while_it_is_verified_is_not_accused(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    saver = CheckpointManager(storage, retention=Rules(keep_last=3))
    save(saver, 1, 12)
    verifier = CheckpointManager(storage)
    read = verifier.reader.records
    calls = [0]

    def interrupted(run_id: str, first: int, last: int) -> Iterator[Record]:
        """Read one record at a time, and save a lot after some of them."""
        calls[0] += 1
        for seq in range(first, last + 1):
            if calls[0] == 1 and seq == after + 1:
                save(saver, 12, 60)
                saver.cleanup_old_checkpoints("r")
            yield from read(run_id, seq, seq)

    monkeypatch.setattr(verifier.reader, "records", interrupted)
    (verdict,) = verifier.verify("r")
    assert verdict, verdict.problems
    assert calls[0] > 1, "the run was not disturbed, so nothing was shown"


def test_a_run_that_is_pruned_during_every_walk_is_not_accused(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = CheckpointManager(storage, retention=Rules(keep_last=3))
    save(saver, 1, 12)
    verifier = CheckpointManager(storage)
    read = verifier.reader.records
    walks = [0]

    def interrupted(run_id: str, first: int, last: int) -> Iterator[Record]:
        if first == 1 and walks[0] < 12:
            walks[0] += 1
            yield from [*read(run_id, 1, last)][:2]
            save(saver, 20 * walks[0], 20 * walks[0] + 20)
            saver.cleanup_old_checkpoints("r")
            yield from read(run_id, first + 2, last)
        else:
            yield from read(run_id, first, last)

    monkeypatch.setattr(verifier.reader, "records", interrupted)
    # The prunes that explain it are pruned themselves.
    monkeypatch.setattr(verification, "pruned_in", lambda *_: [])
    (verdict,) = verifier.verify("r")
    assert verdict, verdict.problems
    assert walks[0] == 12


def test_a_run_whose_file_is_gone_is_told_of(tmp_path: Path) -> None:
    with MEDIA["file"](tmp_path) as storage:
        save(CheckpointManager(storage), 1, 4)
        (file,) = tmp_path.rglob("*.jsonl")
        file.unlink()
    with MEDIA["file"](tmp_path) as storage:
        (verdict,) = CheckpointManager(storage).verify()
        assert verdict.run_id == "r" and "are missing" in verdict.problems[0]


def test_damage_beside_a_prune_is_still_found(tmp_path: Path) -> None:
    with MEDIA["file"](tmp_path) as storage:
        saver = CheckpointManager(storage)
        save(saver, 1, 9)
        (file,) = tmp_path.rglob("*.jsonl")
        text = file.read_bytes()
        file.write_bytes(text.replace(b"kelp kelp kelp kelp ", b"help kelp kelp kelp ", 1))
        (verdict,) = CheckpointManager(storage).verify("r")
        assert not verdict
