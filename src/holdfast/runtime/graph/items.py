"""What chains, parallel items and routes share."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from holdfast.checkpoint.effects import CURRENT_STEP, StepContext
from holdfast.errors import ShapeError

__all__ = ["Parts", "Progressed", "call", "other_items", "report"]

logger = logging.getLogger("holdfast.graph")

Progressed: TypeAlias = Callable[[int, int, Any], None]
"""Is told how many are done, of how many, and what the last one gave."""

_OUTSIDE = StepContext(None, "", None)


class Parts:
    """The scope in which the parts of a step are executed."""

    def __init__(self) -> None:
        self.here = CURRENT_STEP.get() or _OUTSIDE
        self.session = self.here.session
        self.scope = self.here.child() if self.session is not None else ""
        self.node = self.here.node

    @property
    def ledger(self) -> Any:
        """What the journal knows of the step."""
        assert self.session is not None
        return self.session.ledger

    def at(self, index: int) -> StepContext:
        """Where part *index* is."""
        here = self.here
        return StepContext(
            self.session, self.scope, here.emit, step=index, node=self.node, outer=here.outer
        )


async def call(fn: Callable[..., Any], *args: Any, thread: bool = False) -> Any:
    """Call an async or a plain function; with *thread*, a plain one beside the event loop."""
    if inspect.iscoroutinefunction(fn) or not thread:
        result = fn(*args)
    else:
        result = await asyncio.to_thread(fn, *args)
    return await result if inspect.isawaitable(result) else result


def report(progress: Progressed | None, done: int, total: int, value: Any) -> None:
    """Tell *progress*. What it raises is logged and changes nothing."""
    if progress is None:
        return
    try:
        progress(done, total, value)
    except Exception:
        logger.warning("a progress callback failed at %d of %d", done, total, exc_info=True)


def other_items(parts: Parts, index: int) -> ShapeError:
    """The error of a node that was half done with other items than it has now."""
    run_id = parts.session.run_id if parts.session is not None else ""
    return ShapeError(
        f"item {index} of node {parts.node!r} in run {run_id!r} is another one than it was",
        hint="what decides on the items (time, chance, a model) must be an effect of its own",
        run_id=run_id,
        index=index,
    )
