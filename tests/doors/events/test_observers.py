"""Observers: what they are told, and that they change nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.builders.graphs import Counting, Heard, line

from surehold import (
    ChainNode,
    CheckpointConfig,
    ConditionalNode,
    Event,
    GraphConfig,
    Observer,
    ParallelNode,
    State,
    StateGraph,
    effect,
    interrupt,
    register_observer,
)
from surehold.doors.events.observers import LogObserver, NoopObserver, get_observer
from surehold.errors import Interrupted, NotFoundError, StepError, UsageError


async def test_a_run_tells_its_story_in_order(db: str) -> None:
    heard = Heard()
    async with Counting(2).graph(store=db, interval=1, observer=heard, name="count") as graph:
        await graph.execute(State.new({"n": 0}, run_id="r"))
    assert heard.types() == [
        *("lease.taken", "state.create", "graph.start", "checkpoint.save"),
        *("node.start", "state.set", "node.complete"),
        *("edge.evaluate", "edge.evaluate", "edge.transition", "checkpoint.save"),
        *("cycle.detected", "node.start", "state.set", "node.complete"),
        *("edge.evaluate", "edge.transition", "checkpoint.save"),
        *("node.start", "state.set", "node.complete", "checkpoint.save", "graph.complete"),
        "lease.released",
    ]
    assert all(event.source == "count" for event in heard.events)
    assert all(event.data["run_id"] == "r" for event in heard.events)
    assert heard.of("graph.start")[0] == {"run_id": "r", "entry_point": "up", "exit_points": 1}
    assert heard.of("graph.complete")[0]["iterations"] == 3
    assert heard.of("cycle.detected")[0]["visit_count"] == 2
    taken = heard.of("edge.transition")[1]
    assert (taken["from"], taken["to"], taken["edge_name"]) == ("up", "done", "enough")
    assert taken["predicate_result"] is True


async def test_a_resume_tells_where_it_goes_on(db: str) -> None:
    counting, heard = Counting(3), Heard()
    counting.fails_at = 1
    async with counting.graph(store=db, interval=1, observer=heard) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"n": 0}, run_id="r"))
        assert heard.of("run.failed") == [{"run_id": "r", "node": "up", "error": "ValueError"}]
        assert heard.of("node.complete")[-1]["error"] == "ValueError"
        counting.fails_at = None
        heard.events.clear()
        await graph.resume("r")
    assert heard.types()[:4] == [
        *("lease.taken", "checkpoint.load", "checkpoint.resume", "graph.start")
    ]
    resumed = heard.of("checkpoint.resume")[0]
    assert resumed == {"run_id": "r", "checkpoint_node": "up", "resume_node": "up"}
    assert heard.of("graph.start")[0]["entry_point"] == "up"
    assert heard.of("graph.start")[0]["resumed"] is True


async def test_parts_of_nodes_and_effects_and_questions_are_told(db: str) -> None:
    async def asks(state: State) -> None:
        await effect("call", lambda: 1)
        await interrupt("?")

    heard = Heard()
    nodes: list[Any] = [
        ChainNode([1], lambda item, state: None),
        ParallelNode([1], lambda item: item, into="x"),
        ConditionalNode(lambda state: "a", {"a": lambda state: None}),
        asks,
    ]
    async with line(*nodes, store=db, interval=1, observer=heard) as graph:
        with pytest.raises(Interrupted):
            await graph.execute(State.new({}, run_id="r"))
    assert {
        *("chain.start", "step.start", "step.complete", "chain.complete"),
        *("parallel.start", "worker.start", "worker.complete", "parallel.complete"),
        *("route.evaluate", "route.select", "route.execute"),
        *("effect.start", "effect.complete", "run.waiting"),
    } <= set(heard.types())
    assert heard.of("chain.complete")[0]["steps_completed"] == 1
    assert heard.of("parallel.start")[0]["item_count"] == 1
    assert heard.of("route.select")[0]["route"] == "a"


async def test_values_are_in_events_only_when_asked_for() -> None:
    for snapshots in (False, True):
        heard = Heard()
        graph = Counting(1).graph(observer=heard, snapshots=snapshots)
        await graph.execute({"n": 0, "password": "hunter2"})
        assert ("hunter2" in repr(heard.events)) is snapshots
    assert heard.of("node.start")[0]["input_snapshot"] == {"n": 0, "password": "hunter2"}
    assert heard.of("node.complete")[0]["output_snapshot"]["n"] == 1


async def test_an_observer_that_raises_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def on_event(self, event: Event) -> None:
            raise RuntimeError("broken")

    heard = Heard()
    graph = Counting(2).graph(observer=[Broken(), heard])
    with caplog.at_level(logging.WARNING, "surehold.graph"):
        assert (await graph.execute({"n": 0}))["n"] == 2
    assert "graph.complete" in heard.types()
    (told,) = (one for one in caplog.records if "Broken" in one.getMessage())
    assert "its later failures in this run are not logged" in told.getMessage()


async def test_several_observers_by_name_and_by_object() -> None:
    heard, other = Heard(), Heard()
    register_observer("mine", heard)
    register_observer("made", lambda: other)
    graph = Counting(1).graph(observer=["mine", "made", "noop"])
    await graph.execute({"n": 0})
    assert heard.types() == other.types() != []


def test_the_registry_knows_its_own() -> None:
    assert isinstance(get_observer("noop"), NoopObserver)
    assert isinstance(get_observer("log"), LogObserver)
    assert isinstance(Heard(), Observer)
    with pytest.raises(NotFoundError, match="there are: drift, log"):
        get_observer("nobody")
    with pytest.raises(UsageError):
        register_observer("", Heard())
    with pytest.raises(UsageError):
        register_observer("x", object())  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        StateGraph(GraphConfig(observer=[object()]))  # type: ignore[list-item]


async def test_the_log_observer_logs_failures_as_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counting = Counting(3)
    counting.fails_at = 1
    graph = counting.graph(observer="log", name="count")
    with caplog.at_level(logging.INFO, "surehold.graph"), pytest.raises(StepError):
        await graph.execute({"n": 0})
    levels = {record.levelname for record in caplog.records}
    assert levels == {"INFO", "WARNING"}
    assert any("count run.failed" in record.message for record in caplog.records)


async def test_noop_makes_no_events(monkeypatch: pytest.MonkeyPatch) -> None:
    from surehold.doors.events import observers

    monkeypatch.setattr(observers, "Event", None)
    assert (await Counting(1).graph(observer="noop").execute({"n": 0}))["n"] == 1


async def test_observers_are_attached_anew_on_resume(db: str) -> None:
    counting = Counting(2)
    counting.fails_at = 1
    async with counting.graph(store=db, interval=1) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"n": 0}, run_id="r"))
    heard = Heard()
    counting.fails_at = None
    async with counting.graph(store=db, interval=1, observer=heard) as graph:
        await graph.resume("r")
    assert heard.types().count("node.complete") == 2


def test_a_configuration_with_checkpoints_keeps_its_observer() -> None:
    config = GraphConfig(observer="log", checkpoint=CheckpointConfig())
    assert config.observer == "log"
