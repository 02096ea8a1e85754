"""The loop of the resilient checkpoints, in the conditions in which it once lost something."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from tests.seeds.test_dream import Day, advance

from surehold import ResilientCheckpointManager


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUREHOLD_STORAGE", raising=False)


def restores(manager: ResilientCheckpointManager) -> int:
    return sum(one.operation == "restore" for one in manager.transactions())


def test_a_recurring_task_is_never_restored() -> None:
    def work(day: Day) -> None:
        files = day.cycle % 12
        day.checkpoints.current_task.update(id="files", progress_percentage=100 * files / 12)
        day.checkpoints.memory["cycle"] = day.cycle

    manager = Day(400, work).run()
    assert (restores(manager), manager.memory["cycle"]) == (0, 400)


def test_an_error_that_stays_takes_one_recovery_point_and_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def work(day: Day) -> None:
        if day.cycle < 20:
            advance(day)
        else:
            raise OSError("the mailbox is away")

    manager = Day(300, work).run()
    recovered = manager.list_checkpoints("agent-3", kind="recovery")
    assert [one.metadata["error"] for one in recovered] == ["OSError"]
    assert caplog.text.count("fails again and again") == 1
    assert manager.memory["cycle"] == 19


def test_errors_with_new_states_keep_a_hundred_recovery_points_and_one_an_hour() -> None:
    def work(day: Day) -> None:
        day.seconds -= 290  # a loop that does not sleep
        advance(day)
        raise OSError("the mailbox is away")

    manager = Day(260, work).run()
    recovered = manager.list_checkpoints("agent-3", kind="recovery")
    assert 100 <= len(recovered) <= 110
    newest = manager.load_checkpoint(recovered[0].checkpoint_id)
    assert newest["memory"]["cycle"] == 260


def test_an_agent_whose_memory_is_wiped_keeps_its_good_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def work(day: Day) -> None:
        advance(day)
        if day.cycle >= 40:
            day.checkpoints.memory.clear()

    manager = Day(100, work).run()
    assert caplog.text.count("its memory was emptied") == 1
    (told,) = (one for one in caplog.records if "was emptied" in one.getMessage())
    assert isinstance(told.args, tuple)
    manager.restore_checkpoint(str(told.args[2]))
    assert manager.memory == {"cycle": 36}


def test_a_directory_in_the_place_of_the_primary_is_survived(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ResilientCheckpointManager("agent-3") as manager:
        manager.memory["cycle"] = 1
        saved = manager.create_checkpoint("routine")
    database = Path(".surehold/surehold.db")
    database.unlink()
    database.mkdir()
    with ResilientCheckpointManager("agent-3") as manager:
        manager.restore_checkpoint(saved)
        assert manager.memory == {"cycle": 1}
        manager.create_checkpoint("routine")
    assert "is a directory" in caplog.text
    database.rmdir()
    with ResilientCheckpointManager("agent-3") as manager:
        assert all(manager.verify())
        assert len(manager.list_checkpoints("agent-3", kind="routine")) == 2


def test_two_managers_of_one_process_save_in_turn(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    saved: list[str] = []

    def save(manager: ResilientCheckpointManager) -> None:
        for number in range(20):
            manager.memory["number"] = number
            saved.append(manager.create_checkpoint("manual"))

    managers = [ResilientCheckpointManager("agent-3") for _ in range(2)]
    threads = [threading.Thread(target=save, args=(one,)) for one in managers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(saved) == 40
    assert {one.checkpoint_id for one in managers[0].list_checkpoints("agent-3")} == {*saved}
    for one in managers:
        one.close()
