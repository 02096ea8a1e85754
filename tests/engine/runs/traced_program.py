"""A traced run that kills itself, for tests: `traced_program.py KIND ADDRESS SPANS FATAL`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

import surehold
from surehold import CheckpointManager, HookManager, State, StateGraph, TracingHook


class LineExporter(SpanExporter):
    """Appends each span to a file, which outlives a kill."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as lines:
            for span in spans:
                context = span.get_span_context()
                assert context is not None
                told = {
                    "name": span.name,
                    "trace": f"{context.trace_id:032x}",
                    "span": f"{context.span_id:016x}",
                    "parent": f"{span.parent.span_id:016x}" if span.parent else None,
                    "attributes": dict(span.attributes or {}),
                    "links": [f"{one.context.trace_id:032x}" for one in span.links],
                }
                lines.write(json.dumps(told) + "\n")
        return SpanExportResult.SUCCESS


def traced_manager(address: str, spans: Path, *, content: bool = False) -> CheckpointManager:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(LineExporter(spans)))
    hooks = HookManager()
    hooks.register_hook(TracingHook(provider, content=content))
    return CheckpointManager(address, hook_manager=hooks)


FATAL = 9
"""The number of the call that kills the process."""


def call(number: int) -> int:
    if number == FATAL:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def spent(_: Any) -> dict[str, Any]:
    return {"tokens": 15, "output": 5, "model": "scripted-1"}


def execute(kind: str, manager: CheckpointManager, run_id: str = "traced") -> Any:
    return {"function": _function, "loop": _loop, "graph": _graph}[kind](manager, run_id)


def _function(manager: CheckpointManager, run_id: str) -> Any:
    @surehold.step
    async def fetch(number: int) -> int:
        return call(number)

    @surehold.workflow(name="traced")
    async def flow() -> int:
        done = await fetch(0)
        done += await surehold.effect("ask", call, 1, in_doubt="retry", usage=spent)
        return done + await fetch(2)

    there = manager.reader.run(run_id) is not None
    resumed = flow.resume(run_id, storage=manager) if there else None
    return asyncio.run(resumed or flow.run(run_id=run_id, storage=manager))


def _loop(manager: CheckpointManager, run_id: str) -> Any:
    with surehold.run(run_id, storage=manager) as run:
        for number in run.each(range(3)):
            run.call(call, number)
    return run


def _graph(manager: CheckpointManager, run_id: str) -> Any:
    graph = StateGraph("traced", manager=manager)

    def make(number: int) -> Any:
        async def node(state: State) -> State:
            done = await surehold.effect("ask", call, number, in_doubt="retry", usage=spent)
            return state.set("done", done)

        return node

    for number in range(3):
        graph.add_node(f"node{number}", make(number))
    graph.add_edge("node0", "node1")
    graph.add_edge("node1", "node2")
    graph.set_entry_point("node0")
    graph.set_exit_point("node2")
    if manager.reader.run(run_id) is not None:
        return asyncio.run(graph.resume(run_id))
    return asyncio.run(graph.run(State.new({}, run_id=run_id)))


if __name__ == "__main__":
    kind, address, spans, fatal = sys.argv[1:]
    FATAL = int(fatal)
    with traced_manager(address, Path(spans)) as manager:
        execute(kind, manager)
