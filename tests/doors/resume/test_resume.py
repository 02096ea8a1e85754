"""Resuming: from the newest checkpoint, from any other, and when that is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.builders.graphs import Counting, Heard, line
from tests.engine.repair.test_recovery import damage

from surehold import (
    CheckpointConfig,
    GraphConfig,
    MemoryStorage,
    ParallelNode,
    RunQuery,
    State,
    StateGraph,
    key_equals,
    migrations,
    register_checkpoint_store,
)
from surehold.doors.resume.progress import read_progress
from surehold.errors import (
    BudgetError,
    CorruptError,
    LeaseHeldError,
    NotFoundError,
    SchemaError,
    ShapeError,
    StepError,
    StorageError,
    UsageError,
)


async def failed_at(counting: Counting, graph: StateGraph, at: int, run_id: str = "r") -> None:
    counting.fails_at = at
    with pytest.raises(StepError):
        await graph.execute(State.new({"n": 0}, run_id=run_id))
    counting.fails_at = None


async def path_of(graph: StateGraph, run_id: str) -> list[str]:
    reader = graph.manager.reader
    run = reader.run(run_id)
    assert run is not None
    newest = reader.newest(run)
    assert newest is not None
    return read_progress(reader.load(newest)).path


async def test_resume_goes_on_with_the_next_node(store: str) -> None:
    counting = Counting(5)
    async with counting.graph(store=store, interval=1, preserve=True) as graph:
        await failed_at(counting, graph, 3)
        final = await graph.resume("r")
        assert (final["n"], final.step, final.status) == (5, 6, "completed")
        assert counting.executed == [0, 1, 2, 3, 3, 4]
        assert await path_of(graph, "r") == ["up"] * 5 + ["done"]


async def test_a_failed_run_is_saved_as_failed_with_its_error(store: str) -> None:
    counting = Counting(5)
    async with counting.graph(store=store, interval=5, preserve=True) as graph:
        await failed_at(counting, graph, 3)
        newest = await graph.manager.latest("r")
        assert newest is not None
        assert (newest.step, newest.kind, newest.status) == (3, "recovery", "failed")
        assert newest.metadata == {"error": "ValueError"}
        final = await graph.resume("r")
        assert final.state.metadata == {}


async def test_a_damaged_checkpoint_stops_a_run_or_is_gone_back_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counting, store = Counting(5), f"file://{tmp_path}/runs"
    async with counting.graph(store=store, interval=1, preserve=True) as graph:
        await failed_at(counting, graph, 3)
        newest = graph.manager.storage.runs(RunQuery(run_id="r"))
        damage(graph.manager.storage, "r", next(iter(newest)).seq)
    async with counting.graph(store=store, interval=1, preserve=True) as graph:
        with pytest.raises(CorruptError):
            await graph.resume("r")
    settings = {"store": store, "interval": 1, "preserve": True, "on_corrupt": "fallback"}
    async with counting.graph(**settings) as graph:
        final = await graph.resume("r")
        assert (final["n"], final.step, final.status) == (5, 6, "completed")
        assert counting.executed == [0, 1, 2, 3, 3, 4]
    assert "damaged" in caplog.text


async def test_a_completed_run_gives_its_result_and_executes_nothing(store: str) -> None:
    counting = Counting(3)
    async with counting.graph(store=store, interval=1, preserve=True) as graph:
        graph.add_edge("done", "up")  # an exit with a way on
        first = await graph.execute(State.new({"n": 0}, run_id="r"))
        executed = list(counting.executed)
        again = await graph.resume("r")
        assert again.to_dict() == first.to_dict() == {"n": 3, "done": True}
        assert again.state == first and counting.executed == executed
        assert (await graph.execute(State.new({}, run_id="r"))).to_dict() == first.to_dict()


async def test_a_crash_between_the_final_record_and_the_deletion_gives_the_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = MemoryStorage()
    counting = Counting(3)
    graph = counting.graph(store=storage, interval=1)

    def crash(run_id: str, **_: Any) -> int:
        raise StorageError("crashed here")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "delete", crash)
        await graph.execute(State.new({"n": 0}, run_id="r"))
    executed = list(counting.executed)
    assert (await graph.resume("r")).to_dict() == {"n": 3, "done": True}
    assert counting.executed == executed
    with pytest.raises(NotFoundError):
        await graph.resume("r")


async def test_the_stored_decision_is_followed(db: str) -> None:
    flips = iter([True, False])
    seen: list[str] = []
    fails = [True]

    def left(state: State) -> None:
        seen.append("left")
        if fails.pop():
            raise ValueError

    config = GraphConfig(checkpoint=CheckpointConfig(store=db, interval=1, preserve=True))
    graph = StateGraph(config)
    graph.add_node("start", lambda state: None)
    graph.add_node("left", left)
    graph.add_node("right", lambda state: seen.append("right"))
    graph.add_edge("start", "left", lambda state: next(flips))
    graph.add_edge("start", "right")
    graph.set_entry_point("start")
    graph.set_exit_point("left", "right")
    with pytest.raises(StepError):
        await graph.execute(State.new({}, run_id="r"))
    fails.append(False)
    assert (await graph.resume("r")).state.node == "left"
    assert seen == ["left", "left"]


async def test_no_edge_that_fits_is_an_error_and_resume_decides_again_without_the_node(
    db: str,
) -> None:
    executed: list[int] = []
    wants = [7]
    config = GraphConfig(checkpoint=CheckpointConfig(store=db, interval=1, preserve=True))
    graph = StateGraph(config)
    graph.add_node("a", lambda state: executed.append(1))
    graph.add_node("b", lambda state: None)
    graph.add_edge("a", "b", lambda state: state["n"] == wants[0])
    graph.set_entry_point("a")
    graph.set_exit_point("b")
    for _ in range(2):
        with pytest.raises(StepError, match="matches none of its edges") as caught:
            await graph.execute(State.new({"n": 1}, run_id="r"))
        assert caught.value.node == "a" and caught.value.state.step == 1
    wants[0] = 1
    assert (await graph.resume("r")).state.node == "b"
    assert executed == [1]


async def test_a_predicate_that_fails_is_an_error_at_the_decision(db: str) -> None:
    def broken(state: State) -> bool:
        raise KeyError("pages")

    graph = line(lambda state: None, lambda state: None, store=db, interval=1)
    graph._edges[0] = type(graph._edges[0])("node0", "node1", broken)
    with pytest.raises(StepError, match="the decision after node 'node0' failed") as caught:
        await graph.execute({})
    assert isinstance(caught.value.__cause__, KeyError)


async def test_counters_go_on_over_resumes(db: str) -> None:
    counting = Counting(50)
    heard = Heard()
    async with counting.graph(
        store=db, interval=1, max_iterations=10, observer=heard, preserve=True
    ) as graph:
        for at in (3, 6, 8):
            counting.fails_at = at
            with pytest.raises(StepError):
                await graph.execute(State.new({"n": 0}, run_id="r"))
        counting.fails_at = None
        for _ in range(2):
            with pytest.raises(BudgetError):
                await graph.resume("r")
        assert counting.executed == [0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 8, 9]
        newest = await graph.manager.latest("r")
        assert newest is not None and newest.status == "budget_exhausted"
    visits = [data["visit_count"] for data in heard.of("cycle.detected")]
    assert visits[-1] == 10
    async with counting.graph(store=db, interval=1, max_iterations=100) as graph:
        assert (await graph.resume("r"))["n"] == 50


async def test_types_come_back_so_that_predicates_say_the_same(store: str) -> None:
    fails = [True]

    def middle(state: State) -> None:
        if fails.pop():
            raise ValueError

    config = GraphConfig(checkpoint=CheckpointConfig(store=store, interval=1, preserve=True))
    graph = StateGraph(config)
    graph.add_node("a", lambda state: {"n": 1, "pair": (1, 2), "flag": True})
    graph.add_node("b", middle)
    graph.add_node("c", lambda state: None)
    graph.add_edge("a", "b")
    graph.add_edge("b", "c", lambda state: state["pair"] == (1, 2) and state["flag"] is True)
    graph.set_entry_point("a")
    graph.set_exit_point("c")
    with pytest.raises(StepError):
        await graph.execute(State.new({}, run_id="r"))
    fails.append(False)
    final = await graph.resume("r")
    assert final.state.node == "c" and key_equals("n", 1)(final.state) and type(final["n"]) is int


async def test_resume_without_checkpointing_is_its_own_error() -> None:
    with pytest.raises(UsageError, match="checkpointing is off"):
        await Counting(1).graph().resume("r")


async def test_resume_of_no_such_run_is_its_own_error(store: str) -> None:
    async with Counting(1).graph(store=store, interval=1) as graph:
        with pytest.raises(NotFoundError, match="no run 'nothing'"):
            await graph.resume("nothing")


async def test_a_run_that_is_held_is_its_own_error(store: str) -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    async def waits(state: State) -> None:
        inside.set()
        await go.wait()

    async with line(waits, lambda state: None, store=store, interval=1) as graph:
        running = asyncio.create_task(graph.execute(State.new({}, run_id="r")))
        await inside.wait()
        with pytest.raises(LeaseHeldError) as caught:
            await graph.resume("r")
        assert caught.value.owner.pid and caught.value.until
        go.set()
        await running


async def test_resume_by_name_takes_the_newest_run_that_is_not_completed(db: str) -> None:
    counting = Counting(4)
    async with counting.graph(store=db, interval=1, preserve=True, name="count") as graph:
        await failed_at(counting, graph, 1, "first")
        await failed_at(counting, graph, 2, "second")
        assert (await graph.resume("count")).run_id == "second"
        assert (await graph.resume("count")).run_id == "first"
        with pytest.raises(NotFoundError):
            await graph.resume("count")


async def test_resume_from_a_step_or_a_checkpoint_takes_the_run_back(db: str) -> None:
    counting = Counting(4)
    async with counting.graph(store=db, interval=1, preserve=True) as graph:
        await graph.execute(State.new({"n": 0}, run_id="r"))
        counting.executed.clear()
        assert (await graph.resume("r", step=2))["n"] == 4
        assert counting.executed == [2, 3]
        assert await path_of(graph, "r") == ["up"] * 4 + ["done"]
        found = await graph.manager.list_checkpoints("r")
        first = next(one for one in reversed(found) if one.step == 1)
        counting.executed.clear()
        assert (await graph.resume("r", checkpoint_id=first.checkpoint_id))["n"] == 4
        assert counting.executed == [1, 2, 3]
        assert all(await graph.manager.verify("r"))
        assert (await graph.resume("r")).step == 5
        with pytest.raises(NotFoundError):
            await graph.resume("r", checkpoint_id="ffff")


async def test_a_run_is_not_taken_back_to_a_step_it_has_not_come_to(db: str) -> None:
    counting = Counting(5)
    async with counting.graph(store=db, interval=1, preserve=True) as graph:
        await failed_at(counting, graph, 3)
        counting.executed.clear()
        with pytest.raises(NotFoundError, match="has only reached step 3, not step 44"):
            await graph.resume("r", step=44)
        assert counting.executed == []
        assert (await graph.resume("r", step=3))["n"] == 5


async def test_a_run_taken_back_stays_there_if_it_is_killed(db: str) -> None:
    counting = Counting(4)
    async with counting.graph(store=db, interval=1, preserve=True) as graph:
        await graph.execute(State.new({"n": 0}, run_id="r"))
        counting.fails_at = 2
        with pytest.raises(StepError):
            await graph.resume("r", step=2)
        newest = await graph.manager.latest("r")
        assert newest is not None and (newest.step, newest.status) == (2, "failed")
        counting.fails_at = None
        counting.executed.clear()
        assert (await graph.resume("r"))["n"] == 4
        assert counting.executed == [2, 3]


async def test_a_run_taken_back_does_its_items_again(db: str) -> None:
    done: list[int] = []
    node = ParallelNode([1, 2], done.append, into="x", max_workers=1)
    async with line(node, lambda state: None, store=db, interval=1, preserve=True) as graph:
        await graph.execute(State.new({}, run_id="r"))
        await graph.resume("r", step=0)
    assert done == [1, 2, 1, 2]


async def test_secrets_are_given_anew(db: str) -> None:
    fails = [True]

    def use(state: State) -> dict[str, Any]:
        if fails.pop():
            raise ValueError
        return {"known": sorted(state.secrets)}

    async with line(use, lambda state: None, store=db, interval=1) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({}, run_id="r"), secrets={"old": 1})
        fails.append(False)
        assert (await graph.resume("r", secrets={"new": 1}))["known"] == ["new"]


class TestShape:
    """A graph that is not the one the run was begun with."""

    def graph(self, store: str, *, extra: bool = False, version: int = 0) -> StateGraph:
        counting = Counting(3)
        counting.fails_at = None if extra else 1
        graph = counting.graph(
            store=store, interval=1, preserve=True, name="shape", version=version
        )
        if extra:
            graph.add_node("new", lambda state: {"new": True})
            graph._edges[0] = type(graph._edges[0])("up", "new", lambda s: s["n"] >= 3, "")
            graph.add_edge("new", "done")
        return graph

    async def begin(self, store: str) -> None:
        async with self.graph(store) as graph:
            with pytest.raises(StepError):
                await graph.execute(State.new({"n": 0}, run_id="r"))

    async def test_it_is_refused_and_told_which_nodes_and_edges(self, db: str) -> None:
        await self.begin(db)
        async with self.graph(db, extra=True) as graph:
            with pytest.raises(ShapeError) as caught:
                await graph.resume("r")
        error = caught.value
        assert error.added_nodes == ["new"] and error.removed_nodes == []
        assert error.removed_edges == [("up", "done", "enough")]
        assert "added nodes: new" in str(error) and "up -> done (enough)" in str(error)

    async def test_force_goes_on(self, db: str) -> None:
        await self.begin(db)
        async with self.graph(db, extra=True) as graph:
            assert (await graph.resume("r", force=True))["new"] is True

    async def test_a_registered_migration_goes_on(
        self, db: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(migrations, "by_name", {})
        await self.begin(db)
        async with self.graph(db, extra=True, version=1) as graph:
            with pytest.raises(SchemaError):
                await graph.resume("r")
            migrations.register("shape", 0, 1, lambda values: {**values, "came": "along"})
            final = await graph.resume("r")
        assert final["came"] == "along" and final["n"] == 3

    async def test_a_next_node_that_is_gone_is_decided_anew_when_forced(self, db: str) -> None:
        fails = [True]

        def old(state: State) -> None:
            raise ValueError

        async with line(lambda state: None, old, store=db, interval=1) as graph:
            with pytest.raises(StepError):
                await graph.execute(State.new({}, run_id="r"))
        async with line(lambda state: None, lambda state: None, store=db, interval=1) as graph:
            assert fails and (await graph.resume("r", force=True)).state.node == "node1"


async def test_a_store_by_name_is_shared_and_not_closed() -> None:
    storage = MemoryStorage()
    register_checkpoint_store("ours", storage)
    async with Counting(1).graph(store="ours", interval=1, preserve=True) as graph:
        await graph.execute(State.new({"n": 0}, run_id="r"))
    async with Counting(1).graph(store="ours", interval=1, preserve=True) as graph:
        assert (await graph.resume("r"))["n"] == 1


async def test_a_cancelled_run_is_saved_and_can_be_resumed(store: str) -> None:
    inside = asyncio.Event()

    async def waits(state: State) -> dict[str, int]:
        if not inside.is_set():
            inside.set()
            await asyncio.sleep(60)
        return {"n": 1}

    async with line(
        lambda state: None, waits, lambda state: None, store=store, interval=9, preserve=True
    ) as graph:
        task = asyncio.create_task(graph.execute(State.new({}, run_id="r")))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        newest = await graph.manager.latest("r")
        assert newest is not None
        assert (newest.step, newest.kind, newest.status) == (1, "interrupt", "interrupted")
        assert (await graph.resume("r"))["n"] == 1
