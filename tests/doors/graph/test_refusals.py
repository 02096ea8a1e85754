"""Wrong arguments, foreign runs and async callables are refused or handled, never ignored."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from tests.builders.graphs import Heard

from surehold import CheckpointConfig, GraphConfig, State, StateGraph, all_of, not_
from surehold.errors import Drained, ShapeError, StepError, UsageError
from surehold.storage.memory import MemoryStorage


def saved(name: str, storage: MemoryStorage, interval: int = 1, **more: Any) -> StateGraph:
    config = CheckpointConfig(store=storage, interval=interval, preserve=True, **more)
    return StateGraph(GraphConfig(name=name, checkpoint=config))


def one_node(graph: StateGraph, node: Any) -> StateGraph:
    graph.add_node("pay", node)
    graph.set_entry_point("pay")
    graph.set_exit_point("pay")
    return graph


def broken(state: State) -> None:
    raise ConnectionError("away")


async def test_resuming_no_run_id_is_an_error() -> None:
    graph = one_node(saved("invoices", MemoryStorage()), broken)
    with pytest.raises(StepError):
        await graph.execute(State.new(run_id="invoice-17"))
    nothing: Any = None
    for missing in (nothing, ""):
        with pytest.raises(UsageError, match="run_id is"):
            await graph.resume(missing)


async def test_a_run_of_another_graph_is_not_executed() -> None:
    storage, paid = MemoryStorage(), []
    with pytest.raises(StepError):
        await one_node(saved("invoices", storage), broken).execute(State.new(run_id="i-17"))
    refunds = one_node(saved("refunds", storage), lambda state: paid.append(state.run_id))
    with pytest.raises(ShapeError, match="'i-17' is of 'invoices', not of 'refunds'"):
        await refunds.resume("i-17")
    with pytest.raises(ShapeError):
        await refunds.execute(State.new(run_id="i-17"))
    assert paid == []
    await refunds.resume("i-17", force=True)
    assert paid == ["i-17"]


def hidden(function: Any) -> Any:
    """A plain function that returns what an async one gives."""

    def call(state: State) -> Any:
        return function(state)

    return call


def choosing(predicate: Any) -> StateGraph:
    graph = StateGraph()
    graph.add_node("start", lambda state: None)
    graph.add_node("bad", lambda state: {"took": "bad"})
    graph.add_node("good", lambda state: {"took": "good"})
    graph.add_edge("start", "bad", predicate)
    graph.add_edge("start", "good")
    graph.set_entry_point("start")
    graph.set_exit_point("bad", "good")
    return graph


async def test_an_async_predicate_is_awaited() -> None:
    async def never(state: State) -> bool:
        return False

    async def always(state: State) -> bool:
        return True

    assert (await choosing(never).execute({}))["took"] == "good"
    assert (await choosing(always).execute({}))["took"] == "bad"
    assert (await choosing(hidden(never)).execute({}))["took"] == "good"


async def test_an_async_predicate_cannot_be_combined() -> None:
    async def never(state: State) -> bool:
        return False

    with pytest.raises(UsageError, match="'never' is async"):
        not_(never)
    with pytest.raises(StepError, match="is async"):
        await choosing(all_of(hidden(never))).execute({})


async def test_an_async_condition_of_a_checkpoint_is_refused() -> None:
    async def due(state: State) -> bool:
        return False

    with pytest.raises(UsageError, match="when is"):
        CheckpointConfig(when=due)  # type: ignore[arg-type]
    graph = saved("g", MemoryStorage(), interval=0, when=hidden(due))
    with pytest.raises(StepError, match="awaitable"):
        await _line(graph).execute({})


def _line(graph: StateGraph, ran: list[str] | None = None) -> StateGraph:
    def add(name: str) -> None:
        graph.add_node(name, lambda state: None if ran is None else ran.append(name))

    for name in ("n1", "n2", "n3"):
        add(name)
    graph.add_edge("n1", "n2")
    graph.add_edge("n2", "n3")
    graph.set_entry_point("n1")
    graph.set_exit_point("n3")
    return graph


def test_an_async_observer_is_refused() -> None:
    class Slow:
        async def on_event(self, event: Any) -> None:
            raise AssertionError

    with pytest.raises(UsageError, match="on_event of Slow is async"):
        StateGraph(GraphConfig(observer=Slow()))  # type: ignore[arg-type]


async def test_a_condition_of_a_checkpoint_that_fails_is_a_saved_failure() -> None:
    heard, storage = Heard(), MemoryStorage()
    ran: list[str] = []
    config = CheckpointConfig(store=storage, preserve=True, when=lambda state: state["score"] > 3)
    graph = _line(StateGraph(GraphConfig(name="g", observer=heard, checkpoint=config)), ran)
    with pytest.raises(StepError, match="condition of a checkpoint after node 'n1'") as caught:
        await graph.execute(State.new(run_id="r"))
    assert isinstance(caught.value.__cause__, KeyError) and caught.value.run_id == "r"
    plan = graph.explain_resume("r")
    assert (plan.status, plan.step, plan.next) == ("failed", 1, "n2")
    assert "run.failed" in [event.type for event in heard.events]
    await _line(saved("g", storage), ran).resume("r")
    assert ran == ["n1", "n2", "n3"]


async def test_a_failed_step_keeps_the_hint_of_its_cause_and_names_the_run() -> None:
    for node in (lambda state: state["list"].append(1), lambda state: 5):
        with pytest.raises(StepError) as caught:
            await one_node(StateGraph(), node).execute(State.new({"list": []}, run_id="r"))
        cause = caught.value.__cause__
        assert isinstance(cause, UsageError) and cause.hint
        assert caught.value.hint == cause.hint and "run 'r'" in caught.value.message
    with pytest.raises(StepError) as caught:
        await one_node(saved("g", MemoryStorage()), lambda state: 5).execute({})
    assert caught.value.hint.startswith("return a State") and "resume the run" in caught.value.hint


def test_a_failure_in_a_script_has_no_error_of_the_event_loop_before_it() -> None:
    with pytest.raises(StepError) as caught:
        one_node(StateGraph(), broken).execute_sync({})
    assert "no running event loop" not in "".join(traceback.format_exception(caught.value))
    assert "resume" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: CheckpointConfig(preserve="no"), "preserve"),  # type: ignore[arg-type]
        (lambda: CheckpointConfig(seconds=-1), "seconds"),
        (lambda: CheckpointConfig(interval="1"), "interval"),  # type: ignore[arg-type]
        (lambda: CheckpointConfig(on_corrupt="x"), "on_corrupt"),  # type: ignore[arg-type]
        (lambda: GraphConfig(max_iterations="9"), "max_iterations"),  # type: ignore[arg-type]
        (lambda: GraphConfig(signals="yes"), "signals"),  # type: ignore[arg-type]
        (lambda: StateGraph().set_exit_point(["a"]), "an exit point"),  # type: ignore[arg-type]
        (lambda: StateGraph().set_entry_point(None), "an entry point"),  # type: ignore[arg-type]
        (lambda: one_node(StateGraph(), broken).execute_sync([1]), "the state"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_refused_by_its_name(make: Any, field: str) -> None:
    with pytest.raises(UsageError, match=f"^{field} is "):
        make()


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_signal_in_a_node_that_blocks_stops_the_run_at_the_next_node(
    kind: str, tmp_path: Path
) -> None:
    seen: list[str] = []

    def body(name: str) -> None:
        seen.append(name)
        if name == "n1":
            os.kill(os.getpid(), signal.SIGTERM)

    graph = saved("g", MemoryStorage())
    for name in ("n1", "n2", "n3"):

        async def later(state: State, name: str = name) -> None:
            body(name)

        def now(state: State, name: str = name) -> None:
            body(name)

        graph.add_node(name, later if kind == "async" else now)
    graph.add_edge("n1", "n2")
    graph.add_edge("n2", "n3")
    graph.set_entry_point("n1")
    graph.set_exit_point("n3")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Drained):
        graph.execute_sync(State.new(run_id="r"))
    assert seen == ["n1"] and signal.getsignal(signal.SIGTERM) is before
    assert graph.resume_sync("r").status == "completed" and seen == ["n1", "n2", "n3"]


def test_a_graph_that_another_module_made_is_found(tmp_path: Path) -> None:
    (tmp_path / "factory.py").write_text(
        "from surehold import CheckpointConfig, GraphConfig, StateGraph\n"
        "def make():\n"
        "    checkpoint = CheckpointConfig(store='sqlite:///runs.db', interval=1)\n"
        "    graph = StateGraph(GraphConfig(name='g', checkpoint=checkpoint))\n"
        "    graph.add_node('a', lambda state: None)\n"
        "    graph.set_entry_point('a'); graph.set_exit_point('a')\n"
        "    return graph\n"
    )
    (tmp_path / "app.py").write_text("from factory import make\ngraph = make()\n")
    code = "import app; print(app.graph.plan().door.entry_point)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "app:graph"


def test_a_fork_that_was_never_resumed_is_not_running() -> None:
    graph = _line(saved("g", MemoryStorage()))

    async def main() -> None:
        await graph.execute(State.new({"n": 1}, run_id="r"))
        first = (await graph.manager.list_checkpoints("r"))[-1]
        fork = await graph.fork(first.checkpoint_id, {"n": 2}, "f")
        assert fork.status == "interrupted"
        assert (await graph.resume("f")).status == "completed"

    asyncio.run(main())
