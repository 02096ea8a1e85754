"""Threads of LangGraph, imported by the command."""

from __future__ import annotations

import operator
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from tests.cli.conftest import call

import surehold

sqlite = pytest.importorskip("langgraph.checkpoint.sqlite")
langgraph = pytest.importorskip("langgraph.graph")


class Chat(TypedDict):
    said: Annotated[list[str], operator.add]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Two threads in LangGraph's own database."""
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "theirs.sqlite")
    with sqlite.SqliteSaver.from_conn_string(path) as saver:
        builder: Any = langgraph.StateGraph(Chat)
        builder.add_node("answer", lambda state: {"said": [f"answer {len(state['said'])}"]})
        builder.add_edge(langgraph.START, "answer")
        builder.add_edge("answer", langgraph.END)
        graph = builder.compile(checkpointer=saver)
        for thread in ("a", "b"):
            config = {"configurable": {"thread_id": thread}}
            graph.invoke({"said": ["hello"]}, config, durability="sync")
    return path


def test_threads_become_runs_that_every_command_understands(source: str) -> None:
    ours = "sqlite:///ours.db"
    document = call("-s", ours, "import-langgraph", "sqlite", source, "--json").json()
    assert [row["thread_id"] for row in document["threads"]] == ["a", "b"]
    assert all(row["added"] == row["checkpoints"] > 2 for row in document["threads"])
    listed = call("-s", ours, "runs", "--json").json()["runs"]
    assert {(run["run_id"], run["name"]) for run in listed} == {
        ("a", "langgraph"),
        ("b", "langgraph"),
    }
    assert "answer 1" in call("-s", ours, "show", "a").out
    assert "answer 1" in call("-s", ours, "log", "a").out
    assert call("-s", ours, "verify", "--read-data").code == 0
    resumed = call("-s", ours, "resume", "a")
    assert resumed.code == 2 and "a LangGraph thread" in resumed.err
    assert "graph.invoke(None, config) resumes it" in resumed.err
    assert "--entry" not in resumed.err
    again = call("-s", ours, "import-langgraph", "sqlite", source)
    assert again.out.endswith("2 threads, 0 checkpoints imported\n")


def test_only_some_threads_and_wrong_sources(source: str) -> None:
    ours = "sqlite:///ours.db"
    one = call("-s", ours, "import-langgraph", "sqlite", source, "--thread", "b", "--jsonl")
    assert [line["thread_id"] for line in one.lines()] == ["b"]
    assert call("-s", ours, "import-langgraph", "oracle", source).code == 2
    assert call("-s", ours, "import-langgraph", "sqlite", "nowhere.sqlite").code == 4
    typed = ["--type", "os:sep"]
    assert call("-s", ours, "import-langgraph", "sqlite", source, *typed).code == 2


def test_a_file_that_is_none_of_langgraphs_is_told_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.sqlite").touch()
    Path("notes.txt").write_text("not a database")
    Path("folder").mkdir()
    with closing(sqlite3.connect("other.sqlite")) as other:
        other.execute("CREATE TABLE invoices(id)")
    with surehold.run("a", storage="sqlite:///own.db") as run:
        run.checkpoint(n=1)
    for file, what, helps in (
        ("empty.sqlite", "it is empty", "SqliteSaver.from_conn_string"),
        ("notes.txt", "it is not a SQLite file", "SqliteSaver.from_conn_string"),
        ("folder", "it is a directory", "SqliteSaver.from_conn_string"),
        ("other.sqlite", "a SQLite file with other tables: invoices", "from_conn_string"),
        ("own.db", "it is a Surehold database", "own.db runs lists them"),
    ):
        result = call("-s", "sqlite:///ours.db", "import-langgraph", "sqlite", file)
        assert result.code == 2 and result.out == ""
        assert f"{file} is not a database of LangGraph's SqliteSaver: " in result.err
        assert what in result.err and helps in result.err
    assert not Path("ours.db").exists()
