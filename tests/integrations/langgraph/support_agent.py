"""An agent as a LangGraph graph, which tests kill at each of its calls.

Five turns: a search, two payments at once, a refund that a person approves, and the answer.
"""

from __future__ import annotations

import json
import operator
import os
from typing import Annotated, Any, TypedDict

import httpx
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

import surehold
from surehold.errors import Interrupted
from surehold.integrations.langgraph import SureholdSaver

THREAD: Any = {"configurable": {"thread_id": "case-7"}}
TURNS: list[list[tuple[str, Any]]] = [
    [("search", "orders")],
    [("pay", 1), ("pay", 2)],
    [("refund", 3)],
]
CALLS = ["model 0", "search orders", "model 1", "pay 1", "pay 2", "model 2", "refund 3", "model 3"]
"""The calls of an undisturbed thread. The two payments are made at once."""
WRITES = 9
"""Checkpoints of an undisturbed thread."""


def script(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's next message; `name` is for the list of calls."""
    turn = sum(one["role"] == "assistant" for one in messages)
    said: dict[str, Any] = {"name": f"model {turn}", "role": "assistant", "content": None}
    if turn == len(TURNS):
        results = [one["content"] for one in messages if one["role"] == "tool"]
        return said | {"content": ", ".join(sorted(results))}
    return said | {"tool_calls": [{"name": name, "argument": one} for name, one in TURNS[turn]]}


class ToldSaver(SureholdSaver):
    """Tells the server after each checkpoint."""

    url = ""
    writes = 0

    def put(self, *args: Any, **kwargs: Any) -> Any:
        made = super().put(*args, **kwargs)
        self.writes += 1
        _post(f"{self.url}/tool", {"call": f"after write {self.writes}"})
        return made


def _post(url: str, body: dict[str, Any]) -> Any:
    headers = {"X-Caller": str(os.getpid())}
    return httpx.post(url, json=body, headers=headers, timeout=300).json()


class State(TypedDict):
    messages: Annotated[list[Any], operator.add]


class Call(TypedDict):
    name: str
    argument: Any


def make_graph(url: str, saver: SureholdSaver) -> Any:
    def model(state: State) -> Any:
        answer = _post(f"{url}/v1/chat/completions", {"messages": state["messages"]})
        return {"messages": [answer["choices"][0]["message"]]}

    def tell(call: str) -> str:
        return str(_post(f"{url}/tool", {"call": call}))

    @surehold.step(in_doubt="ask")
    def charge(call: str) -> str:
        return tell(call)

    def tool(call: Call) -> Any:
        name, argument = call["name"], call["argument"]
        if name == "search":
            said = tell(f"search {argument}")
        elif name == "refund" and not interrupt({"refund": argument}):
            said = "no"
        else:
            said = charge(f"{name} {argument}")
        return {"messages": [{"role": "tool", "content": said}]}

    def after(state: State) -> Any:
        calls = state["messages"][-1].get("tool_calls")
        return [Send("tool", call) for call in calls] if calls else END

    builder = StateGraph(State).add_node("model", model).add_node("tool", tool)
    builder.add_edge(START, "model").add_conditional_edges("model", after, ["tool", END])
    return builder.add_edge("tool", "model").compile(saver)


def go_on(url: str, storage: str) -> str | None:
    """Begin the thread or continue it; None if it waits."""
    with ToldSaver(storage) as saver:
        saver.url = url
        graph = make_graph(url, saver)
        begun = saver.get_tuple(THREAD) is not None
        start = None if begun else {"messages": [{"role": "user", "content": "help"}]}
        try:
            ended = graph.invoke(start, THREAD, durability="sync")
        except Interrupted:
            return None
        if "__interrupt__" in ended:
            return None
        return json.dumps(ended["messages"][-1]["content"])


def live(url: str, storage: str) -> None:
    """One life of the process that executes the thread."""
    go_on(url, storage)
