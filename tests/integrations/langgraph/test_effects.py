"""Effects and steps in nodes, tools and tasks of LangGraph graphs."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, Send, interrupt

import surehold
from surehold.errors import InDoubtError, Interrupted, ShapeError
from surehold.integrations.langgraph import SureholdSaver

VICTIM = Path(__file__).with_name("paying_graph.py")
ANN: Any = {"configurable": {"thread_id": "ann"}}


class State(TypedDict):
    text: str


class Calls:
    """Steps that count how often they were called."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.keys: list[str] = []
        self.broken = False

        @surehold.step(name="charge", in_doubt="ask")
        def charge(amount: Any, idempotency_key: str = "") -> str:
            self.keys.append(idempotency_key)
            self.made.append(amount)
            if self.broken:
                raise OSError("no answer")
            return f"paid {amount}"

        self.charge = charge

    async def charge_awaited(self, amount: Any) -> str:
        self.made.append(amount)
        return f"paid {amount}"


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def saver(address: str) -> Iterator[SureholdSaver]:
    with SureholdSaver(address) as saver:
        yield saver


def test_a_node_killed_after_its_effect_charges_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = [sys.executable, VICTIM, tmp_path / "t.db", log, "awaited"]
    killed = subprocess.run([*command, "after"], check=False, timeout=500)
    assert killed.returncode == -signal.SIGKILL
    ended = subprocess.run([*command, "none"], check=True, timeout=500, capture_output=True)
    assert ended.stdout.strip() == b"30"
    assert log.read_text() == "30\n"


def test_a_node_killed_in_its_effect_waits_for_a_person(tmp_path: Path) -> None:
    log, storage = tmp_path / "log", f"sqlite:///{tmp_path}/t.db"
    command = [sys.executable, VICTIM, tmp_path / "t.db", log, "blocking"]
    subprocess.run([*command, "inside"], check=False, timeout=500)
    waiting = surehold.pending(storage=storage)
    assert [(one.run_id, one.name, one.node, one.inputs) for one in waiting] == [
        ("ann", "charge", "pay", "amount=30")
    ]
    surehold.answer("ann", waiting[0].id, 30, storage=storage)
    ended = subprocess.run([*command, "none"], check=True, timeout=500, capture_output=True)
    assert ended.stdout.strip() == b"30"
    assert log.read_text() == "30\n"


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_what_comes_before_an_interrupt_is_not_called_again(
    durability: Any, calls: Calls, saver: SureholdSaver
) -> None:
    def pay(state: State) -> State:
        first = calls.charge(1)
        said = interrupt("and the second?")
        return {"text": f"{first}, {said}, {calls.charge(2)}"}

    graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(saver)
    graph.invoke({"text": ""}, ANN, durability=durability)
    ended = graph.invoke(Command(resume="yes"), ANN, durability=durability)
    assert ended["text"] == "paid 1, yes, paid 2"
    assert calls.made == [1, 2]


async def test_an_awaited_effect_before_an_interrupt_is_not_called_again(
    calls: Calls, saver: SureholdSaver
) -> None:
    async def pay(state: State) -> State:
        first = await surehold.effect("charge", calls.charge_awaited, 1)
        return {"text": f"{first}, {interrupt('and?')}"}

    graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(saver)
    await graph.ainvoke({"text": ""}, ANN)
    assert (await graph.ainvoke(Command(resume="yes"), ANN))["text"] == "paid 1, yes"
    assert calls.made == [1]


def test_a_failed_node_resumes_with_what_it_has_recorded(calls: Calls, tmp_path: Path) -> None:
    fails = [True]

    def pay(state: State) -> State:
        paid = [calls.charge(1), calls.charge(2)]
        if fails:
            raise RuntimeError(fails.pop())
        return {"text": " ".join(paid)}

    for start in ({"text": ""}, None):
        with SureholdSaver(f"sqlite:///{tmp_path}/t.db") as saver:
            graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(saver)
            if start:
                with pytest.raises(RuntimeError):
                    graph.invoke(start, ANN)
            else:
                assert graph.invoke(start, ANN)["text"] == "paid 1 paid 2"
    assert calls.made == [1, 2]


def test_a_retried_node_counts_its_calls_from_the_first(calls: Calls, saver: SureholdSaver) -> None:
    def pay(state: State) -> State:
        paid = calls.charge(1)
        if len(tries) < 2:
            tries.append(1)
            raise ConnectionError
        return {"text": paid}

    tries: list[int] = []
    policy = RetryPolicy(initial_interval=0.01, retry_on=ConnectionError)
    builder = StateGraph(State).add_node("pay", pay, retry_policy=policy).add_edge(START, "pay")
    assert builder.compile(saver).invoke({"text": ""}, ANN)["text"] == "paid 1"
    assert calls.made == [1]


def test_a_call_that_raised_is_made_again_with_its_key(calls: Calls, saver: SureholdSaver) -> None:
    calls.broken = True

    def pay(state: State) -> State:
        return {"text": calls.charge(1)}

    graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(saver)
    with pytest.raises(OSError, match="no answer"):
        graph.invoke({"text": ""}, ANN)
    calls.broken = False
    assert graph.invoke(None, ANN)["text"] == "paid 1"
    assert len(calls.keys) == 2 and len(set(calls.keys)) == 1


def test_each_visit_of_a_node_and_each_thread_has_effects_of_its_own(
    calls: Calls, saver: SureholdSaver
) -> None:
    def pay(state: State) -> State:
        return {"text": state["text"] + calls.charge("x")[-1]}

    builder = StateGraph(State).add_node("pay", pay).add_edge(START, "pay")
    builder.add_conditional_edges("pay", lambda state: "pay" if len(state["text"]) < 3 else "end")
    builder.add_node("end", lambda state: None)
    graph = builder.compile(saver)
    for thread in ("ann", "bob"):
        graph.invoke({"text": ""}, {"configurable": {"thread_id": thread}})
    assert calls.made == ["x"] * 6
    assert len(set(calls.keys)) == 6


def test_parallel_tools_are_told_apart_by_their_calls(calls: Calls, saver: SureholdSaver) -> None:
    fails = [True]

    @tool
    def pay(amount: int) -> str:
        """Pay."""
        return str(calls.charge(amount))

    @tool
    def stop() -> str:
        """Fail once."""
        if fails:
            raise RuntimeError(fails.pop())
        return "stopped"

    def decide(state: MessagesState) -> Any:
        asked: Any = [{"name": "pay", "args": {"amount": n}, "id": f"c{n}"} for n in (1, 2, 3)]
        return {"messages": [AIMessage("", tool_calls=[*asked, {**asked[0], "id": "c4"}, last])]}

    last: Any = {"name": "stop", "args": {}, "id": "c5"}
    builder = StateGraph(MessagesState).add_node("decide", decide).add_edge(START, "decide")
    tools = ToolNode([pay, stop], handle_tool_errors=False)
    graph = builder.add_node("tools", tools).add_edge("decide", "tools").compile(saver)
    with pytest.raises(RuntimeError):
        graph.invoke({"messages": [("user", "pay")]}, ANN)
    ended = graph.invoke(None, ANN)["messages"]
    assert [one.content for one in ended[-5:]] == [
        *("paid 1", "paid 2", "paid 3", "paid 1"),
        "stopped",
    ]
    assert sorted(calls.made) == [1, 1, 2, 3]
    assert len(set(calls.keys)) == 4


def test_effects_of_sent_tasks_and_subgraphs(calls: Calls, saver: SureholdSaver) -> None:
    fails = [True]

    def pay(state: Any) -> Any:
        paid = calls.charge(state["text"])
        if state["text"] == "b" and fails:
            raise RuntimeError(fails.pop())
        return {"text": paid}

    inner = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile()
    builder = StateGraph(MessagesState)
    builder.add_node("inner", lambda state: {"messages": [inner.invoke(state)["text"]]})
    builder.add_conditional_edges(
        START, lambda _: [Send("inner", {"text": name}) for name in "abc"], ["inner"]
    )
    graph = builder.compile(saver)
    with pytest.raises(RuntimeError):
        graph.invoke({"messages": []}, ANN)
    ended = graph.invoke(None, ANN)["messages"]
    assert [one.content for one in ended] == ["paid a", "paid b", "paid c"]
    assert sorted(calls.made) == ["a", "b", "c"]


def test_effects_in_tasks_of_the_functional_api(calls: Calls, saver: SureholdSaver) -> None:
    @task
    def pay(amount: int) -> str:
        return str(calls.charge(amount))

    @entrypoint(checkpointer=saver)
    def flow(amount: int) -> str:
        paid = pay(amount).result()
        own = calls.charge(amount + 1)
        return f"{paid}, {own}, {interrupt('go on?')}"

    flow.invoke(1, ANN)
    assert flow.invoke(Command(resume="yes"), ANN) == "paid 1, paid 2, yes"
    assert calls.made == [1, 2]


def test_other_arguments_at_the_same_place_are_refused(calls: Calls, saver: SureholdSaver) -> None:
    amounts = [1, 2]

    def pay(state: State) -> State:
        calls.charge(amounts.pop(0))
        return {"text": interrupt("?")}

    graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(saver)
    graph.invoke({"text": ""}, ANN)
    with pytest.raises(ShapeError, match="other arguments"):
        graph.invoke(Command(resume="yes"), ANN)
    assert calls.made == [1]


def test_a_run_around_the_graph_and_a_run_inside_a_node(
    calls: Calls, saver: SureholdSaver, tmp_path: Path
) -> None:
    def pay(state: State) -> State:
        with surehold.run("inside", storage=f"sqlite:///{tmp_path}/runs.db"):
            calls.charge("in a run")
        return {"text": calls.charge("in the thread")}

    graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(saver)
    with surehold.run("around", storage=f"sqlite:///{tmp_path}/runs.db") as around:
        graph.invoke({"text": ""}, ANN)
        around.call(lambda: 1)
    reader = saver.manager.reader
    names = [one.node for one in reader.storage.headers(_effects("ann"))]
    assert names == ["pay", "pay"]  # the intent and the outcome
    assert calls.made == ["in a run", "in the thread"]


@pytest.mark.parametrize("around", [surehold.step, surehold.workflow], ids=["step", "child"])
def test_a_graph_in_a_call_of_a_workflow(
    around: Any, calls: Calls, saver: SureholdSaver, tmp_path: Path
) -> None:
    def pay(state: State) -> State:
        return {"text": calls.charge("in the thread")}

    graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(saver)

    @around
    def ask() -> str:
        return f"{graph.invoke({'text': ''}, ANN)['text']}, {calls.charge('in the run')}"

    @surehold.workflow
    def nightly() -> str:
        return ask()

    for _ in range(2):
        result = nightly.run(run_id="r", storage=f"sqlite:///{tmp_path}/runs.db")
        assert result.value == "paid in the thread, paid in the run"
    assert calls.made == ["in the thread", "in the run"]


def test_a_graph_that_is_saved_at_its_end_says_that_nothing_is_recorded(
    calls: Calls, saver: SureholdSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pay(state: State) -> State:
        return {"text": calls.charge(1)}

    monkeypatch.setattr("surehold.integrations.langgraph.tasks._said", set())
    graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(saver)
    with pytest.warns(RuntimeWarning, match="durability='exit'"):
        graph.invoke({"text": ""}, ANN, durability="exit")
    assert calls.made == [1]


def test_a_doubt_in_one_thread_leaves_others_alone(calls: Calls, saver: SureholdSaver) -> None:
    @surehold.step(in_doubt="ask")
    def doubtful() -> None:
        raise InDoubtError("the line went dead")

    def pay(state: State) -> State:
        doubtful()
        return state

    graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(saver)
    with pytest.raises(InDoubtError):
        graph.invoke({"text": ""}, ANN)
    with pytest.raises(Interrupted, match="it is not known whether"):
        graph.invoke(None, ANN)
    other = StateGraph(State).add_node("pay", lambda _: {"text": calls.charge(1)})
    bob: Any = {"configurable": {"thread_id": "bob"}}
    assert other.add_edge(START, "pay").compile(saver).invoke({"text": ""}, bob)
    (waiting,) = surehold.pending(storage=saver.manager)
    surehold.answer("ann", waiting.id, None, storage=saver.manager)
    graph.invoke(None, ANN)


async def test_many_threads_at_once(calls: Calls, saver: SureholdSaver) -> None:
    async def pay(state: State) -> State:
        return {"text": await surehold.effect("charge", calls.charge_awaited, state["text"])}

    graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(saver)
    threads: list[Any] = [{"configurable": {"thread_id": str(n)}} for n in range(20)]
    ended = await asyncio.gather(
        *(graph.ainvoke({"text": str(n)}, one) for n, one in enumerate(threads))
    )
    assert [one["text"] for one in ended] == [f"paid {n}" for n in range(20)]


def _effects(run_id: str) -> Any:
    from surehold.storage.base import RecordQuery

    return RecordQuery(run_id=run_id, kind="effect", notes=True)


@pytest.mark.parametrize("moves", ["prune", "copy_thread"])
def test_effects_of_an_open_step_survive(moves: str, calls: Calls, saver: SureholdSaver) -> None:
    def pay(state: State) -> State:
        return {"text": f"{calls.charge(1)}, {interrupt('and?')}"}

    graph = StateGraph(State).add_node("pay", pay).add_edge(START, "pay").compile(saver)
    graph.invoke({"text": ""}, ANN)
    if moves == "prune":
        saver.prune(["ann"])
    else:
        saver.copy_thread("ann", "bob")
    thread: Any = ANN if moves == "prune" else {"configurable": {"thread_id": "bob"}}
    assert graph.invoke(Command(resume="yes"), thread)["text"] == "paid 1, yes"
    assert calls.made == [1]
