"""LangGraph's `SqliteSaver`, as `from_conn_string` opens it."""

from __future__ import annotations

import time
from typing import Any, TypedDict

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, StateGraph

from proof.peers.states import MOMENT, Tell, state

_CONFIG: Any = {"configurable": {"thread_id": "run", "checkpoint_ns": ""}}


def _saver(directory: str) -> Any:
    return SqliteSaver.from_conn_string(f"{directory}/runs.db")


def save_for_ever(tell: Tell, directory: str) -> None:
    with _saver(directory) as saver:
        found = saver.get_tuple(_CONFIG)
        number = found.checkpoint["channel_values"]["number"] if found else 0
        config = found.config if found else _CONFIG
        while True:
            number += 1
            checkpoint = empty_checkpoint()
            checkpoint["id"] = str(uuid6(clock_seq=number))
            checkpoint["channel_values"] = state(number)
            checkpoint["channel_versions"] = {"number": number, "text": number}
            metadata: Any = {"source": "loop", "step": number, "parents": {}}
            config = saver.put(config, checkpoint, metadata, checkpoint["channel_versions"])
            tell("saved", number)


def look(tell: Tell, directory: str) -> None:
    with _saver(directory) as saver:
        latest = saver.get_tuple(_CONFIG)
        values = latest.checkpoint["channel_values"] if latest else {}
        tell("latest", values.get("number"), values.get("text"))
        for one in saver.list(_CONFIG):
            values = one.checkpoint["channel_values"]
            tell("found", values["number"], values["text"])


class _State(TypedDict, total=False):
    first: bool


def _graph(tell: Tell, saver: Any, seconds: float) -> Any:
    def second(values: _State) -> _State:
        tell("acted")
        time.sleep(seconds)
        return {}

    def first(values: _State) -> _State:
        return {"first": True}

    graph: Any = StateGraph(_State)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    return graph.compile(checkpointer=saver)


def begin(tell: Tell, directory: str) -> None:
    with _saver(directory) as saver:
        _graph(tell, saver, 3600).invoke({"first": False}, _CONFIG, durability="sync")


def resume(tell: Tell, directory: str) -> None:
    with _saver(directory) as saver:
        _graph(tell, saver, MOMENT).invoke(None, _CONFIG, durability="sync")
    tell("ended")
