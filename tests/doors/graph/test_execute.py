"""Executing a graph: what nodes may return, loops, limits, and where checkpoints are taken."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.builders.graphs import Counting, line

from surehold import (
    CheckpointConfig,
    GraphConfig,
    HookContext,
    HookEvent,
    HookManager,
    MemoryStorage,
    State,
    StateGraph,
    StateManager,
    effect,
    key_equals,
)
from surehold.doors.graph import loop
from surehold.errors import (
    BudgetError,
    ConflictError,
    NotFoundError,
    StepError,
    StorageError,
    StorageUnavailableError,
    UsageError,
)
from surehold.storage.base import Batch


class Failing(MemoryStorage):
    """A memory whose appends fail while it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0
        self.after = 0

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        if self.after > 0:
            self.after -= 1
        elif self.failures > 0:
            self.failures -= 1
            raise StorageUnavailableError("the disk is away")
        return super().append(batches)


async def kinds(graph: StateGraph, run_id: str) -> list[tuple[int, str | None, str, str]]:
    found = await graph.manager.list_checkpoints(run_id)
    return [(one.step, one.node, one.kind, one.status) for one in reversed(found)]


async def test_nodes_may_return_a_state_a_mapping_or_nothing() -> None:
    async def whole(state: State) -> State:
        return state.set("a", 1)

    async def mapping(state: State) -> dict[str, int]:
        return {"b": state["a"] + 1}

    def nothing(state: State) -> None:
        return None

    final = await line(whole, mapping, nothing).execute(State.new({"x": 0}))
    assert final.to_dict() == {"x": 0, "a": 1, "b": 2}
    assert (final.step, final.node, final.status, final.kind) == (
        3,
        "nothing",
        "completed",
        "final",
    )


async def test_a_node_that_returns_a_new_state_replaces_the_values_and_keeps_the_run() -> None:
    final = await line(lambda state: State.new({"new": 1}), lambda state: None).execute(
        State.new({"old": 1}, run_id="mine")
    )
    assert final.to_dict() == {"new": 1} and final.run_id == "mine"


async def test_a_node_that_returns_something_else_fails_with_a_hint() -> None:
    with pytest.raises(StepError) as caught:
        await line(lambda state: 5).execute({})
    assert "returned int" in str(caught.value.__cause__)


async def test_a_blocking_node_can_have_a_thread() -> None:
    seen = []
    graph = StateGraph()
    graph.add_node("a", lambda state: seen.append(threading.current_thread()), thread=True)
    graph.set_entry_point("a")
    graph.set_exit_point("a")
    await graph.execute({})
    assert seen[0] is not threading.current_thread()


async def test_edges_are_tried_in_order_and_the_first_that_fits_is_taken() -> None:
    graph = StateGraph()
    for name in ("a", "b", "c"):
        graph.add_node(name, lambda state: None)
    graph.add_edge("a", "b", key_equals("n", 1))
    graph.add_edge("a", "c")
    graph.add_edge("b", "c")
    graph.set_entry_point("a")
    graph.set_exit_point("b", "c")
    assert (await graph.execute({"n": 1})).node == "b"
    assert (await graph.execute({"n": 2})).node == "c"


async def test_an_exit_point_ends_the_run_whatever_edges_leave_it() -> None:
    graph = line(lambda state: None, lambda state: None)
    graph.add_edge("node1", "node0")
    assert (await graph.execute({})).step == 2


async def test_a_failed_node_gives_the_last_good_state_and_the_path() -> None:
    counting = Counting(5)
    counting.fails_at = 2
    with pytest.raises(StepError) as caught:
        await counting.graph().execute({"n": 0})
    error = caught.value
    assert (error.node, error.state["n"], error.path) == ("up", 2, ("up", "up"))
    assert isinstance(error.__cause__, ValueError)


async def test_the_limit_of_iterations_is_an_error() -> None:
    with pytest.raises(BudgetError) as caught:
        await Counting(99).graph(max_iterations=10).execute({"n": 0})
    assert caught.value.limit == 10 and caught.value.state["n"] == 10


def test_execute_sync_is_for_scripts() -> None:
    assert Counting(3).graph().execute_sync({"n": 0})["n"] == 3


async def test_execute_sync_refuses_to_run_in_a_loop() -> None:
    with pytest.raises(UsageError, match="without an event loop"):
        Counting(3).graph().execute_sync({"n": 0})


async def test_every_step_is_saved_with_interval_1(store: str) -> None:
    async with Counting(2).graph(store=store, interval=1, preserve=True) as graph:
        final = await graph.execute(State.new({"n": 0}, run_id="r"))
        assert await kinds(graph, "r") == [
            (0, None, "routine", "running"),
            (1, "up", "routine", "running"),
            (2, "up", "routine", "running"),
            (3, "done", "final", "completed"),
        ]
        newest = await graph.manager.latest("r")
        assert newest is not None and newest.checkpoint_id == final.checkpoint_id


async def test_an_interval_counts_over_resumes(db: str) -> None:
    counting = Counting(8)
    counting.fails_at = 4
    async with counting.graph(store=db, interval=3, preserve=True) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"n": 0}, run_id="r"))
        counting.fails_at = None
        await graph.resume("r")
        steps = [step for step, _, kind, _ in await kinds(graph, "r") if kind == "routine"]
    assert steps == [0, 3, 7]
    assert counting.executed == [0, 1, 2, 3, 4, 4, 5, 6, 7]


async def test_checkpoints_at_named_nodes_by_predicate_and_before_nodes(db: str) -> None:
    counting = Counting(4)
    async with counting.graph(store=db, preserve=True, when=lambda s: s["n"] == 2) as graph:
        await graph.execute(State.new({"n": 0}, run_id="when"))
        assert [step for step, *_ in await kinds(graph, "when")] == [0, 2, 5]
    async with counting.graph(store=db, preserve=True, before=["done"]) as graph:
        await graph.execute(State.new({"n": 0}, run_id="before"))
        assert (await kinds(graph, "before"))[1] == (4, "up", "pre_operation", "running")
    async with counting.graph(store=db, preserve=True, nodes=["up"]) as graph:
        await graph.execute(State.new({"n": 2}, run_id="nodes"))
        assert [step for step, *_ in await kinds(graph, "nodes")] == [0, 1, 2, 3]


async def test_checkpoints_by_seconds(db: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[0]))

    async def slow(state: State) -> None:
        now[0] += 1.1

    async def quick(state: State) -> None:
        return None

    async with line(quick, slow, quick_too, store=db, preserve=True, seconds=1) as graph:
        await graph.execute(State.new({}, run_id="r"))
        assert [step for step, *_ in await kinds(graph, "r")] == [0, 2, 3]


def quick_too(state: State) -> None:
    return None


async def test_a_completed_run_leaves_nothing_unless_it_is_preserved(store: str) -> None:
    async with Counting(2).graph(store=store, interval=1) as graph:
        await graph.execute(State.new({"n": 0}, run_id="r"))
        assert await graph.manager.list_checkpoints("r") == []
        with pytest.raises(NotFoundError):
            await graph.resume("r")


async def test_a_completed_run_with_a_pin_is_kept(db: str) -> None:
    counting = Counting(3)
    counting.fails_at = 2
    async with counting.graph(store=db, interval=1) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"n": 0}, run_id="r"))
        newest = (await graph.manager.list_checkpoints("r"))[0]
        await graph.manager.pin(newest.checkpoint_id)
        counting.fails_at = None
        assert (await graph.resume("r"))["n"] == 3
        kept = await graph.manager.list_checkpoints("r")
        assert newest.checkpoint_id in [one.checkpoint_id for one in kept]
        assert (await graph.resume("r"))["n"] == 3 and counting.executed == [0, 1, 2, 2]


async def test_keep_1_is_the_overwrite_model(store: str) -> None:
    counting = Counting(300)
    counting.fails_at = 200
    async with counting.graph(store=store, interval=1, keep=1, preserve=True) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"n": 0}, run_id="r"))
        assert len(await graph.manager.list_checkpoints("r")) == 1
        run = graph.manager.reader.run("r")
        assert run is not None and run.seq > 200
        records = len(list(graph.manager.storage.read("r")))
        assert records < 150
        counting.fails_at = None
        final = await graph.resume("r")
        assert final["n"] == 300 and counting.executed == [*range(201), *range(200, 300)]
        assert all(await graph.manager.verify("r"))


async def test_a_save_that_fails_stops_the_run_by_default() -> None:
    storage = Failing()
    counting = Counting(5)
    graph = counting.graph(store=storage, interval=1)
    storage.after, storage.failures = 2, 9
    with pytest.raises(StorageError, match="the disk is away"):
        await graph.execute(State.new({"n": 0}, run_id="r"))
    storage.failures = 0
    assert counting.executed == [0, 1]
    assert (await graph.resume("r"))["n"] == 5
    assert counting.executed == [0, 1, 1, 2, 3, 4]


async def test_a_save_that_fails_may_only_be_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    storage = Failing()
    graph = Counting(5).graph(store=storage, interval=1, on_save_failure="warn", preserve=True)
    storage.after, storage.failures = 2, 2
    with caplog.at_level(logging.WARNING):
        final = await graph.execute(State.new({"n": 0}, run_id="r"))
    assert final["n"] == 5
    assert sum("was not saved" in record.message for record in caplog.records) == 2
    assert [step for step, *_ in await kinds(graph, "r")] == [0, 1, 4, 5, 6]
    newest = await graph.resume("r")
    assert newest.step == 6


async def test_a_save_that_fails_may_be_tried_again() -> None:
    storage = Failing()
    graph = Counting(3).graph(store=storage, interval=1, on_save_failure="retry", preserve=True)
    storage.after, storage.failures = 1, 2
    await graph.execute(State.new({"n": 0}, run_id="r"))
    assert [step for step, *_ in await kinds(graph, "r")] == [0, 1, 2, 3, 4]


async def test_executing_a_run_that_was_begun_goes_on_with_it(store: str) -> None:
    counting = Counting(4)
    counting.fails_at = 2
    async with counting.graph(store=store, interval=1, preserve=True) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"n": 0}, run_id="r"))
        counting.fails_at = None
        for _ in range(2):
            final = await graph.execute(State.new({"n": 0}, run_id="r"))
            assert final["n"] == 4
    assert counting.executed == [0, 1, 2, 2, 3]


async def test_tags_and_metadata_that_a_node_sets_are_on_its_checkpoint(db: str) -> None:
    def marked(state: State) -> State:
        return state.at(tags=["good"], metadata={"by": "me"})

    async with line(marked, quick_too, store=db, interval=1, preserve=True) as graph:
        await graph.execute(State.new({}, run_id="r"))
        found = await graph.manager.list_checkpoints("r", tag="good")
        assert found[-1].node == "marked" and found[-1].metadata == {"by": "me"}


async def test_hooks_of_the_manager_see_every_save() -> None:
    hooks = HookManager()
    seen: list[int] = []

    def see(context: HookContext) -> None:
        seen.append(context.data["step_number"])

    hooks.register(HookEvent.PRE_CHECKPOINT_SAVE, see)
    manager = StateManager("memory://", hook_manager=hooks)
    config = GraphConfig(checkpoint=CheckpointConfig(interval=1))
    graph = StateGraph(config, manager=manager)
    graph.add_node("a", lambda state: None)
    graph.set_entry_point("a")
    graph.set_exit_point("a")
    await graph.execute({})
    await manager.close()
    assert seen == [0, 1]


async def test_secrets_reach_the_nodes_and_no_journal(db: str, tmp_path: Any) -> None:
    def use(state: State) -> dict[str, int]:
        return {"length": len(state.secrets["token"])}

    async with line(use, quick_too, store=db, interval=1, preserve=True) as graph:
        final = await graph.execute(State.new({}, run_id="r"), secrets={"token": "hunter2"})
        assert final["length"] == 7
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"hunter2" not in files


async def test_many_runs_of_one_graph_share_commits(db: str) -> None:
    async with Counting(5).graph(store=db, interval=1, preserve=True) as graph:
        runs = [graph.execute(State.new({"n": 0}, run_id=f"r{n}")) for n in range(20)]
        finals = await asyncio.gather(*runs)
        assert [final["n"] for final in finals] == [5] * 20
        assert all(await graph.manager.verify())


async def test_an_overwritten_journal_keeps_what_the_open_step_has_done(store: str) -> None:
    calls: list[int] = []
    tries: list[int] = []

    async def stubborn(state: State) -> dict[str, int]:
        for number in range(3):
            await effect("call", calls.append, number)
        tries.append(1)
        if len(tries) < 100:
            raise ValueError
        return {"n": 1}

    async with line(
        stubborn, lambda state: None, store=store, interval=1, keep=1, preserve=True
    ) as graph:
        while len(tries) < 99:
            with pytest.raises(StepError):
                await graph.execute(State.new({}, run_id="r"))
        records = list(graph.manager.storage.read("r"))
        assert records[0].header.seq > 100 and len(records) < 400
        assert (await graph.resume("r"))["n"] == 1
        assert all(await graph.manager.verify("r"))
    assert calls == [0, 1, 2]


async def test_an_encrypted_run_is_resumed_with_its_key(tmp_path: Any) -> None:
    fails = [True]

    def fail(state: State) -> None:
        if fails.pop():
            raise ValueError("hunter2")

    def build(key: bytes | None) -> StateGraph:
        manager = StateManager(f"sqlite:///{tmp_path}/runs.db", encryption_key=key)
        config = GraphConfig(checkpoint=CheckpointConfig(interval=1, preserve=True))
        graph = StateGraph(config, manager=manager)
        graph.add_node("secret-plan", fail)
        graph.add_node("end", lambda state: None)
        graph.add_edge("secret-plan", "end")
        graph.set_entry_point("secret-plan")
        graph.set_exit_point("end")
        return graph

    key = bytes(range(32))
    graph = build(key)
    with pytest.raises(StepError):
        await graph.execute(State.new({"word": "hunter2"}, run_id="r"))
    await graph.manager.close()
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"hunter2" not in stored
    fails.append(False)
    graph = build(key)
    assert (await graph.resume("r"))["word"] == "hunter2"
    await graph.manager.close()


async def test_a_checkpoint_written_from_outside_stops_the_run(db: str) -> None:
    async def meddle(state: State) -> None:
        async with StateManager(db) as other:
            seen = await other.resume_from_latest("r")
            await other.save_checkpoint(seen.set("meddled", True).at(step=7))

    async with line(meddle, lambda state: None, store=db, interval=1, preserve=True) as graph:
        with pytest.raises(ConflictError):
            await graph.execute(State.new({}, run_id="r"))
