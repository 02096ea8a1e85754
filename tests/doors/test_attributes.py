"""A run sets what it is found by; only its present values are found, in every storage."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import call

import surehold
from surehold import CheckpointManager, State, StateGraph, step, workflow
from surehold.errors import NotFoundError, UsageError
from surehold.executors import handle

NOW = datetime(2026, 11, 19, 3, tzinfo=UTC)


@pytest.fixture(params=["sqlite", "file", "memory"])
def manager(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[CheckpointManager]:
    address = {"memory": "memory://"}.get(request.param, f"{request.param}:///{tmp_path}/runs")
    with CheckpointManager(address) as made:
        yield made


@step
def pack(order: str) -> str:
    return order


@workflow
def fulfil(order: str, **facts: Any) -> str:
    surehold.set_attributes(order=order, packed=False, **facts)
    pack(order)
    surehold.set_attributes(packed=True)
    return order


def ids(where: dict[str, Any], manager: CheckpointManager, **options: Any) -> set[str]:
    return {run.run_id for run in surehold.find_runs(where, storage=manager, **options)}


def test_runs_are_found_by_equal_values_and_ranges(manager: CheckpointManager) -> None:
    for number in range(6):
        made = NOW + timedelta(days=number)
        fulfil.run(
            f"o{number}", euros=number * 10.0, made=made, run_id=f"r{number}", storage=manager
        )
    assert ids({"order": "o3"}, manager) == {"r3"}
    assert ids({"packed": False}, manager) == set(), "only present values are found"
    assert ids({"packed": True}, manager) == {f"r{number}" for number in range(6)}
    assert len(surehold.find_runs({"packed": True}, limit=2, storage=manager)) == 2
    assert ids({"euros >=": 20, "euros <=": 30}, manager) == {"r2", "r3"}
    assert ids({"packed": True, "made>=": NOW + timedelta(days=4)}, manager) == {"r4", "r5"}
    assert ids({"order >=": 3}, manager) == set(), "a text and a number are not compared"
    assert ids({"packed": True}, manager, status="running") == set()
    assert handle("r1", storage=manager).attributes() == {
        "order": "o1",
        "packed": True,
        "euros": 10.0,
        "made": NOW + timedelta(days=1),
    }
    with pytest.raises(NotFoundError):
        surehold.attributes_of("nowhere", storage=manager)


def test_none_removes_an_attribute(manager: CheckpointManager) -> None:
    with surehold.run("r", storage=manager) as run:
        surehold.set_attributes(a=1, b=2)
        surehold.set_attributes(a=None)
        run.checkpoint(n=1)
    assert surehold.attributes_of("r", storage=manager) == {"b": 2}
    assert ids({"b": 2}, manager) == {"r"}
    assert ids({"a": 1}, manager) == set()


def test_what_no_header_can_hold_is_refused() -> None:
    for value in ([1], {}, float("nan"), datetime(2026, 1, 1), b"x"):
        with pytest.raises(UsageError, match="attribute 'a'"):
            surehold.set_attributes(a=value)  # type: ignore[arg-type]


def test_attributes_outlive_a_new_beginning(manager: CheckpointManager) -> None:
    @workflow
    def endless(number: int = 0) -> int:
        if number == 0:
            surehold.set_attributes(kind="endless")
        if number < 3:
            surehold.continue_as_new(number + 1)
        return number

    endless.run(run_id="r", storage=manager)
    assert ids({"kind": "endless"}, manager) == {"r"}


async def test_a_node_sets_them(manager: CheckpointManager) -> None:
    async def node(state: State) -> dict[str, Any]:
        await surehold.set_attributes(topic="kelp")
        return {}

    graph = StateGraph("report", storage=manager.storage)
    graph.add_node("only", node)
    graph.set_entry_point("only")
    graph.set_exit_point("only")
    await graph.run({}, run_id="r")
    assert ids({"topic": "kelp"}, manager) == {"r"}


def test_the_command_finds_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    fulfil.run("o1", euros=10.0, run_id="cheap", storage=url)
    fulfil.run("o2", euros=90.0, run_id="dear", storage=url)
    told = call("--storage", url, "runs", "--where", "packed=true", "--where", "euros>=50")
    assert "dear" in told.out and "cheap" not in told.out
    assert "euros" in call("--storage", url, "show", "dear").out
