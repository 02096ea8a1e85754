"""Messages are shown as a conversation, whatever wrote them."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.graph import START, StateGraph, add_messages
from tests.web.conftest import Open
from tests.web.test_pages import text_of

from surehold import CheckpointManager
from surehold.integrations.langgraph import SureholdSaver
from surehold.views.values import ChatTurn, read_turns


class Messages(TypedDict):
    messages: Annotated[list[Any], add_messages]


CALL = {"id": "1", "function": {"name": "search", "arguments": '{"q": 1}'}}
TYPED = {"$t": "langchain_core.AIMessage", "v": {"fields": {"content": "hello"}}}


@pytest.mark.parametrize(
    ("message", "turn"),
    [
        ({"role": "user", "content": "hi"}, ChatTurn("user", "hi")),
        ({"type": "human", "content": "hi"}, ChatTurn("user", "hi")),
        (
            {"role": "assistant", "content": [{"text": "a"}, {"text": "b"}]},
            ChatTurn("assistant", "a\nb"),
        ),
        (
            {"role": "tool", "name": "search", "content": {"n": 1}},
            ChatTurn("tool search", '{"n": 1}'),
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            ChatTurn("assistant", "", ('search({"q": 1})',)),
        ),
        (TYPED, ChatTurn("assistant", "hello")),
        (
            {"speaker": "manager", "to": "coder", "content": "do it"},
            ChatTurn("manager to coder", "do it"),
        ),
    ],
)
def test_a_message_of_many_forms(message: Any, turn: ChatTurn) -> None:
    assert read_turns({"messages": [message]}) == [turn]
    assert read_turns({"conversation_history": [message]}) == [turn]


@pytest.mark.parametrize(
    "state", [None, [], {}, {"messages": "no"}, {"messages": [1, "x", {"a": 1}, {"$t": "x"}]}]
)
def test_a_state_without_messages_has_no_turns(state: Any) -> None:
    assert read_turns(state) == []


def test_a_langgraph_thread_is_a_conversation(manager: CheckpointManager, open_page: Open) -> None:
    call = {"name": "search", "args": {"q": "kelp"}, "id": "1"}
    graph = StateGraph(Messages)
    graph.add_node("model", lambda _: {"messages": [AIMessage("let me look", tool_calls=[call])]})
    graph.add_node("tool", lambda _: {"messages": [ToolMessage("an alga", tool_call_id="1")]})
    graph.add_edge(START, "model")
    graph.add_edge("model", "tool")
    made = graph.compile(checkpointer=SureholdSaver(manager))
    made.invoke(
        {"messages": [HumanMessage("what is kelp?")]}, {"configurable": {"thread_id": "thread"}}
    )
    text = text_of(open_page(manager).get("/run?id=thread"))
    assert "user what is kelp?" in text
    assert 'assistant let me look search({"q": "kelp"})' in text
    assert "an alga" in text
