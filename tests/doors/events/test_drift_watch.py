"""Drift of graphs: warned of, stopped, restored from, and found in a journal."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.builders.agents import Counted, build, call, manager_in, turns
from tests.builders.fleets import ledger, team
from tests.builders.fleets import manager as fleet_manager
from tests.builders.graphs import Heard

import surehold
from surehold import (
    AgentState,
    CheckpointConfig,
    CheckpointManager,
    GraphConfig,
    State,
    StateGraph,
    tool,
)
from surehold.agents.fleet.fleet import Fleet
from surehold.agents.models.model import Message, Reply
from surehold.core.policy.drift_detectors import Invariants, StalledProgress, default_detectors
from surehold.doors.events.drift_history import look_back
from surehold.doors.events.drift_watch import DriftWatch
from surehold.doors.events.observers import Event
from surehold.engine.runs.positions import CURRENT_STEP
from surehold.errors import Drained, DriftError, StepError, UsageError


def pages(state: State) -> float:
    return float(state["pages"])


class Reading:
    """Reads a page a step, up to ten, and gets stuck at some page for so many tries."""

    def __init__(self, stuck_at: int = 4, tries: int = 1000) -> None:
        self.stuck_at = stuck_at
        self.tries = tries
        self.executed: list[int] = []

    def read(self, state: State) -> dict[str, Any]:
        self.executed.append(state["pages"])
        if state["pages"] == self.stuck_at and self.tries:
            self.tries -= 1
            return {"noise": state.get("noise", 0) + 1}
        return {"pages": state["pages"] + 1, "noise": 0}

    def graph(self, *observers: Any, store: Any = "memory://", **config: Any) -> StateGraph:
        checkpoint = CheckpointConfig(store=store, interval=1, preserve=True, **config)
        graph = StateGraph(GraphConfig(name="reading", observer=observers, checkpoint=checkpoint))
        graph.add_node("read", self.read)
        graph.add_node("done", lambda state: None)
        graph.add_edge("read", "done", lambda state: state["pages"] >= 10)
        graph.add_edge("read", "read")
        graph.set_entry_point("read")
        graph.set_exit_point("done")
        return graph


def start(run_id: str = "r") -> State:
    return State.new({"pages": 0}, run_id=run_id)


async def test_a_run_that_gets_on_is_left_alone(store: str) -> None:
    watch = DriftWatch(policy="stop", progress=pages, sensitivity="high")
    graph = Reading(tries=0).graph(watch, store=store)
    assert (await watch.execute(graph, start()))["pages"] == 10


async def test_the_policy_warn_says_so_once_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    heard = Heard()
    watch = DriftWatch(progress=pages)
    graph = Reading(tries=20).graph(watch, heard)
    with caplog.at_level(logging.WARNING, "surehold.drift"):
        assert (await watch.execute(graph, start()))["pages"] == 10
    (told,) = heard.of("drift.found")
    assert told["run_id"] == "r" and told["policy"] == "warn"
    assert "no progress beyond 4 in 4 steps" in told["report"]
    assert caplog.text.count("run r drifts") == 1


async def test_the_policy_stop_ends_the_run_saved_and_tagged(store: str) -> None:
    watch = DriftWatch(policy="stop", progress=pages)
    reading = Reading(tries=8)
    graph = reading.graph(watch, store=store)
    with pytest.raises(DriftError, match="run 'r' drifts: stalled") as caught:
        await watch.execute(graph, start())
    assert caught.value.report.since == 5
    newest = await graph.manager.latest("r")
    assert newest is not None and "drift" in newest.tags
    assert (newest.status, newest.step) == ("interrupted", 10)
    assert reading.executed == [0, 1, 2, 3, *[4] * 6], "no node was executed after that"
    assert (await graph.resume("r"))["pages"] == 10


async def test_without_the_watchs_help_a_stopped_run_is_drained() -> None:
    watch = DriftWatch(policy="stop", progress=pages)
    graph = Reading().graph(watch)
    with pytest.raises(Drained):
        await graph.execute(start())
    assert watch.report("r").findings[0].detector == "stalled"


async def test_the_policy_restore_goes_back_to_before_it_began(store: str) -> None:
    watch = DriftWatch(policy="restore", progress=pages)
    reading = Reading(tries=6)
    graph = reading.graph(watch, store=store)
    assert (await watch.execute(graph, start()))["pages"] == 10
    assert reading.executed == [0, 1, 2, 3, *[4] * 6, *range(4, 10)]
    history = await graph.manager.list_checkpoints("r", kind="recovery")
    assert [(one.step, one.status) for one in history] == [(4, "running")]


async def test_no_checkpoint_is_gone_back_to_twice_and_then_it_stops() -> None:
    watch = DriftWatch(policy="restore", progress=pages, max_restores=9)
    graph = Reading().graph(watch)
    with pytest.raises(DriftError, match="nothing left to go back to"):
        await watch.execute(graph, start())
    back = await graph.manager.list_checkpoints("r", kind="recovery")
    steps = [one.step for one in back]
    assert sorted(set(steps)) == sorted(steps) == [0, 1, 2, 3, 4]


async def test_a_run_that_drifts_whatever_is_done_does_not_go_back_for_ever() -> None:
    watch = DriftWatch(policy="restore", progress=pages)
    graph = Reading().graph(watch)
    with pytest.raises(DriftError, match="drifts again after it went back 3 times"):
        await watch.execute(graph, start())
    assert len(await graph.manager.list_checkpoints("r", kind="recovery")) == 3
    with pytest.raises(UsageError, match="max_restores is 0"):
        DriftWatch(policy="restore", max_restores=0)


async def test_repetition_is_told_from_what_nodes_change() -> None:
    class Idle(Reading):
        def read(self, state: State) -> dict[str, Any]:
            return {"mood": "fine"}

    watch = DriftWatch(policy="stop")
    with pytest.raises(DriftError, match="read, which changed nothing: 4 times in a row"):
        await watch.execute(Idle().graph(watch), start())


async def test_an_action_of_ones_own_is_looked_at() -> None:
    watch = DriftWatch(policy="stop", action=lambda state: f"page {state['pages']}")
    with pytest.raises(DriftError, match="page 4: 4 times in a row"):
        await watch.execute(Reading().graph(watch), start())


async def test_an_invariant_of_the_state_is_looked_at() -> None:
    rule = Invariants({"few pages": lambda values: values["pages"] <= 3})
    watch = DriftWatch(policy="stop", detectors=[rule])
    with pytest.raises(DriftError, match="'few pages' does not hold") as caught:
        await watch.execute(Reading(tries=0).graph(watch), start())
    assert caught.value.report.since == 4


async def test_a_run_that_fails_at_every_resume_is_seen_to() -> None:
    class Failing(Reading):
        def read(self, state: State) -> dict[str, Any]:
            raise ValueError("no")

    heard = Heard()
    watch = DriftWatch(policy="warn")
    graph = Failing().graph(watch, heard)
    for attempt in range(4):
        with pytest.raises(StepError):
            await (watch.execute(graph, start()) if not attempt else watch.resume(graph, "r"))
    assert {one.detector for one in watch.report("r").findings} == {"errors", "repetition"}
    assert heard.of("drift.found")


async def test_steps_of_a_nested_graph_are_part_of_their_node() -> None:
    inner = Reading(tries=30).graph()
    outer = StateGraph(GraphConfig(observer=(watch := DriftWatch(policy="stop", progress=pages))))
    outer.add_node("inner", inner)
    outer.set_entry_point("inner")
    outer.set_exit_point("inner")
    assert (await outer.execute(start()))["pages"] == 10
    assert watch.report("r").observations == 0, "a run that is completed is forgotten"


async def test_a_run_that_another_asked_to_stop_is_not_this_watchs() -> None:
    class Stopper:
        def on_event(self, event: Event) -> None:
            here = CURRENT_STEP.get()
            if event.type == "node.complete" and here is not None:
                here.outer.stop.request("user", "")

    watch = DriftWatch(policy="restore", progress=pages)
    with pytest.raises(Drained):
        await watch.execute(Reading().graph(watch, Stopper()), start())


async def test_a_graph_that_is_not_watched_is_refused() -> None:
    with pytest.raises(UsageError, match="not watched"):
        await DriftWatch().execute(Reading().graph(), start())


async def test_a_configuration_file_names_it(caplog: pytest.LogCaptureFixture) -> None:
    graph = StateGraph(GraphConfig.from_mapping({"name": "idle", "observer": ["drift", "log"]}))
    graph.add_node("wait", lambda state: None)
    graph.add_node("done", lambda state: None)
    graph.add_edge("wait", "done", lambda state: state.step >= 8)
    graph.add_edge("wait", "wait")
    graph.set_entry_point("wait")
    graph.set_exit_point("done")
    with caplog.at_level(logging.WARNING, "surehold.drift"):
        await graph.execute({"n": 0})
    assert "wait, which changed nothing: 3 times in a row" in caplog.text


@pytest.mark.parametrize(
    "options", [{"policy": "panic"}, {"sensitivity": "huge"}, {"window": 1}, {"detectors": [3]}]
)
def test_wrong_settings_are_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        DriftWatch(**options)


async def test_anything_that_runs_a_watched_graph_can_be_guarded() -> None:
    """As an agent or a fleet does: it starts, and it goes on from a checkpoint, in its own way."""
    watch = DriftWatch(policy="restore", progress=pages)
    graph = Reading(tries=6).graph(watch)
    calls: list[str] = []

    async def begin() -> str:
        calls.append("start")
        return str((await graph.execute(start()))["pages"])

    async def go_back(checkpoint_id: str) -> str:
        calls.append("back")
        return str((await graph.resume("r", checkpoint_id=checkpoint_id))["pages"])

    assert await watch.guard(begin, go_back, graph.manager) == "10"
    assert calls == ["start", "back"]


# Agents and fleets


async def test_an_agent_that_calls_the_same_tool_again_and_again_is_stopped(tmp_path: Path) -> None:
    tool = Counted()
    watch = DriftWatch(policy="stop")
    manager = manager_in(tmp_path)
    again = turns(*[call("search", query="kelp")] * 15, "done")
    agent = build(again, manager, tools=[tool.search], more={"observer": watch})
    with pytest.raises(DriftError, match=r"search \{'query': 'kelp'\}: 4 times in a row"):
        await watch.guard(
            lambda: agent.run("find kelp"), lambda one: agent.run(checkpoint=one), manager
        )
    assert tool.calls == ["kelp"] * 4
    newest = await manager.latest("researcher")
    assert newest is not None and "drift" in newest.tags
    await manager.close()


async def test_an_agent_goes_back_to_before_it_repeated_itself(tmp_path: Path) -> None:
    looped: list[bool] = []

    def script(messages: Sequence[Message]) -> Reply | str:
        done = sum(message["role"] == "assistant" for message in messages)
        if done >= 3 and not looped[3:]:
            looped.append(True)
            return call("search", query="kelp")
        return call("search", query=f"page {done}") if done < 8 else "done"

    watch = DriftWatch(policy="restore")
    manager = manager_in(tmp_path)
    settings = {"checkpoint_frequency": 1, "max_cycles": 40}
    used = Counted()

    @tool(read_only=True)
    def search(query: str) -> str:
        """Search for something."""
        return used.search(query)

    agent = build(script, manager, tools=[search], more={"observer": watch}, **settings)
    result = await watch.guard(
        lambda: agent.run("find kelp"), lambda one: agent.run(checkpoint=one), manager
    )
    assert result.status == "completed" and result.answer == "done"
    assert used.calls.count("kelp") == 4
    await manager.close()


async def test_an_agent_that_gets_on_is_left_alone(tmp_path: Path) -> None:
    tool = Counted()
    watch = DriftWatch(policy="stop", sensitivity="high")
    manager = manager_in(tmp_path)
    script = turns(*[call("search", query=f"page {n}") for n in range(10)], "done")
    agent = build(script, manager, tools=[tool.search], more={"observer": watch})
    result = await watch.guard(
        lambda: agent.run("find kelp"), lambda one: agent.run(checkpoint=one), manager
    )
    assert result.status == "completed"
    await manager.close()


async def test_a_fleet_whose_manager_says_the_same_again_and_again_is_stopped(
    tmp_path: Path,
) -> None:
    def judge(done: int, messages: Sequence[Message]) -> str:
        return ledger("coder", "write the same part", satisfied=done >= 12)

    watch = DriftWatch(policy="stop")
    address = f"sqlite:///{tmp_path}/runs.db"
    async with Fleet(
        fleet_manager(12, judge=judge), team(), checkpoint_storage=address, observer=watch
    ) as fleet:
        with pytest.raises(DriftError, match="coder: write the same part: 4 times in a row"):
            await watch.guard(
                lambda: fleet.run("build a boat"),
                lambda one: fleet.run(resume_from_checkpoint=one),
                fleet.graph.manager,
            )


async def test_a_fleet_that_takes_turns_is_left_alone() -> None:
    watch = DriftWatch(policy="stop")
    async with Fleet(fleet_manager(5), team(), observer=watch) as fleet:
        assert (await fleet.run("build a boat")).status == "completed"


# From the journal


def test_the_journal_of_a_run_is_looked_at_from_outside(db: str) -> None:
    with surehold.run("nightly", storage=db) as run:
        for _ in range(8):
            run.checkpoint(rows=3)
    with CheckpointManager(db) as manager:
        report = look_back(manager, "nightly", progress=lambda state: state["rows"])
        assert [one.detector for one in report.findings] == ["stalled", "repetition"]
        assert not look_back(manager, "nightly", detectors=[StalledProgress(3)])


async def test_what_came_before_a_restore_is_not_looked_at(db: str) -> None:
    graph = Reading(tries=12).graph(store=db)
    assert (await graph.execute(start()))["pages"] == 10
    looks: dict[str, Callable[[Any], float]] = {"progress": pages}
    with CheckpointManager(db) as manager:
        first = [one for one in manager.list_checkpoints("r") if one.step == 2]
    graph = Reading(tries=0).graph(store=db)
    await graph.resume("r", checkpoint_id=first[0].checkpoint_id)
    with CheckpointManager(db) as manager:
        assert look_back(manager, "r", **looks).observations == 10  # type: ignore[arg-type]
        assert not look_back(manager, "r", **looks)  # type: ignore[arg-type]


def test_an_agents_journal_is_looked_at_as_well() -> None:
    manager = CheckpointManager("memory://")
    agent = AgentState(agent_id="researcher")
    for step in range(1, 8):
        agent.step_number = step
        manager.save_checkpoint(agent, force=True)
    report = look_back(manager, "researcher", detectors=default_detectors(repeated_times=5))
    assert "which changed nothing: 6 times" in str(report)


def test_a_run_that_is_not_there_does_not_drift() -> None:
    assert not look_back(CheckpointManager("memory://"), "nowhere")
