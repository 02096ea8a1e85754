"""Adapters for other checkpoint libraries; a library that is not installed is left out."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.workload import files_size

__all__ = ["MISSING", "PEERS", "Peer", "open_peers", "versions"]

MISSING = "missing"
"""Shown for a peer that is not installed."""


class Peer:
    """A checkpoint library; each save is the next step of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self, messages: list[dict[str, Any]]) -> Callable[[], Any]:
        """Build a call that saves a state of these messages; building it is not measured."""
        raise AssertionError("each peer has its own")

    def size(self) -> int:
        return files_size(self.path)

    def close(self) -> None:
        """Close the files."""


class LangGraph(Peer):
    """`SqliteSaver`, called as LangGraph's loop calls it: `put_writes`, then `put`."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        sqlite = importlib.import_module("langgraph.checkpoint.sqlite")
        self._base = importlib.import_module("langgraph.checkpoint.base")
        self._stack = contextlib.ExitStack()
        saver = sqlite.SqliteSaver.from_conn_string(str(path))
        self._saver = self._stack.enter_context(saver)
        self._config: dict[str, Any] = {"configurable": {"thread_id": "run", "checkpoint_ns": ""}}
        self._step = 0

    def prepare(self, messages: list[dict[str, Any]]) -> Callable[[], Any]:
        self._step += 1
        step = self._step
        checkpoint = self._base.empty_checkpoint()
        checkpoint["id"] = str(self._base.id.uuid6(clock_seq=step))
        checkpoint["channel_values"] = {"messages": list(messages)}
        checkpoint["channel_versions"] = {"messages": step}
        metadata = {"source": "loop", "step": step, "parents": {}}

        def save() -> None:
            self._config = self._saver.put(self._config, checkpoint, metadata, {"messages": step})

        return save

    def write(self, item: dict[str, Any]) -> None:
        """Store the pending write of the next step."""
        self._saver.put_writes(self._config, [("messages", item)], f"task-{self._step}")

    def close(self) -> None:
        self._stack.close()


class Microsoft(Peer):
    """`FileCheckpointStorage`: one file per checkpoint, written and renamed, never synced."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        framework = importlib.import_module("agent_framework")
        logging.getLogger("agent_framework").setLevel(logging.ERROR)
        self._checkpoint = framework.WorkflowCheckpoint
        self._storage = framework.FileCheckpointStorage(path)
        self._loop = asyncio.new_event_loop()
        self._step = 0
        self._previous: str | None = None

    def prepare(self, messages: list[dict[str, Any]]) -> Callable[[], Any]:
        self._step += 1
        checkpoint = self._checkpoint(
            workflow_name="run",
            graph_signature_hash="0" * 64,
            previous_checkpoint_id=self._previous,
            state={"messages": list(messages)},
            iteration_count=self._step,
        )
        self._previous = checkpoint.checkpoint_id
        return lambda: self._loop.run_until_complete(self._storage.save(checkpoint))

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


PEERS: dict[str, type[Peer]] = {"LangGraph": LangGraph, "Microsoft": Microsoft}
_PACKAGES = {
    "LangGraph": ("langgraph-checkpoint-sqlite", "SqliteSaver, synced"),
    "Microsoft": ("agent-framework-core", "FileCheckpointStorage, not synced"),
}


def versions() -> str:
    """Describe the peers and their versions."""
    said = []
    for name, (package, what) in _PACKAGES.items():
        try:
            said.append(f"{name}: {what}, of {package} {metadata.version(package)}.")
        except metadata.PackageNotFoundError:
            said.append(f"{name}: {package} is not installed.")
    return " ".join(said)


def open_peers(directory: Path) -> dict[str, Peer | None]:
    """Open each peer on its own files in *directory*; None for one that is not installed."""
    opened: dict[str, Peer | None] = {}
    for name, peer in PEERS.items():
        try:
            opened[name] = peer(directory / name.lower())
        except ImportError:
            opened[name] = None
    return opened
