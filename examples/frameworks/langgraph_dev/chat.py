"""A graph for LangGraph's server, which `langgraph dev` starts; its threads survive the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from surehold.integrations.langgraph import SureholdSaver


def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"You said: {state['messages'][-1].content}")]}


graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


@asynccontextmanager
async def threads() -> AsyncIterator[SureholdSaver]:
    async with SureholdSaver("sqlite:///threads.db") as saver:
        yield saver
