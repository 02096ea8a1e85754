"""An agent set up for production: compressed, encrypted, pruned, watched, with a budget."""

from __future__ import annotations

import asyncio
import gzip
import os
import secrets
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from surehold import (
    AutonomousConfig,
    BaseAutonomousAgent,
    FilesystemStorage,
    HookEvent,
    HookManager,
    HookResult,
    Message,
    Reply,
    StateManager,
    ToolCall,
    tool,
)
from surehold.testing.scripted import ScriptedModel

PAGES = 30


@tool(idempotent=True)
async def publish(page: int, idempotency_key: str = "") -> str:
    """Publish a page; the receiver knows the key and does nothing twice."""
    if page == 12 and "STOPPED" not in os.environ:
        os.environ["STOPPED"] = "1"
        os.kill(os.getpid(), signal.SIGTERM)  # a new version is being rolled out
    return f"page {page} is out, under {idempotency_key[:8]}"


def script(messages: Sequence[Message]) -> Reply | str:
    turn = sum(message["role"] == "assistant" for message in messages)
    if turn < PAGES:
        return Reply(tool_calls=(ToolCall(f"call_{turn}", "publish", {"page": turn}),))
    return f"{PAGES} pages are out."


async def saved(context: Any) -> HookResult:
    data = context.data
    print(f"  saved step {data['step_number']}, {data['status']}, {data['stored']} bytes")
    return HookResult(success=True)


def build(directory: str, key: bytes) -> BaseAutonomousAgent:
    hooks = HookManager()
    hooks.register(HookEvent.POST_CHECKPOINT_SAVE, saved)
    manager = StateManager(
        FilesystemStorage(directory, compress=True),
        retention_count=3,
        hook_manager=hooks,
        encryption_key=key,
        on_save_failure="retry",
    )
    config = AutonomousConfig(
        max_cycles=100,
        planning_enabled=False,
        checkpoint_frequency=10,
        checkpoint_interval_seconds=300.0,
        resume_from_checkpoint=True,
        budget_usd=2.0,
    )
    return BaseAutonomousAgent(
        config,
        state_manager=manager,
        agent_id="publisher",
        tools=[publish],
        model=ScriptedModel(script, price=3.0),
        report=print,
    )


async def main() -> None:
    key = secrets.token_bytes(32)
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(2):
            agent = build(directory, key)
            try:
                result = await agent.run("Publish the pages")
            except SystemExit as stopped:  # SIGTERM: the cycle was finished and saved first
                print("stopped with exit code", stopped.code)
                continue
            print(result.status, "after", result.cycles_used, "cycles,", result.budget)
        manager = agent.state_manager
        assert manager is not None
        kept = [one.step_number for one in await manager.list_checkpoints("publisher")]
        print("kept:", kept, "| verified:", all(not v.problems for v in await manager.verify()))
        texts = (gzip.decompress(file.read_bytes()) for file in Path(directory).rglob("*.gz"))
        print("readable without the key:", any(b"page 3 is out" in text for text in texts))
        await manager.close()


if __name__ == "__main__":
    asyncio.run(main())
