"""An agent of Strands that is killed while it pays, and continues when it is started again.

Run it twice: `python strands_agent.py crash`, then `python strands_agent.py`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

from strands import Agent, tool
from strands.models import Model

from surehold.integrations.strands import SureholdSessionManager


class Scripted(Model):
    """In place of a model: pays two orders, one after the other, then says so."""

    def get_config(self) -> Any:
        return {"context_window_limit": 100_000}

    def update_config(self, **_: Any) -> None: ...

    async def structured_output(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        print("model is asked", flush=True)
        turn = sum(one["role"] == "assistant" for one in messages)
        yield {"messageStart": {"role": "assistant"}}
        if turn < 2:
            start = {"toolUse": {"name": "pay", "toolUseId": f"call_{turn}"}}
            yield {"contentBlockStart": {"start": start}}
            arguments = json.dumps({"order": turn + 1})
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": arguments}}}}
        else:
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": "Both orders are paid."}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "tool_use" if turn < 2 else "end_turn"}}


@tool
def pay(order: int) -> str:
    """Pay an order."""
    print("paying order", order, flush=True)
    if order == 2 and "crash" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


def main() -> None:
    with SureholdSessionManager("customer-7", "sqlite:///agents.db") as session:
        agent = Agent(model=Scripted(), tools=[pay], session_manager=session, callback_handler=None)
        result = agent("Pay my orders.") if not agent.messages else agent()
        print(str(result).strip())


if __name__ == "__main__":
    main()
