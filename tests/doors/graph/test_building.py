"""Building a graph: nodes, edges, predicates, configuration, and what is refused."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from surehold import (
    CheckpointConfig,
    GraphConfig,
    State,
    StateGraph,
    StateManager,
    all_of,
    any_of,
    key_equals,
    key_exists,
    not_,
)
from surehold.doors.graph import graph as graph_module
from surehold.errors import NotFoundError, UsageError


def plain(state: State) -> None:
    return None


def problems_of(graph: StateGraph) -> str:
    with pytest.raises(UsageError) as caught:
        graph.validate()
    return "; ".join(caught.value.problems)


def small() -> StateGraph:
    graph = StateGraph()
    graph.add_node("a", plain)
    graph.add_node("b", plain)
    graph.add_edge("a", "b")
    graph.set_entry_point("a")
    graph.set_exit_point("b")
    return graph


def test_a_sound_graph_validates() -> None:
    small().validate()


def test_validate_finds_unreachable_nodes() -> None:
    graph = small()
    graph.add_node("island", plain)
    graph.add_edge("island", "b")
    assert problems_of(graph) == "nothing leads to 'island'"


def test_validate_finds_missing_targets_and_sources() -> None:
    graph = small()
    graph.add_edge("a", "nowhere")
    graph.add_edge("noone", "b")
    found = problems_of(graph)
    assert "'nowhere' is not a node" in found and "'noone' is not a node" in found


def test_validate_finds_dead_ends() -> None:
    graph = small()
    graph.add_node("pit", plain)
    graph.add_edge("a", "pit")
    assert problems_of(graph) == "node 'pit' has no outgoing edge and is not an exit point"


@pytest.mark.parametrize("missing", ["entry", "exit", "nodes"])
def test_validate_finds_what_is_missing(missing: str) -> None:
    graph = StateGraph()
    if missing != "nodes":
        graph.add_node("a", plain)
        graph.add_edge("a", "a")
    if missing == "exit":
        graph.set_entry_point("a")
    if missing == "entry":
        graph.set_exit_point("a")
    assert {"entry": "no entry point", "exit": "no exit point", "nodes": "no nodes"}[
        missing
    ] in problems_of(graph)


def test_validate_finds_an_exit_that_cannot_be_reached() -> None:
    graph = small()
    graph.add_node("c", plain)
    graph = StateGraph()
    graph.add_node("a", plain)
    graph.add_node("b", plain)
    graph.add_edge("a", "a")
    graph.set_entry_point("a")
    graph.set_exit_point("b")
    assert "no exit point can be reached" in problems_of(graph)


def test_validate_looks_into_nested_graphs() -> None:
    inner = StateGraph(GraphConfig(name="inner"))
    inner.add_node("x", plain)
    graph = small()
    graph.add_node("c", inner)
    graph.add_edge("a", "c", lambda state: False)
    graph.add_edge("c", "b")
    assert "in node 'c': it has no entry point" in problems_of(graph)


def test_a_graph_that_holds_itself_is_found() -> None:
    graph, inner = small(), small()
    inner.add_node("outer", graph)
    inner.add_edge("a", "outer")
    inner.add_edge("outer", "b")
    graph.add_node("inner", inner)
    graph.add_edge("a", "inner")
    graph.add_edge("inner", "b")
    assert "holds this one" in problems_of(graph)
    with pytest.raises(UsageError):
        graph.add_node("me", graph)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda graph: graph.add_node("a", plain),
        lambda graph: graph.add_node("", plain),
        lambda graph: graph.add_node("c", None),
        lambda graph: graph.add_edge("a", "b", "have pages"),
        lambda graph: graph.set_entry_point("b"),
    ],
)
def test_what_cannot_be_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(UsageError):
        wrong(small())


def test_predicates_say_what_they_mean() -> None:
    state = State.new({"pages": [1, {"x": 2}], "n": 1, "none": None})
    assert key_exists("pages")(state) and key_exists("none")(state)
    assert not key_exists("other")(state)
    assert key_equals("n", 1)(state) and not key_equals("n", 2)(state)
    assert key_equals("pages", [1, {"x": 2}])(state)
    assert not key_equals("other", None)(state)
    assert not_(key_exists("other"))(state)
    assert all_of()(state) and not any_of()(state)
    assert all_of(key_exists("n"), key_equals("n", 1))(state)
    assert not all_of(key_exists("n"), key_exists("other"))(state)
    assert any_of(key_exists("other"), key_exists("n"))(state)
    with pytest.raises(UsageError):
        not_("n")  # type: ignore[arg-type]


def test_predicates_that_are_joined_stop_at_the_first_that_decides() -> None:
    def never(state: State) -> bool:
        raise AssertionError

    state = State.new({"n": 1})
    assert any_of(key_exists("n"), never)(state)
    assert not all_of(key_exists("other"), never)(state)


def test_the_defaults_are_the_seeds() -> None:
    config = GraphConfig()
    assert (config.checkpoint.store, config.checkpoint.interval) == ("memory", 0)
    assert (config.checkpoint.preserve, config.max_iterations) == (False, 1000)


def test_an_interval_below_zero_is_an_error() -> None:
    with pytest.raises(UsageError, match="interval is -1"):
        CheckpointConfig(interval=-1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"interval": 1.5},
        {"interval": True},
        {"keep": 0},
        {"seconds": 0},
        {"lease_seconds": 0},
        {"nodes": [1]},
    ],
)
def test_other_impossible_settings_are_errors_too(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CheckpointConfig(**wrong)


def test_interval_zero_resolves_no_store() -> None:
    graph = StateGraph(GraphConfig(checkpoint=CheckpointConfig(store="no such store")))
    with pytest.raises(UsageError, match="checkpointing is off"):
        graph.manager  # noqa: B018


def test_a_manager_without_checkpoints_is_refused() -> None:
    with pytest.raises(UsageError, match="checkpointing is off"):
        StateGraph(manager=StateManager("memory://"))


def test_an_unknown_store_fails_when_the_graph_is_built() -> None:
    with pytest.raises(NotFoundError, match="no such store"):
        StateGraph(GraphConfig(checkpoint=CheckpointConfig(store="no such store", interval=1)))


def test_an_unknown_observer_fails_when_the_graph_is_built() -> None:
    with pytest.raises(NotFoundError, match="no observer"):
        StateGraph(GraphConfig(observer="nobody"))


def test_memory_says_once_that_it_does_not_survive(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_module, "_said", set())
    with caplog.at_level(logging.WARNING, "surehold.graph"):
        for _ in range(3):
            StateGraph(GraphConfig(checkpoint=CheckpointConfig(interval=1)))
    assert [record.message[:42] for record in caplog.records] == [
        "the store memory does not survive the proc"
    ]


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_configuration_comes_from_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"graph.{suffix}"
    tree = {
        "name": "report",
        "observer": "log",
        "max_iterations": 7,
        "checkpoint": {"store": "memory", "interval": 2, "preserve": True, "nodes": ["a"]},
    }
    path.write_text(json.dumps(tree))
    config = GraphConfig.from_file(path)
    assert (config.name, config.max_iterations, config.observer) == ("report", 7, "log")
    assert config.checkpoint == CheckpointConfig(interval=2, preserve=True, nodes=("a",))


def test_preserve_can_be_turned_off_by_a_file() -> None:
    config = GraphConfig.from_mapping({"checkpoint": {"preserve": False, "interval": 1}})
    assert config.checkpoint.preserve is False


@pytest.mark.parametrize("text", ["[]", "{", "checkpiont: {}", "checkpoint: {intervall: 1}"])
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str) -> None:
    path = tmp_path / "graph.yaml"
    path.write_text(text)
    with pytest.raises(UsageError):
        GraphConfig.from_file(path)


def test_checkpoints_at_a_node_that_is_not_there_are_found() -> None:
    graph = StateGraph(GraphConfig(checkpoint=CheckpointConfig(nodes=["reviw"])))
    graph.add_node("review", plain)
    graph.set_entry_point("review")
    graph.set_exit_point("review")
    assert "'reviw': it is not a node" in problems_of(graph)
