"""Arguments and results of recorded calls are values, in the first life and in every other."""

from __future__ import annotations

import contextlib
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.builders.doors import DOORS, Door, function

import surehold
from surehold import step, workflow
from surehold.errors import EncodeError

every_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)


@step(in_doubt="retry")
def enrich(document: Any) -> None:
    document["summary"] = "expensive text"
    document["tags"].append("new")


@step(in_doubt="retry")
def same(document: Any) -> Any:
    document["seen"] = True
    return document


@every_door
def test_code_around_a_call_sees_the_same_before_and_after_a_crash(
    door: Door, tmp_path: Path
) -> None:
    storage, seen, lives = f"sqlite:///{tmp_path}/runs.db", [], 0

    def body() -> None:
        nonlocal lives
        lives += 1
        document: dict[str, Any] = {"title": "kelp", "tags": []}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            enrich(document)
            returned = same(document)
        returned["tags"].append("mine")
        seen.append((document, returned))
        if lives == 1:
            raise RuntimeError("the process dies here")

    with contextlib.suppress(Exception):
        door(storage, body)
    door(storage, body)
    assert seen[0] == seen[-1]
    assert seen[0][0] == {"title": "kelp", "tags": []}
    assert seen[0][1] == {"title": "kelp", "tags": ["mine"], "seen": True}


def test_a_call_that_changes_its_argument_warns_once_at_its_own_line() -> None:
    @step(in_doubt="retry")
    def add_to(items: list[int], extra: dict[str, int]) -> int:
        extra["n"] = 1
        return len(items)

    @step(in_doubt="retry")
    def returns_it(items: list[int]) -> dict[str, Any]:
        items.append(1)
        return {"items": items}

    def body() -> None:
        add_to([1], extra={})
        add_to([1], extra={})
        returns_it([])

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function("memory://", body)
    told = [one for one in caught if issubclass(one.category, RuntimeWarning)]
    assert len(told) == 1
    assert "add_to changes its argument 'extra' in place" in str(told[0].message)
    assert told[0].filename == __file__


def test_an_attempt_does_not_see_what_the_failed_one_did_to_its_arguments() -> None:
    seen: list[list[int]] = []

    @step(retries=2, backoff=0.0)
    def fragile(items: list[int]) -> int:
        seen.append([*items])
        items.append(len(seen))
        if len(seen) < 3:
            raise OSError("again")
        return len(items)

    with surehold.run("r", storage="memory://") as run, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run.call(fragile, [0]) == 2
    assert seen == [[0], [0], [0]]


def test_an_argument_that_cannot_be_stored_is_passed_as_it_is() -> None:
    lock = threading.Lock()
    with surehold.run("r", storage="memory://") as run:
        assert run.call(lambda given: given is lock, lock)


def test_a_workflow_may_change_its_own_arguments(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path}/runs.db"

    @step(in_doubt="retry")
    def count(items: list[int]) -> int:
        return len(items)

    @workflow(name="appends")
    def appends(items: list[int]) -> int:
        items.append(1)
        count(items)
        surehold.wait_for("go")
        return count(items)

    mine = [0]
    assert appends.run(mine, run_id="r", storage=storage, wait=False).status == "waiting"
    assert mine == [0]
    for _ in range(2):
        assert appends.resume("r", storage=storage, wait=False).status == "waiting"
    surehold.answer("r", surehold.pending(storage=storage)[0].id, 1, storage=storage)
    assert appends.resume("r", storage=storage).value == 2


@every_door
def test_a_result_that_cannot_be_stored_is_no_doubt(door: Door, tmp_path: Path) -> None:
    storage, made, told = f"sqlite:///{tmp_path}/runs.db", 0, []

    @step(in_doubt="ask")
    def fetch(storable: bool) -> Any:
        nonlocal made
        made += 1
        return [1, threading.Lock()] if made == 1 else [1, 2]

    def body() -> None:
        try:
            assert fetch(storable=True) == [1, 2]
        except EncodeError as error:
            told.append(error)
            raise

    with contextlib.suppress(Exception):
        door(storage, body)
    assert surehold.pending(storage=storage) == []
    assert told[0].path == "[1]"
    assert (told[0].run_id, told[0].effect.rpartition("/")[2][:6]) == ("r", "fetch@")
    assert f"{told[0].effect} of run 'r' returned" in str(told[0])
    door(storage, body)
    assert made >= 2
