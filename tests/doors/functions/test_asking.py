"""Queries read a run without a trace; updates are checked, recorded and answered once."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold import CheckpointManager, step, workflow
from surehold.errors import ConflictError, NotFoundError, RunError, UsageError
from surehold.executors import Worker

made: list[Any] = []


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[CheckpointManager]:
    made.clear()
    with CheckpointManager(f"sqlite:///{tmp_path}/runs.db") as manager:
        yield manager


@step
def work(number: int) -> int:
    made.append(number)
    return number * 10


@workflow
def job() -> int:
    done: list[int] = []
    stage = "begun"
    surehold.on_query("done", lambda: done)
    surehold.on_query("stage", lambda: stage)
    surehold.on_query("at", lambda place: done[place])
    surehold.on_query("works", lambda: work(7))
    try:
        done.append(work(1))
        done.append(work(surehold.receive("next")))
        stage = "over"
    finally:
        stage = "left" if stage == "begun" else stage
    return sum(done)


@workflow
async def awaited_job() -> list[int]:
    done: list[int] = []
    surehold.on_query("done", lambda: done)

    async def branch(number: int) -> None:
        done.append(await again(number))
        await surehold.receive(f"next {number}")

    await surehold.gather(*map(branch, range(3)))
    return done


@step
async def again(number: int) -> int:
    made.append(number)
    return number


@workflow
def changed() -> list[str]:
    taken: list[str] = []
    while len(taken) < 2:
        update = surehold.receive_update("word", check=_check)
        taken.append(update.value)
        update.reply({"taken": list(taken)})
    return taken


@workflow
async def changed_awaited() -> str:
    update = await surehold.receive_update("word", check=_check)
    await update.reply("thanks")
    return str(update.value)


def _check(word: str) -> None:
    if not word.islower():
        raise ValueError(f"{word} is too loud")


def test_a_waiting_and_an_ended_run_answer_without_a_trace(manager: CheckpointManager) -> None:
    job.run(run_id="q", storage=manager, wait=False)
    seq = manager.reader.run("q")
    assert surehold.query("q", "done", storage=manager) == [10]
    assert surehold.query("q", "at", 0, storage=manager) == 10
    assert surehold.query("q", "stage", storage=manager) == "begun", "asked before it is left"
    assert manager.reader.run("q") == seq
    surehold.send("q", "next", 2, storage=manager)
    assert surehold.query("q", "done", storage=manager) == [10], "it has not taken the message"
    job.run(run_id="q", storage=manager)
    assert surehold.query("q", "done", storage=manager) == [10, 20]
    assert surehold.query("q", "stage", storage=manager) == "over"
    assert made == [1, 2], "nothing is called"


def test_a_run_that_works_answers(manager: CheckpointManager) -> None:
    seen = []

    @step
    def look() -> None:
        seen.append(surehold.query("q", "stage", storage=manager))

    @workflow
    def working() -> None:
        stage = 1
        surehold.on_query("stage", lambda: stage)
        work(1)
        stage = 2
        look()

    sys.modules[__name__].__dict__["working"] = working
    working.run(run_id="q", storage=manager)
    assert seen == [2]


def test_an_async_workflow_answers(manager: CheckpointManager) -> None:
    asyncio.run(awaited_job.run(run_id="q", storage=manager, wait=False))
    assert sorted(surehold.query("q", "done", storage=manager)) == [0, 1, 2]
    assert sorted(made) == [0, 1, 2]


def test_what_cannot_be_asked_is_said(manager: CheckpointManager) -> None:
    job.run(run_id="q", storage=manager, wait=False)
    with pytest.raises(UsageError, match="but at, done, stage"):
        surehold.query("q", "nothing", storage=manager)
    with pytest.raises(IndexError):
        surehold.query("q", "at", 7, storage=manager)
    with pytest.raises(UsageError, match="makes a recorded call"):
        surehold.query("q", "works", storage=manager)
    assert made == [1]
    with pytest.raises(NotFoundError):
        surehold.query("nowhere", "done", storage=manager)
    with surehold.run("loop", storage=manager) as run:
        run.checkpoint(n=1)
    with pytest.raises(UsageError, match="no workflow"):
        surehold.query("loop", "done", storage=manager)


def test_a_new_beginning_answers_for_itself(manager: CheckpointManager) -> None:
    patrol.run(run_id="q", storage=manager)
    assert surehold.query("q", "round", storage=manager) == 2


@workflow
def patrol(number: int = 0) -> int:
    surehold.on_query("round", lambda: number)
    work(number)
    if number < 2:
        surehold.continue_as_new(number + 1)
    return number


def test_an_update_is_checked_and_answered_once(manager: CheckpointManager) -> None:
    changed.run(run_id="u", storage=manager, wait=False)

    def ask(word: str, key: str) -> Any:
        return surehold.update("u", "word", word, idempotency_key=key, storage=manager)

    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(ask, word, key) for key, word in (("0", "a"), ("1", "B"))]
        while not all(one.done() for one in asked):
            changed.run(run_id="u", storage=manager, wait=False)
        assert asked[0].result() == {"taken": ["a"]}
        with pytest.raises(RunError, match="B is too loud"):
            asked[1].result()
    assert ask("a", "0") == {"taken": ["a"]}, "the same answer again"
    with pytest.raises(TimeoutError):
        surehold.update("u", "word", "c", timeout=0.01, idempotency_key="3", storage=manager)
    assert changed.run(run_id="u", storage=manager).value == ["a", "c"]
    assert ask("c", "3") == {"taken": ["a", "c"]}, "it was taken after the asker left"
    with pytest.raises(ConflictError):
        ask("d", "4")


def test_a_worker_answers(manager: CheckpointManager) -> None:
    handle = asyncio.run(changed_awaited.start(run_id="u", storage=manager))
    worker = Worker.of_modules(manager.storage, [__name__], ["default"], 1, 30)
    working = threading.Thread(target=worker.run)
    working.start()
    try:
        assert surehold.update("u", "word", "a", timeout=60, storage=manager) == "thanks"
        assert asyncio.run(handle.result(60)).value == "a"
    finally:
        worker.stop()
        working.join()
