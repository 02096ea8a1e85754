"""Nodes that work in parts: chains, parallel items, routes.

The functions can be called in any node, and outside a graph. In a graph that saves, the result of
each part is in the journal before the next begins: after a crash at item 99 of 100, one is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from surehold.core.state import State
from surehold.doors.graph.chain import process_chain
from surehold.doors.graph.conditional import process_conditional
from surehold.doors.graph.items import Progressed
from surehold.doors.graph.node_result import NodeResult
from surehold.doors.graph.parallel import ParallelResult, process_parallel
from surehold.errors import UsageError

Items: TypeAlias = str | Sequence[Any] | Callable[[State], Sequence[Any]]
"""The items, the key of the state that holds them, or a function of the state."""


@dataclass(frozen=True, eq=False, repr=False)
class ChainNode:
    """Applies *processor* to the state once for each item, in order.

    ``processor(item, state)`` returns what a node returns.
    """

    items: Items
    processor: Callable[[Any, State], Any]
    progress: Progressed | None = field(default=None, kw_only=True)

    async def __call__(self, state: State) -> State:
        """Execute the chain."""
        items = _items(self.items, state)
        done = await process_chain(items, state, self.processor, progress=self.progress)
        return done.final  # type: ignore[no-any-return]


class ParallelNode:
    """Calls *processor* for all items, some at a time; the state gets the results.

    *into* is the key for the list of results. *aggregate* receives the `ParallelResult`, errors
    included, and the state instead, and returns what a node returns.
    """

    def __init__(
        self,
        items: Items,
        processor: Callable[[Any], Any],
        aggregate: Callable[[ParallelResult, State], NodeResult] | None = None,
        *,
        into: str | None = None,
        max_workers: int = 0,
        fail_fast: bool = True,
        progress: Progressed | None = None,
    ) -> None:
        if (aggregate is None) == (into is None):
            raise UsageError("a parallel node needs one of aggregate and into=")
        if into is not None and not fail_fast:
            raise UsageError(
                "into= would drop the errors of the items that failed",
                hint="give aggregate, which receives them",
            )
        self._items = items
        self._aggregate = aggregate
        self._into = into
        self._process = partial(
            process_parallel,
            processor=processor,
            max_workers=max_workers,
            fail_fast=fail_fast,
            progress=progress,
        )

    async def __call__(self, state: State) -> NodeResult:
        """Execute the items."""
        result = await self._process(_items(self._items, state))
        if self._aggregate is not None:
            return self._aggregate(result, state)
        assert self._into is not None
        return {self._into: result.results}


@dataclass(frozen=True, eq=False, repr=False)
class ConditionalNode:
    """Calls the one of *routes* that *choose* names; *default* for no such route."""

    choose: Callable[[State], Any]
    routes: Mapping[str, Callable[[State], Any]]
    default: Callable[[State], Any] | None = None

    async def __call__(self, state: State) -> Any:
        """Execute the route."""
        return await process_conditional(state, self.choose, self.routes, self.default)


def _items(items: Items, state: State) -> Sequence[Any]:
    if isinstance(items, str):
        found: Sequence[Any] = state[items]
        return found
    return items(state) if callable(items) else items
