"""What a step of a graph costs: beside a bare commit, and beside the same graph in LangGraph."""

from __future__ import annotations

import asyncio
import importlib
import operator
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypedDict

from benchmarks.peers import MISSING
from benchmarks.report import Line
from benchmarks.work import BareCommits, Times, message, settings_of, text_of
from holdfast import CheckpointConfig, GraphConfig, SQLiteStorage, State, StateGraph

__all__ = ["measure"]

_ROUNDS = 5
_NOOP_STEPS = 300
_CONVERSATION = 1000
_OFF_STEPS = 1000


def measure(directory: Path) -> Iterator[Line]:
    """The three figures that the graph is held to."""
    ratios, bare = zip(*(_noop(directory / f"noop-{n}.db") for n in range(_ROUNDS)), strict=True)
    yield Line(
        "no-op step with its checkpoint / bare commit",
        median(ratios),
        3,
        note=f"{min(ratios):.2f} to {max(ratios):.2f}; bare commit {median(bare) * 1e3:.3f} ms",
    )
    yield _conversation(directory)
    yield _off()


def _loop_graph(config: GraphConfig, node: Any, steps: int) -> StateGraph:
    graph = StateGraph(config)
    graph.add_node("work", node)
    graph.add_node("end", lambda state: None)
    graph.add_edge("work", "end", lambda state: state.step >= steps)
    graph.add_edge("work", "work")
    graph.set_entry_point("work")
    graph.set_exit_point("end")
    return graph


def _noop(path: Path) -> tuple[float, float]:
    """How many bare commits a step takes; each is made inside the node that it is compared to."""
    times = Times()
    with SQLiteStorage(path) as storage:
        bare = BareCommits(path.with_suffix(".bare"), settings_of(storage))
        left: float | None = None

        def node(state: State) -> None:
            nonlocal left
            if left is not None:
                times.taken.setdefault("step", []).append(time.perf_counter() - left)
            times.time("bare", lambda: bare.commit(body))
            left = time.perf_counter()

        body = text_of(message(1)["content"][:300])
        config = CheckpointConfig(store=storage, interval=1)
        settings = GraphConfig(max_iterations=_NOOP_STEPS + 2, checkpoint=config)
        _loop_graph(settings, node, _NOOP_STEPS).execute_sync(State.new({"n": 0}))
        bare.close()
    return times.ratio("step", "bare"), times.median("bare")


class _Messages(TypedDict):
    messages: Annotated[list[Any], operator.add]


def _conversation(directory: Path) -> Line:
    """A thousand steps that each add a message of 1 KB, from beginning to end."""
    messages = [message(number) for number in range(_CONVERSATION)]
    ours = _seconds(lambda: _our_conversation(directory / "ours.db", messages))
    what = f"{_CONVERSATION:,} steps of a growing conversation: LangGraph / Holdfast"
    try:
        theirs = _seconds(lambda: _their_conversation(directory / "theirs.db", messages))
    except ImportError:
        return Line(what, None, 5, at_least=True, note=f"LangGraph is {MISSING}")
    note = f"{ours:.2f} s beside {theirs:.1f} s, SqliteSaver with durability sync"
    return Line(what, theirs / ours, 5, at_least=True, note=note)


def _our_conversation(path: Path, messages: list[dict[str, Any]]) -> None:
    config = CheckpointConfig(store=f"sqlite:///{path}", interval=1, preserve=True)
    settings = GraphConfig(max_iterations=_CONVERSATION + 2, checkpoint=config)

    async def node(state: State) -> State:
        return state.append("messages", messages[state.step])

    with _loop_graph(settings, node, _CONVERSATION) as graph:
        final = graph.execute_sync(State.new({"messages": []}))
    assert len(final["messages"]) == _CONVERSATION


def _their_graph(schema: Any, node: Any, more: Any, saver: Any) -> Any:
    graph = importlib.import_module("langgraph.graph")
    made = graph.StateGraph(schema)
    made.add_node("work", node)
    made.add_edge(graph.START, "work")
    made.add_conditional_edges("work", lambda state: "work" if more(state) else graph.END)
    return made.compile(checkpointer=saver)


def _their_conversation(path: Path, messages: list[dict[str, Any]]) -> None:
    sqlite = importlib.import_module("langgraph.checkpoint.sqlite")
    with sqlite.SqliteSaver.from_conn_string(str(path)) as saver:
        made = _their_graph(
            _Messages,
            lambda state: {"messages": [messages[len(state["messages"])]]},
            lambda state: len(state["messages"]) < _CONVERSATION,
            saver,
        )
        config = {"configurable": {"thread_id": "run"}, "recursion_limit": _CONVERSATION + 2}
        final = made.invoke({"messages": []}, config, durability="sync")
    assert len(final["messages"]) == _CONVERSATION


class _Count(TypedDict):
    n: int


def _off() -> Line:
    """A node that counts, without checkpoints, in both; they take turns."""
    what = "a node without checkpoints: Holdfast / LangGraph"
    config = GraphConfig(max_iterations=_OFF_STEPS + 2)
    ours = _loop_graph(config, _count, _OFF_STEPS)
    try:
        theirs = _their_graph(_Count, _count, lambda state: state["n"] < _OFF_STEPS, None)
    except ImportError:
        return Line(what, None, 0.1, note=f"LangGraph is {MISSING}")
    settings = {"recursion_limit": _OFF_STEPS + 2}
    times = Times()
    for _ in range(_ROUNDS):
        times.time("ours", lambda: asyncio.run(ours.execute({"n": 0})))
        times.time("theirs", lambda: asyncio.run(theirs.ainvoke({"n": 0}, settings)))
    mine, other = (times.median(name) / _OFF_STEPS * 1e6 for name in ("ours", "theirs"))
    return Line(what, mine / other, 0.1, note=f"{mine:.1f} µs beside {other:.0f} µs a node")


async def _count(state: Any) -> dict[str, int]:
    return {"n": state["n"] + 1}


def _seconds(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
