"""A run that needs a person says so, and is settled by what `pending` lists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold import answer, approve, pending, reject, workflow
from surehold.__main__ import main
from surehold.errors import NotFoundError, UsageError


@workflow(name="publish")
def publish() -> Any:
    return surehold.wait_for("approval")


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


WAYS: dict[str, tuple[Callable[[str], Any], Any]] = {
    "approve": (lambda store: approve("r", storage=store), True),
    "approve by name": (lambda store: approve("r", "approval", storage=store), True),
    "reject": (lambda store: reject("r", "approval@1", storage=store), False),
    "answer by name": (lambda store: answer("r", "approval", "Ann", storage=store), "Ann"),
    "answer the only one": (lambda store: answer("r", None, "Ann", storage=store), "Ann"),
    "approve, shell": (lambda store: main(["-s", store, "approve", "r"]), True),
    "reject, shell": (lambda store: main(["-s", store, "reject", "r", "approval"]), False),
    "answer, shell": (lambda store: main(["-s", store, "answer", "r", "Ann"]), "Ann"),
    "answer by name, shell": (
        lambda store: main(["-s", store, "answer", "r", "approval", "Ann"]),
        "Ann",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_event_is_settled_by_what_pending_lists(store: str, way: str) -> None:
    settle, value = WAYS[way]
    assert publish.run(run_id="r", storage=store, wait=False).status == "waiting"
    assert [(one.kind, one.name) for one in pending(storage=store)] == [("event", "approval")]
    settle(store)
    assert publish.run(run_id="r", storage=store, wait=False).value == value


def test_an_answer_to_a_run_that_waits_for_nothing_says_so(store: str) -> None:
    with surehold.run("r", storage=store) as run:
        run.state["one"] = 1
    with pytest.raises(NotFoundError, match="nothing waits in run 'r'"):
        answer("r", None, 1, storage=store)
    with pytest.raises(NotFoundError, match="waits for no answer"):
        approve("r", storage=store)


def test_the_id_of_several_must_be_given(store: str) -> None:
    @workflow(name="two")
    async def two() -> Any:
        return await surehold.gather(surehold.wait_for("a"), surehold.wait_for("b"))

    assert asyncio.run(two.run(run_id="r", storage=store, wait=False)).status == "waiting"
    with pytest.raises(UsageError, match="several"):
        answer("r", None, 1, storage=store)
    with pytest.raises(UsageError, match="give the id of one: a@1, b@2"):
        approve("r", storage=store)
