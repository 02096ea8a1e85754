"""A run that waits for a person; no process runs meanwhile, no recorded call is repeated."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

import surehold
from surehold import State, StateGraph, effect, interrupt


async def draft(topic: str) -> str:
    print("a model is asked about", topic)
    return f"All about {topic}."


async def pay(amount: int, idempotency_key: str = "") -> str:
    print("paying", amount, "under the key", idempotency_key[:8])
    return f"receipt for {amount}"


async def write(state: State) -> dict[str, Any]:
    text = await effect("draft", draft, state["topic"], in_doubt="retry")
    approved = await interrupt({"publish": text}, schema=bool)
    return {"text": text, "approved": approved}


async def publish(state: State) -> dict[str, Any]:
    return {"receipt": await effect("pay", pay, 5)}


def build(store: str) -> StateGraph:
    graph = StateGraph("article", storage=store)
    graph.add_node("write", write)
    graph.add_node("publish", publish)
    graph.add_node("end", lambda state: None)
    graph.add_edge("write", "publish", surehold.key_equals("approved", True))
    graph.add_edge("write", "end")
    graph.add_edge("publish", "end")
    graph.set_entry_point("write")
    graph.set_exit_point("end")
    return graph


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = f"sqlite:///{directory}/runs.db"
        async with build(store) as graph:
            result = await graph.run({"topic": "kelp"}, run_id="article")
            print("the run is", result.status)
        for waiting in surehold.pending(storage=store):
            print("open:", waiting.question)
        async with build(store) as graph:  # another day, another process
            final = await graph.resume("article", answer=True)
            print(final["receipt"])


if __name__ == "__main__":
    asyncio.run(main())
