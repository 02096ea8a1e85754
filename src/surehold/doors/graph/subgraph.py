"""A graph as a node of another, in its own scope of the same journal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from surehold.core.state import Lineage, State
from surehold.doors.events import emitter
from surehold.doors.graph.loop import Loop
from surehold.doors.resume import Progress, read_progress
from surehold.engine.runs.positions import CURRENT_STEP, Emit, StepContext

if TYPE_CHECKING:
    from surehold.doors.graph.graph import StateGraph


async def run_nested(graph: StateGraph, state: State) -> State:
    """Execute *graph* as the current node of another graph."""
    here = CURRENT_STEP.get()
    assert here is not None
    plan, outer, scope = graph.plan(), here.outer, here.child()
    held = here.run
    emit = _nested_emit(graph, here, scope)
    triggers = graph.config.checkpoint.triggers() or outer.triggers
    loop = Loop(plan, held, scope, emit, outer.stop, triggers)
    header = None
    if held is not None and held.resumed:
        header = await asyncio.to_thread(held.newest_in, scope)
    lineage, progress = Lineage(), Progress(next=plan.entry)
    inside = state.at(scope=scope, step=0, node=None)
    if header is not None and held is not None:
        loaded, saved = await asyncio.to_thread(held.load_at, header)
        lineage = saved.lineage
        inside = inside.with_values_of(saved).at(step=header.step, node=header.node)
        if header.status == "completed":
            return inside
        progress = read_progress(loaded)
    return await loop.run(inside, progress, lineage)


def _nested_emit(graph: StateGraph, here: StepContext, scope: str) -> Emit | None:
    if graph.observers:
        head = here.run.stored_head if here.run is not None else None
        return emitter(graph.observers, graph.name, {"scope": scope}, head)
    outer = here.emit
    if outer is None:
        return None
    return lambda kind, data: outer(kind, {**data, "scope": scope})
