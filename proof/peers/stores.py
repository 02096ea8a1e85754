"""The libraries that are compared, what they are called and how they were set."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata, util

__all__ = ["STORES", "Store"]


@dataclass(frozen=True)
class Store:
    """A library behind an adapter."""

    name: str
    module: str
    """The adapter's."""
    package: str
    needs: str
    """What must be importable."""
    settings: str

    @property
    def version(self) -> str:
        """Of its package; empty if that is not installed."""
        return metadata.version(self.package) if util.find_spec(self.needs) else ""


_DEFAULT = "as it comes"

STORES = (
    Store("Surehold, SQLite", "proof.peers.surehold_store", "surehold", "surehold", _DEFAULT),
    Store("Surehold, files", "proof.peers.surehold_files", "surehold", "surehold", _DEFAULT),
    Store(
        "LangGraph SqliteSaver",
        "proof.peers.langgraph_store",
        "langgraph-checkpoint-sqlite",
        "langgraph.checkpoint.sqlite",
        "from_conn_string; graphs run with durability=sync",
    ),
    Store(
        "Microsoft FileCheckpointStorage",
        "proof.peers.microsoft_store",
        "agent-framework-core",
        "agent_framework",
        _DEFAULT,
    ),
    Store("DBOS, SQLite", "proof.peers.dbos_store", "dbos", "dbos", f"{_DEFAULT}, on SQLite"),
)
