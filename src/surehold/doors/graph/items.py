"""Shared parts of chains, parallel items and routes."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from surehold.core.records import Item
from surehold.core.values import can_change, decode, encode
from surehold.engine.commit import call_beside
from surehold.engine.runs.effects import AwaitsAll, shown
from surehold.engine.runs.positions import CURRENT_STEP, StepContext
from surehold.errors import ShapeError, StepError

logger = logging.getLogger("surehold.graph")

Progressed: TypeAlias = Callable[[int, int, Any], None]
"""Receives the number done, the total, and the last result."""

_OUTSIDE = StepContext(None, "", None)


class Parts:
    """The scope in which the parts of a step are executed."""

    def __init__(self) -> None:
        self.here = CURRENT_STEP.get() or _OUTSIDE
        self.held = self.here.run
        self.scope = self.here.child() if self.held is not None else ""
        self.node = self.here.node

    def find(self, key: int | str) -> Item | None:
        """The recorded part of that key."""
        if self.held is None:
            return None
        return self.held.ledger.find(Item, f"{self.scope}[{key}]")

    async def keep(self, key: int | str, digest: str, value: Any, at: int) -> Any:
        """Record the result of a part, and return it; *digest* identifies its item."""
        if self.held is None:
            return value
        text = encode(value)
        entry = Item(id=f"{self.scope}[{key}]", args=digest, value=msgspec.Raw(text))
        await self.held.ledger.write(entry, self.at(at).spot)
        return decode(text) if can_change(value) else value

    async def call(self, fn: Callable[..., Any], *args: Any, thread: bool = False) -> Any:
        """Call *fn* if the run is held here; with *thread*, a plain one in a thread."""
        begin = self.held.check_lease if self.held is not None else None
        with AwaitsAll():
            if thread:
                return await call_beside(fn, args, begin=begin)
            if begin is not None:
                begin()
            result = fn(*args)
            return await result if inspect.isawaitable(result) else result

    def failure(self, what: str, error: Exception | None = None, **facts: Any) -> StepError:
        """The error of a part that failed; it keeps the hint of its cause."""
        what = what if error is None else f"{what}: {shown(error)}"
        return StepError(what, hint=getattr(error, "hint", ""), node=self.node, path=(), **facts)

    def at(self, index: int) -> StepContext:
        """The context of part *index*."""
        here = self.here
        return StepContext(
            self.held, self.scope, here.emit, step=index, node=self.node, outer=here.outer
        )


def report(progress: Progressed | None, done: int, total: int, value: Any) -> None:
    """Call *progress*. An exception that it raises is logged and changes nothing."""
    if progress is None:
        return
    try:
        progress(done, total, value)
    except Exception:
        logger.warning("a progress callback failed at %d of %d", done, total, exc_info=True)


def other_items(parts: Parts, index: int) -> ShapeError:
    """The error for a node whose items changed after some were done."""
    run_id = parts.held.run_id if parts.held is not None else ""
    return ShapeError(
        f"item {index} of node {parts.node!r} in run {run_id!r} is not the one it was",
        hint="what decides on the items (time, chance, a model) must be its own effect",
        run_id=run_id,
        index=index,
    )
