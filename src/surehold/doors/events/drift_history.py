"""Observations of drift from states: of one step, or of a whole journal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from surehold.core.policy import (
    Detector,
    DriftMonitor,
    DriftReport,
    Observation,
    Sensitivity,
    default_detectors,
)
from surehold.core.records import digest_of
from surehold.core.state import State
from surehold.core.values import encode
from surehold.engine.journal import CheckpointMetadata, Saveable
from surehold.engine.managers import CheckpointManager

Progress = Callable[[Any], float | None]
"""Reads from a state how far the run has come."""
Action = Callable[[Any], str | None]
"""Reads from a state what its last step did."""

_PLACE = ("checkpoint_id", "parent_checkpoint_id", "run_id", "step_number", "timestamp")


def look_back(
    manager: CheckpointManager,
    name_or_run_id: str,
    *,
    progress: Progress | None = None,
    action: Action | None = None,
    detectors: Iterable[Detector | type[Any]] | None = None,
    sensitivity: Sensitivity | float = "normal",
    window: int = 50,
) -> DriftReport:
    """Look for drift in the last checkpoints of any run.

    Each counts as a step; checkpoints on branches that a rewind abandoned do not count.

    >>> manager = CheckpointManager("memory://")
    >>> state = State.new({"pages": 7}, run_id="nightly")
    >>> for step in range(1, 8):
    ...     _ = manager.save_checkpoint(state.at(step=step), force=True)
    >>> print(look_back(manager, "nightly", progress=lambda state: state["pages"]).findings[0])
    stalled: no progress beyond 7 in 6 steps (0.97, restore)
    """
    given = step_detectors() if detectors is None else detectors
    monitor = DriftMonitor(given, sensitivity=sensitivity, window=window)
    listed = manager.list_checkpoints(name_or_run_id, scope="", limit=window)
    entries = [one for one in reversed(listed) if one.run_id == listed[0].run_id]
    ids = {one.checkpoint_id for one in entries}
    before: CheckpointMetadata | None = None
    values: dict[str, Any] | None = None
    for entry in entries:
        parent = entry.parent_checkpoint_id
        if before is not None and parent in ids and parent != before.checkpoint_id:
            monitor.restart()
            before = values = None
        state = manager.load_checkpoint(entry.checkpoint_id)
        last, values = values, values_of(state)
        took = (entry.timestamp - before.timestamp).total_seconds() if before else None
        node = entry.node or entry.name
        monitor.observe(
            Observation(
                step=entry.step,
                action=action_of(action, state, node, last, values),
                progress=progress(state) if progress is not None else None,
                failed=entry.status == "failed",
                seconds=took,
                values=values,
            )
        )
        before = entry
    return monitor.look()


def step_detectors() -> tuple[Detector, ...]:
    """Return the default detectors for paid steps: they need fewer of them."""
    return default_detectors(stalled_after=2, repeated_times=2, exact_actions=True)


def values_of(state: Saveable) -> dict[str, Any]:
    """The values of a state, without its position."""
    if isinstance(state, State):
        return dict(state.items())
    return {key: value for key, value in state.to_dict().items() if key not in _PLACE}


def last_action(values: Mapping[str, Any]) -> str | None:
    """The last action of an agent or a fleet, from its state's values.

    The tools that an agent called, or the member that a fleet chose and its instruction. None for
    any other state.

    >>> call = {"id": "7", "name": "search", "arguments": {"query": "kelp"}}
    >>> said = {"role": "assistant", "content": "", "tool_calls": [call]}
    >>> last_action({"conversation_history": [said, {"role": "tool", "content": "3 pages"}]})
    "search {'query': 'kelp'}"
    """
    for message in _newest_first(values.get("conversation_history")):
        if message.get("role") == "assistant":
            calls = _newest_first(message.get("tool_calls"))[::-1]
            told = [f"{call.get('name')} {dict(call.get('arguments') or {})}" for call in calls]
            return "; ".join(told) or None
    for entry in _newest_first(values.get("rounds")):
        for ledger in _newest_first([entry.get("ledger")]):
            return f"{ledger.get('speaker')}: {ledger.get('instruction')}"
    return None


def _newest_first(entries: Any) -> list[Mapping[str, Any]]:
    """The dicts of a list, newest first; none if it is something else."""
    listed = entries if isinstance(entries, list) else []
    return [entry for entry in reversed(listed) if isinstance(entry, Mapping)]


def action_of(
    action: Action | None,
    state: Saveable,
    node: str,
    before: Mapping[str, Any] | None,
    values: Mapping[str, Any],
) -> str | None:
    """The action of a step, by *action* or by what it changed."""
    if action is not None:
        return action(state)
    return last_action(values) or _outcome(node, before, values)


def _outcome(node: str, before: Mapping[str, Any] | None, values: Mapping[str, Any]) -> str | None:
    """The node and what it changed; equal texts for equal changes."""
    if before is None:
        return None
    changed = {
        key: value for key, value in values.items() if key not in before or before[key] != value
    }
    gone = [key for key in before if key not in values]
    if not changed and not gone:
        return f"{node}, which changed nothing"
    what = ", ".join([*changed, *gone])
    return f"{node}, which set {what} to {digest_of(encode([changed, gone]))[:8]}"
