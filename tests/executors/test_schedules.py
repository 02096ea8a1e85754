"""Schedules: one run for each slot, however many look, and what becomes of missed ones."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.executors import jobs

import holdfast
from holdfast import CheckpointManager, SQLiteStorage
from holdfast.errors import UsageError
from holdfast.storage.queueing import EntryQuery

NOON = datetime(2026, 11, 16, 12, 0, 30, tzinfo=UTC)


def hour(number: int) -> str:
    return f"doubled@2026-11-16T{number}:00Z"


def test_a_slot_is_begun_once_however_many_workers_look(tmp_path: Path) -> None:
    hourly = holdfast.schedule("0 * * * *", jobs.doubled, [1])
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        hourly.fire(CheckpointManager(storage), now=NOON)
        later = NOON + timedelta(hours=1)
        threads = [
            threading.Thread(
                target=hourly.fire, args=(CheckpointManager(storage),), kwargs={"now": later}
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [entry.run_id for entry in storage.entries(EntryQuery())] == [hour(13)]
        assert hourly.fire(CheckpointManager(storage), now=later) == []


@pytest.mark.parametrize(
    ("missed", "begun"),
    [("last", [hour(15)]), ("all", [hour(13), hour(14), hour(15)]), ("skip", [])],
)
def test_missed_slots_follow_the_policy(tmp_path: Path, missed: str, begun: list[str]) -> None:
    hourly = holdfast.schedule("0 * * * *", jobs.doubled, [1], missed=missed)  # type: ignore[arg-type]
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        manager = CheckpointManager(storage)
        assert hourly.fire(manager, now=NOON) == []
        assert hourly.fire(manager, now=NOON + timedelta(hours=3, minutes=30)) == begun
        # Whatever the policy, a slot that comes while a worker looks is begun.
        assert hourly.fire(manager, now=NOON + timedelta(hours=4)) == [hour(16)]
        manager.delete_run(hour(16))
        assert hourly.fire(manager, now=NOON + timedelta(hours=4)) == []


def test_wrong_schedules_are_refused() -> None:
    with pytest.raises(UsageError, match="no cron expression"):
        holdfast.schedule("99 * * * *", jobs.doubled, [1])
    with pytest.raises(UsageError, match="time zone"):
        holdfast.schedule("0 3 * * *", jobs.doubled, [1], timezone="Mars/Base")
    with pytest.raises(UsageError, match="missed"):
        holdfast.schedule("0 3 * * *", jobs.doubled, [1], missed="never")  # type: ignore[arg-type]
