"""An agent with five kinds of tools, which tests kill at each of its calls."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterable, Callable
from typing import Any

import httpx
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import ToolAnnotations
from pydantic_ai import Agent, RunContext
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import surehold
from surehold.integrations.pydantic_ai import SureholdDurability

TURNS: list[list[tuple[str, dict[str, Any]]]] = [
    [("search", {"text": "orders"})],
    [("pay", {"order": 1}), ("pay", {"order": 2})],
    [("refund", {"order": 3})],
    [("ask_expert", {"text": "tax"})],
    [("book", {"seat": 7}), ("rates", {"day": 1})],
]
CALLS = [
    *("model 0", "search orders", "model 1", "pay 1", "pay 2", "model 2"),
    *("refund 3", "model 3", "expert", "model 4", "book 7", "rates 1", "model 5"),
]
"""The calls of an undisturbed run. The two payments are made at once, and so are the last tools,
which are those of an MCP server."""


def script(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's next message; `name` is for the list of calls."""
    if any("an expert" in str(one.get("content")) for one in messages):
        return {"name": "expert", "role": "assistant", "content": "nine percent"}
    turn = sum(one["role"] == "assistant" for one in messages)
    said: dict[str, Any] = {"name": f"model {turn}", "role": "assistant", "content": None}
    if turn == len(TURNS):
        results = [one["content"] for one in messages if one["role"] == "tool"]
        return said | {"content": ", ".join(results)}
    # The same ids in every turn, as servers of small models give them.
    calls = [
        {
            "id": f"call_{at}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for at, (name, arguments) in enumerate(TURNS[turn])
    ]
    return said | {"tool_calls": calls}


def mcp_server(called: Callable[[str, int], bool]) -> Any:
    """An application that serves two tools and says who calls them."""
    server = MCPServer("bookings")

    def answer(ctx: Context, call: str) -> str:
        request: Any = ctx.request_context.request
        assert called(call, int(request.headers["x-caller"]))
        return f"done {call}"

    @server.tool()
    async def book(ctx: Context, seat: int) -> str:
        return answer(ctx, f"book {seat}")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def rates(ctx: Context, day: int) -> str:
        return answer(ctx, f"rates {day}")

    return server.streamable_http_app(stateless_http=True)


def make_workflow(url: str, mcp: str, *, streamed: bool) -> tuple[Any, list[str]]:
    """A durable function around a new agent, and the events that its handler gets."""
    events: list[str] = []
    headers = {"X-Caller": str(os.getpid())}

    async def handle(ctx: RunContext[None], stream: AsyncIterable[Any]) -> None:
        async for event in stream:
            events.append(type(event).__name__)

    def model() -> OpenAIChatModel:
        provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
        return OpenAIChatModel("scripted", provider=provider, settings={"extra_headers": headers})

    durability: SureholdDurability[None] = SureholdDurability(
        event_stream_handler=handle if streamed else None
    )
    agent = Agent(
        model(),
        name="support",
        capabilities=[durability],
        toolsets=[MCPToolset[None](mcp, id="bookings", headers=headers)],
    )
    expert = Agent(
        model(),
        name="expert",
        instructions="You are an expert.",
        capabilities=[SureholdDurability()],
    )

    @agent.tool_plain(metadata={"surehold": {"in_doubt": "retry"}})
    def search(text: str) -> str:
        asked = httpx.post(f"{url}/tool", json={"call": f"search {text}"}, headers=headers)
        return str(asked.json())

    @agent.tool_plain
    async def pay(order: int) -> str:
        async with httpx.AsyncClient(headers=headers) as client:
            return str((await client.post(f"{url}/tool", json={"call": f"pay {order}"})).json())

    @agent.tool_plain(requires_approval=True)
    async def refund(order: int) -> str:
        async with httpx.AsyncClient(headers=headers) as client:
            return str((await client.post(f"{url}/tool", json={"call": f"refund {order}"})).json())

    @agent.tool_plain(metadata={"surehold": {"in_doubt": "retry"}})
    async def ask_expert(text: str) -> str:
        return (await expert.run(text)).output

    @surehold.workflow
    async def support(request: str) -> dict[str, Any]:
        done = await agent.run(request)
        usage = done.usage
        return {
            "said": done.output,
            "usage": [usage.requests, usage.tool_calls, usage.input_tokens],
        }

    return support, events


def live(url: str, mcp: str, storage: str, streamed: bool) -> None:
    """One life of the process that executes the run."""
    support, _ = make_workflow(url, mcp, streamed=streamed)
    asyncio.run(support.run("help", run_id="case-7", storage=storage))
