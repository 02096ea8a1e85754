"""Agents of the OpenAI Agents SDK, which tests kill at each of their calls.

Six turns: a search, a handoff, a payment, a refund that a person approves, an expert who is an
agent used as a tool, and the answer. A session is attached.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import agents
import httpx
from agents import Agent, OpenAIChatCompletionsModel, function_tool
from openai import AsyncOpenAI

import surehold
from surehold.integrations.openai_agents import SureholdRunner, SureholdSession

TURNS: list[tuple[str, dict[str, Any]]] = [
    ("search", {"text": "orders"}),
    ("transfer_to_billing", {}),
    ("pay", {"order": 1}),
    ("refund", {"order": 3}),
    ("ask_expert", {"input": "tax"}),
]
CALLS = [
    *("model 0", "search orders", "model 1", "model 2", "pay 1"),
    *("model 3", "refund 3", "model 4", "expert", "model 5"),
]
"""The calls of an undisturbed run, but for those of its session."""
WRITES = 8
"""Writes to the session: what the user said, and what the turns add."""


def script(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's next message; `name` is for the list of calls."""
    if any("an expert" in str(one.get("content")) for one in messages):
        return {"name": "expert", "role": "assistant", "content": "nine percent"}
    turn = sum(one["role"] == "assistant" for one in messages)
    said: dict[str, Any] = {"name": f"model {turn}", "role": "assistant", "content": None}
    if turn == len(TURNS):
        results = [one["content"] for one in messages if one["role"] == "tool"]
        return said | {"content": ", ".join(results)}
    name, arguments = TURNS[turn]
    function = {"name": name, "arguments": json.dumps(arguments)}
    return said | {"tool_calls": [{"id": f"call_{turn}", "type": "function", "function": function}]}


class ToldSession(SureholdSession):
    """Tells the server before and after each write."""

    url = ""
    writes = 0

    async def add_once(self, items: Any, call: Any) -> None:
        self.writes += 1
        number = self.writes
        await tell(self.url, f"before write {number}")
        await super().add_once(items, call)
        await tell(self.url, f"after write {number}")


async def tell(url: str, call: str) -> str:
    headers = {"X-Caller": str(os.getpid())}
    async with httpx.AsyncClient(headers=headers) as client:
        return str((await client.post(f"{url}/tool", json={"call": call})).json())


def make_workflow(url: str, storage: str, *, streamed: bool) -> tuple[Any, list[str]]:
    """A durable function around new agents, and the kinds of the events that it streams."""
    agents.set_tracing_disabled(True)
    events: list[str] = []
    headers = {"X-Caller": str(os.getpid())}
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", default_headers=headers)
    model = OpenAIChatCompletionsModel("scripted", client)

    @function_tool
    async def search(text: str) -> str:
        return await tell(url, f"search {text}")

    @function_tool
    async def pay(order: int) -> str:
        return await tell(url, f"pay {order}")

    @function_tool(needs_approval=True)
    async def refund(order: int) -> str:
        return await tell(url, f"refund {order}")

    expert = Agent("expert", instructions="You are an expert.", model=model)
    ask = expert.as_tool("ask_expert", "Ask an expert.")
    billing = Agent("billing", model=model, tools=[pay, refund, ask])
    agent = Agent("support", model=model, tools=[search], handoffs=[billing])
    runner = SureholdRunner(per_tool={"search": {"in_doubt": "retry"}})

    @surehold.workflow
    async def support(request: str) -> dict[str, Any]:
        with ToldSession("customer-7", storage) as session:
            session.url = url
            if streamed:
                result = runner.run_streamed(agent, request, session=session)
                async for event in result.stream_events():
                    events.append(getattr(event, "name", event.type))
            else:
                result = await runner.run(agent, request, session=session)
            usage = result.context_wrapper.usage
            return {
                "said": result.final_output,
                "agent": result.last_agent.name,
                "usage": [usage.requests, usage.input_tokens],
            }

    return support, events


def live(url: str, storage: str, streamed: bool) -> None:
    """One life of the process that executes the run."""
    support, _ = make_workflow(url, storage, streamed=streamed)
    asyncio.run(support.run("help", run_id="case-7", storage=storage))
