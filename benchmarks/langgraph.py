"""LangGraph's SQLite saver beside ours, on the same work and in turns.

1,000 steps that each append a message of 1,000 characters, saved as LangGraph's loop does it: the
writes of the task, then the checkpoint with all its channels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.prose import prose
from benchmarks.report import Line
from benchmarks.workload import files_size

__all__ = ["LangGraphRun", "faster", "measure", "messages_of", "size", "turns"]

STEPS = 1000
_LAST = 100
_PROCESSES = 7
_MB = 1_000_000


class LangGraphRun:
    """One thread of one saver, and the times of its puts."""

    def __init__(self, saver: Any) -> None:
        self.saver = saver
        self.puts: list[float] = []
        self._config: Any = {"configurable": {"thread_id": "run", "checkpoint_ns": ""}}
        self._version: Any = None

    def step(self, number: int, messages: list[Any]) -> None:
        from langgraph.checkpoint.base import empty_checkpoint
        from langgraph.checkpoint.base.id import uuid6

        if number:
            writes = [("messages", messages[-1]), ("branch:to:agent", None)]
            self.saver.put_writes(self._config, writes, f"task-{number}", "~__pregel_pull, agent")
        version = self._version = self.saver.get_next_version(self._version, None)
        checkpoint: Any = empty_checkpoint()
        checkpoint["id"] = str(uuid6(clock_seq=number))
        checkpoint["channel_values"] = {"messages": messages, "branch:to:agent": None}
        checkpoint["channel_versions"] = {"messages": version, "branch:to:agent": version}
        checkpoint["versions_seen"] = {"__input__": {}, "agent": {"branch:to:agent": version}}
        metadata: Any = {"source": "loop", "step": number, "parents": {}}
        started = time.perf_counter()
        self._config = self.saver.put(
            self._config, checkpoint, metadata, checkpoint["channel_versions"]
        )
        self.puts.append(time.perf_counter() - started)

    def latest(self) -> Any:
        return self.saver.get_tuple({"configurable": {"thread_id": "run"}})

    def listed(self, ns: bool) -> list[Any]:
        config = {"thread_id": "run", **({"checkpoint_ns": ""} if ns else {})}
        return list(self.saver.list({"configurable": config}, limit=10))


def messages_of(count: int) -> list[Any]:
    """So many messages of 1,000 characters, by a person and a model in turns."""
    from langchain_core.messages import AIMessage, HumanMessage

    kinds: Any = (HumanMessage, AIMessage)
    return [kinds[n % 2](content=prose(n, 1000), id=f"message-{n}") for n in range(count)]


def size(directory: Path, steps: int = STEPS) -> int:
    """Bytes of our database after *steps* steps."""
    from surehold.integrations.langgraph.saver import SureholdSaver

    messages = messages_of(steps)
    path = directory / "size.db"
    with SureholdSaver(f"sqlite:///{path}") as saver:
        run = LangGraphRun(saver)
        for number in range(steps):
            run.step(number, messages[: number + 1])
    return files_size(path)


def measure(directory: Path) -> Iterator[Line]:
    """Compare both savers, each step of one after the same step of the other."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    from surehold.integrations.langgraph.saver import SureholdSaver

    messages = messages_of(STEPS)
    with ExitStack() as stack:
        theirs = stack.enter_context(SqliteSaver.from_conn_string(str(directory / "theirs.db")))
        ours = stack.enter_context(SureholdSaver(f"sqlite:///{directory}/ours.db"))
        runs = [LangGraphRun(theirs), LangGraphRun(ours)]
        for number in range(STEPS):
            for run in runs:
                run.step(number, messages[: number + 1])
        for run in runs:
            assert run.latest().checkpoint["channel_values"]["messages"] == messages
        puts = [median(run.puts[-_LAST:]) for run in runs]
        yield faster(f"put, the last {_LAST} of {STEPS:,} steps", puts, 4)
        yield faster("get_tuple, newest", turns([run.latest for run in runs], 31), 2)
        opened = [
            partial(SqliteSaver.from_conn_string, str(directory / "theirs.db")),
            partial(SureholdSaver, f"sqlite:///{directory}/ours.db"),
        ]
        again = [partial(_anew, one, LangGraphRun.latest) for one in opened]
        yield faster("get_tuple, newest, first thing in a new saver", turns(again, 31), 1)
        for ns in (True, False):
            calls = [partial(run.listed, ns) for run in runs]
            what = f"list(limit=10), {'with' if ns else 'without'} a namespace"
            yield faster(what, turns(calls, 7), 10)
        again = [partial(_anew, one, partial(LangGraphRun.listed, ns=True)) for one in opened]
        yield faster("list(limit=10), first thing in a new saver", turns(again, 7))
    yield from _new_processes(directory)
    peers = {"LangGraph": f"{files_size(directory / 'theirs.db') / _MB:.0f} MB"}
    what = f"{STEPS:,} steps of 1 KB, full history"
    yield Line(what, size(directory) / _MB, 5, unit=" MB", peers=peers)


def _new_processes(directory: Path) -> Iterator[Line]:
    """Compare the first load in new processes, which import LangGraph before they are timed."""
    opened = {
        "theirs": (
            "from langgraph.checkpoint.sqlite import SqliteSaver as Saver",
            f"Saver.from_conn_string({str(directory / 'theirs.db')!r})",
        ),
        "ours": (
            "from surehold.integrations.langgraph import SureholdSaver as Saver",
            f"Saver({f'sqlite:///{directory}/ours.db'!r})",
        ),
    }
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in opened}
    for turn in range(_PROCESSES + 1):
        for name, (imports, saver) in opened.items():
            code = _FIRST_LOAD.format(imports=imports, saver=saver)
            started = time.perf_counter()
            child = [sys.executable, "-c", code]
            done = subprocess.run(child, capture_output=True, check=True, env=environ)
            if turn:  # the first time, bytecode is written
                took[name].append((json.loads(done.stdout), time.perf_counter() - started))
    # The best of each: other work of the machine can only add.
    for index, what in enumerate(("open and get_tuple", "the whole process, imports included")):
        best = [min(times[index] for times in took[name]) for name in opened]
        yield faster(f"first load in a new process, {what}", best, 1)


_FIRST_LOAD = """
import time
import langgraph.graph
{imports}
started = time.perf_counter()
with {saver} as saver:
    found = saver.get_tuple({{"configurable": {{"thread_id": "run"}}}})
    print(time.perf_counter() - started)
assert len(found.checkpoint["channel_values"]["messages"]) == 1000
"""


def _anew(opening: Callable[[], Any], call: Callable[[LangGraphRun], Any]) -> Any:
    with opening() as saver:
        return call(LangGraphRun(saver))


def faster(what: str, times: list[float], limit: float | None = None) -> Line:
    """The line for two times, theirs and ours."""
    theirs, ours = times
    note = f"{theirs * 1e3:.2f} ms to {ours * 1e3:.2f} ms"
    return Line(f"{what}: times faster", theirs / ours, limit, at_least=True, note=note)


def turns(calls: list[Callable[[], Any]], times: int) -> list[float]:
    """Median seconds of each call; the calls take turns."""
    took: list[list[float]] = [[] for _ in calls]
    for _ in range(times):
        for number, call in enumerate(calls):
            started = time.perf_counter()
            call()
            took[number].append(time.perf_counter() - started)
    return [median(one) for one in took]
