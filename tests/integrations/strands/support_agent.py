"""An agent of Strands with three tools, which tests kill at each of its calls."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import httpx
from strands import Agent, ToolContext, tool
from strands.models import Model

from surehold.integrations.strands import SureholdSessionManager

TURNS: list[list[tuple[str, dict[str, Any]]]] = [
    [("search", {"text": "orders"})],
    [("pay", {"order": 1}), ("pay", {"order": 2})],
    [("refund", {"order": 3})],
]
CALLS = [
    *("model 0", "search orders", "model 1", "pay 1", "pay 2", "model 2", "refund 3", "model 3"),
]
"""The calls of an undisturbed run. The two payments are made at once."""


class ScriptedModel(Model):
    """Says what `TURNS` has next, and tells the server before."""

    def __init__(self, url: str) -> None:
        self._url = url

    def get_config(self) -> Any:
        return {"context_window_limit": 100_000}

    def update_config(self, **_: Any) -> None: ...

    async def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        turn = sum(one["role"] == "assistant" for one in messages)
        await tell(self._url, f"model {turn}")
        yield {"messageStart": {"role": "assistant"}}
        if turn == len(TURNS):
            results = [
                block["toolResult"]["content"][0]["text"]
                for one in messages
                for block in one["content"]
                if "toolResult" in block
            ]
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": ", ".join(results)}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}
            return
        for at, (name, arguments) in enumerate(TURNS[turn]):
            call = {"toolUse": {"name": name, "toolUseId": f"call_{turn}_{at}"}}
            yield {"contentBlockStart": {"start": call}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
            yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use"}}


async def tell(url: str, call: str) -> str:
    headers = {"X-Caller": str(os.getpid())}
    async with httpx.AsyncClient(headers=headers) as client:
        return str((await client.post(f"{url}/tool", json={"call": call})).json())


def make_agent(url: str, storage: str) -> Agent:
    """A new agent, in the session that the storage has."""

    @tool
    async def search(text: str) -> str:
        """Search."""
        return await tell(url, f"search {text}")

    @tool
    async def pay(order: int) -> str:
        """Pay."""
        return await tell(url, f"pay {order}")

    @tool(context=True)
    async def refund(order: int, tool_context: ToolContext) -> str:
        """Refund."""
        said = tool_context.interrupt("refund", reason={"order": order})
        return await tell(url, f"refund {order}") if said == "yes" else "refused"

    session = SureholdSessionManager("customer-7", storage)
    return Agent(
        model=ScriptedModel(url),
        tools=[search, pay, refund],
        session_manager=session,
        callback_handler=None,
    )


def live(url: str, storage: str) -> str:
    """One life of the process that executes the agent; its answer."""
    agent = make_agent(url, storage)
    prompt: Any = None if agent.messages else "help"
    while True:
        asked = agent._interrupt_state
        if asked.activated:  # after a restart, too
            prompt = [
                {"interruptResponse": {"interruptId": id, "response": "yes"}}
                for id in asked.interrupts
            ]
        result = agent(prompt)
        if result.stop_reason != "interrupt":
            return str(result).strip()
