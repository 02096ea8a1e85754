"""Inspect a run: history, blame, differences, and a fork from an earlier step."""

from __future__ import annotations

from surehold import CheckpointManager, State

manager = CheckpointManager("memory://")

state = State.new({"plan": ["read", "write", "send"], "cost": 0.0}, run_id="report")
for step, (node, cost) in enumerate([("read", 0.12), ("write", 0.31), ("send", 0.01)], 1):
    done = state.get("done", [])
    state = state.set("done", [*done, node]).set("cost", round(state["cost"] + cost, 2))
    state = state.at(step=step, node=node)
    manager.save_checkpoint(state)

for entry in manager.history("report"):
    changes = ", ".join(f"{change.path} = {change.value}" for change in entry.changes)
    print(f"step {entry.checkpoint.step} ({entry.checkpoint.node}): {changes}")

written = manager.blame("report", "cost")
print("cost was last written at step", written and written.step)

oldest = manager.list_checkpoints("report")[-1]
fork = manager.fork_from_checkpoint(oldest.checkpoint_id, run_id="report-cheaper")
manager.save_checkpoint(fork.set("cost", 0.0).at(step=2, node="write"))
print("the fork stands at", manager.resume_from_latest("report-cheaper")["cost"])
print("the source still at", manager.resume_from_latest("report")["cost"])
print("sound:", all(manager.verify()))
