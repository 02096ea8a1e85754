"""Threads of LangGraph's SqliteSaver, brought over."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from surehold.errors import CorruptError, NotFoundError, UsageError
from surehold.integrations.langgraph.saver import SureholdSaver
from surehold.integrations.langgraph.transfer import export_threads, import_threads


class Plan(BaseModel):
    steps: list[str]


class Chat(TypedDict):
    messages: Annotated[list[Any], add_messages]
    plan: Any


def _graph(saver: Any) -> Any:
    def answer(state: Chat) -> dict[str, Any]:
        count = len(state["messages"])
        if count == 5:
            interrupt("go on?")
        return {"messages": [AIMessage(f"answer {count}", id=f"a{count}")]}

    builder = StateGraph(Chat)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    builder.add_edge("answer", END)
    return builder.compile(checkpointer=saver)


def _config(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "theirs.sqlite"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        graph = _graph(saver)
        for name in ("a", "b"):
            for n in range(3):
                text = HumanMessage(f"say {n}", id=f"h{n}")
                graph.invoke({"messages": [text], "plan": [n]}, _config(name), durability="sync")
    return path


def test_threads_go_back_whole_and_go_on(source: Path, tmp_path: Path) -> None:
    with (
        SureholdSaver(f"sqlite:///{tmp_path}/ours.db") as saver,
        SqliteSaver.from_conn_string(str(source)) as before,
        SqliteSaver.from_conn_string(str(tmp_path / "back.sqlite")) as theirs,
    ):
        list(import_threads("sqlite", str(source), saver))
        told = list(export_threads(saver, theirs))
        assert [(one.thread_id, one.checkpoints, one.added) for one in told] == [
            *(("a", 8, 8), ("b", 8, 8))
        ]
        for name in ("a", "b"):
            assert list(theirs.list(_config(name))) == list(before.list(_config(name)))
        graph = _graph(theirs)
        assert graph.get_state(_config("a")).interrupts
        ended = graph.invoke(Command(resume="yes"), _config("a"))
        assert [message.content for message in ended["messages"]][-2:] == ["say 2", "answer 5"]
        _graph(saver).invoke(Command(resume="yes"), _config("b"), durability="sync")
        told = list(export_threads(saver, theirs, threads=["b", "none"]))
        assert [(one.thread_id, one.checkpoints, one.added) for one in told] == [("b", 9, 1)]
        assert not graph.get_state(_config("b")).interrupts


def test_threads_that_began_here_with_a_subgraph_can_leave(tmp_path: Path) -> None:
    def ask(state: Chat) -> dict[str, Any]:
        return {"messages": [AIMessage(str(interrupt("inside?")), id="i")]}

    inner = StateGraph(Chat).add_node("ask", ask).add_edge(START, "ask").compile()
    outer = StateGraph(Chat).add_node("inner", inner).add_edge(START, "inner")
    with (
        SureholdSaver("memory://") as saver,
        SqliteSaver.from_conn_string(str(tmp_path / "out.sqlite")) as theirs,
    ):
        said: Any = {"messages": [HumanMessage("hi", id="h")], "plan": (1, 2)}
        outer.compile(saver).invoke(said, _config("s"))
        (told,) = export_threads(saver, theirs)
        assert told.added == told.checkpoints > 3
        ended = outer.compile(theirs).invoke(Command(resume="yes"), _config("s"))
        assert [one.content for one in ended["messages"]] == ["hi", "yes"]


def test_a_thread_that_differs_in_the_other_saver_is_told(source: Path) -> None:
    with (
        SureholdSaver("memory://") as saver,
        SqliteSaver.from_conn_string(str(source)) as theirs,
    ):
        list(import_threads("sqlite", str(source), saver, threads=["a"]))
        theirs.conn.execute("UPDATE checkpoints SET parent_checkpoint_id = 'x'")
        with pytest.raises(CorruptError, match="differs in SqliteSaver"):
            list(export_threads(saver, theirs))


def test_threads_come_over_whole_and_go_on(source: Path, tmp_path: Path) -> None:
    before = hashlib.sha256(source.read_bytes()).digest()
    with SureholdSaver(f"sqlite:///{tmp_path}/ours.db") as saver:
        told = list(import_threads("sqlite", str(source), saver))
        assert [(one.thread_id, one.checkpoints, one.added) for one in told] == [
            *(("a", 8, 8), ("b", 8, 8))
        ]
        with SqliteSaver.from_conn_string(str(source)) as theirs:
            for name in ("a", "b"):
                assert list(saver.list(_config(name))) == list(theirs.list(_config(name)))
        graph = _graph(saver)
        assert graph.get_state(_config("a")).interrupts
        ended = graph.invoke(Command(resume="yes"), _config("a"))
        assert [message.content for message in ended["messages"]][-2:] == ["say 2", "answer 5"]
        assert all(saver.manager.verify())
    assert hashlib.sha256(source.read_bytes()).digest() == before


def test_an_import_that_was_interrupted_goes_on(source: Path, tmp_path: Path) -> None:
    with SureholdSaver(f"sqlite:///{tmp_path}/ours.db") as saver:
        assert next(import_threads("sqlite", str(source), saver)).thread_id == "a"
        newest = saver.manager.list_checkpoints("a")[0].checkpoint_id
        saver.manager.delete_checkpoint(newest)
        told = list(import_threads("sqlite", f"sqlite:///{source}", saver))
        assert [(one.thread_id, one.added) for one in told] == [("a", 1), ("b", 8)]
        assert [one.added for one in import_threads("sqlite", str(source), saver)] == [0, 0]
        only = list(import_threads("sqlite", str(source), saver, threads=["b"]))
        assert [one.thread_id for one in only] == ["b"]


def test_a_difference_between_the_two_sides_is_told(source: Path, tmp_path: Path) -> None:
    with SureholdSaver(f"sqlite:///{tmp_path}/ours.db") as saver:
        list(import_threads("sqlite", str(source), saver))
        with closing(sqlite3.connect(source)) as database, database:
            database.execute("DELETE FROM writes WHERE thread_id = 'a'")
        with pytest.raises(CorruptError, match="differs from the source"):
            list(import_threads("sqlite", str(source), saver))


def test_classes_are_loaded_only_if_they_are_named(tmp_path: Path) -> None:
    path = tmp_path / "theirs.sqlite"
    with SqliteSaver.from_conn_string(str(path)) as theirs:
        _graph(theirs).invoke(
            {"messages": [HumanMessage("x", id="1")], "plan": Plan(steps=["a"])}, _config("a")
        )
    with SureholdSaver("memory://") as saver:
        with pytest.raises(UsageError, match=r"Plan.*types="):
            list(import_threads("sqlite", str(path), saver))
        assert saver.get_tuple(_config("a")) is None
        list(import_threads("sqlite", str(path), saver, types=[Plan]))
        assert _graph(saver).get_state(_config("a")).values["plan"] == Plan(steps=["a"])


def test_what_is_no_source_says_so(tmp_path: Path) -> None:
    with SureholdSaver("memory://") as saver:
        with pytest.raises(NotFoundError):
            list(import_threads("sqlite", str(tmp_path / "none"), saver))
        (tmp_path / "other.db").write_bytes(b"not a database, but long enough to be looked at")
        with pytest.raises(UsageError, match="is not a database of LangGraph"):
            list(import_threads("sqlite", str(tmp_path / "other.db"), saver))
        with pytest.raises(UsageError, match="no source"):
            list(import_threads("redis", "x", saver))  # type: ignore[arg-type]
