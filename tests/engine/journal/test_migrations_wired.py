"""States of older versions, on their way through the managers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from surehold import (
    AgentState,
    CheckpointManager,
    FilesystemStorage,
    MemoryStorage,
    SQLiteStorage,
    State,
    StateManager,
    run,
)
from surehold.core.state.migration import Migrations
from surehold.engine.journal import append, reader
from surehold.errors import SchemaError
from surehold.storage.base import RecordQuery, Storage

KEY = "6b" * 32

MEDIA: dict[str, Callable[[Path], Storage]] = {
    "memory": lambda path: MemoryStorage(),
    "sqlite": lambda path: SQLiteStorage(path / "runs.db"),
    "file": lambda path: FilesystemStorage(path / "runs"),
}


@pytest.fixture(params=MEDIA)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    with MEDIA[request.param](tmp_path) as opened:
        yield opened


class Versions:
    """Stands for one release of the user's code after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.knows()

    def knows(self, *steps: tuple[str, int, int, Callable[[dict[str, Any]], Any]]) -> None:
        """From now on the code has just these migrations."""
        registry = Migrations()
        for step in steps:
            registry.register(*step)
        for module in (append, reader):
            self._monkeypatch.setattr(module, "migrations", registry)


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch) -> Versions:
    return Versions(monkeypatch)


def rename(state: dict[str, Any]) -> dict[str, Any]:
    return {"total": state.pop("sum"), **state}


def add_currency(state: dict[str, Any]) -> dict[str, Any]:
    return state | {"currency": "EUR"}


V1 = ("order", 0, 1, rename)
V2 = ("order", 1, 2, add_currency)


def order(**values: Any) -> State:
    return State.new({"sum": 5, "items": ["a", "b"]} | values, run_id="r", name="order")


def schemas(storage: Storage) -> list[int]:
    """The versions of a run's checkpoints, oldest first."""
    return [header.schema for header in storage.headers(RecordQuery(run_id="r"))][::-1]


def test_old_states_are_upgraded_when_they_are_loaded(storage: Storage, code: Versions) -> None:
    manager = CheckpointManager(storage)
    checkpoint_id = manager.save_checkpoint(order())
    code.knows(V1, V2)
    for opened in (manager, CheckpointManager(storage)):
        for state in (opened.load_checkpoint(checkpoint_id), opened.resume_from_latest("order")):
            assert isinstance(state, State)
            assert state.to_dict() == {"total": 5, "items": ["a", "b"], "currency": "EUR"}
            assert (state.run_id, state.name, state.checkpoint_id) == ("r", "order", checkpoint_id)


def test_what_is_stored_is_never_changed(storage: Storage, code: Versions) -> None:
    manager = CheckpointManager(storage)
    manager.save_checkpoint(order())
    before = list(storage.read("r"))
    code.knows(V1)
    manager.resume_from_latest("r")
    assert list(storage.read("r")) == before
    assert manager.history("r")[0].state["sum"] == 5
    code.knows()
    assert manager.resume_from_latest("r").to_dict() == {"sum": 5, "items": ["a", "b"]}


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_an_upgraded_state_is_gone_on_with_and_comes_back_exactly(
    storage: Storage, code: Versions, key: str | None
) -> None:
    manager = CheckpointManager(storage, encryption_key=key)
    state = order(text="x" * 100_000)
    for step in range(1, 4):
        state = state.append("items", step).at(step=step)
        manager.save_checkpoint(state)
    code.knows(V1, V2)
    for step in range(4, 8):
        state = manager.resume_from_latest("r")
        state = state.append("items", step).set("total", 5 + step).at(step=step)
        manager.save_checkpoint(state)
        loaded = CheckpointManager(storage, encryption_key=key).resume_from_latest("r")
        assert loaded == state
        assert loaded.to_dict() == {
            "total": 5 + step,
            "items": ["a", "b", *range(1, step + 1)],
            "text": "x" * 100_000,
            "currency": "EUR",
        }
    assert schemas(storage) == [0, 0, 0, 2, 2, 2, 2]
    assert not manager.verify("r")[0].problems


def test_each_release_upgrades_what_the_one_before_saved(storage: Storage, code: Versions) -> None:
    manager = CheckpointManager(storage)
    manager.save_checkpoint(order())
    code.knows(V1)
    manager.save_checkpoint(manager.resume_from_latest("r").at(step=1))
    code.knows(V1, V2)
    manager.save_checkpoint(manager.resume_from_latest("r").at(step=2))
    assert schemas(storage) == [0, 1, 2]
    found = [manager.load_checkpoint(one.checkpoint_id) for one in manager.list_checkpoints("r")]
    assert all(isinstance(state, State) and state["currency"] == "EUR" for state in found)


def test_a_state_of_newer_code_is_refused(storage: Storage, code: Versions) -> None:
    code.knows(V1, V2)
    manager = CheckpointManager(storage)
    checkpoint_id = manager.save_checkpoint(State.new({"total": 1}, run_id="r", name="order"))
    for known, steps in ((1, (V1,)), (0, ())):
        code.knows(*steps)
        for read in (
            lambda: manager.load_checkpoint(checkpoint_id),
            lambda: CheckpointManager(storage).resume_from_latest("order"),
        ):
            with pytest.raises(SchemaError, match="newer code") as caught:
                read()
            assert (caught.value.version, caught.value.known) == (2, known)
    assert manager.list_checkpoints("r")[0].checkpoint_id == checkpoint_id


def test_a_state_that_nothing_leads_from_says_what_to_register(
    storage: Storage, code: Versions
) -> None:
    manager = CheckpointManager(storage)
    manager.save_checkpoint(order())
    code.knows(V2)
    with pytest.raises(SchemaError) as caught:
        manager.resume_from_latest("r")
    assert "migrations.register('order', 0, 2, fn)" in caught.value.hint


def test_a_migration_that_fails_is_a_schema_error_and_harms_nothing(
    storage: Storage, code: Versions
) -> None:
    manager = CheckpointManager(storage)
    manager.save_checkpoint(order())
    code.knows(("order", 0, 1, lambda state: state["nothing"]))
    with pytest.raises(SchemaError, match="nothing"):
        manager.resume_from_latest("r")
    code.knows(V1)
    assert manager.resume_from_latest("r")["total"] == 5


def test_other_names_are_left_alone(storage: Storage, code: Versions) -> None:
    manager = CheckpointManager(storage)
    code.knows(V1)
    manager.save_checkpoint(State.new({"sum": 1}, run_id="other", name="invoice"))
    manager.save_checkpoint(State.new({"sum": 2}, run_id="nameless"))
    assert manager.resume_from_latest("invoice")["sum"] == 1
    assert manager.resume_from_latest("nameless")["sum"] == 2


def test_a_state_without_a_name_has_the_version_of_its_runs_name(
    storage: Storage, code: Versions
) -> None:
    code.knows(V1)
    manager = CheckpointManager(storage)
    manager.save_checkpoint(State.new({"total": 1}, run_id="r", name="order"))
    manager.save_checkpoint(State.new({"total": 2}, run_id="r").at(step=1))
    assert schemas(storage) == [1, 1]
    assert CheckpointManager(storage).resume_from_latest("r")["total"] == 2


def test_a_fork_of_an_old_state_is_upgraded_when_it_is_loaded(
    storage: Storage, code: Versions
) -> None:
    manager = CheckpointManager(storage)
    checkpoint_id = manager.save_checkpoint(order())
    code.knows(V1)
    fork = manager.fork_from_checkpoint(checkpoint_id, "f")
    assert isinstance(fork, State)
    assert fork["total"] == 5
    manager.save_checkpoint(fork.set("total", 6).at(step=1))
    assert manager.resume_from_latest("f")["total"] == 6


def test_an_agents_state_is_upgraded_too(storage: Storage, code: Versions) -> None:
    manager = CheckpointManager(storage)
    state = AgentState(agent_id="bot", memory_contents={"sum": 5})
    manager.save_checkpoint(state)

    def tidy(values: dict[str, Any]) -> dict[str, Any]:
        memory = values["memory_contents"]
        return values | {"memory_contents": {"total": memory["sum"]}, "mood": "good"}

    code.knows(("bot", 0, 1, tidy))
    loaded = manager.resume_from_latest("bot")
    assert isinstance(loaded, AgentState)
    assert loaded.memory_contents == {"total": 5}
    assert loaded.extra == {"mood": "good"}
    loaded.step_number = 1
    manager.save_checkpoint(loaded)
    assert CheckpointManager(storage).resume_from_latest("bot") == loaded


def test_the_awaited_manager_and_surehold_run_upgrade_as_well(
    storage: Storage, code: Versions
) -> None:
    with run("r", storage=storage, name="order") as job:
        job.checkpoint(sum=5)
    code.knows(V1)

    async def resumed() -> Any:
        async with StateManager(storage) as manager:
            return await manager.resume_from_latest("r")

    assert asyncio.run(resumed())["total"] == 5
    with run("r", storage=storage, name="order") as job:
        assert job.state == {"total": 5}


def test_imported_states_are_upgraded_when_they_are_loaded(
    storage: Storage, code: Versions, tmp_path: Path
) -> None:
    with CheckpointManager("memory://") as source:
        source.save_checkpoint(order())
        source.export_run("r", tmp_path / "a.surehold")
    code.knows(V1)
    manager = CheckpointManager(storage)
    manager.import_run(tmp_path / "a.surehold")
    assert schemas(storage) == [0]
    assert manager.resume_from_latest("r")["total"] == 5
