"""Chains, parallel items and routes, in a graph and by themselves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import pytest
from tests.builders.graphs import Heard, line

from surehold import (
    ChainNode,
    CheckpointConfig,
    ConditionalNode,
    GraphConfig,
    ParallelNode,
    State,
    StateGraph,
    effect,
    process_chain,
    process_conditional,
    process_parallel,
)
from surehold.doors.resume import read_progress
from surehold.errors import RunError, ShapeError, StepError, UsageError


class Crash(BaseException):
    """The end of the process, as far as the code of a node can tell."""


def one_node(node: Any, store: str, **config: Any) -> StateGraph:
    return line(node, lambda state: None, store=store, interval=1, preserve=True, **config)


async def crashed(graph: StateGraph, values: dict[str, Any]) -> None:
    """Execute until a node crashes; no checkpoint is taken of that."""
    save = graph.manager.save_draft

    async def saving(draft: Any, **kwargs: Any) -> str:
        if draft.place.kind == "interrupt":
            raise Crash
        return await save(draft, **kwargs)

    graph.manager.save_draft = saving  # type: ignore[method-assign]
    with pytest.raises(Crash):
        await graph.execute(State.new(values, run_id="r"))
    graph.manager.save_draft = save  # type: ignore[method-assign]


class TestChain:
    async def test_it_takes_a_value_through_the_items_in_order(self) -> None:
        async def add(item: int, value: int) -> int:
            return value + item

        told: list[tuple[int, int, int]] = []
        result = await process_chain(
            [1, 2, 3], 10, add, progress=lambda *facts: told.append(facts), capture=True
        )
        assert (result.final, result.steps, result.intermediate) == (16, 3, (10, 11, 13, 16))
        assert told == [(1, 3, 11), (2, 3, 13), (3, 3, 16)]

    async def test_an_empty_chain_gives_what_it_was_given(self) -> None:
        assert (await process_chain([], 5, lambda item, value: 0)).final == 5

    async def test_a_failure_gives_the_value_up_to_there(self) -> None:
        def fails(item: int, value: int) -> int:
            return value // item

        with pytest.raises(StepError) as caught:
            await process_chain([2, 0, 1], 10, fails)
        error = caught.value
        assert (error.index, error.item, error.state, error.steps) == (1, 0, 5, 1)
        assert isinstance(error.__cause__, ZeroDivisionError)

    @pytest.mark.parametrize("plain", [True, False])
    async def test_killed_at_item_99_of_100_one_is_left(self, store: str, plain: bool) -> None:
        done: list[int] = []
        crashes = [True]

        async def link(item: int, value: Any) -> Any:
            if item == 99 and crashes:
                crashes.pop()
                raise Crash
            done.append(item)
            if plain:
                return value + item
            return value.append("log", item)

        async def summing(state: State) -> dict[str, int]:
            return {"sum": (await process_chain(range(100), 0, link)).final}

        node = summing if plain else ChainNode(range(100), link)
        async with one_node(node, store) as graph:
            await crashed(graph, {"log": []})
            assert done == [*range(99)]
            final = await graph.resume("r")
            assert done == [*range(100)]
            expected = {"log": [], "sum": 4950} if plain else {"log": [*range(100)]}
            assert final.to_dict() == expected
            assert all(await graph.manager.verify("r"))

    async def test_effects_in_items_have_places_of_their_own(self, db: str) -> None:
        calls: list[int] = []
        crashes = [True]

        async def link(item: int, state: State) -> dict[str, Any]:
            await effect("call", calls.append, item)
            if item == 1 and crashes:
                crashes.pop()
                raise Crash
            return {"last": item}

        async with one_node(ChainNode([0, 1, 2], link), db) as graph:
            await crashed(graph, {})
            assert (await graph.resume("r"))["last"] == 2
        assert calls == [0, 1, 2]

    async def test_other_items_after_a_crash_are_refused(self, db: str) -> None:
        items = [[1, 2, 3], [9, 2, 3]]

        def link(item: int, state: State) -> dict[str, Any]:
            if item == 2:
                raise Crash
            return {"last": item}

        async with one_node(ChainNode(lambda state: items.pop(0), link), db) as graph:
            await crashed(graph, {})
            with pytest.raises(ShapeError, match="item 0"):
                await graph.resume("r")

    async def test_a_chain_in_a_loop_begins_anew_each_time(self, db: str) -> None:
        done: list[str] = []
        config = CheckpointConfig(store=db, interval=1, preserve=True, keep=1)
        graph = StateGraph(GraphConfig(checkpoint=config))
        graph.add_node("chain", ChainNode(["a", "b"], lambda item, state: done.append(item)))
        graph.add_node("end", lambda state: None)
        graph.add_edge("chain", "chain", lambda state: state.step < 40)
        graph.add_edge("chain", "end")
        graph.set_entry_point("chain")
        graph.set_exit_point("end")
        async with graph:
            await graph.execute(State.new({"n": 0}, run_id="r"))
            assert done == ["a", "b"] * 40
            assert len(await graph.manager.list_checkpoints("r")) == 1
            assert len(list(graph.manager.storage.read("r"))) < 100
            assert all(await graph.manager.verify("r"))


class TestParallel:
    async def test_results_are_in_the_order_of_the_items(self) -> None:
        async def slow_first(item: int) -> int:
            await asyncio.sleep(0.02 / (item + 1))
            return item * 2

        told: list[int] = []
        result = await process_parallel(
            [0, 1, 2, 3], slow_first, progress=lambda done, total, value: told.append(done)
        )
        assert result.results == [0, 2, 4, 6] and result.errors == {}
        assert told == [1, 2, 3, 4]

    async def test_there_are_never_more_workers_than_allowed(self) -> None:
        working = most = 0

        async def work(item: int) -> None:
            nonlocal working, most
            working += 1
            most = max(most, working)
            await asyncio.sleep(0.001)
            working -= 1

        await process_parallel(range(30), work, max_workers=3)
        assert most == 3
        with pytest.raises(UsageError):
            await process_parallel([1], work, max_workers=-1)

    async def test_plain_functions_run_in_threads(self) -> None:
        barrier = threading.Barrier(2, timeout=300)
        result = await process_parallel([1, 2], lambda item: barrier.wait() >= 0, max_workers=2)
        assert result.results == [True, True]

    async def test_fail_fast_cancels_the_rest(self) -> None:
        ended: list[int] = []

        async def work(item: int) -> None:
            if item == 0:
                raise ValueError("bad")
            await asyncio.sleep(10**6)
            ended.append(item)

        with pytest.raises(StepError) as caught:
            await process_parallel([1, 0, 2], work, max_workers=3)
        assert (caught.value.index, caught.value.item, ended) == (1, 0, [])
        assert isinstance(caught.value.__cause__, ValueError)

    async def test_collect_all_gives_results_and_errors(self) -> None:
        def work(item: int) -> float:
            return 1 / item

        result = await process_parallel([1, 0, 2], work, fail_fast=False)
        assert result.results == [1.0, None, 0.5]
        assert list(result.errors) == [1] and isinstance(result.errors[1], ZeroDivisionError)

    async def test_collect_all_is_an_error_if_all_failed(self) -> None:
        with pytest.raises(RunError, match=r"all 3 items failed: 3 x ZeroDivisionError"):
            await process_parallel([1, 2, 3], lambda item: item / 0, fail_fast=False)

    async def test_no_items_are_no_error(self) -> None:
        assert (await process_parallel([], lambda item: item)).results == []

    async def test_a_progress_callback_that_fails_changes_nothing(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING, "surehold.graph"):
            result = await process_parallel(
                [1, 2], lambda item: item, progress=lambda *facts: 1 / 0
            )
        assert result.results == [1, 2] and len(caplog.records) == 2

    async def test_killed_at_item_99_of_100_one_is_left(self, store: str) -> None:
        done: list[int] = []
        crashes = [True]

        async def work(item: int) -> int:
            if item == 99 and crashes:
                crashes.pop()
                raise Crash
            done.append(item)
            return item * item

        node = ParallelNode("numbers", work, into="squares", max_workers=1)
        async with one_node(node, store) as graph:
            await crashed(graph, {"numbers": [*range(100)]})
            assert done == [*range(99)]
            plan = graph.explain_resume("r")
            assert plan.inside == ("node0@1: 99 items done",)
            final = await graph.resume("r")
            assert done == [*range(100)]
            assert final["squares"] == [n * n for n in range(100)]

    async def test_items_that_failed_are_tried_again_and_no_others(self, db: str) -> None:
        done: list[int] = []
        bad = {2}

        async def work(item: int) -> int:
            done.append(item)
            if item in bad:
                raise ValueError
            return item

        node = ParallelNode([1, 2, 3], work, into="results", max_workers=1)
        async with one_node(node, db) as graph:
            with pytest.raises(StepError):
                await graph.execute(State.new({}, run_id="r"))
            bad.clear()
            assert (await graph.resume("r"))["results"] == [1, 2, 3]
        assert done == [1, 2, 2, 3]

    async def test_the_aggregate_is_told_of_errors(self, db: str) -> None:
        node = ParallelNode(
            [1, 0],
            lambda item: 1 / item,
            lambda result, state: {"ok": result.results[0], "failed": list(result.errors)},
            fail_fast=False,
        )
        async with one_node(node, db) as graph:
            assert (await graph.execute({})).to_dict() == {"ok": 1.0, "failed": [1]}

    def test_a_node_that_would_drop_errors_is_refused(self) -> None:
        with pytest.raises(UsageError):
            ParallelNode([1], len, into="x", fail_fast=False)
        with pytest.raises(UsageError):
            ParallelNode([1], len)

    async def test_two_in_one_node_are_told_apart(self, db: str) -> None:
        calls: list[str] = []
        fails = [True]

        async def both(state: State) -> dict[str, Any]:
            first = await process_parallel(["a"], lambda item: calls.append(item) or item)
            second = await process_parallel(["b"], lambda item: calls.append(item) or item)
            if fails.pop():
                raise ValueError
            return {"all": first.results + second.results}

        async with one_node(both, db) as graph:
            with pytest.raises(StepError):
                await graph.execute(State.new({}, run_id="r"))
            fails.append(False)
            assert (await graph.resume("r"))["all"] == ["a", "b"]
        assert calls == ["a", "b"]


class TestRoutes:
    routes = MappingProxyType(
        {
            "left": lambda state: {"went": "left"},
            "right": lambda state: {"went": "right"},
        }
    )

    async def test_the_route_that_is_named_is_taken(self) -> None:
        node = ConditionalNode(lambda state: state["way"], self.routes)
        assert (await line(node).execute({"way": "right"}))["went"] == "right"

    async def test_a_name_that_is_no_route_takes_the_default(self) -> None:
        assert await process_conditional(1, lambda value: "x", {}, lambda value: value + 1) == 2
        with pytest.raises(StepError, match="no route 'x'") as caught:
            await process_conditional(1, lambda value: "x", self.routes)
        assert caught.value.route == "x"

    async def test_a_route_that_fails_says_which(self) -> None:
        with pytest.raises(StepError, match="route 'bad' failed"):
            await process_conditional(0, lambda value: "bad", {"bad": lambda value: 1 / value})

    async def test_what_is_no_route_is_refused(self) -> None:
        with pytest.raises(StepError, match="a route is a string"):
            await process_conditional(0, lambda value: 5, self.routes)
        with pytest.raises(UsageError):
            await process_conditional(0, lambda value: "x", {})

    async def test_the_choice_is_kept_over_a_crash(self, db: str) -> None:
        choices = iter(["left", "right"])
        crashes = [True]

        def left(state: State) -> dict[str, str]:
            if crashes:
                crashes.pop()
                raise Crash
            return {"went": "left"}

        node = ConditionalNode(lambda state: next(choices), {**self.routes, "left": left})
        async with one_node(node, db) as graph:
            await crashed(graph, {})
            assert (await graph.resume("r"))["went"] == "left"


class TestNested:
    def nested(self, log: list[str], crashes: list[str]) -> StateGraph:
        def node(name: str) -> Callable[[State], dict[str, Any]]:
            def run(state: State) -> dict[str, Any]:
                if name in crashes:
                    crashes.remove(name)
                    raise Crash
                log.append(name)
                return {"seen": [*state.get("seen", []), name]}

            return run

        graph = StateGraph(GraphConfig(name="inner"))
        for name in ("x", "y", "z"):
            graph.add_node(name, node(name))
        graph.add_edge("x", "y")
        graph.add_edge("y", "z")
        graph.set_entry_point("x")
        graph.set_exit_point("z")
        return graph

    async def test_a_graph_is_a_node_with_a_scope_of_its_own(self, store: str) -> None:
        log: list[str] = []
        inner = self.nested(log, [])
        async with one_node(inner, store) as graph:
            final = await graph.execute(State.new({}, run_id="r"))
            assert final["seen"] == ["x", "y", "z"]
            assert (final.scope, final.step, final.node) == ("", 2, "node1")
            found = await graph.manager.list_checkpoints("r", scope="node0@1")
            assert [one.step for one in found] == [3, 2, 1]
            assert found[0].status == "completed"

    @pytest.mark.parametrize("at", ["x", "y", "z"])
    async def test_a_crash_inside_goes_on_inside(self, store: str, at: str) -> None:
        log: list[str] = []
        inner = self.nested(log, [at])
        async with one_node(inner, store) as graph:
            await crashed(graph, {})
            if at != "x":
                assert "step" in str(graph.explain_resume("r"))
            final = await graph.resume("r")
            assert final["seen"] == log == ["x", "y", "z"]

    async def test_a_nested_graph_visited_twice_is_executed_twice(self, db: str) -> None:
        log: list[str] = []
        config = CheckpointConfig(store=db, interval=1, preserve=True)
        graph = StateGraph(GraphConfig(checkpoint=config))
        graph.add_node("inner", self.nested(log, []))
        graph.add_node("end", lambda state: None)
        graph.add_edge("inner", "inner", lambda state: state.step < 2)
        graph.add_edge("inner", "end")
        graph.set_entry_point("inner")
        graph.set_exit_point("end")
        async with graph:
            await graph.execute(State.new({}, run_id="r"))
            assert log == ["x", "y", "z"] * 2
            await graph.resume("r", step=0)
            assert log == ["x", "y", "z"] * 4
            reader = graph.manager.reader
            run = reader.run("r")
            assert run is not None
            header = reader.newest(run, "inner@2")
            assert header is not None
            assert read_progress(reader.load(header)).path == ["x", "y", "z"]
            assert all(await graph.manager.verify("r"))

    async def test_without_checkpoints_it_just_runs(self) -> None:
        log: list[str] = []
        heard = Heard()
        graph = line(self.nested(log, []), observer=heard)
        assert (await graph.execute({}))["seen"] == ["x", "y", "z"]
        scopes = {data.get("scope") for data in heard.of("node.complete")}
        assert scopes == {None, "node0@1"}

    async def test_a_changed_nested_graph_is_a_changed_graph(self, db: str) -> None:
        async with one_node(self.nested([], ["y"]), db) as graph:
            await crashed(graph, {})
        inner = self.nested([], [])
        inner.add_edge("x", "z", lambda state: False)
        async with one_node(inner, db) as graph:
            with pytest.raises(ShapeError, match="changed nested: node0"):
                await graph.resume("r")
