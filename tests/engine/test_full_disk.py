"""A full disk: each policy does what the guide says, and reading needs no room."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

import surehold
from surehold import CheckpointManager, ResilientCheckpointManager, State
from surehold.errors import StorageFullError

Policy = Literal["fail", "warn", "retry"]
InDoubt = Literal["retry", "ask"]
Disk = Callable[[int], Path]
MEDIA = {"sqlite": "sqlite:///{}/runs.db", "files": "file:{}/runs"}
PIECE = 20_000


@pytest.fixture(params=MEDIA)
def address(request: pytest.FixtureRequest, small_disk: Disk) -> str:
    return MEDIA[request.param].format(small_disk(400))


def piece() -> str:
    """Text that no compression makes much smaller."""
    return os.urandom(PIECE).hex()


def fill(manager: CheckpointManager) -> int:
    """Save until there is no room; gives the number of saves that were acknowledged."""
    state = State.new({"n": 0}, run_id="job")
    for step in range(1, 100):
        try:
            manager.save_checkpoint(state.set("n", step).set("text", piece()).at(step=step))
        except StorageFullError:
            return step - 1
    raise AssertionError("the disk is too large")


def test_a_save_that_fails_is_not_stored_and_the_others_are(address: str) -> None:
    with CheckpointManager(address) as manager:
        acknowledged = fill(manager)
    with CheckpointManager(address) as manager:  # there is still no room
        loaded = manager.resume_from_latest("job")
        assert loaded is not None and loaded.step == acknowledged > 2
        assert all(manager.verify("job"))


def test_a_process_that_filled_the_disk_ends_quietly(small_disk: Disk) -> None:
    code = (
        "import sys; from surehold import CheckpointManager;"
        "from tests.engine.test_full_disk import fill;"
        "manager = CheckpointManager(sys.argv[1]); print(fill(manager))"
    )
    command = [sys.executable, "-c", code, MEDIA["sqlite"].format(small_disk(400))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert int(ended.stdout) > 2


def test_the_next_process_reads_what_a_fallback_saved(small_disk: Disk, tmp_path: Path) -> None:
    primary = MEDIA["sqlite"].format(small_disk(700))
    saved = []
    with ResilientCheckpointManager("a", primary, fallbacks=[f"file:{tmp_path}/copy"]) as manager:
        for number in range(10):
            manager.memory.update(n=number, text=piece() * 3)
            saved.append(manager.create_checkpoint("routine"))
    with ResilientCheckpointManager("a", primary, fallbacks=[f"file:{tmp_path}/copy"]) as manager:
        newest = manager.get_latest_checkpoint()
        assert newest == saved[-1]
        assert manager.exists(newest)
        assert manager.load_checkpoint(newest)["memory"]["n"] == 9
        assert manager.list_checkpoints("a")[0].checkpoint_id == newest
        manager.restore_checkpoint(newest)
        assert manager.memory["n"] == 9


def test_without_a_fallback_a_full_disk_still_restores(small_disk: Disk) -> None:
    address = MEDIA["sqlite"].format(small_disk(700))
    saved = []
    with ResilientCheckpointManager("a", address) as manager, pytest.raises(StorageFullError):
        for number in range(20):
            manager.memory.update(n=number, text=piece() * 3)
            saved.append(manager.create_checkpoint("routine"))
    with ResilientCheckpointManager("a", address) as manager:
        manager.restore_checkpoint(saved[-1])
        assert manager.memory["n"] == len(saved) - 1


def work(manager: CheckpointManager, made: list[int], in_doubt: InDoubt) -> str:
    """Make a recorded call for each of 20 pages; gives the status of the run."""

    def look_up(page: int) -> str:
        made.append(page)
        return piece()

    with surehold.run("job", storage=manager) as run:
        for page in run.each(range(20)):
            run.state[str(page)] = run.effect("look up", look_up, page, in_doubt=in_doubt)
    return run.status


@pytest.mark.parametrize("policy", ["fail", "retry", "warn"])
def test_outcomes_that_do_not_fit_end_the_run_or_are_warned_of(
    policy: Policy, address: str, small_disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[int] = []
    with CheckpointManager(address, on_save_failure=policy) as manager:
        if policy == "warn":
            with caplog.at_level(logging.WARNING, "surehold"):
                assert work(manager, made, "retry") == "completed"
            assert made == list(range(20))
            assert "its newest effect was not stored" in caplog.text
            assert "a checkpoint was not saved" in caplog.text
        else:
            with pytest.raises(StorageFullError):
                work(manager, made, "retry")
            assert 2 < len(made) < 20
    small_disk(8_000)
    before, made = made, []
    with CheckpointManager(address) as manager:
        assert work(manager, made, "retry") == "completed"
    assert 0 < made[0] <= len(before) and made == list(range(made[0], 20))


@pytest.mark.parametrize("policy", ["fail", "retry", "warn"])
def test_no_call_is_made_whose_intent_does_not_fit(
    policy: Policy, address: str, small_disk: Disk
) -> None:
    """A run that cannot be recorded is left, whatever its code catches; the next start goes on."""
    made: list[str] = []
    rest = small_disk(400) / "rest"

    def pay(run: surehold.Run, number: int) -> None:
        text = str(number) + "x" * PIECE
        run.effect("pay", made.append, text, key=str(number), in_doubt="ask")

    with CheckpointManager(address, on_save_failure=policy) as manager:
        with pytest.raises(StorageFullError), surehold.run("job", storage=manager) as run:
            run.checkpoint(n=1)
            with suppress(OSError), rest.open("wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 512)
            with pytest.raises(StorageFullError):
                for number in range(100):  # what was allotted before is used up at some time
                    pay(run, number)
            asked = len(made)
            rest.unlink()
            with pytest.raises(StorageFullError):  # also where there is room again
                pay(run, 100)
            assert len(made) == asked
        assert run.status != "completed"
        with surehold.run("job", storage=manager) as run:
            for number in range(asked + 2):
                pay(run, number)
        assert run.status == "completed"
    assert [int(text.rstrip("x")) for text in made] == [*range(asked + 2)]


def test_a_run_under_warn_lacks_no_record_that_a_later_one_depends_on(
    address: str, small_disk: Disk
) -> None:
    """Outcomes that did not fit are written with the next record, be it small enough or not."""
    calls: list[str] = []

    def measure(name: str, size: int) -> str:
        calls.append(name)
        return os.urandom(size).hex()

    def job(manager: CheckpointManager) -> None:
        with surehold.run("job", storage=manager) as run:
            found = ""
            for number in range(12):
                found = run.effect("large", measure, found[:8], PIECE, in_doubt="retry")
                run.effect("small", measure, found, 10, in_doubt="retry")
                if number == 9:
                    small_disk(8_000)

    with CheckpointManager(address, on_save_failure="warn") as manager:
        job(manager)
    assert len(calls) == 24
    with CheckpointManager(address) as manager:
        kinds = [record.header.kind for record in manager.storage.read("job")]
        assert kinds.count("effect") == 24
