"""The twenty-one tests that the document of the state graph names, under their names.

Two differ on purpose, see `docs/migrating.md`: a save does not overwrite the one before it (the
newest is loaded), and a run that stopped at an exit point gives its result instead of an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from surehold import (
    CheckpointConfig,
    CheckpointManager,
    GraphConfig,
    MemoryStorage,
    State,
    StateGraph,
    get_checkpoint_store,
    register_checkpoint_store,
)
from surehold.errors import NotFoundError, UsageError
from surehold.storage import registry
from surehold.storage.base import RunQuery

Manager = CheckpointManager


@pytest.fixture(autouse=True)
def fresh_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered stores, `memory` among them, last for one test."""
    monkeypatch.setattr(registry, "_named", {"memory": registry._Named("memory", MemoryStorage)})


@pytest.fixture
def store() -> Manager:
    return CheckpointManager(MemoryStorage())


def node(key: str, value: str) -> Callable[[State], State]:
    return lambda state: state.set(key, value)


def chain(*names: str, **checkpoint: object) -> StateGraph:
    """A graph of nodes one after another, each of which sets ``result`` to its name."""
    config = CheckpointConfig(**checkpoint)  # type: ignore[arg-type]
    graph = StateGraph(GraphConfig("test", checkpoint=config))
    for name in names:
        graph.add_node(name, node("result", name))
    for before, after in itertools.pairwise(names):
        graph.add_edge(before, after)
    graph.set_entry_point(names[0])
    graph.set_exit_point(names[-1])
    return graph


class TestStateCheckpointMetadata:
    def test_metadata_initialization(self) -> None:
        state = State.new()
        assert state.run_id and not state.checkpoint_node
        assert state.timestamp is not None

    def test_set_checkpoint_node_immutability(self) -> None:
        state = State.new()
        marked = state.set_checkpoint_node("node1")
        assert marked.checkpoint_node == "node1" and not state.checkpoint_node
        assert marked.run_id == state.run_id
        assert marked.timestamp >= state.timestamp

    def test_clone_preservation(self) -> None:
        state = State.new().set("key", "value").set_checkpoint_node("node1")
        copied = state.clone()
        assert (copied.run_id, copied.checkpoint_node) == (state.run_id, "node1")
        assert copied.timestamp == state.timestamp and copied.get("key") == "value"

    def test_set_preservation(self) -> None:
        state = State.new().set_checkpoint_node("node1")
        changed = state.set("key", "value")
        assert (changed.run_id, changed.checkpoint_node) == (state.run_id, "node1")
        assert changed.timestamp == state.timestamp

    def test_merge_preservation(self) -> None:
        state = State.new().set("key1", "value1").set_checkpoint_node("node1")
        merged = state.merge(State.new().set("key2", "value2"))
        assert (merged.run_id, merged.checkpoint_node) == (state.run_id, "node1")
        assert (merged.get("key1"), merged.get("key2")) == ("value1", "value2")


class TestMemoryCheckpointStore:
    def test_save_and_load(self, store: Manager) -> None:
        state = State.new().set("key", "value").set_checkpoint_node("node1")
        store.save_checkpoint(state)
        loaded = store.resume_from_latest(state.run_id)
        assert loaded is not None
        assert (loaded.run_id, loaded.checkpoint_node) == (state.run_id, "node1")
        assert loaded.get("key") == "value"

    def test_load_not_found_error(self, store: Manager) -> None:
        with pytest.raises(NotFoundError):
            store.load_checkpoint("nonexistent-id")

    def test_delete(self, store: Manager) -> None:
        state = State.new()
        checkpoint = store.save_checkpoint(state)
        store.delete_run(state.run_id)
        with pytest.raises(NotFoundError):
            store.load_checkpoint(checkpoint)

    def test_list(self, store: Manager) -> None:
        states = [State.new(), State.new()]
        for state in states:
            store.save_checkpoint(state)
        listed = {run.run_id for run in store.storage.runs(RunQuery())}
        assert listed == {state.run_id for state in states}

    def test_overwrite_behavior(self, store: Manager) -> None:
        state = State.new().set("key", "value1")
        first = store.save_checkpoint(state)
        store.save_checkpoint(state.set("key", "value2").set_checkpoint_node("node2"))
        loaded = store.resume_from_latest(state.run_id)
        assert loaded is not None
        assert (loaded.get("key"), loaded.checkpoint_node) == ("value2", "node2")
        earlier = store.load_checkpoint(first)
        assert earlier.get("key") == "value1", "history is kept"


class TestRegistryPattern:
    def test_get_default_store(self) -> None:
        assert get_checkpoint_store("memory") is get_checkpoint_store("memory")

    def test_get_nonexistent_store_error(self) -> None:
        with pytest.raises(NotFoundError, match="nonexistent"):
            get_checkpoint_store("nonexistent")

    def test_register_custom_store(self) -> None:
        custom = MemoryStorage()
        register_checkpoint_store("custom", custom)
        assert get_checkpoint_store("custom") is custom


class TestGraphCheckpointIntegration:
    async def test_disabled_checkpointing(self) -> None:
        final = await chain("node1", "node2", interval=0).execute(State.new())
        assert final.checkpoint_node == "node2", "set even though nothing is saved"
        assert [*get_checkpoint_store("memory").runs(RunQuery())] == []

    async def test_save_at_interval(self) -> None:
        seen: list[str | None] = []
        graph = StateGraph(GraphConfig("test", checkpoint=CheckpointConfig(interval=1)))

        def look(state: State) -> None:
            newest = CheckpointManager("memory").resume_from_latest(state.run_id)
            seen.append(newest.checkpoint_node)

        for name in ("node1", "node2", "node3"):
            graph.add_node(name, look)
        graph.add_edge("node1", "node2")
        graph.add_edge("node2", "node3")
        graph.set_entry_point("node1")
        graph.set_exit_point("node3")
        await graph.execute(State.new())
        assert seen[1:] == ["node1", "node2"], "each node finds the one before it saved"
        runs = get_checkpoint_store("memory").runs(RunQuery())
        assert [*runs] == [], "deleted after completion without preserve"

    async def test_preserve_on_success(self) -> None:
        state = State.new()
        await chain("node1", "node2", interval=1, preserve=True).execute(state)
        loaded = CheckpointManager("memory").resume_from_latest(state.run_id)
        assert loaded is not None and loaded.checkpoint_node == "node2"

    async def test_resume_from_checkpoint(self) -> None:
        executed: list[str] = []

        def failing_once(state: State) -> State:
            executed.append("node2")
            if executed.count("node2") == 1:
                raise ConnectionError("no network")
            return state.set("result", "node2")

        graph = StateGraph(
            GraphConfig("test", checkpoint=CheckpointConfig(interval=1, preserve=True))
        )
        graph.add_node("node1", lambda state: executed.append("node1"))
        graph.add_node("node2", failing_once)
        graph.add_node("node3", node("result", "node3"))
        graph.add_edge("node1", "node2")
        graph.add_edge("node2", "node3")
        graph.set_entry_point("node1")
        graph.set_exit_point("node3")
        state = State.new()
        with pytest.raises(Exception, match="no network"):
            await graph.execute(state)
        final = await graph.resume(state.run_id)
        assert (final.run_id, final["result"]) == (state.run_id, "node3")
        assert executed == ["node1", "node2", "node2"]

    async def test_resume_with_checkpointing_disabled(self) -> None:
        with pytest.raises(UsageError):
            await chain("node1", interval=0).resume("any-id")

    async def test_resume_checkpoint_not_found(self) -> None:
        with pytest.raises(NotFoundError):
            await chain("node1", interval=1).resume("nonexistent-id")


class TestEdgeCases:
    async def test_resume_at_exit_point(self) -> None:
        graph = chain("node1", interval=1, preserve=True)
        state = State.new()
        await graph.execute(state)
        again = await graph.resume(state.run_id)
        assert (again.status, again["result"]) == ("completed", "node1")

    def test_checkpoint_convenience_method(self, store: Manager) -> None:
        state = State.new().set("key", "value").set_checkpoint_node("node1")
        state.checkpoint(store)
        loaded = store.resume_from_latest(state.run_id)
        assert loaded is not None and loaded.run_id == state.run_id
