"""Runs that another run begins: waited for in its journal, and closed with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import Any, Literal, TypeVar

from surehold.core.driving import drive, drive_async, settled
from surehold.doors.functions.typed import Typed
from surehold.doors.functions.waits import receive_or_ask
from surehold.doors.result import RunResult
from surehold.doors.submit import AsyncRunHandle, Look, RunHandle
from surehold.engine.managers import Target
from surehold.engine.runs import OpenRun
from surehold.engine.runs.effects import Called, CallPolicy, EffectCall, perform, perform_now
from surehold.engine.runs.messages import ended_topic, tell_end
from surehold.engine.runs.positions import call_context
from surehold.errors import NotFoundError, RunError

T = TypeVar("T")
ParentClose = Literal["leave", "cancel", "wait"]
"""What becomes of a run when the one that began it ends."""

_FIRST_LOOK, _LONGEST_LOOK = 30.0, 600.0
"""Seconds between two looks at a run that has not told its end."""
_Outcome = list[Any] | None
"""Status, step, and value or reason of a run that has ended."""


class ChildHandle(RunHandle[T]):
    """A handle to a run that another run began, for use in that one."""

    def __init__(
        self,
        run_id: str,
        storage: Target,
        look: Look,
        typed: Typed,
        parent_close: ParentClose,
    ) -> None:
        super().__init__(run_id, storage, look)
        self.parent_close = parent_close
        self._policy = CallPolicy(
            name="result",
            in_doubt="retry",
            write=lambda outcome: [*outcome[:2], typed.write(outcome[2])],
        )
        self._read = typed.read

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the run has ended; in the run that began it, the outcome is recorded.

        Without a process, in a workflow that is started with ``wait=False``. A run that became a
        dead letter or was cancelled is a `RunError`, on every replay too, as is the `TimeoutError`
        after *timeout* seconds. Awaited in async code.
        """
        context = call_context()
        if context is None or context.run is None:
            return super().result(timeout)
        if context.in_async:
            return self.result_async(timeout)
        return self._given(drive(self._actions(timeout, self._look_now), lambda call: call()))

    async def result_async(self, timeout: float | None = None) -> RunResult[T]:
        """`result`, awaited."""
        steps = self._actions(timeout, self._look_awaited)
        return self._given(await drive_async(steps, settled))

    def _actions(
        self, timeout: float | None, look: Callable[[], Any]
    ) -> Generator[Callable[[], Any], Any, list[Any]]:
        left, pause = timeout, _FIRST_LOOK
        while True:
            outcome: _Outcome = yield look
            if outcome is not None:
                return outcome
            rest = pause if left is None else min(pause, left)
            try:
                yield partial(receive_or_ask, ended_topic(self.run_id), rest, self._tell_for_it)
            except TimeoutError:
                left = None if left is None else left - rest
                if left is not None and left <= 0:
                    late = f"run {self.run_id!r} has not ended after {timeout:g} s"
                    raise TimeoutError(late) from None
            pause = min(2 * pause, _LONGEST_LOOK)

    def _look_now(self) -> _Outcome:
        call = self._call()
        return perform_now(call, None, Called(self._outcome, (), {}))  # type: ignore[no-any-return]

    async def _look_awaited(self) -> _Outcome:
        called = Called(partial(asyncio.to_thread, self._outcome), (), {})
        return await perform(self._call(), None, called)  # type: ignore[no-any-return]

    def _tell_for_it(self) -> None:
        """Send the message of a run that ended in a process that was killed before it did."""
        context = call_context()
        assert context is not None and context.run is not None
        with suppress(NotFoundError):  # the next look raises it
            if self._outcome() is not None:
                tell_end(context.run.manager, self.run_id, context.run.run_id)

    def _call(self) -> EffectCall:
        context = call_context()
        assert context is not None and context.run is not None
        return EffectCall(context, context.run, self._policy)

    def _outcome(self) -> _Outcome:
        try:
            result = super().result(0)
        except TimeoutError:
            return None
        except RunError as error:
            return ["failed", 0, error.message, error.hint]
        return [result.status, result.step, result.returned]

    def _given(self, outcome: list[Any]) -> RunResult[T]:
        status, step, value = outcome[:3]
        if status == "failed":
            raise RunError(value, hint=outcome[3], run_id=self.run_id)
        return RunResult(run_id=self.run_id, status=status, step=step, returned=self._read(value))


class AsyncChildHandle(AsyncRunHandle[T]):
    """`ChildHandle`'s methods, awaited."""

    _handle: ChildHandle[T]

    async def result(self, timeout: float | None = None) -> RunResult[T]:
        """See `ChildHandle.result`."""
        context = call_context()
        if context is None or context.run is None:
            return await super().result(timeout)
        return await self._handle.result_async(timeout)


def awaited_of(handle: RunHandle[T]) -> AsyncRunHandle[T]:
    """The awaited form of a handle."""
    return AsyncChildHandle(handle) if isinstance(handle, ChildHandle) else AsyncRunHandle(handle)


def wait_for_children(run: OpenRun) -> Generator[Callable[[], Any], Any, None]:
    """Wait for the runs that *run* must not end before."""
    for child in sorted(run.children, key=lambda one: one.run_id):  # as on every replay
        if child.parent_close == "wait":
            with suppress(RunError, NotFoundError):
                yield child.result


def cancel_children(run: OpenRun) -> None:
    """Cancel the runs that end with *run*; again after a crash, which changes nothing."""
    for child in run.children:
        if child.parent_close == "cancel":
            with suppress(NotFoundError):  # it has ended and was removed
                child.cancel(by=f"run {run.run_id}")
