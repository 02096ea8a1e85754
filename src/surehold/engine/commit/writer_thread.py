"""The thread that does an async manager's blocking work, a hop an operation."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, TypeVar

from surehold.engine.commit.group_commit import GroupCommit
from surehold.engine.journal import Journal, Outcome, Request, Sent
from surehold.errors import UsageError

T = TypeVar("T")

_Promise = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]"]
_Saves = list[tuple[Sent, _Promise]]
_Job = tuple[Callable[[], Any], _Promise]


class Writer:
    """Takes requests and calls of event loops, and answers from a thread of its own.

    Requests that are made in the same turn of a loop, and those that wait when the thread is
    free again, go out in one commit, with what other threads write then. The thread ends with
    `close`, or when nothing refers to the writer any more: a graph or an agent is made for each
    request of a server, and nobody closes it.
    """

    def __init__(self, commits: GroupCommit) -> None:
        self._commits = commits
        self._closed = False
        self.renew()

    def renew(self) -> None:
        """Start without a thread and with nothing queued, as in the child of a fork."""
        self._queue: SimpleQueue[_Saves | _Job | None] = SimpleQueue()
        self._gathering: dict[asyncio.AbstractEventLoop, _Saves] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def commit(self, journal: Journal, request: Request) -> asyncio.Future[Outcome]:
        """Write *request* together with all that this loop asks for in the same turn."""
        with self._lock:
            loop, future = promise = self._promise()
            saves = self._gathering.get(loop)
            if saves is None:
                self._gathering[loop] = saves = []
                loop.call_soon(self._flush, loop)
            saves.append(((journal, request), promise))
        return future

    def call(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Call *work* on the writer's thread."""
        with self._lock:
            promise = self._promise()
            self._queue.put((work, promise))
        return promise[1]

    def flush(self) -> None:
        """Send what the running loop has asked for so far, before its turn ends."""
        self._flush(asyncio.get_running_loop())

    def close(self) -> None:
        """Finish what is queued and end the thread. May be called from any thread."""
        with self._lock:
            self._closed = True
            thread, self._thread = self._thread, None
            for saves in self._gathering.values():
                self._queue.put(saves)
            self._gathering.clear()
            if thread is not None:
                self._queue.put(None)
        if thread is not None:
            thread.join()

    def _promise(self) -> _Promise:
        """A promise that the thread keeps; what it is for is queued under the same lock."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise UsageError("this manager is closed", hint="open another one")
        if self._thread is None:
            thread = threading.Thread(
                target=_serve,
                args=(self._queue, self._commits),
                name="surehold-writer",
                daemon=True,
            )
            thread.start()
            self._thread = thread
        return loop, loop.create_future()

    def _flush(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            saves = self._gathering.pop(loop, None)
            if saves:
                self._queue.put(saves)

    def __del__(self) -> None:
        self._queue.put(None)


def _serve(queue: SimpleQueue[_Saves | _Job | None], commits: GroupCommit) -> None:
    # While it waits for the next, it refers to nothing that it has done: managers and storages
    # that nobody uses are freed.
    while _serve_next(queue, commits):
        pass


def _serve_next(queue: SimpleQueue[_Saves | _Job | None], commits: GroupCommit) -> bool:
    """Do what is asked for next, with the saves that wait behind it; False at the end."""
    waiting = queue.get()
    while waiting is not None:
        if isinstance(waiting, tuple):
            work, promise = waiting
            _answer(promise, work)
            return True
        group = waiting
        waiting = _join_waiting(queue, group)
        _commit(commits, group)
        if waiting is group:
            return True
    return False


def _commit(commits: GroupCommit, group: _Saves) -> None:
    try:
        outcomes: list[Any] = list(commits.commit_all([sent for sent, _ in group]))
    except BaseException as error:
        outcomes = [error] * len(group)
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for (_, (loop, future)), outcome in zip(group, outcomes, strict=True):
        by_loop.setdefault(loop, []).append((future, outcome))
    for loop, answers in by_loop.items():
        _tell(loop, answers)


def _join_waiting(queue: SimpleQueue[_Saves | _Job | None], group: _Saves) -> _Saves | _Job | None:
    """Join waiting saves to *group*; return what waits next, *group* for nothing."""
    while not queue.empty():
        more = queue.get()
        if not isinstance(more, list):
            return more
        group += more
    return group


def _answer(promise: _Promise, work: Callable[[], Any]) -> None:
    loop, future = promise
    try:
        result = work()
    except BaseException as error:
        result = error
        if isinstance(error, StopIteration):
            result = RuntimeError("an operation ended early")
    _tell(loop, [(future, result)])


def _tell(loop: asyncio.AbstractEventLoop, answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
    def tell() -> None:
        for future, answer in answers:
            if future.cancelled():
                continue
            if isinstance(answer, BaseException):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    if not loop.is_closed():
        loop.call_soon_threadsafe(tell)


async def await_uncancelled(future: asyncio.Future[T]) -> T:
    """Wait until *future* has settled; then raise a cancellation, if any."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError as error:
            cancelled = error
        except BaseException:
            break
    if cancelled is not None:
        if not future.cancelled():
            future.exception()
        raise cancelled
    return future.result()


async def in_thread(fn: Callable[..., T], *args: Any) -> T:
    """Call *fn* beside the event loop; a cancellation is raised when it has ended."""
    return await await_uncancelled(asyncio.ensure_future(asyncio.to_thread(_called, fn, args)))


async def call_beside(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    *,
    begin: Callable[[], object] | None = None,
) -> Any:
    """Call user code; a plain function is called in a thread, as it may block.

    *begin* is called in the same place right before, and may refuse the call.
    """
    if not inspect.iscoroutinefunction(fn):
        made = await asyncio.to_thread(_called, fn, args, kwargs, begin)
        return await made if inspect.isawaitable(made) else made
    if begin is not None:
        begin()
    return await fn(*args, **kwargs)


def _called(
    fn: Callable[..., T],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] = MappingProxyType({}),
    begin: Callable[[], object] | None = None,
) -> T:
    """Call *fn*; what a future of asyncio cannot hold becomes a `RuntimeError`.

    A task would wait for ever for a StopIteration, and be cancelled by another future's end.
    """
    if begin is not None:
        begin()
    try:
        return fn(*args, **kwargs)
    except (StopIteration, CancelledError) as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise RuntimeError(f"{name} raised {type(error).__name__}") from error


def in_event_loop() -> bool:
    """True if an event loop runs on this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
