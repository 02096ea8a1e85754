"""Schedules: one run for each slot, however many look, and what becomes of missed ones."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.executors import jobs

import surehold
from surehold import CheckpointManager, RecordQuery, SQLiteStorage
from surehold.errors import UsageError
from surehold.storage.queueing import EntryQuery

NOON = datetime(2026, 11, 16, 12, 0, 30, tzinfo=UTC)


def hour(number: int) -> str:
    return f"doubled@2026-11-16T{number}:00Z"


def test_a_slot_is_begun_once_however_many_workers_look(tmp_path: Path) -> None:
    hourly = surehold.schedule("0 * * * *", jobs.doubled, [1])
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
    hourly = surehold.schedule("0 * * * *", jobs.doubled, [1], missed=missed)  # type: ignore[arg-type]
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        manager = CheckpointManager(storage)
        assert hourly.fire(manager, now=NOON) == []
        assert hourly.fire(manager, now=NOON + timedelta(hours=3, minutes=30)) == begun
        # Whatever the policy, a slot that comes while a worker looks is begun.
        assert hourly.fire(manager, now=NOON + timedelta(hours=4)) == [hour(16)]
        manager.delete_run(hour(16))
        assert hourly.fire(manager, now=NOON + timedelta(hours=4)) == []


@pytest.mark.parametrize(
    ("missed", "begun"),
    [("last", ["2026-11-17T12:00Z"]), ("skip", ["2026-11-17T12:00Z"])],
)
def test_of_many_missed_slots_only_the_last_counts(
    tmp_path: Path, missed: str, begun: list[str]
) -> None:
    often = surehold.schedule("* * * * *", jobs.doubled, [1], missed=missed)  # type: ignore[arg-type]
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        manager = CheckpointManager(storage)
        often.fire(manager, now=NOON)
        later = NOON + timedelta(days=1)
        assert often.fire(manager, now=later) == [f"doubled@{slot}" for slot in begun]
        assert often.fire(manager, now=later) == []


def test_all_missed_slots_begin_a_hundred_at_a_time(tmp_path: Path) -> None:
    often = surehold.schedule("* * * * *", jobs.doubled, [1], missed="all")
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        manager = CheckpointManager(storage)
        often.fire(manager, now=NOON)
        later = NOON + timedelta(minutes=120)
        assert [len(often.fire(manager, now=later)) for _ in range(3)] == [100, 20, 0]


def test_the_journal_of_a_schedule_does_not_grow(tmp_path: Path) -> None:
    hourly = surehold.schedule("0 * * * *", jobs.doubled, [1], missed="skip")
    with SQLiteStorage(tmp_path / "runs.db") as storage:
        manager = CheckpointManager(storage)
        for number in range(115):
            hourly.fire(manager, now=NOON + timedelta(hours=number, minutes=30))
        notes = [*storage.headers(RecordQuery(run_id=hourly.run_id, notes=True))]
        assert len(notes) < 50
        later = NOON + timedelta(hours=115)
        assert hourly.fire(manager, now=later) == ["doubled@2026-11-21T07:00Z"]


def slots(cron: str, zone: str, first: datetime, number: int) -> list[str]:
    made = surehold.schedule(cron, jobs.doubled, [1], timezone=zone)
    found: list[str] = []
    for _ in range(number):
        first = made.next(first)
        found.append(made.slot_id(first).partition("@")[2])
    return found


def test_an_hour_that_is_left_out_or_repeated_has_one_slot() -> None:
    spring = datetime(2026, 3, 28, 12, tzinfo=UTC)
    assert slots("30 2 * * *", "Europe/Oslo", spring, 2) == [
        "2026-03-29T01:00Z",  # 02:30 does not exist: the first moment after it
        "2026-03-30T00:30Z",
    ]
    autumn = datetime(2026, 10, 24, 12, tzinfo=UTC)
    assert slots("30 2 * * *", "Europe/Oslo", autumn, 2) == [
        "2026-10-25T00:30Z",  # the first of the two
        "2026-10-26T01:30Z",
    ]
    between = datetime(2026, 10, 25, 1, 15, tzinfo=UTC)  # 02:15 for the second time
    assert slots("30 2 * * *", "Europe/Oslo", between, 1) == ["2026-10-26T01:30Z"]
    assert slots("*/30 * * * *", "Europe/Oslo", autumn.replace(day=25, hour=0), 4) == [
        *("2026-10-25T00:30Z", "2026-10-25T01:00Z"),
        *("2026-10-25T01:30Z", "2026-10-25T02:00Z"),
    ]


def test_slots_of_one_minute_have_ids_of_their_own() -> None:
    assert slots("*/20 * * * * *", "UTC", NOON, 3) == [
        *("2026-11-16T12:00:40Z", "2026-11-16T12:01Z", "2026-11-16T12:01:20Z"),
    ]


def test_wrong_schedules_are_refused() -> None:
    with pytest.raises(UsageError, match=r"not a cron expression|names no time"):
        surehold.schedule("0 0 30 2 *", jobs.doubled, [1])
    with pytest.raises(UsageError, match="cannot be scheduled"):
        surehold.schedule("* * * * *", len)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not a cron expression"):
        surehold.schedule("99 * * * *", jobs.doubled, [1])
    with pytest.raises(UsageError, match="time zone"):
        surehold.schedule("0 3 * * *", jobs.doubled, [1], timezone="Mars/Base")
    with pytest.raises(UsageError, match=r"did you mean Europe/Oslo\?"):
        surehold.schedule("0 3 * * *", jobs.doubled, [1], timezone="Europe/Olso")
    with pytest.raises(UsageError, match="missed"):
        surehold.schedule("0 3 * * *", jobs.doubled, [1], missed="never")  # type: ignore[arg-type]


def test_arguments_that_do_not_fit_are_refused_where_the_schedule_is_declared() -> None:
    with pytest.raises(UsageError, match="missing a required argument"):
        surehold.schedule("0 3 * * *", jobs.doubled)
    with pytest.raises(UsageError, match="Expected `array`"):
        surehold.schedule("0 3 * * *", jobs.doubled, 5)
    with pytest.raises(UsageError, match="unexpected keyword argument 'prority'"):
        surehold.schedule("0 3 * * *", jobs.doubled, [1], prority=5)
    with pytest.raises(UsageError, match="run_id= and idempotency_key="):
        surehold.schedule("0 3 * * *", jobs.doubled, [1], idempotency_key="night")
    surehold.schedule("0 3 * * *", jobs.doubled, [1], key="tenant-7", delay=60)
