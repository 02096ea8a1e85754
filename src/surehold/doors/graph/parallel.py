"""Parallel items: many calls of one function, results in the items' order."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from surehold.core.policy import OF_THE_RUN
from surehold.core.values import decode
from surehold.doors.graph.items import Parts, Progressed, other_items, report
from surehold.engine.runs.effects import args_digest, shown
from surehold.engine.runs.positions import CURRENT_STEP
from surehold.errors import Interrupted, RunError, UsageError

_MOST_WORKERS = 16


class ParallelResult(msgspec.Struct, frozen=True):
    """Results and errors of the items."""

    results: list[Any]
    """In the order of the items; None for one that failed."""
    errors: Mapping[int, Exception] = {}
    """By the index of the item."""


async def process_parallel(
    items: Sequence[Any],
    processor: Callable[[Any], Any],
    *,
    max_workers: int = 0,
    fail_fast: bool = True,
    progress: Progressed | None = None,
) -> ParallelResult:
    """Call ``processor(item)`` for every item, at most *max_workers* at a time.

    Without a limit there are twice as many workers as processors, up to 16. Plain functions are
    called in threads. With *fail_fast* the first failure cancels the rest and is a `StepError`
    with the item's `.index`; without, the errors are in the result, and it is a `RunError` only
    if every item failed. Items that failed are tried again when the run is resumed.

    If items ask questions, the others are finished before the run waits for the answers.
    """
    if max_workers < 0:
        raise UsageError(f"max_workers is {max_workers}", hint="give 1 or more, or 0 for a default")
    return await _Batch(list(items), processor, fail_fast, progress).run(max_workers)


class _Failed(Exception):
    """The first failure of an item, which ends the others."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class _Batch(msgspec.Struct, eq=False):
    """The items of one execution."""

    items: list[Any]
    processor: Callable[[Any], Any]
    fail_fast: bool
    progress: Progressed | None
    _parts: Parts = msgspec.field(default_factory=Parts)
    _results: list[Any] = []
    _errors: dict[int, Exception] = {}
    _waiting: list[Interrupted] = []
    _digests: list[str] = []
    _completed: int = 0

    def __post_init__(self) -> None:
        self._results += [None] * len(self.items)

    async def run(self, max_workers: int) -> ParallelResult:
        todo = self._restore()
        limit = max_workers or min(2 * (os.cpu_count() or 1), _MOST_WORKERS)
        workers = min(limit, len(todo))
        say = self._parts.here.say
        say(
            "parallel.start",
            item_count=len(self.items),
            worker_count=workers,
            fail_fast=self.fail_fast,
            has_progress_callback=self.progress is not None,
            done=self._completed,
        )
        error: str | None = None
        try:
            await self._work(todo, workers)
            self._judge()
        except BaseException as failure:
            error = type(failure).__name__
            raise
        finally:
            say(
                "parallel.complete",
                items_processed=self._completed,
                items_failed=len(self._errors),
                error=error,
            )
        return ParallelResult(self._results, self._errors)

    def _restore(self) -> list[int]:
        """Read the results that the journal has; return the items that are left."""
        if self._parts.held is None:
            return list(range(len(self.items)))
        self._digests = [args_digest((item,), {}) for item in self.items]
        todo = []
        for index in range(len(self.items)):
            known = self._parts.find(index)
            if known is None:
                todo.append(index)
                continue
            if known.args != self._digests[index]:
                raise other_items(self._parts, index)
            self._results[index] = decode(bytes(known.value))
            self._completed += 1
        return todo

    async def _work(self, todo: list[int], workers: int) -> None:
        if not todo:
            return
        queue = iter(todo)
        tasks = [asyncio.create_task(self._worker(n, queue)) for n in range(workers)]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        failures = [task.exception() for task in tasks if not task.cancelled()]
        for failure in failures:
            if isinstance(failure, _Failed):
                index, error = failure.index, self._errors[failure.index]
                facts = {"index": index, "item": self.items[index], "state": None}
                raise self._parts.failure(f"item {index} failed", error, **facts) from error
            if failure is not None:
                raise failure

    async def _worker(self, number: int, queue: Iterator[int]) -> None:
        say = self._parts.here.say
        for index in queue:
            CURRENT_STEP.set(self._parts.at(index))
            facts = {"worker_id": number, "item_index": index, "total_items": len(self.items)}
            say("worker.start", **facts)
            try:
                value = await self._parts.call(self.processor, self.items[index], thread=True)
                await self._keep(index, value)
            except Interrupted as waiting:
                self._waiting.append(waiting)
                say("worker.complete", **facts, error="Interrupted")
                continue
            except OF_THE_RUN:
                raise
            except Exception as error:
                self._errors[index] = error
                say("worker.complete", **facts, error=type(error).__name__)
                if self.fail_fast:
                    raise _Failed(index) from error
                continue
            say("worker.complete", **facts, error=None)
            report(self.progress, self._completed, len(self.items), value)

    async def _keep(self, index: int, value: Any) -> None:
        if self._digests:
            value = await self._parts.keep(index, self._digests[index], value, index)
        self._results[index] = value
        self._completed += 1

    def _judge(self) -> None:
        if self._waiting:
            raise self._waiting[0]
        if self._errors and len(self._errors) == len(self.items):
            counts = Counter(shown(error) for error in self._errors.values())
            said = "; ".join(f"{count} x {text}" for text, count in counts.most_common(5))
            raise RunError(f"all {len(self.items)} items failed: {said}", errors=dict(self._errors))
