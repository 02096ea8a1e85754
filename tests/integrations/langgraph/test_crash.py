"""A LangGraph run that is killed, and two that go on from the same checkpoint at once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from tests.crash.media import times

from surehold.errors import ConflictError
from surehold.integrations.langgraph.saver import SureholdSaver

VICTIM = Path(__file__).with_name("crash_victim.py")


@pytest.mark.parametrize("side", ["blocking", "awaited"])
def test_killed_at_step_50_of_60_with_async_durability_repeats_at_most_2_steps(
    side: str, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    repeated = []
    for trial in range(times(1, 4)):
        files = [tmp_path / f"{trial}.db", tmp_path / f"{trial}.log"]
        command = [sys.executable, VICTIM, *files, side]
        killed = subprocess.run(command, check=False, timeout=500)
        assert killed.returncode == -signal.SIGKILL
        ended = subprocess.run([*command, "survive"], check=True, timeout=500, capture_output=True)
        assert ended.stdout.strip() == b"60"
        steps = Counter(map(int, (tmp_path / f"{trial}.log").read_text().split()))
        assert set(steps) == set(range(1, 61))
        repeated.append(sum(steps.values()) - len(steps))
    figure(f"LangGraph, {side}, killed in step 50 of 60 with async durability: {repeated} again")
    assert max(repeated) <= 2


class State(TypedDict):
    text: str


def _graph(saver: SureholdSaver, both: threading.Barrier) -> Any:
    def say(state: State) -> State:
        if state["text"].startswith("both"):
            both.wait(300)
        return {"text": state["text"] + "!"}

    builder = StateGraph(State)
    builder.add_node("say", say)
    builder.add_edge(START, "say")
    builder.add_edge("say", END)
    return builder.compile(checkpointer=saver)


def _race(address: str, single_writer: bool) -> tuple[list[Any], Any]:
    """Two invocations of one thread that both began before either ended."""
    config: Any = {"configurable": {"thread_id": "t"}}
    both = threading.Barrier(2, timeout=300)
    outcomes: list[Any] = []
    first = SureholdSaver(address, single_writer=single_writer)
    second = SureholdSaver(address, single_writer=single_writer)
    _graph(first, both).invoke({"text": "begin"}, config)

    def invoke(saver: SureholdSaver, text: str) -> None:
        try:
            outcomes.append(_graph(saver, both).invoke({"text": text}, config)["text"])
        except ConflictError as error:
            outcomes.append(error)
            both.abort()
        except threading.BrokenBarrierError:
            # The other had its conflict before it came here; this one goes on by itself.
            outcomes.append(_graph(saver, both).invoke({"text": "alone"}, config)["text"])

    pair = [
        threading.Thread(target=invoke, args=(saver, f"both {n}"))
        for n, saver in enumerate((first, second))
    ]
    for one in pair:
        one.start()
    for one in pair:
        one.join()
    state = _graph(first, both).get_state(config).values["text"]
    first.close()
    second.close()
    return outcomes, state


def test_of_two_invocations_at_once_a_single_writer_gets_a_clear_conflict(tmp_path: Path) -> None:
    outcomes, state = _race(f"sqlite:///{tmp_path}/threads.db", single_writer=True)
    conflicts = [one for one in outcomes if isinstance(one, ConflictError)]
    assert len(conflicts) == 1
    assert "was continued" in conflicts[0].message and conflicts[0].run_id == "t"
    assert [one for one in outcomes if isinstance(one, str)] == [state]


def test_without_single_writer_both_succeed_as_with_any_other_saver(tmp_path: Path) -> None:
    outcomes, state = _race(f"sqlite:///{tmp_path}/threads.db", single_writer=False)
    assert sorted(outcomes) == ["both 0!", "both 1!"] and state in outcomes


def test_a_single_writer_may_fork_and_update(tmp_path: Path) -> None:
    config: Any = {"configurable": {"thread_id": "t"}}
    with SureholdSaver(f"sqlite:///{tmp_path}/threads.db", single_writer=True) as saver:
        graph = _graph(saver, threading.Barrier(1))
        graph.invoke({"text": "one"}, config)
        graph.invoke({"text": "two"}, config)
        past = next(s for s in graph.get_state_history(config) if s.values == {"text": "one!"})
        graph.update_state(past.config, {"text": "edited"}, as_node="say")
        assert graph.get_state(config).values == {"text": "edited"}
        assert graph.invoke({"text": "three"}, config) == {"text": "three!"}


async def test_async_graphs_keep_their_order_and_lose_nothing(tmp_path: Path) -> None:
    async with SureholdSaver(f"sqlite:///{tmp_path}/threads.db") as saver:
        graph = _graph(saver, threading.Barrier(1))
        configs: Any = [{"configurable": {"thread_id": f"t{n}"}} for n in range(20)]
        await asyncio.gather(*(graph.ainvoke({"text": "x"}, one) for one in configs))
        for config in configs:
            history = [one async for one in graph.aget_state_history(config)]
            assert [one.metadata["step"] for one in history] == [1, 0, -1]
            assert (await graph.aget_state(config)).values == {"text": "x!"}
    assert all(SureholdSaver(f"sqlite:///{tmp_path}/threads.db").manager.verify())
