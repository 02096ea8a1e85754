"""Cost of a step of a graph, beside a bare commit and beside the same graph in LangGraph."""

from __future__ import annotations

import asyncio
import importlib
import operator
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Annotated, Any, TypedDict

from benchmarks.peers import MISSING
from benchmarks.report import Line
from benchmarks.workload import BareCommits, Times, message, settings_of, text_of
from surehold import CheckpointConfig, GraphConfig, SQLiteStorage, State, StateGraph

__all__ = ["measure"]

_ROUNDS = 5
_NOOP_STEPS = 300
_LONG, _SHORT = 1000, 12
_STARTS = 15
"""Short conversations, for the times of early steps."""
_AROUND = 10
_PLACES = (1, 10, 100, 1000)
_OFF_STEPS = 1000


def measure(directory: Path) -> Iterator[Line]:
    """Measure no-op steps, a growing conversation, and steps without checkpoints."""
    ratios, bare = zip(*(_noop(directory / f"noop-{n}.db") for n in range(_ROUNDS)), strict=True)
    yield Line(
        "no-op step with its checkpoint / bare commit",
        median(ratios),
        2,
        note=f"{min(ratios):.2f} to {max(ratios):.2f}; bare commit {median(bare) * 1e3:.3f} ms",
    )
    yield from _conversation(directory)
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
    """Bare commits that a step takes; each is made inside the node it is compared to."""
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


class _Turns:
    """Lets two graphs take turns, a step each, and records how long each step took."""

    def __init__(self) -> None:
        self.taken: dict[str, list[float]] = {"ours": [], "theirs": []}
        self._turn = {name: threading.Event() for name in self.taken}
        self._left: dict[str, float] = {}
        self._turn["ours"].set()

    def enter(self, name: str) -> None:
        """End the step of *name*, and begin its next one after the other graph's step."""
        if name in self._left:
            self.taken[name].append(time.perf_counter() - self._left[name])
            self.leave(name)
        self._turn[name].wait()
        self._turn[name].clear()
        self._left[name] = time.perf_counter()

    def leave(self, name: str) -> None:
        """Let the other graph take its turn."""
        self._turn["theirs" if name == "ours" else "ours"].set()


def _conversation(directory: Path) -> Iterator[Line]:
    """A thousand steps that each add a message of 1 KB: single steps, and all of them."""
    what = "of a growing conversation: LangGraph / Surehold"
    try:
        importlib.import_module("langgraph.checkpoint.sqlite")
    except ImportError:
        yield Line(f"steps {what}", None, 5, at_least=True, note=f"LangGraph is {MISSING}")
        return
    messages = [message(number) for number in range(_LONG + 1)]
    _both(directory / "warm-up", messages[:_SHORT])
    short = [_both(directory / str(n), messages[:_SHORT]) for n in range(_STARTS)]
    long = _both(directory / "long", messages)
    for place in _PLACES:
        ours, theirs = (
            median(run[name][place - 1] for run in short)
            if place < _SHORT
            else median(long[name][place - 1 - _AROUND : place + _AROUND])
            for name in ("ours", "theirs")
        )
        note = f"{ours * 1e3:.2f} ms beside {theirs * 1e3:.2f} ms, the graph's work included"
        yield Line(f"step {place:,} {what}", theirs / ours, 1, at_least=True, note=note)
    ours, theirs = (sum(long[name]) for name in ("ours", "theirs"))
    note = f"{ours:.2f} s beside {theirs:.1f} s, SqliteSaver with durability sync"
    yield Line(f"{_LONG:,} steps {what}", theirs / ours, 5, at_least=True, note=note)


def _both(directory: Path, messages: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Run the same conversation in both; seconds of each step but the last."""
    directory.mkdir()
    turns = _Turns()
    with ThreadPoolExecutor(2) as pool:
        for done in [
            pool.submit(_our_conversation, directory / "ours.db", messages, turns),
            pool.submit(_their_conversation, directory / "theirs.db", messages, turns),
        ]:
            done.result()
    return turns.taken


def _our_conversation(path: Path, messages: list[dict[str, Any]], turns: _Turns) -> None:
    config = CheckpointConfig(store=f"sqlite:///{path}", interval=1, preserve=True)
    settings = GraphConfig(max_iterations=len(messages) + 2, checkpoint=config)

    async def node(state: State) -> State:
        turns.enter("ours")
        return state.append("messages", messages[state.step])

    try:
        with _loop_graph(settings, node, len(messages)) as graph:
            final = graph.execute_sync(State.new({"messages": []}))
    finally:
        turns.leave("ours")
    assert len(final["messages"]) == len(messages)


def _their_graph(schema: Any, node: Any, more: Any, saver: Any) -> Any:
    graph = importlib.import_module("langgraph.graph")
    made = graph.StateGraph(schema)
    made.add_node("work", node)
    made.add_edge(graph.START, "work")
    made.add_conditional_edges("work", lambda state: "work" if more(state) else graph.END)
    return made.compile(checkpointer=saver)


def _their_conversation(path: Path, messages: list[dict[str, Any]], turns: _Turns) -> None:
    sqlite = importlib.import_module("langgraph.checkpoint.sqlite")

    def node(state: Any) -> Any:
        turns.enter("theirs")
        return {"messages": [messages[len(state["messages"])]]}

    try:
        with sqlite.SqliteSaver.from_conn_string(str(path)) as saver:
            made = _their_graph(
                _Messages, node, lambda state: len(state["messages"]) < len(messages), saver
            )
            config = {"configurable": {"thread_id": "run"}, "recursion_limit": len(messages) + 2}
            final = made.invoke({"messages": []}, config, durability="sync")
    finally:
        turns.leave("theirs")
    assert len(final["messages"]) == len(messages)


class _Count(TypedDict):
    n: int


def _off() -> Line:
    """Compare a node that counts, without checkpoints, in turns."""
    what = "a node without checkpoints: Surehold / LangGraph"
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
