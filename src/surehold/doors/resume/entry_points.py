"""Entry points: ``module:name`` of a graph or an agent, recorded with its runs.

A graph that is a variable of a module is found by that. Nothing is imported because a journal
names it, unless someone asks for exactly that (``surehold resume``).
"""

from __future__ import annotations

import importlib
import re
import sys
import sysconfig
from itertools import chain
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from surehold.errors import NotFoundError, RunError, UsageError

if TYPE_CHECKING:
    from surehold.doors.result import RunResult
    from surehold.doors.resume.explanation import ResumePlan
    from surehold.engine.hooks import HookManager
    from surehold.engine.managers import AsyncCheckpointManager
    from surehold.storage.base import Storage

_LIBRARIES = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
_FORM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class Resumable(Protocol):
    """An object whose runs can be resumed by their ids."""

    def manager_on(
        self, storage: Storage, hooks: HookManager | None = None
    ) -> AsyncCheckpointManager:
        """A manager over *storage* with the hooks, keys and rules that the object names.

        *hooks* are for one that names none.
        """

    def over(self, manager: AsyncCheckpointManager) -> Resumable:
        """The same object, saving through *manager*."""

    def explain_resume(self, run_id: str) -> ResumePlan:
        """Say what `resume_sync` would do."""

    def resume_sync(
        self, run_id: str, *, checkpoint_id: str | None = None, force: bool = False
    ) -> RunResult[Any]:
        """Continue a run, from its newest or the named checkpoint, in its own loop."""


@runtime_checkable
class Executable(Protocol):
    """A graph, an agent or a workflow: what an entry point names."""

    def as_resumable(self) -> Resumable:
        """The object that resumes its runs by their ids."""


def module_of_caller(depth: int) -> str:
    """The name of the module whose code is *depth* calls above the caller of this."""
    return str(sys._getframe(depth + 1).f_globals.get("__name__", ""))


def module_that_makes(made: object) -> str:
    """The name of the module that constructs *made*, whose constructors call this."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and any(value is made for value in frame.f_locals.values()):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if frame is not None else ""


def entry_point_of(graph: object, module: str) -> str:
    """``module:name`` if *graph* is a variable of a module, else nothing.

    The module that made it is tried first, then the program's own modules, and ``__main__`` last.
    """
    made_in = sys.modules.get(module)
    others = [*sys.modules.items()]
    own = (one for name, one in others if name != "__main__" and _is_own(one))
    for found in chain([made_in], own, [sys.modules.get("__main__")]):
        name = _variable(found, graph) if found is not None else ""
        if name and (importable := _importable(found)):
            return f"{importable}:{name}"
    return ""


def _variable(module: Any, graph: object) -> str:
    variables = [*vars(module).items()]  # another thread may be importing it
    return next((name for name, value in variables if value is graph), "")


def _is_own(module: Any) -> bool:
    """Return whether a module is neither Surehold's nor of a library or Python itself."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or str(module.__name__).partition(".")[0] == "surehold":
        return False
    return not file.startswith(_LIBRARIES) and "site-packages" not in file


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
    """Load the object at ``module:name``, or what a function there makes.

    Imports the module.

    >>> load_resumable("os:system('ls')")
    Traceback (most recent call last):
    surehold.errors.UsageError: "os:system('ls')" is not an entry point (write module:name)
    """
    found = load_object(entry_point)
    if isinstance(found, type) or (not isinstance(found, Executable) and callable(found)):
        found = found()
    if not isinstance(found, Executable):
        found = getattr(found, "graph", found)
    if not isinstance(found, Executable):
        raise UsageError(
            f"{entry_point} is not a graph, agent or workflow", hint="name one, or what makes one"
        )
    return found.as_resumable()


def load_module(name: str, what: str, **facts: Any) -> ModuleType:
    """Import a module; an error calls it *what*, and has these *facts*."""
    if name.endswith(".py"):
        module = name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise UsageError(f"{name} is a file", hint=f"name its module: {module}", **facts)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotFoundError(
            f"{what} cannot be imported: {error}",
            hint="call this in a directory from which it can be imported",
            **facts,
        ) from error
    except Exception as error:
        raise RunError(
            f"{what} failed while it was imported: {type(error).__name__}: {error}",
            hint=f"python -c 'import {name}' shows where",
            **facts,
        ) from error


def load_object(entry_point: str) -> Any:
    """Load the object at ``module:name``, None if there is none. Imports the module.

    >>> load_object("string:Template.delimiter")
    '$'
    """
    if not _FORM.fullmatch(entry_point):
        raise UsageError(f"{entry_point!r} is not an entry point", hint="write module:name")
    module, _, path = entry_point.partition(":")
    found: Any = load_module(module, f"the module of {entry_point}", entry_point=entry_point)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
