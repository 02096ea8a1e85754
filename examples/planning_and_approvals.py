"""An agent that plans, and asks a person before it spends money."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence

import surehold
from surehold import (
    AutonomousConfig,
    BaseAutonomousAgent,
    Message,
    Reply,
    StateManager,
    ToolCall,
    tool,
)
from surehold.testing.scripted import ScriptedModel


@tool(read_only=True)
def find_offers(item: str) -> list[dict[str, object]]:
    """Find offers for an item."""
    return [{"item": item, "price": 120}, {"item": item, "price": 80}]


@tool(approval=True, checkpoint_before=True)
def order(item: str, price: int) -> str:
    """Order an item. It costs real money."""
    print(f"  ordering {item} for {price}")
    return f"order 7: {item} for {price}"


def script(messages: Sequence[Message]) -> Reply | str:
    if messages[-1]["content"].startswith("Make a plan"):
        return '{"steps": ["Find an offer", "Order it"]}'
    found = ToolCall("a", "find_offers", {"item": "diving lamp"})
    done = ToolCall("b", "finish_step", {})
    wanted = ToolCall("c", "order", {"item": "diving lamp", "price": 120})
    replies = [Reply(tool_calls=(found, done)), Reply(tool_calls=(wanted,)), "It is ordered."]
    return replies[sum(message["role"] == "assistant" for message in messages)]


def build(store: str) -> BaseAutonomousAgent:
    return BaseAutonomousAgent(
        AutonomousConfig(resume_from_checkpoint=True),
        state_manager=StateManager(store),
        agent_id="buyer",
        tools=[find_offers, order],
        model=ScriptedModel(script),
        report=print,
    )


def show(plan: list[dict[str, str]]) -> None:
    for item in plan:
        print(f"  {item['status']}: {item['task']}")


async def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = f"sqlite:///{directory}/runs.db"
        agent = build(store)
        waiting_run = await agent.run("Buy a diving lamp")
        print(waiting_run.status, "at cycle", waiting_run.cycles_used + 1)
        show(waiting_run.plan)
        assert agent.state_manager is not None
        await agent.state_manager.close()

        # Anyone can look at what waits, in another process and on another day.
        (waiting,) = surehold.pending(waiting_run.run_id, storage=store)
        print("approve?", waiting.question)
        answer = {"approved": True, "arguments": {"item": "diving lamp", "price": 80}}
        surehold.answer(waiting_run.run_id, waiting.id, answer, storage=store)

        agent = build(store)
        result = await agent.run()
        print(result.status, "|", result.answer)
        show(result.plan)
        print(agent.state.approval_history)
        assert agent.state_manager is not None
        await agent.state_manager.close()


if __name__ == "__main__":
    asyncio.run(main())
