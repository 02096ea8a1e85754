"""Step, node, status and questions of LangGraph threads, as the rest of Surehold sees them."""

from __future__ import annotations

import operator
from itertools import pairwise
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base.id import uuid6
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Interrupt, Send, interrupt
from tests.integrations.langgraph.conftest import Side, id_of, thread

import surehold
from surehold.errors import UsageError
from surehold.integrations.langgraph.saver import SureholdSaver

THREAD: Any = {"configurable": {"thread_id": "t"}}


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


def _graph(saver: SureholdSaver, **nodes: Any) -> Any:
    """A graph that runs these nodes one after another."""
    builder = StateGraph(Log)
    for name, node in nodes.items():
        builder.add_node(name, node)
    names = [START, *nodes, END]
    for source, target in pairwise(names):
        builder.add_edge(source, target)
    return builder.compile(checkpointer=saver)


def _ask(state: Log) -> dict[str, Any]:
    answer = interrupt({"question": "publish?"})
    return {"log": [f"answer {answer}"]}


def _write(text: str) -> Any:
    return lambda state: {"log": [text]}


def _status(saver: SureholdSaver) -> str:
    return saver.manager.list_checkpoints("t")[0].status


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_steps_and_nodes_are_langgraphs_own(address: str, durability: Any) -> None:
    with SureholdSaver(address) as saver:
        graph = _graph(saver, one=_write("1"), two=_write("2"))
        graph.invoke({"log": []}, THREAD, durability=durability)
        listed = saver.manager.list_checkpoints("t")
        assert [(one.step, one.node) for one in listed] == [
            *((2, "two"), (1, "one"), (0, "__start__"), (0, None))
        ]
        steps = [one.metadata["step"] for one in saver.list(THREAD)]
        assert steps == [2, 1, 0, -1]


def test_nodes_of_one_step_are_named_together_and_those_that_were_sent_are_not(
    address: str,
) -> None:
    builder = StateGraph(Log)
    for name in ("a", "b", "join", "sent"):
        builder.add_node(name, _write(name))
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge(["a", "b"], "join")
    builder.add_conditional_edges("join", lambda state: [Send("sent", state)] * 2)
    with SureholdSaver(address) as saver:
        graph = builder.compile(checkpointer=saver)
        for _ in range(2):
            graph.invoke({"log": []}, THREAD)
        nodes = [one.node for one in saver.manager.list_checkpoints("t")]
        assert nodes == [None, "join", "a, b", "__start__", None] * 2


def test_a_thread_whose_graph_has_ended_is_completed(address: str) -> None:
    seen: list[str] = []
    with SureholdSaver(address) as saver:

        def look(state: Log) -> dict[str, Any]:
            seen.append(_status(saver))
            return {"log": ["looked"]}

        graph = _graph(saver, one=_write("1"), look=look)
        for _ in range(2):
            graph.invoke({"log": []}, THREAD, durability="sync")
            assert _status(saver) == "completed"
        assert seen == ["running", "running"]
        graph.update_state(THREAD, {"log": ["again"]}, as_node="one")
        assert _status(saver) == "running"


def test_tasks_that_were_sent_keep_a_thread_running(address: str) -> None:
    seen: list[str] = []
    with SureholdSaver(address) as saver:

        def work(item: Any) -> dict[str, Any]:
            seen.append(_status(saver))
            return {"log": [str(item)]}

        builder = StateGraph(Log)
        builder.add_node("spread", lambda state: {"log": []})
        builder.add_node("work", work)
        builder.add_edge(START, "spread")
        builder.add_conditional_edges("spread", lambda state: [Send("work", n) for n in range(2)])
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"log": []}, THREAD, durability="sync")
        assert seen == ["running", "running"]
        assert _status(saver) == "completed"


def test_a_thread_of_the_functional_interface_is_completed_too(address: str) -> None:
    with SureholdSaver(address) as saver:

        @entrypoint(checkpointer=saver)
        def double(number: int) -> int:
            return 2 * number

        assert double.invoke(4, THREAD, durability="sync") == 8
        assert _status(saver) == "completed"


def test_what_a_thread_asks_is_pending_until_langgraph_resumes_it(address: str) -> None:
    with SureholdSaver(address) as saver:
        graph = _graph(saver, ask=_ask)
        graph.invoke({"log": []}, THREAD, durability="sync")
        (asked,) = surehold.pending(storage=saver.manager)
        shown = graph.get_state(THREAD).interrupts[0]
        assert (asked.run_id, asked.id, asked.node) == ("t", shown.id, "ask")
        assert asked.question == {"question": "publish?"}
        graph.invoke(Command(resume="yes"), THREAD, durability="sync")
        assert surehold.pending(storage=saver.manager) == []
        assert graph.get_state(THREAD).values == {"log": ["answer yes"]}


def test_an_approval_of_langchains_middleware_takes_its_own_form_only(address: str) -> None:
    def ask(state: Log) -> dict[str, Any]:
        told = interrupt({"action_requests": [{"name": "publish"}], "review_configs": []})
        return {"log": [told["decisions"][0]["type"]]}

    form = {"decisions": [{"type": "approve"}]}
    with SureholdSaver(address) as saver:
        graph = _graph(saver, ask=ask)
        graph.invoke({"log": []}, THREAD, durability="sync")
        for yes_or_no in (surehold.approve, surehold.reject):
            with pytest.raises(
                UsageError, match=r"such as {\"decisions\":\[{\"type\":\"approve\"}\]}"
            ):
                yes_or_no("t", storage=saver.manager)
        (asked,) = surehold.pending("t", storage=saver.manager)
        surehold.answer("t", asked.id, form, storage=saver.manager)
        graph.invoke(None, THREAD, durability="sync")
        assert graph.get_state(THREAD).values == {"log": ["approve"]}


def test_a_question_that_was_answered_from_outside_resumes_the_graph(address: str) -> None:
    def ask_twice(state: Log) -> dict[str, Any]:
        return {"log": [interrupt("first?"), interrupt("second?")]}

    with SureholdSaver(address) as saver:
        graph = _graph(saver, ask=ask_twice)
        graph.invoke({"log": []}, THREAD, durability="sync")
        for question, answer in (("first?", "one"), ("second?", "two")):
            (asked,) = surehold.pending("t", storage=saver.manager)
            assert asked.question == question
            surehold.answer("t", asked.id, answer, storage=saver.manager)
            assert surehold.pending("t", storage=saver.manager) == []
            graph.invoke(None, THREAD, durability="sync")
        assert graph.get_state(THREAD).values == {"log": ["one", "two"]}
        assert _status(saver) == "completed"


async def test_a_question_that_overtook_its_checkpoint_is_pending(side: Side) -> None:
    """LangGraph saves both in the background, in whichever order its threads get to it."""
    first = await side.step(thread(), {"log": []})
    later = thread(id=str(uuid6()))
    asked = [("__interrupt__", (Interrupt("publish?", id="q"),))]
    await side("put_writes", later, asked, "task", "~__pregel_pull, ask")
    await side.step(first, {"log": ["asks"]}, id=id_of(later), step=1)
    manager = side.saver.manager
    for run_id in (None, "t"):
        (waiting,) = surehold.pending(run_id, storage=manager)
        assert (waiting.id, waiting.question, waiting.node) == ("q", "publish?", "ask")
    surehold.answer("t", "q", "yes", storage=manager)
    assert surehold.pending(storage=manager) == []
    found = await side("get_tuple", thread())
    assert ("task", "__resume__", ["yes"]) in found.pending_writes
    await side.step(later, {"log": ["asks", "yes"]}, step=2)
    assert surehold.pending("t", storage=manager) == []


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_question_is_answered_from_outside_in_any_durability(
    address: str, durability: Any
) -> None:
    with SureholdSaver(address) as saver:
        graph = _graph(saver, one=_write("1"), ask=_ask)
        for number in range(10):
            config: Any = {"configurable": {"thread_id": f"t{number}"}}
            graph.invoke({"log": []}, config, durability=durability)
            (asked,) = surehold.pending(f"t{number}", storage=saver.manager)
            surehold.answer(f"t{number}", asked.id, "yes", storage=saver.manager)
            assert surehold.pending(f"t{number}", storage=saver.manager) == []
            graph.invoke(None, config, durability=durability)
            assert graph.get_state(config).values == {"log": ["1", "answer yes"]}


def test_an_answer_from_outside_follows_one_given_to_langgraph(address: str) -> None:
    def ask_twice(state: Log) -> dict[str, Any]:
        return {"log": [interrupt("first?"), interrupt("second?")]}

    with SureholdSaver(address) as saver:
        graph = _graph(saver, ask=ask_twice)
        graph.invoke({"log": []}, THREAD, durability="sync")
        graph.invoke(Command(resume="one"), THREAD, durability="sync")
        (asked,) = surehold.pending("t", storage=saver.manager)
        surehold.answer("t", asked.id, "two", storage=saver.manager)
        graph.invoke(None, THREAD, durability="sync")
        assert graph.get_state(THREAD).values == {"log": ["one", "two"]}


def test_a_node_that_failed_after_an_answer_gets_only_the_answers_that_were_given(
    address: str,
) -> None:
    fails = [True]

    def ask(state: Log) -> dict[str, Any]:
        first = interrupt("first?")
        if fails[0]:
            raise ConnectionError("away")
        return {"log": [first, interrupt("second?")]}

    with SureholdSaver(address) as saver:
        graph = _graph(saver, ask=ask)
        graph.invoke({"log": []}, THREAD)
        with pytest.raises(ConnectionError):
            graph.invoke(Command(resume="yes"), THREAD)
        found = saver.get_tuple(THREAD)
        assert found is not None and found.pending_writes is not None
        resumed = [value for _, channel, value in found.pending_writes if channel == "__resume__"]
        assert resumed == ["yes", ["yes"]]
        fails[0] = False
        assert None not in graph.invoke(None, THREAD)["log"]


@pytest.mark.parametrize("how", ["prune", "copy"])
@pytest.mark.parametrize("answered", [True, False])
def test_what_a_thread_asks_and_the_answer_survive(address: str, how: str, answered: bool) -> None:
    with SureholdSaver(address) as saver:
        graph = _graph(saver, one=_write("1"), ask=_ask)
        graph.invoke({"log": []}, THREAD)
        (asked,) = surehold.pending("t", storage=saver.manager)
        if answered:
            surehold.answer("t", asked.id, "yes", storage=saver.manager)
        if how == "prune":
            saver.prune(["t"])
        else:
            saver.copy_thread("t", "copy")
        where = "t" if how == "prune" else "copy"
        listed = [one.id for one in surehold.pending(where, storage=saver.manager)]
        assert listed == ([] if answered else [asked.id])
        if not answered:
            surehold.answer(where, asked.id, "yes", storage=saver.manager)
        assert graph.invoke(None, thread(where))["log"] == ["1", "answer yes"]


def test_an_answer_that_a_graph_has_taken_is_not_given_again_after_prune(address: str) -> None:
    fails = [True]

    def ask(state: Log) -> dict[str, Any]:
        first = interrupt("first?")
        if fails[0]:
            raise ConnectionError("away")
        return {"log": [first]}

    with SureholdSaver(address) as saver:
        graph = _graph(saver, one=_write("1"), ask=ask)
        graph.invoke({"log": []}, THREAD)
        (asked,) = surehold.pending("t", storage=saver.manager)
        surehold.answer("t", asked.id, "yes", storage=saver.manager)
        with pytest.raises(ConnectionError):
            graph.invoke(None, THREAD)
        before = saver.get_tuple(THREAD)
        saver.prune(["t"])
        after = saver.get_tuple(THREAD)
        assert before is not None and after is not None
        assert after.pending_writes == before.pending_writes
        fails[0] = False
        assert graph.invoke(None, THREAD)["log"] == ["1", "yes"]


def _asking_subgraph(name: str) -> Any:
    builder = StateGraph(Log)
    builder.add_node("ask", lambda state: {"log": [f"{name}: {interrupt(f'{name}?')}"]})
    builder.add_edge(START, "ask")
    return builder.compile()


def _answer_all(saver: SureholdSaver, thread_id: str = "t") -> list[Any]:
    asked = surehold.pending(thread_id, storage=saver.manager)
    for one in asked:
        surehold.answer(thread_id, one.id, f"to {one.question}", storage=saver.manager)
    return [one.question for one in asked]


def test_a_question_of_a_subgraph_is_answered_from_outside(address: str) -> None:
    inner, called = _asking_subgraph("inner"), _asking_subgraph("called")

    def calls(state: Log) -> dict[str, Any]:
        said = called.invoke({"log": []})["log"]
        return {"log": [*said, f"own: {interrupt('own?')}"]}

    with SureholdSaver(address) as saver:
        builder = StateGraph(Log)
        builder.add_node("nested", _graph(None, deep=_graph(None, inner=inner)))  # type: ignore[arg-type]
        builder.add_node("calls", calls)
        builder.add_edge(START, "nested")
        builder.add_edge(START, "calls")
        graph = builder.compile(checkpointer=saver)
        graph.invoke({"log": []}, THREAD)
        assert sorted(_answer_all(saver)) == ["called?", "inner?"]
        graph.invoke(None, THREAD)
        assert _answer_all(saver) == ["own?"]
        done = graph.invoke(None, THREAD)
        assert done["log"] == ["called: to called?", "own: to own?", "inner: to inner?"]
        assert _status(saver) == "completed"


@pytest.mark.parametrize("how", ["prune", "copy"])
@pytest.mark.parametrize("answered", [True, False])
def test_what_a_subgraph_asks_and_the_answer_survive(
    address: str, how: str, answered: bool
) -> None:
    with SureholdSaver(address) as saver:
        graph = _graph(saver, one=_write("1"), sub=_asking_subgraph("sub"))
        graph.invoke({"log": []}, THREAD)
        if answered:
            assert _answer_all(saver) == ["sub?"]
        if how == "prune":
            saver.prune(["t"])
        else:
            saver.copy_thread("t", "copy")
        where = "t" if how == "prune" else "copy"
        assert _answer_all(saver, where) == ([] if answered else ["sub?"])
        assert graph.invoke(None, thread(where))["log"][-1] == "sub: to sub?"
