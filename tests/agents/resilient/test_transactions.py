"""The transaction log: what began, how it ended, and what was cut off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from surehold import CheckpointManager, State
from surehold.agents.resilient.transactions import Begun, TransactionStatus, transactions
from surehold.errors import EncodeError, UsageError

RUN = "agent-1"


@pytest.fixture(autouse=True)
def saved(manager: CheckpointManager) -> None:
    manager.save_checkpoint(State.new({"n": 1}, run_id=RUN, name=RUN))


def start(manager: CheckpointManager, operation: str, run_id: str = RUN, **details: Any) -> Begun:
    begun = Begun(operation)
    manager.append_notes(run_id, [begun.note(details)])
    return begun


def end(
    manager: CheckpointManager,
    begun: Begun,
    status: TransactionStatus = "success",
    error: Exception | None = None,
    **details: Any,
) -> None:
    manager.append_notes(RUN, [begun.note(details, status, error)])


def test_a_start_and_its_end_have_one_id(manager: CheckpointManager) -> None:
    first, second = start(manager, "deploy", host="a"), start(manager, "deploy", host="b")
    assert [one.id for one in transactions(manager, RUN)] == [second.id, first.id]
    assert first.id != second.id
    end(manager, second, took=3)
    end(manager, first, "failure", ValueError("no"))
    two, one = transactions(manager, RUN)
    assert (two.status, two.details) == ("success", {"host": "b", "took": 3})
    assert (one.status, one.error, one.details) == ("failure", "ValueError: no", {"host": "a"})
    assert all(done.ended_at and done.ended_at >= done.started_at for done in (one, two))


def test_what_was_cut_off_is_started_and_not_ended(
    open_manager: Callable[..., CheckpointManager],
) -> None:
    manager = open_manager()
    manager.save_checkpoint(State.new({"n": 1}, run_id="agent-2"))
    begun = start(manager, "deploy", "agent-2", host="a")
    again = open_manager(reopen=True)
    (one,) = transactions(again, "agent-2", "started")
    assert not one.ended and one.ended_at is None and one.details == {"host": "a"}
    again.append_notes("agent-2", [Begun(one.operation, one.id).note(status="rollback")])
    assert transactions(again, "agent-2", "started") == []
    (one,) = transactions(again, "agent-2")
    assert (one.id, one.status) == (begun.id, "rollback")


def test_they_are_listed_newest_first_and_by_page(manager: CheckpointManager) -> None:
    begun = [start(manager, f"work {n}") for n in range(6)]
    end(manager, begun[1])
    end(manager, begun[4])

    def ids(**wanted: Any) -> list[int]:
        order = [one.id for one in begun]
        return [order.index(one.id) for one in transactions(manager, RUN, **wanted)]

    assert ids() == [5, 4, 3, 2, 1, 0]
    assert ids(limit=2) == [5, 4]
    assert ids(status="success") == [4, 1]
    assert ids(status="started", limit=1) == [5]


def test_what_cannot_be_logged_is_refused() -> None:
    with pytest.raises(UsageError):
        Begun("")
    with pytest.raises(EncodeError):
        Begun("deploy").note({"what": object()})


def test_the_log_is_part_of_the_run_and_verified_with_it(manager: CheckpointManager) -> None:
    end(manager, start(manager, "deploy"))
    assert all(manager.verify(RUN))
    assert manager.resume_from_latest(RUN)["n"] == 1
    manager.delete_run(RUN)
    assert transactions(manager, RUN) == []


def test_a_log_sees_only_its_own_run(manager: CheckpointManager) -> None:
    manager.save_checkpoint(State.new({"n": 1}, run_id="agent-10", name="agent-10"))
    start(manager, "deploy", "agent-10")
    assert transactions(manager, RUN) == [] and len(transactions(manager, "agent-10")) == 1
