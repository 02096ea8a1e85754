"""Chains: a value that one item after another changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from surehold.core.policy import OF_THE_RUN
from surehold.core.state import Lineage, State
from surehold.core.values import decode
from surehold.doors.graph.items import Parts, Progressed, other_items, report
from surehold.doors.graph.node_result import applied
from surehold.engine.runs import draft_of_state
from surehold.engine.runs.effects import args_digest
from surehold.engine.runs.positions import CURRENT_STEP


class ChainResult(msgspec.Struct, frozen=True):
    """The end of a chain."""

    final: Any
    steps: int
    intermediate: tuple[Any, ...] = ()
    """If captured: the value before the first item and after each one; after a resume, only those
    since then."""


async def process_chain(
    items: Sequence[Any],
    initial: Any,
    processor: Callable[[Any, Any], Any],
    *,
    progress: Progressed | None = None,
    capture: bool = False,
) -> ChainResult:
    """Apply ``processor(item, value)`` to *initial* for each item, in order.

    If *initial* is a `State`, the processor may return what a node returns. The first failure
    is a `StepError` with the last good value as `.state` and the item's `.index`.
    """
    items = list(items)
    parts = Parts()
    kept = (_States if isinstance(initial, State) else _Values)(parts, items)
    done, value = await kept.restore(initial)
    say = parts.here.say
    say(
        "chain.start",
        item_count=len(items),
        has_progress_callback=progress is not None,
        capture_intermediate=capture,
        done=done,
    )
    captured = [value] if capture else []
    for index in range(done, len(items)):
        say("step.start", step_index=index, total_steps=len(items))
        token = CURRENT_STEP.set(parts.at(index + 1))
        try:
            result = await parts.call(processor, items[index], value)
            value = applied(value, result, parts.node) if isinstance(value, State) else result
        except Exception as error:
            kind = type(error).__name__
            say("step.complete", step_index=index, total_steps=len(items), error=kind)
            say("chain.complete", steps_completed=index, error=True, error_type=kind)
            if isinstance(error, OF_THE_RUN):
                raise
            facts = {"index": index, "item": items[index], "state": value, "steps": index}
            raise parts.failure(f"item {index} of the chain failed", error, **facts) from error
        finally:
            CURRENT_STEP.reset(token)
        await kept.keep(index, value)
        if capture:
            captured.append(value)
        say("step.complete", step_index=index, total_steps=len(items), error=None)
        report(progress, index + 1, len(items), value)
    say("chain.complete", steps_completed=len(items), error=False, error_type=None)
    return ChainResult(value, len(items), tuple(captured))


class _Values:
    """Progress of a chain over plain values in the journal: each is recorded whole."""

    def __init__(self, parts: Parts, items: Sequence[Any]) -> None:
        self._parts = parts
        self._items = items
        self._digests: list[str] = []
        if parts.held is not None:
            self._digests = [args_digest((item,), {}) for item in items]

    def _check(self, index: int, digest: str) -> None:
        if index >= len(self._digests) or self._digests[index] != digest:
            raise other_items(self._parts, index)

    async def restore(self, initial: Any) -> tuple[int, Any]:
        """Return the number of items done, and the value after them."""
        done, value = 0, initial
        while (known := self._parts.find(done)) is not None:
            self._check(done, known.args)
            done, value = done + 1, decode(bytes(known.value))
        return done, value

    async def keep(self, index: int, value: Any) -> None:
        """Record the value after an item."""
        if self._digests:
            await self._parts.keep(index, self._digests[index], value, index + 1)


class _States(_Values):
    """The same over states: each is a checkpoint in its scope and costs its changes."""

    def __init__(self, parts: Parts, items: Sequence[Any]) -> None:
        super().__init__(parts, items)
        self._lineage = Lineage()
        self._in_journal = 0

    async def restore(self, initial: Any) -> tuple[int, Any]:
        held = self._parts.held
        if held is None or not held.resumed:
            return 0, initial
        header = await asyncio.to_thread(held.newest_in, self._parts.scope)
        if header is None:
            return 0, initial
        loaded, saved = await asyncio.to_thread(held.load_at, header)
        for index, digest in enumerate(loaded.extra["items"]):
            self._check(index, digest)
        self._lineage = saved.lineage
        self._in_journal = header.step
        return header.step, initial.with_values_of(saved)

    async def keep(self, index: int, value: Any) -> None:
        held = self._parts.held
        if held is None:
            return
        done = index + 1
        state = value.at(
            scope=self._parts.scope,
            step=done,
            node=self._parts.node,
            status="completed" if done == len(self._items) else "running",
        )
        since = self._in_journal

        def extra(whole: bool) -> bytes:
            return msgspec.json.encode({"items": self._digests[0 if whole else since : done]})

        draft = draft_of_state(state, self._lineage, schema=0, extra=extra)
        if await held.awaited.save(draft):
            self._in_journal = done
