"""Where a graph or an agent is found again: ``module:name``, recorded with its runs.

One that is a variable of the module that made it is known by that. Nothing is ever imported
because a journal says so, unless someone asks for exactly that (``holdfast resume``).
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from holdfast.checkpoint.manager import StateManager
    from holdfast.runtime.resume.explanation import ResumePlan

__all__ = [
    "Resumable",
    "entry_point_of",
    "load_object",
    "load_resumable",
    "module_of_caller",
    "module_that_makes",
]

_FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Ended(Protocol):
    """What a run came to."""

    @property
    def status(self) -> str:
        """Its last checkpoint's."""

    @property
    def step(self) -> int:
        """Its last checkpoint's."""


class Resumable(Protocol):
    """What has runs that can be gone on with by their ids."""

    def over(self, manager: StateManager) -> Resumable:
        """What saves through *manager*."""

    def explain_resume(self, run_id: str) -> ResumePlan:
        """What `resume_sync` would do."""

    def resume_sync(
        self, run_id: str, *, checkpoint_id: str | None = None, force: bool = False
    ) -> Ended:
        """Go on with a run, from its newest checkpoint or the one named, in a loop of its own."""


def module_of_caller(depth: int) -> str:
    """The name of the module whose code is *depth* calls above the caller of this."""
    return str(sys._getframe(depth + 1).f_globals.get("__name__", ""))


def module_that_makes(made: object) -> str:
    """The name of the module whose code makes *made*, the constructors of which call this."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and any(value is made for value in frame.f_locals.values()):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""


def entry_point_of(graph: object, module: str) -> str:
    """``module:name`` if *graph* is a variable of that module, else nothing."""
    found = sys.modules.get(module)
    if found is None:
        return ""
    names = [name for name, value in vars(found).items() if value is graph]
    importable = _importable(found)
    return f"{importable}:{names[0]}" if names and importable else ""


def _importable(module: Any) -> str:
    """The name by which another process can import the module."""
    if module.__name__ != "__main__":
        return str(module.__name__)
    spec = getattr(module, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(module, "__file__", None)
    return Path(file).stem if file else ""


def load_resumable(entry_point: str) -> Resumable:
    """The graph or agent at ``module:name``, that of a fleet, or the one that a function makes.

    Imports the module.

    >>> load_resumable("os:system('ls')")
    Traceback (most recent call last):
    holdfast.errors.UsageError: "os:system('ls')" is no entry point (write module:name)
    """
    from holdfast.runtime.agent import AgentRuns, BaseAutonomousAgent
    from holdfast.runtime.graph import StateGraph

    found = load_object(entry_point)
    if not isinstance(found, StateGraph | BaseAutonomousAgent) and callable(found):
        found = found()
    if isinstance(found, BaseAutonomousAgent):  # which may have a graph of its own
        return AgentRuns(found)
    found = getattr(found, "graph", found)
    if not isinstance(found, StateGraph):
        raise UsageError(
            f"{entry_point} is no graph and no agent", hint="name one, or what makes one"
        )
    return found


def load_object(entry_point: str) -> Any:
    """What stands at ``module:name``, None if nothing does. Imports the module.

    >>> load_object("string:Template.delimiter")
    '$'
    """
    if not _FORM.fullmatch(entry_point):
        raise UsageError(f"{entry_point!r} is no entry point", hint="write module:name")
    module, _, path = entry_point.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise NotFoundError(
            f"the module of {entry_point} cannot be imported: {error}",
            hint="call this where it can be",
            entry_point=entry_point,
        ) from error
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
