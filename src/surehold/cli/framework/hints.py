"""Commands to type next: how this program is called, and what resumes a run."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from surehold.core.records import MANAGER
from surehold.engine.managers import CheckpointManager
from surehold.errors import SureholdError
from surehold.storage.base import RunInfo
from surehold.storage.queueing import queues_in

if TYPE_CHECKING:
    from surehold.cli.framework.base import Cli

_LANGGRAPH = "graph.invoke(None, config) resumes the thread"


def recorded_entry(manager: CheckpointManager, run: RunInfo) -> str | None:
    """The ``module:name`` that the run recorded; "" for a framework's, None for none."""
    newest = manager.reader.newest(run)
    door = manager.reader.door(newest) if newest is not None else MANAGER
    return "" if door.kind == "thread" else door.entry_point or None


def how_to_resume(cli: Cli, run: RunInfo) -> str:
    """The command that resumes a run, or advice if the command line cannot resume it."""
    queues = queues_in(cli.storage)
    queued = queues.entry_of(run.run_id) if queues is not None else None
    if queued is not None and queued.state == "dead":
        return f"surehold queue requeue {run.run_id}"
    try:
        entry = recorded_entry(cli.manager, run) or cli.settings.graphs.value.get(run.name)
    except SureholdError:
        entry = None
    if entry:
        return f"surehold resume {run.run_id}"
    return _LANGGRAPH if entry == "" else "start its program again"


def program() -> str:
    """The shell words that call this `surehold` again, as short as they can be."""
    called, found = Path(sys.argv[0]), shutil.which("surehold")
    if called.name != "surehold" or not called.is_file():
        return "surehold" if found else f"{_short(sys.executable)} -m surehold"
    return "surehold" if found and os.path.samefile(found, called) else _short(str(called))


def _short(path: str) -> str:
    """*path* as it is typed here: relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return quote(os.path.abspath(path) if relative.startswith("..") else relative)
