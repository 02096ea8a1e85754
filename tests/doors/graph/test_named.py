"""A graph that is given a name or a storage is durable without further settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surehold import (
    AsyncCheckpointManager,
    CheckpointConfig,
    GraphConfig,
    State,
    StateGraph,
    StateManager,
)
from surehold.errors import UsageError


def two_nodes(graph: StateGraph) -> StateGraph:
    graph.add_node("fetch", lambda state: {"pages": 3})
    graph.add_node("write", lambda state: {"text": f"{state['pages']} pages"})
    graph.add_edge("fetch", "write")
    graph.set_entry_point("fetch")
    graph.set_exit_point("write")
    return graph


async def steps_of(graph: StateGraph) -> list[int]:
    final = await graph.execute(State.new(run_id="report-2026-11-16"))
    assert final["text"] == "3 pages"
    listed = await graph.manager.list_checkpoints("report-2026-11-16")
    return [checkpoint.step_number for checkpoint in listed]


async def test_a_name_and_a_storage_save_every_node_and_keep_the_history(tmp_path: Path) -> None:
    async with two_nodes(StateGraph("report", storage=f"sqlite:///{tmp_path}/runs.db")) as graph:
        assert graph.name == "report"
        assert await steps_of(graph) == [2, 1, 0]
    async with two_nodes(StateGraph("report", storage=f"sqlite:///{tmp_path}/runs.db")) as again:
        assert (await again.resume("report-2026-11-16"))["text"] == "3 pages"


async def test_a_name_alone_uses_the_configured_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREHOLD_STORAGE", f"file:{tmp_path}/runs")
    async with two_nodes(StateGraph("report")) as graph:
        assert await steps_of(graph) == [2, 1, 0]
    assert (tmp_path / "runs").is_dir()


async def test_the_configured_storage_is_opened_once_and_closed_with_the_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREHOLD_STORAGE", f"file:{tmp_path}/runs")
    opened: list[AsyncCheckpointManager] = []
    making = AsyncCheckpointManager.__init__

    def made(manager: AsyncCheckpointManager, *args: Any, **options: Any) -> None:
        opened.append(manager)
        making(manager, *args, **options)

    monkeypatch.setattr(AsyncCheckpointManager, "__init__", made)
    async with two_nodes(StateGraph("report")) as graph:
        await graph.run(run_id="one")
        await graph.run(run_id="two")
    assert len(opened) == 1
    with pytest.raises(UsageError, match="closed"):
        opened[0].storage.find("one")


async def test_a_name_and_a_manager_save_through_it() -> None:
    async with StateManager("memory://") as manager:
        assert await steps_of(two_nodes(StateGraph("report", manager=manager))) == [2, 1, 0]


async def test_a_storage_goes_with_the_other_settings_of_a_config() -> None:
    config = GraphConfig("report", max_iterations=7)
    async with two_nodes(StateGraph(config, storage="memory://")) as graph:
        assert graph.config.max_iterations == 7
        assert await steps_of(graph) == [2, 1, 0]


def test_two_storages_are_refused(tmp_path: Path) -> None:
    twice = GraphConfig("report", checkpoint=CheckpointConfig(interval=1))
    with pytest.raises(UsageError, match="CheckpointConfig"):
        StateGraph(twice, storage=f"sqlite:///{tmp_path}/runs.db")
    manager = StateManager("memory://")
    with pytest.raises(UsageError, match="both given"):
        StateGraph("report", storage="memory://", manager=manager)
    with pytest.raises(UsageError, match="name"):
        StateGraph("", storage="memory://")
