"""The stores of the state graph's document: four verbs, a registry, a store of one's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.shelf import Shelf

from surehold import (
    Event,
    GraphConfig,
    MemoryStorage,
    State,
    StateGraph,
    get_checkpoint_store,
    register_checkpoint_store,
)
from surehold.errors import NotFoundError, UsageError
from surehold.storage import registry


@pytest.fixture(autouse=True)
def fresh_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_named", {"memory": registry._Named("memory", MemoryStorage)})


class Table:
    """A store that keeps columns of its own: what the document calls a database store."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[State, Any]] = {}

    def save(self, state: State) -> None:
        self.rows[state.run_id] = state, state.get("topic")

    def load(self, run_id: str) -> State:
        return self.rows[run_id][0]

    def delete(self, run_id: str) -> None:
        self.rows.pop(run_id, None)

    def list(self) -> list[str]:
        return [*self.rows]


def graph(config: GraphConfig) -> StateGraph:
    made = StateGraph(config)
    made.add_node("node1", lambda state: state.set("topic", "kelp"))
    made.add_node("node2", lambda state: state.set("pages", 3))
    made.add_edge("node1", "node2")
    made.set_entry_point("node1")
    made.set_exit_point("node2")
    return made


@pytest.mark.parametrize("medium", ["memory", "file", "sqlite", "own"])
def test_every_registered_store_has_the_four_verbs(medium: str, tmp_path: Path) -> None:
    made: Any = {
        "memory": MemoryStorage,
        "file": lambda: registry.open_storage(f"file:{tmp_path}/runs"),
        "sqlite": lambda: registry.open_storage(f"sqlite:///{tmp_path}/runs.db"),
        "own": Table,
    }[medium]
    register_checkpoint_store("disk", made)
    store = get_checkpoint_store("disk")
    state = State.new({"topic": "kelp"}).set_checkpoint_node("node1")
    store.save(state)
    store.save(state.set("pages", 3).set_checkpoint_node("node2"))
    loaded = store.load(state.run_id)
    assert (loaded.run_id, loaded.checkpoint_node) == (state.run_id, "node2")
    assert loaded.to_dict() == {"topic": "kelp", "pages": 3}
    assert store.list() == [state.run_id]
    store.delete(state.run_id)
    assert store.list() == []
    with pytest.raises(NotFoundError):
        store.load(state.run_id)


def test_a_state_saves_itself_to_a_store_of_ones_own() -> None:
    table = Table()
    state = State.new({"topic": "kelp"}).set_checkpoint_node("node1")
    state.checkpoint(table)
    state.set("topic", "dulse").checkpoint(table)
    ((kept, topic),) = table.rows.values()
    assert (kept.run_id, kept.checkpoint_node, topic) == (state.run_id, "node1", "dulse")


async def test_a_store_of_ones_own_is_given_the_state(tmp_path: Path) -> None:
    table = Table()
    register_checkpoint_store("disk", table)
    cfg = GraphConfig("reports")
    cfg.checkpoint.store = "disk"
    cfg.checkpoint.interval = 1
    cfg.checkpoint.preserve = True
    async with graph(cfg) as made:
        final = await made.execute(State.new())
    (kept, topic) = table.rows[final.run_id]
    assert (topic, kept["pages"], kept.checkpoint_node) == ("kelp", 3, "node2")
    another = Table()
    another.rows = {final.run_id: (State.new(kept.to_dict(), run_id=final.run_id), None)}
    register_checkpoint_store("disk", another)
    async with graph(cfg) as made:
        assert (await made.resume(final.run_id))["pages"] == 3


def test_the_document_of_a_json_store_can_be_read(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    state = State.new({"topic": "kelp"})
    state.checkpoint(shelf)
    (file,) = tmp_path.iterdir()
    assert json.loads(file.read_text())["values"]["topic"] == "kelp"


def test_the_settings_of_a_config_are_checked_when_a_graph_is_made() -> None:
    cfg = GraphConfig("reports")
    cfg.checkpoint.interval = -5
    with pytest.raises(UsageError, match="interval is -5"):
        StateGraph(cfg)
    with pytest.raises(AttributeError):
        cfg.checkpoint.intervall = 5  # type: ignore[attr-defined]
    cfg.checkpoint.interval = 1
    made = StateGraph(cfg)
    cfg.checkpoint.interval = 7
    assert made.config.checkpoint.interval == 1


def test_a_state_holds_an_observer() -> None:
    class Observer:
        def __init__(self, fails: bool = False) -> None:
            self.seen: list[Event] = []
            self.fails = fails

        def on_event(self, event: Event) -> None:
            self.seen.append(event)
            if self.fails:
                raise ConnectionError("no collector")

    observer = Observer()
    state = State.new({"a": 1}, observer=observer)
    changed = state.set("b", 2).merge({"c": 3, "d": 4}).clone()
    assert [event.type for event in observer.seen] == [
        "state.create",
        "state.set",
        "state.merge",
        "state.clone",
    ]
    assert observer.seen[1].data == {"run_id": state.run_id, "node": None, "key": "b"}
    assert changed.keys() == ["a", "b", "c", "d"]
    with pytest.warns(RuntimeWarning, match="no collector") as told:
        failing = State.new({"a": 1}, observer=Observer(fails=True))
        assert failing.set("b", 2).set("c", 3)["c"] == 3
    assert len(told) == 1
    with pytest.raises(UsageError, match="on_event"):
        State.new(observer=print)  # type: ignore[arg-type]
