"""Handles: follow, answer or cancel a run that another process executes."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from surehold.core.policy import CANCEL, DEAD, QUEUED, check_above_zero
from surehold.core.records import OVER, Header
from surehold.doors.result import GraphResult, RunResult, spent_before
from surehold.engine.journal import Note, unknown_run
from surehold.engine.managers import CheckpointManager, Target, opened
from surehold.engine.runs import Waiting, answer, send, status_of_run
from surehold.engine.runs.messages import Attribute, append_from_outside, attributes_of, status_of
from surehold.errors import RunError
from surehold.storage.base import RunInfo, newest_record

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Look = Callable[[CheckpointManager, str], RunResult[Any]]

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.5
"""Seconds between two looks at a run; each pause is a bit longer."""


def look_at(manager: CheckpointManager, run_id: str) -> RunResult[Any]:
    """The result of a run that has ended, whatever executed it."""
    reader = manager.reader
    newest = reader.newest_of(run_id)
    if newest is None:
        raise unknown_run(run_id)
    loaded = reader.load(newest)
    facts: dict[str, Any] = {"run_id": run_id, "status": newest.status, "step": newest.step}
    facts["usage"] = spent_before(reader, run_id)
    if loaded.door.kind == "function":
        return RunResult(**facts, returned=loaded.graph_state().to_dict().get("result"))
    return GraphResult(**facts, state=loaded.state())


class RunHandle(Generic[T]):
    """A submitted run; every method uses the storage, none executes the run."""

    def __init__(self, run_id: str, storage: Target, look: Look = look_at) -> None:
        self.run_id = run_id
        self._storage = storage
        self._look = look

    def status(self) -> str:
        """The run's status.

        Until a worker has taken it, it is ``queued``; ``stale`` if its process is gone, and
        ``dead`` if that happened too often.
        """
        with opened(self._storage) as manager:
            return status_of_run(manager.storage, manager.reader.known(self.run_id))

    def result(self, timeout: float | None = None) -> RunResult[T]:
        """Wait until the run has ended, and return its result.

        A run that became a dead letter, or was cancelled, is a `RunError`; one that has not ended
        after *timeout* seconds a `TimeoutError`. A run that waits is waited for.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = _FIRST_PAUSE
        with opened(self._storage) as manager:
            while (ended := self._ended(manager)) is None:
                if deadline is not None and time.monotonic() >= deadline:
                    raise self._late(manager, timeout)
                time.sleep(pause)
                pause = min(pause * 1.2, _LONGEST_PAUSE)
        result: RunResult[T] = ended
        return result

    def events(self, timeout: float | None = None) -> Iterator[Header]:
        """The headers of the run's records, oldest first, until it has ended.

        *timeout* is the longest time without a new one; then it is a `TimeoutError`.
        """
        seen, pause, last = 0, _FIRST_PAUSE, time.monotonic()
        with opened(self._storage) as manager:
            while True:
                ended = self._ended(manager, raises=False) is not None
                for record in manager.storage.read(self.run_id, first=seen + 1):
                    seen, pause, last = record.header.seq, _FIRST_PAUSE, time.monotonic()
                    yield record.header
                if ended:
                    return
                if timeout is not None and time.monotonic() - last >= timeout:
                    raise self._late(manager, timeout)
                time.sleep(pause)
                pause = min(pause * 1.2, _LONGEST_PAUSE)

    def answer(self, id: str, value: Any, *, by: str = "") -> Waiting:
        """Settle what the run waits for; see `surehold.answer`. A worker continues it."""
        return answer(self.run_id, id, value, by=by, storage=self._storage)

    def send(
        self, topic: str, value: Any = None, *, idempotency_key: str | None = None, by: str = ""
    ) -> None:
        """Send a message for `surehold.receive` in the run; see `surehold.send`."""
        key = idempotency_key
        send(self.run_id, topic, value, idempotency_key=key, by=by, storage=self._storage)

    def status_of(self) -> dict[str, Any]:
        """The values that the run has shown with `surehold.publish`, by name."""
        return status_of(self.run_id, storage=self._storage)

    def attributes(self) -> dict[str, Attribute]:
        """The values by which the run is found, by name; see `surehold.set_attributes`."""
        return attributes_of(self.run_id, storage=self._storage)

    def cancel(self, *, by: str = "", cleanup: float | None = None) -> None:
        """Ask for the run to end; see `surehold.executors.cancel`."""
        with opened(self._storage) as manager:
            cancel_run(manager, self.run_id, by, cleanup)

    def _ended(self, manager: CheckpointManager, *, raises: bool = True) -> Any:
        """The result of a run that has ended, True in place of an error; else None."""
        run = manager.reader.known(self.run_id)
        if run.status == "completed":
            return self._look(manager, self.run_id)
        reason = "was cancelled" if run.status == "cancelled" else _ending(manager, run)
        if reason is None or not raises:
            return None if reason is None else True
        raise RunError(
            f"run {self.run_id!r} {reason}",
            hint="" if run.status == "cancelled" else f"surehold queue requeue {self.run_id}",
            run_id=self.run_id,
        )

    def _late(self, manager: CheckpointManager, timeout: float | None) -> TimeoutError:
        run = manager.reader.run(self.run_id)
        status = status_of_run(manager.storage, run) if run is not None else "gone"
        helps = " (surehold worker MODULE executes it)" if status == QUEUED else ""
        return TimeoutError(f"run {self.run_id!r} is {status} after {timeout:g} s{helps}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run_id}>"


def cancel_run(
    manager: CheckpointManager, run_id: str, by: str = "", cleanup: float | None = None
) -> None:
    """Ask for a run to end; one that is over stays as it is."""
    check_above_zero(cleanup=cleanup)
    run = manager.reader.known(run_id)
    if run.status in OVER:
        return
    told: dict[str, Any] = {"by": by} if by else {}
    if cleanup is not None:
        told["cleanup"] = cleanup
    append_from_outside(manager, run_id, Note(kind=CANCEL, content={}, metadata=told))


def _ending(manager: CheckpointManager, run: RunInfo) -> str | None:
    """Why no worker continues a run; None if one may."""
    newest = functools.partial(newest_record, manager.storage, run.run_id)
    dead, cancel = newest(DEAD), newest(CANCEL)
    if dead is None and (cancel is None or run.status != "interrupted"):
        return None
    queued = newest(QUEUED)
    since = queued.seq if queued is not None else 0
    if dead is not None and dead.seq > since:
        return f"is a dead letter: {dead.metadata.get('reason', '')}"
    return "was cancelled" if cancel is not None and cancel.seq > since else None


def _awaited(
    method: Callable[Concatenate[RunHandle[Any], P], R],
) -> Callable[Concatenate[AsyncRunHandle[Any], P], Coroutine[Any, Any, R]]:
    """*method* of a handle, called beside the event loop."""

    @functools.wraps(method)
    async def awaited(handle: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.to_thread(method, handle._handle, *args, **kwargs)

    return awaited


class AsyncRunHandle(Generic[T]):
    """`RunHandle`'s methods, awaited."""

    def __init__(self, handle: RunHandle[T]) -> None:
        self.run_id = handle.run_id
        self._handle = handle

    async def result(self, timeout: float | None = None) -> RunResult[T]:
        """See `RunHandle.result`."""
        return await asyncio.to_thread(self._handle.result, timeout)

    async def events(self, timeout: float | None = None) -> AsyncIterator[Header]:
        """See `RunHandle.events`."""
        events = self._handle.events(timeout)
        while (event := await asyncio.to_thread(next, events, None)) is not None:
            yield event

    status = _awaited(RunHandle.status)
    answer = _awaited(RunHandle.answer)
    send = _awaited(RunHandle.send)
    status_of = _awaited(RunHandle.status_of)
    attributes = _awaited(RunHandle.attributes)
    cancel = _awaited(RunHandle.cancel)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.run_id}>"
