"""A run that waits is started again by a supervisor, as often as it likes: nothing is appended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from tests.builders.counting import Counting

import surehold
from surehold import StateGraph, workflow
from surehold.errors import InDoubtError, Interrupted

Start = Callable[[Counting], Any]


def waits_for_an_event(storage: Counting) -> None:
    @workflow(name="w")
    def made() -> Any:
        return surehold.wait_for("approval")

    assert made.run(run_id="r", storage=storage, wait=False).status == "waiting"


def asks_a_question(storage: Counting) -> None:
    @workflow(name="w")
    async def made() -> Any:
        return await surehold.interrupt("well?")

    assert asyncio.run(made.run(run_id="r", storage=storage)).status == "waiting"


def dies() -> None:
    raise InDoubtError("the connection broke")


def is_in_doubt(storage: Counting) -> None:
    with suppress(Interrupted, InDoubtError), surehold.run("r", storage=storage) as run:
        run.effect("pay", dies)


def function_in_doubt(storage: Counting) -> None:
    @workflow(name="w")
    async def made() -> Any:
        await surehold.effect("pay", dies)

    with suppress(InDoubtError):
        assert asyncio.run(made.run(run_id="r", storage=storage)).status == "waiting"


def asks_in_a_node(storage: Counting) -> None:
    async def node(state: Any) -> None:
        await surehold.interrupt("well?")

    graph = StateGraph("g", storage=storage)
    graph.add_node("node", node)
    graph.set_entry_point("node")
    graph.set_exit_point("node")
    assert graph.run_sync(run_id="r").status == "waiting"


@pytest.mark.parametrize(
    "start",
    [waits_for_an_event, asks_a_question, is_in_doubt, function_in_doubt, asks_in_a_node],
)
def test_restarts_of_a_waiting_run_append_nothing(start: Start) -> None:
    storage = Counting()
    start(storage)
    start(storage)
    before = len(storage.appended)
    for _ in range(10):
        start(storage)
    assert len(storage.appended) == before
    (waiting,) = surehold.pending(storage=storage)
    assert waiting.run_id == "r"
