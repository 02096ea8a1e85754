"""Advice on how to resume a run, which depends on what started it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.manager import CheckpointManager
from holdfast.errors import HoldfastError
from holdfast.storage.base import RunInfo

if TYPE_CHECKING:
    from holdfast.cli.framework.base import Cli

_LANGGRAPH = "graph.invoke(None, config) resumes the thread"


def recorded_entry(manager: CheckpointManager, run: RunInfo) -> str | None:
    """The ``module:name`` that the run recorded; "" for LangGraph, None for none."""
    reader = manager.reader
    newest = reader.newest(run)
    beside: Any = reader.load(newest).extra if newest is not None else {}
    if "langgraph" in beside:
        return ""
    entry = beside.get("entry_point")
    return str(entry) if entry else None


def how_to_resume(cli: Cli, run: RunInfo) -> str:
    """The command that resumes a run, or advice if the command line cannot resume it."""
    try:
        entry = recorded_entry(cli.manager, run) or cli.settings.graphs.value.get(run.name)
    except HoldfastError:
        entry = None
    if entry:
        return f"holdfast resume {run.run_id}"
    return _LANGGRAPH if entry == "" else "start its program again"
