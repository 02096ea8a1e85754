"""The transaction log: what began, how it ended, and what was cut off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from surehold import CheckpointManager, State
from surehold.agents.resilient.transactions import TransactionLog
from surehold.errors import EncodeError, NotFoundError, UsageError


@pytest.fixture
def log(manager: CheckpointManager) -> TransactionLog:
    manager.save_checkpoint(State.new({"n": 1}, run_id="agent-1", name="agent-1"))
    return TransactionLog(manager, "agent-1")


def test_a_start_and_its_end_have_one_id(log: TransactionLog) -> None:
    ids = {log.start("deploy", host="a"), log.start("deploy", host="b")}
    assert len(ids) == 2
    one, two = log.list()
    assert {one.id, two.id} == ids
    log.success(one.id, took=3)
    log.failure(two.id, ValueError("no"))
    ended = {done.id: done for done in log.list()}
    assert ended[one.id].status == "success"
    assert ended[one.id].details == {"host": "b", "took": 3}
    assert ended[two.id].status == "failure"
    assert (ended[two.id].error, ended[two.id].details) == ("ValueError: no", {"host": "a"})
    assert all(done.ended_at and done.ended_at >= done.started_at for done in ended.values())


def test_what_was_cut_off_is_started_and_not_ended(
    open_manager: Callable[..., CheckpointManager],
) -> None:
    manager = open_manager()
    manager.save_checkpoint(State.new({"n": 1}, run_id="agent-1"))
    TransactionLog(manager, "agent-1").start("deploy", host="a")
    again = TransactionLog(open_manager(reopen=True), "agent-1")
    (one,) = again.list(status="started")
    assert not one.ended and one.ended_at is None and one.details == {"host": "a"}
    again.rollback(one.id)
    assert again.list(status="started") == []
    assert again.get(one.id).status == "rollback"


def test_they_are_listed_newest_first_and_by_page(log: TransactionLog) -> None:
    ids = [log.start(f"work {n}") for n in range(6)]
    log.success(ids[1])
    log.success(ids[4])
    assert [one.id for one in log.list()] == ids[::-1]
    assert [one.id for one in log.list(limit=2)] == [ids[5], ids[4]]
    assert [one.id for one in log.list(status="success")] == [ids[4], ids[1]]
    assert [one.id for one in log.list(status="started", limit=1)] == [ids[5]]


def test_an_outcome_is_final(log: TransactionLog) -> None:
    one = log.start("deploy")
    log.success(one)
    for again in (log.success, log.rollback):
        with pytest.raises(UsageError, match="ended in success already"):
            again(one)


def test_an_unknown_transaction_is_not_found(log: TransactionLog) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        log.success("nowhere")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda log: log.start(""), UsageError),
        (lambda log: log.start("deploy", what=object()), EncodeError),
    ],
)
def test_what_cannot_be_logged_is_refused(
    log: TransactionLog, call: Callable[[TransactionLog], Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        call(log)
    assert all(one.status == "started" for one in log.list())


def test_the_log_is_part_of_the_run_and_verified_with_it(
    log: TransactionLog, manager: CheckpointManager
) -> None:
    log.success(log.start("deploy"))
    assert all(manager.verify("agent-1"))
    assert manager.resume_from_latest("agent-1")["n"] == 1
    manager.delete_run("agent-1")
    assert log.list() == []


def test_a_log_sees_only_its_own_run(log: TransactionLog, manager: CheckpointManager) -> None:
    manager.save_checkpoint(State.new({"n": 1}, run_id="agent-10", name="agent-10"))
    other = TransactionLog(manager, "agent-10")
    other.start("deploy")
    assert log.list() == [] and len(other.list()) == 1
