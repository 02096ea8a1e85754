"""Tasks of threads, in whose code effects and steps are recorded."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from langchain_core.runnables.config import var_child_runnable_config

from surehold.core.context import FRAMEWORKS, FrameworkTask
from surehold.core.values import remember
from surehold.errors import StorageUnavailableError, UsageError

if TYPE_CHECKING:
    from surehold.integrations.langgraph.effects import TaskContext
    from surehold.integrations.langgraph.saver import SureholdSaver

_TASKS = 4096
_CHECKPOINTS = 4096
_LONGEST_WAIT = 30.0
"""Seconds for the checkpoint of a task to be stored. It is on its way when the task begins."""


class Landing:
    """Tells when a checkpoint that LangGraph saves in the background is stored."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stored: OrderedDict[tuple[str, str], bool] = OrderedDict()

    @contextmanager
    def of(self, config: Mapping[str, Any], checkpoint_id: str) -> Iterator[None]:
        """Cover the save of a checkpoint."""
        stored = False
        try:
            yield
            stored = True
        finally:
            with self._changed:
                key = str(config["configurable"]["thread_id"]), checkpoint_id
                remember(self._stored, key, stored, most=_CHECKPOINTS)
                self._changed.notify_all()

    def wait(self, thread_id: str, checkpoint_id: str, is_there: Callable[[], bool]) -> None:
        """Return once the checkpoint is stored; *is_there* looks into the storage."""
        key = thread_id, checkpoint_id
        with self._changed:
            known = self._stored.get(key)
        if known or (known is None and is_there()):
            return
        with self._changed:
            self._changed.wait_for(lambda: key in self._stored, _LONGEST_WAIT)
            known = self._stored.get(key)
        if known is False:
            raise StorageUnavailableError(
                f"checkpoint {checkpoint_id} of thread {thread_id!r} could not be stored,"
                " and nothing is called that a resume could not find again",
                run_id=thread_id,
            )
        if known is None and not is_there():
            raise UsageError(
                f"LangGraph does not save the checkpoint {checkpoint_id} of thread {thread_id!r}"
                " while its nodes run, so that no effect in them can be found again",
                hint="use durability='async' or 'sync', and no checkpointer=False on a subgraph",
                run_id=thread_id,
            )


class Tasks:
    """The tasks of a saver's threads that record calls."""

    def __init__(self) -> None:
        self.landing = Landing()
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], tuple[object, TaskContext]] = OrderedDict()

    def context(self, saver: SureholdSaver, config: Mapping[str, Any], info: Any) -> TaskContext:
        """The positions of the calls in the execution *info* of a task."""
        from surehold.integrations.langgraph.effects import TaskContext

        key = info.thread_id, info.checkpoint_ns
        with self._lock:
            attempt, found = self._known.get(key, (None, None))
            if found is None or attempt is not info:
                found = TaskContext(saver, self.landing, config, info)
                remember(self._known, key, (info, found), most=_TASKS)
            return found


_said: set[str] = set()


def _task_here() -> FrameworkTask | None:
    """The task of a thread that the running code is in."""
    config: Any = var_child_runnable_config.get()
    configurable = config.get("configurable") if config else None
    if not configurable:
        return None
    saver: Any = configurable.get("__pregel_checkpointer")
    tasks = getattr(saver, "surehold_tasks", None)
    info = getattr(configurable.get("__pregel_runtime"), "execution_info", None)
    if tasks is None or info is None or info.thread_id is None:
        return None
    if configurable.get("__pregel_durability") == "exit":
        _say_once(
            "durability='exit' saves nothing while a graph runs: effects and steps in its nodes are"
            " not recorded, and are made again after a crash"
        )
        return None
    return info, lambda: cast("Tasks", tasks).context(saver, config, info)


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def install() -> None:
    """Have calls in the nodes of graphs find their threads; once per process."""
    if _task_here not in FRAMEWORKS:
        FRAMEWORKS.append(_task_here)


def begin() -> None:
    """Prepare for the tools of a graph that begins to run, if there is any."""
    if "langgraph.pregel" in sys.modules:
        from surehold.integrations.langgraph.effects import tell_tools

        tell_tools()
