"""One constructor shape: a name and a storage make a graph, an agent or a fleet durable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.builders.fleets import TEAM, manager

import surehold
from surehold import (
    Agent,
    AgentConfig,
    AgentState,
    AsyncCheckpointManager,
    AutonomousConfig,
    BaseAutonomousAgent,
    CheckpointConfig,
    CheckpointManager,
    Event,
    Fleet,
    GraphConfig,
    MemoryStorage,
    Reply,
    RunQuery,
    RunResult,
    State,
    StateGraph,
    StateManager,
    Usage,
)
from surehold.doors.result import ModelSpent
from surehold.errors import UsageError
from surehold.testing.scripted import ScriptedModel


def two_nodes(graph: StateGraph, calls: list[str] | None = None) -> StateGraph:
    def work(state: State) -> dict[str, int]:
        if calls is not None:
            calls.append("a")
        return {"n": state["n"] + 1}

    graph.add_node("a", work)
    graph.add_node("b", work)
    graph.add_edge("a", "b")
    graph.set_entry_point("a")
    graph.set_exit_point("b")
    return graph


def checkpoints(storage: Any, run_id: str) -> list[int]:
    with CheckpointManager(storage) as manager:
        return [one.step for one in manager.list_checkpoints(run_id)]


def agent_of(name: Any, script: list[Any], **options: Any) -> Agent:
    return Agent(name, model=ScriptedModel(script), report=lambda line: None, **options)


def test_the_old_names_are_the_same_classes_or_made_of_them() -> None:
    assert BaseAutonomousAgent is Agent
    assert AutonomousConfig.__mro__[1] is AgentConfig
    assert StateManager.__mro__[1] is AsyncCheckpointManager


@pytest.mark.parametrize("as_object", [False, True])
def test_a_graph_with_a_storage_saves_every_node_and_keeps_the_run(
    tmp_path: Path, as_object: bool
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    storage = surehold.open_storage(url) if as_object else url
    calls: list[str] = []
    with two_nodes(StateGraph("report", storage=storage), calls) as graph:
        graph.execute_sync(State.new({"n": 0}, run_id="r"))
        graph.execute_sync(State.new({"n": 0}, run_id="r"))
    assert len(calls) == 2  # a completed run is not executed again
    assert checkpoints(storage, "r") == [2, 1, 0]
    if as_object:
        storage.close()  # type: ignore[union-attr]


def test_every_saves_after_that_many_nodes() -> None:
    storage = MemoryStorage()
    with two_nodes(StateGraph("report", storage=storage, every=2)) as graph:
        graph.execute_sync(State.new({"n": 0}, run_id="r"))
    assert checkpoints(storage, "r") == [2, 0]


def test_a_named_graph_without_storage_uses_the_configured_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREHOLD_STORAGE", f"sqlite:///{tmp_path}/runs.db")
    graph = StateGraph("report")
    assert not [*tmp_path.iterdir()]  # opened by the first run, not by the definition
    with two_nodes(graph):
        graph.execute_sync(State.new({"n": 0}, run_id="r"))
    assert checkpoints(None, "r") == [2, 1, 0]


def test_a_graph_without_a_name_or_storage_saves_nothing() -> None:
    with pytest.raises(UsageError, match="checkpointing is off"):
        StateGraph(GraphConfig(name="report")).manager  # noqa: B018


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"storage": "memory://", "manager": True}, "storage= and manager="),
        ({"every": 0, "storage": "memory://"}, "every is 0"),
        ({"every": True, "storage": "memory://"}, "every is True"),
        ({"every_seconds": -1.0, "storage": "memory://"}, "every_seconds is -1.0"),
        (
            {"every": 2, "config": GraphConfig(checkpoint=CheckpointConfig(interval=1))},
            "every= and",
        ),
    ],
)
def test_arguments_that_contradict_are_refused(options: dict[str, Any], said: str) -> None:
    if options.get("manager"):
        options = {**options, "manager": StateManager("memory://")}
    with pytest.raises(UsageError, match=said):
        StateGraph("report", **options)


@pytest.mark.parametrize(
    "ignored",
    [
        {"store": "sqlite:///never.db"},
        {"keep": 3},
        {"on_save_failure": "warn"},
        {"on_corrupt": "fallback"},
    ],
)
def test_a_setting_that_a_manager_would_ignore_is_refused(ignored: dict[str, Any]) -> None:
    config = GraphConfig(checkpoint=CheckpointConfig(interval=1, **ignored))
    with pytest.raises(UsageError, match=next(iter(ignored))):
        StateGraph(config, manager=StateManager("memory://"))


def test_a_store_without_a_trigger_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "surehold.graph"):
        StateGraph(GraphConfig(checkpoint=CheckpointConfig(store="memory://")))
    assert "nothing is saved" in caplog.text


async def test_an_agent_with_a_storage_saves_every_cycle_and_continues_its_task() -> None:
    storage = MemoryStorage()
    config = AgentConfig(planning_enabled=False)
    first = agent_of("researcher", [RuntimeError("down")], storage=storage, config=config)
    assert (await first.run("q", run_id="r")).status == "failed"
    again = agent_of("researcher", [Reply("kelp")], storage=storage, config=config)
    result = await again.run("q")
    assert (result.run_id, result.answer, again.agent_id) == ("r", "kelp", "researcher")
    assert checkpoints(storage, "r")[-1] == 0
    assert (await again.run("q", run_id="r")).answer == "kelp"  # asks no model again
    with pytest.raises(UsageError, match="has another task: 'q'"):
        await again.run("other", run_id="r")


async def test_a_named_agent_uses_the_configured_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREHOLD_STORAGE", f"sqlite:///{tmp_path}/runs.db")
    async with agent_of("researcher", [Reply("plan"), Reply("kelp")]) as agent:
        await agent.run("q", run_id="r")
    assert checkpoints(None, "r")


def triggers_of(agent: Agent) -> tuple[int | None, float | None]:
    due = agent.config.triggers(StateManager("memory://").triggers)
    return due.frequency, due.interval


def test_every_means_the_same_for_agents() -> None:
    storage = MemoryStorage()
    assert triggers_of(agent_of("a", [], storage=storage)) == (1, None)
    assert triggers_of(agent_of("a", [], storage=storage, every=3)) == (3, None)
    assert triggers_of(agent_of("a", [], storage=storage, every_seconds=9.0)) == (None, 9.0)
    with CheckpointManager(storage, every=3, every_seconds=9.0) as manager:
        assert (manager.triggers.frequency, manager.triggers.interval) == (3, 9.0)
    with pytest.raises(UsageError, match="every= and checkpoint_frequency="):
        StateManager(storage, every=3, checkpoint_frequency=3)


async def test_an_agent_without_triggers_saves_only_its_beginning_and_end() -> None:
    storage = MemoryStorage()
    config = AgentConfig(checkpoint_frequency=None, checkpoint_interval_seconds=None)
    async with StateManager(storage) as manager:
        agent = agent_of(config, [Reply("kelp")], state_manager=manager)
        run_id = (await agent.run("q")).run_id
    assert checkpoints(storage, run_id) == [2, 0]


def test_an_agents_contradictions_are_refused() -> None:
    for options, said in (
        ({"storage": "memory://", "state_manager": StateManager("memory://")}, "storage= and"),
        ({"every": 0}, "every is 0"),
        ({"agent_id": "b"}, "agent_id 'b'"),
        ({"every": 2, "config": AgentConfig(checkpoint_frequency=3)}, "every= or every_seconds="),
    ):
        with pytest.raises(UsageError, match=said):
            agent_of("a", [], **options)


async def test_a_fleet_takes_a_storage_and_a_run_id() -> None:
    model = ScriptedModel([])
    with pytest.raises(UsageError, match="storage= and checkpoint_storage="):
        Fleet(model, checkpoint_storage="memory://", storage="memory://")
    async with Fleet(model, storage="memory://") as fleet:
        assert fleet.checkpointing
        with pytest.raises(UsageError, match="run_id= and resume_from_checkpoint="):
            await fleet.run("q", resume_from_checkpoint="x", run_id="r")


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="status is 'weird'"):
        AgentState(status="weird")
    with pytest.raises(UsageError, match=r"State\.new"):
        State({"n": 1})
    with pytest.raises(UsageError, match="an exit point is"):
        StateGraph().set_exit_point(["a", "b"])  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["5", -1, 0, True])
def test_every_means_the_same_and_is_checked_at_every_door(wrong: Any) -> None:
    model = ScriptedModel([])
    doors: list[Callable[..., object]] = [
        partial(surehold.run, "r", storage="memory://"),
        partial(StateGraph, "r", storage="memory://"),
        partial(Agent, "r", model=model, storage="memory://"),
        partial(Fleet, model, storage="memory://"),
    ]
    for door in doors:
        for name in ("every", "every_seconds"):
            with pytest.raises(UsageError, match=f"{name} is {wrong!r}"):
                door(**{name: wrong})
            door(**{name: 5})
    with pytest.raises(UsageError, match=f"lease_seconds is {wrong!r}"):
        surehold.run("r", lease_seconds=wrong)


def test_a_run_saves_every_so_many_steps() -> None:
    storage = MemoryStorage()
    with surehold.run("r", storage=storage, every=3) as run:
        for item in run.each(range(7)):
            run.state["item"] = item
    listed = CheckpointManager(storage).list_checkpoints("r")
    assert sorted({one.step for one in listed}) == [0, 3, 6, 7]


async def test_a_fleet_saves_every_so_many_rounds() -> None:
    with pytest.raises(UsageError, match="the model is int"):
        Agent("a", model=5)  # type: ignore[arg-type]

    async def done(instruction: str) -> str:
        return "done"

    seen: list[int] = []
    for every in (1, 2):
        fleet = Fleet(manager(4), dict.fromkeys(TEAM, done), storage="memory://", every=every)
        async with fleet:
            result = await fleet.run("task", run_id=f"every-{every}")
            assert result.status == "completed"
            listed = await fleet.list_checkpoints(result.run_id)
            seen.append(len({one["current_round"] for one in listed}))
    assert seen[0] > seen[1]


def test_what_cannot_be_called_or_looped_over_is_refused_before_it_is_recorded() -> None:
    storage = MemoryStorage()
    with surehold.run("r", storage=storage) as run:
        with pytest.raises(UsageError, match="5 cannot be called"):
            run.call(5)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="are int"):
            next(iter(run.each(5)))  # type: ignore[arg-type]
    assert run.completed and not surehold.pending("r", storage=storage)


def test_what_cannot_take_events_is_refused_before_anything_is_saved() -> None:
    @surehold.workflow
    def nothing() -> None:
        pass

    async def never_awaited(event: Event) -> None:
        pass

    storage = MemoryStorage()
    for wrong in (5, never_awaited):
        with pytest.raises(UsageError, match="on_event is"):
            nothing.run(run_id="r", storage=storage, on_event=wrong)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="on_event is"):
            graph = StateGraph("g", storage=storage)
            graph.add_node("a", lambda state: None)
            graph.set_entry_point("a")
            graph.set_exit_point("a")
            graph.run_sync(run_id="g", on_event=wrong)  # type: ignore[arg-type]
    assert not [*storage.runs(RunQuery())]


async def test_agents_return_run_results_and_stream_events_and_text() -> None:
    storage = MemoryStorage()
    config = AgentConfig(planning_enabled=False)
    agent = agent_of("researcher", [Reply("kelp")], storage=storage, config=config)
    stream = agent.stream("q", run_id="r")
    events = [event async for event in stream]
    result = stream.result
    assert isinstance(result, RunResult)
    assert (result.status, result.returned, result.answer) == ("completed", "kelp", "kelp")
    assert (result.run_id, result.usage.calls, result.saved.calls) == ("r", 1, 0)
    assert result.state.agent_id == "researcher" and result.step == 2
    assert [event.seq for event in events] == sorted(event.seq for event in events)
    text = "".join(event.data["text"] for event in events if event.type == "model.text")
    assert text == "kelp"
    assert {"node.complete", "effect.complete"} <= {event.type for event in events}

    seen: list[Event] = []
    again = agent_of("researcher", [], storage=storage, config=config)
    stored = await again.run("q", run_id="r", on_event=seen.append)
    assert (stored.answer, stored.usage.calls, stored.saved.calls) == ("kelp", 1, 1)
    assert seen


def test_the_usage_of_models_reads_as_a_mapping_too() -> None:
    spent = ModelSpent.of(Usage(10, 5, 0.25, 2.0).to_dict())
    assert (spent.tokens, spent.dollars, spent["cost_usd"], spent["calls"]) == (15, 0.25, 0.25, 1)
    with pytest.raises(KeyError):
        spent["other"]
