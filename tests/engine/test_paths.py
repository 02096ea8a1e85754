"""Short paths: storage calls per operation, and functions that a save enters."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.builders.counting import Counting

from surehold import CheckpointManager, HookManager, State, StateManager
from surehold.core.policy.rules import Rules
from surehold.errors import ConflictError

KEY = bytes(32)


def _hooks() -> HookManager:
    hooks = HookManager()
    hooks.register("pre_checkpoint_save", lambda context: None)
    hooks.register("post_checkpoint_save", lambda context: None)
    return hooks


OPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "retention": lambda: {"retention": Rules(keep_last=3)},
    "retention_count": lambda: {"retention_count": 3},
    "encryption": lambda: {"encryption_key": KEY},
    "hooks": lambda: {"hook_manager": _hooks()},
}


BESIDE_A_FORK = {
    "encryption": frozenset(["headers"]),
    "retention": frozenset(["page"]),
    "retention_count": frozenset(["headers", "runs", "lease_of"]),
}
"""A new run's key is looked for, and retention looks at the runs it is counted with."""


class Calls:
    """Calls a manager, blocking or awaited, and counts what reaches its storage."""

    def __init__(self, awaited: bool, options: dict[str, Any]) -> None:
        self.storage = Counting()
        self._loop = asyncio.new_event_loop()
        self._awaited = awaited
        cls = StateManager if awaited else CheckpointManager
        self._manager = cls(self.storage, **options)
        self.allowed: frozenset[str] = frozenset()

    def __call__(self, name: str, *args: Any) -> Any:
        self.storage.calls.clear()
        result = getattr(self._manager, name)(*args)
        return self._loop.run_until_complete(result) if self._awaited else result

    def close(self) -> None:
        if self._awaited:
            self._loop.run_until_complete(self._manager.close())  # type: ignore[arg-type]
        self._loop.close()


@pytest.fixture(params=["blocking", "awaited"])
def awaited(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "awaited")


@pytest.fixture(params=[*OPTIONS])
def calls(request: pytest.FixtureRequest, awaited: bool) -> Iterator[Calls]:
    made = Calls(awaited, OPTIONS[request.param]())
    made.allowed = BESIDE_A_FORK.get(request.param, frozenset())
    yield made
    made.close()


def _saved(calls: Calls, count: int = 8) -> State:
    state = State.new({"n": 0}, run_id="run", name="job")
    for step in range(1, count + 1):
        state = state.set("n", step).at(step=step)
        calls("save_checkpoint", state)
    return state


def test_a_save_is_one_storage_call(calls: Calls) -> None:
    state = _saved(calls)
    for step in range(20, 25):
        state = state.set("n", step).at(step=step)
        calls("save_checkpoint", state)
        assert calls.storage.calls == ["append"]


def test_the_first_save_of_a_run_is_one_storage_call(awaited: bool) -> None:
    calls = Calls(awaited, {})
    calls("save_checkpoint", State.new({"n": 0}, run_id="run"))
    assert calls.storage.calls == ["append"]
    calls.close()


def test_a_run_that_is_there_is_not_taken_for_a_new_one(awaited: bool) -> None:
    calls = Calls(awaited, {})
    calls("save_checkpoint", State.new({"n": 0}, run_id="run"))
    other = CheckpointManager(calls.storage)
    with pytest.raises(ConflictError, match="not loaded from it"):
        other.save_checkpoint(State.new({"n": 1}, run_id="run"))
    loaded = other.resume_from_latest("run")
    other.save_checkpoint(loaded.set("n", 2).at(step=1))
    assert [record.header.seq for record in calls.storage.read("run")] == [1, 2]
    calls.close()


def test_a_resume_is_two_storage_calls(calls: Calls) -> None:
    _saved(calls)
    assert calls("resume_from_latest", "run")["n"] == 8
    assert calls.storage.calls == ["head_and_newest", "read"]
    state = calls("resume_from_latest", "run")
    calls("save_checkpoint", state.set("n", 9).at(step=9))
    assert calls.storage.calls == ["append"]


def test_a_fork_is_three_storage_calls_and_reads_no_state_twice(calls: Calls) -> None:
    state = _saved(calls)
    calls("fork_from_checkpoint", state.checkpoint_id, "warm")
    forking = [call for call in calls.storage.calls if call not in calls.allowed]
    assert set(forking) == {"find", "read", "append"} and len(forking) == 3
    made = calls("fork_from_checkpoint", state.checkpoint_id, "other")
    assert made["n"] == 8 and made.run_id == "other"
    again = [call for call in calls.storage.calls if call not in calls.allowed]
    assert again == ["find", "append"]
    calls("save_checkpoint", made.set("n", 9).at(step=9))
    assert [call for call in calls.storage.calls if call not in calls.allowed] == ["append"]


def test_a_page_of_a_listing_is_one_storage_call(calls: Calls) -> None:
    _saved(calls)
    calls("pin", calls("latest", "run").checkpoint_id)
    for about in ("run", "job", None):
        assert len(calls("list_checkpoints", about)) >= 3
        assert calls.storage.calls == ["page"]
