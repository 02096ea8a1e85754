"""Agents that save every few steps, with compression, retention and a hook."""

from __future__ import annotations

import asyncio
import tempfile

from surehold import AgentState, FilesystemStorage, HookEvent, HookManager, StateManager


async def main() -> None:
    hooks = HookManager()
    hooks.register(
        HookEvent.POST_CHECKPOINT_SAVE,
        lambda context: print(context.agent_id, "saved step", context.data["step_number"]),
    )
    with tempfile.TemporaryDirectory() as directory:
        storage = FilesystemStorage(directory, compress=True)
        manager = StateManager(
            storage, checkpoint_frequency=5, retention_count=2, hook_manager=hooks
        )
        state = AgentState(agent_id="researcher", model="small")
        await manager.save_checkpoint(state)
        for step in range(1, 21):
            state.conversation_history.append({"role": "assistant", "content": f"thought {step}"})
            state.step_number = step
            state.budget_spent_usd += 0.01
            if manager.should_checkpoint("researcher", step):
                await manager.save_checkpoint(state)
        again = await manager.resume_from_latest("researcher")
        print(f"back at step {again.step_number}, {again.budget_spent_usd:.2f} dollars spent")
        print("kept:", [entry.step for entry in await manager.list_checkpoints("researcher")])
        await manager.close()
        storage.close()


if __name__ == "__main__":
    asyncio.run(main())
