"""A run as JSON: as long as its state and its changes, and streamed."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from surehold import CheckpointManager, SQLiteStorage, State
from surehold.engine.transfer import json_lines


def applied(state: Any, change: dict[str, Any]) -> Any:
    """*state* after one change."""
    *parents, last = change["path"][1:].split("/")
    place = state
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if change["op"] == "remove":
        del place[int(last) if isinstance(place, list) else last]
    elif isinstance(place, list) and last == "-":
        place.append(change["value"])
    elif isinstance(place, list) and change["op"] == "add":
        place.insert(int(last), change["value"])
    else:
        place[int(last) if isinstance(place, list) else last] = change["value"]
    return state


def test_the_changes_of_a_run_lead_to_the_state_of_its_newest_checkpoint() -> None:
    manager = CheckpointManager("memory://")
    state = State.new({"l": [1, 2, 3], "plan": {"a": 1}}, run_id="r")
    manager.save_checkpoint(state)
    for step, change in enumerate(
        ({"l": [1, 3]}, {"plan": {"b": [None]}}, {"new": "x"}, {"l": [0, 1, 3, 4]}), start=1
    ):
        for key, value in change.items():
            state = state.set(key, value)
        state = state.at(step=step)
        manager.save_checkpoint(state)
    rows = json.loads(manager.export_json("r", "graph"))
    assert [set(row) - {"run_id", "checkpoint_node", "timestamp"} for row in rows] == [
        {"data", "changes"}
    ] * 5
    rebuilt: dict[str, Any] = {}
    for row in rows:
        for change in row["changes"]:
            rebuilt = applied(rebuilt, change)
    assert rebuilt == rows[-1]["data"] == state.to_dict()
    assert [row["data"] for row in rows[:-1]] == [{}] * 4


def test_a_long_run_is_as_long_as_its_state_and_changes_and_is_streamed(tmp_path: Path) -> None:
    with SQLiteStorage(tmp_path / "r.db") as storage:
        manager = CheckpointManager(storage)
        state = State.new({"messages": []}, run_id="r")
        message = {"role": "user", "content": "kelp " * 40}
        plain = 0
        for step in range(1, 1501):
            state = state.append("messages", message).at(step=step)
            manager.save_checkpoint(state)
            plain += len(json.dumps(message))
        tracemalloc.start()
        written = sum(len(line) + 1 for line in json_lines(manager.reader, "r", "agent"))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert written < 3 * (len(json.dumps(state.to_dict())) + plain)
        assert peak < 20 * plain


def test_a_run_that_is_saved_while_its_json_is_made_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    manager = CheckpointManager("memory://")
    state = State.new({"n": 1}, run_id="r")
    manager.save_checkpoint(state)
    run = manager.reader.run

    def save_after(run_id: str) -> Any:
        found = run(run_id)
        monkeypatch.undo()
        manager.save_checkpoint(state.set("n", 2).at(step=1))
        return found

    monkeypatch.setattr(manager.reader, "run", save_after)
    rows = json.loads("".join(json_lines(manager.reader, "r", "graph")))
    assert rows[-1]["data"] == {"n": 2}
