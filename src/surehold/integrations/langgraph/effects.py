"""Positions of the calls in nodes and tools of a graph, in the run of its thread.

LangGraph executes a node that was interrupted again from its first line, under the same task id.
So the position of a call is the task, the tool call that it is in, the name, and how often the
name came before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import msgspec
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook

from surehold.engine.commit import in_event_loop
from surehold.engine.journal import Note, notes_in
from surehold.engine.runs import Ledger, OpenRun, Spot, permitted
from surehold.engine.runs.positions import CallContext, InsideCall, place_name
from surehold.integrations.langgraph.records import Address
from surehold.storage.base import RecordQuery

if TYPE_CHECKING:
    from surehold.integrations.langgraph.saver import SureholdSaver
    from surehold.integrations.langgraph.tasks import Landing

_DIGITS = 12


class TaskContext(CallContext):
    """Positions of the calls in one execution of a task."""

    __slots__ = ("_counts", "_place", "spot")
    run: OpenRun
    spot: Spot

    def __init__(
        self, saver: SureholdSaver, landing: Landing, config: Mapping[str, Any], info: Any
    ) -> None:
        thread_id, configurable = str(info.thread_id), config["configurable"]
        run = OpenRun(thread_id, None, saver.awaited, leased=False)
        super().__init__(None, run)
        told = config.get("metadata") or {}
        node, step = str(told.get("langgraph_node", "")), max(0, told.get("langgraph_step", 0))
        self._place = f"{place_name(node, step)}:{info.task_id.replace('-', '')[:_DIGITS]}"
        self._counts: dict[tuple[str, str], int] = {}
        self.spot = Spot("", step, node)
        ids = {**configurable.get("checkpoint_map", {})}
        thread = _Thread(saver, landing, thread_id, ids, info.checkpoint_id)
        run.ledger = _ThreadLedger(run, thread)
        for note in thread.notes_of(f"{self._place}/"):
            entry = note.content
            if entry.error is not None:  # the node is executed again: so is its call
                entry = permitted(entry)
            run.ledger.take([msgspec.structs.replace(note, content=entry)])

    @property
    def awaited(self) -> bool | None:
        """True on an event loop."""
        return in_event_loop()

    def place(self, name: str, key: str | None) -> str:
        """The id of the next call: ``pay@1:1ef0c2d3a4b5/charge@1``."""
        inside = _TOOL.get()
        tool = f"/{place_name(inside[0], 0)}" if inside is not None else ""
        if key is not None:
            return f"{self._place}{tool}/{place_name(name, 0)}[{key}]"
        count = self._counts[tool, name] = self._counts.get((tool, name), 0) + 1
        return f"{self._place}{tool}/{place_name(name, count)}"

    def inside(self, place: str, awaited: bool | None) -> CallContext:
        """The positions of the calls that the call at *place* makes itself."""
        return InsideCall(self, place, awaited)


class _ThreadLedger(Ledger):
    """A ledger that begins once a resume could find its task, so that keys stay."""

    def __init__(self, run: OpenRun, thread: _Thread) -> None:
        super().__init__(
            lambda notes, wait: thread.append(run, notes, wait),
            lambda notes: thread.append_now(run, notes),
        )
        self._thread = thread

    async def flush(self) -> None:
        await self._thread.wait_awaited()
        await super().flush()

    def flush_now(self) -> None:
        self._thread.wait()
        super().flush_now()


class _Thread:
    """The run of a thread, as a task writes and reads it."""

    def __init__(
        self,
        saver: SureholdSaver,
        landing: Landing,
        thread_id: str,
        around: Mapping[str, str],
        checkpoint_id: str,
    ) -> None:
        self._saver = saver
        self._landing = landing
        self._thread_id = thread_id
        self._waits_for = dict(around)
        self._checkpoint_id = checkpoint_id

    def _is_there(self, ns: str, checkpoint_id: str) -> bool:
        reading = self._saver.threads.reading
        return reading.find(Address(self._thread_id, ns, checkpoint_id)) is not None

    async def wait_awaited(self) -> None:
        if self._waits_for:
            await asyncio.to_thread(self.wait)

    def wait(self) -> None:
        """Return once the checkpoints are stored under which a resume finds the task."""
        while self._waits_for:
            ns, checkpoint_id = next(iter(self._waits_for.items()))
            is_there = partial(self._is_there, ns, checkpoint_id)
            self._landing.wait(self._thread_id, checkpoint_id, is_there)
            self._waits_for.pop(ns, None)

    def _placed(self, notes: Sequence[Note]) -> list[Note]:
        placed = {"name": self._saver.run_name, "parent": self._checkpoint_id}
        tags = (self._checkpoint_id,)
        return [msgspec.structs.replace(note, tags=tags, **placed) for note in notes]

    async def append(self, run: OpenRun, notes: Sequence[Note], wait: bool) -> None:
        await self.wait_awaited()
        await run.awaited.record(self._placed(notes), wait)

    def append_now(self, run: OpenRun, notes: Sequence[Note]) -> None:
        self.wait()
        run.record(self._placed(notes))

    def notes_of(self, place: str) -> list[Note]:
        """The notes of earlier executions of the task at *place*, oldest first."""
        reader, id = self._saver.manager.reader, self._checkpoint_id
        query = RecordQuery(run_id=self._thread_id, kind="effect", tag=id, notes=True)
        seqs = sorted(header.seq for header in reader.storage.headers(query))
        records = [record for seq in seqs for record in reader.records(self._thread_id, seq, seq)]
        found = notes_in(reader.sealer, records)
        return [note for note in found if note.content.id.startswith(place)]


_TOOL: ContextVar[tuple[str, Any] | None] = ContextVar("surehold_tool_call", default=None)
"""The id of the tool call that the running code is in, and that around it."""


class _ToolCalls(BaseCallbackHandler):
    """Gives each of several parallel tool calls its id."""

    run_inline = True
    ignore_llm = ignore_chain = ignore_chat_model = True
    ignore_retriever = ignore_retry = ignore_custom_event = True

    def on_tool_start(self, *_: Any, tool_call_id: str | None = None, **__: Any) -> None:
        around = _TOOL.get()
        _TOOL.set((tool_call_id or (around[0] if around else ""), around))

    def on_tool_end(self, *_: Any, **__: Any) -> None:
        around = _TOOL.get()
        if around is not None:
            _TOOL.set(around[1])

    on_tool_error = on_tool_end


_CALLS = _ToolCalls()
_HANDLER: ContextVar[BaseCallbackHandler | None] = ContextVar("surehold_tools", default=_CALLS)


@cache
def tell_tools() -> None:
    """Have each tool call know its id from now on; once per process."""
    register_configure_hook(_HANDLER, inheritable=True)
