"""Named locks and semaphores, which runs hold and not their processes."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Generator
from contextvars import ContextVar
from functools import partial
from typing import Any, Self, TypeVar

import msgspec

from surehold.core.driving import drive, drive_async, settled
from surehold.core.records import OVER, Published
from surehold.core.state import State
from surehold.core.values import encode
from surehold.doors.functions.definition import AsyncStep, Step, step
from surehold.doors.functions.waits import receive
from surehold.engine.journal import Note
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import OpenRun
from surehold.engine.runs.messages import deliver, message_note, status_of
from surehold.engine.runs.positions import call_context
from surehold.errors import Cancelled, ConflictError, NotFoundError, UsageError

_FIRST_LOOK, _LONGEST_LOOK = 30.0, 3600.0
"""Seconds between two looks for holders that have ended without letting go."""
_TRIES = 1000
"""Attempts to change a lock that others change meanwhile."""

T = TypeVar("T")

_HELD: ContextVar[frozenset[lock]] = ContextVar("surehold_locks", default=frozenset())
"""The locks whose blocks the running code began in."""
_Table = dict[str, list[list[str]]]
"""The runs that hold the lock and those that wait for it, each with its token, in order."""


class lock:
    """A lock of a name: ``with surehold.lock("printer"):``, or ``async with``.

    Runs hold it, not processes: one that is killed or waits in the block keeps it until the block
    is left. At most *limit* runs of a storage are in such a block at a time, the others wait in the
    order in which they came; without a process, in a workflow that is started with ``wait=False``.
    A holder that has ended without leaving the block is passed over after a while.
    """

    def __init__(self, name: str, *, limit: int = 1) -> None:
        if type(name) is not str or not name:
            raise UsageError(f"{name!r} cannot name a lock", hint="give a text")
        if type(limit) is not int or limit < 1:
            raise UsageError(f"limit is {limit!r}", hint="give a whole number from 1")
        self._name = name
        self._limit = limit
        self._token = ""
        self._run_id = ""

    def __enter__(self) -> Self:
        drive(self._acquire(_request, _look, _release), lambda call: call())
        _HELD.set(_HELD.get() | {self})
        return self

    def __exit__(self, *raised: object) -> None:
        token, self._token = self._token, ""
        _HELD.set(_HELD.get() - {self})
        _release(self._name, self._limit, token)

    async def __aenter__(self) -> Self:
        steps = self._acquire(_request_awaited, _look_awaited, _release_awaited)
        await drive_async(steps, settled)
        _HELD.set(_HELD.get() | {self})
        return self

    async def __aexit__(self, *raised: object) -> None:
        token, self._token = self._token, ""
        _HELD.set(_HELD.get() - {self})
        await _release_awaited(self._name, self._limit, token)

    def _acquire(
        self,
        request: Callable[..., Any],
        look: Callable[..., Any],
        release: Callable[..., Any],
    ) -> Generator[Callable[[], Any], Any, None]:
        context = call_context()
        if context is None or context.run is None:
            raise UsageError(
                "a lock needs a run", hint="use it in a workflow, a surehold.run block or a node"
            )
        if self._token:
            raise UsageError(f"lock {self._name!r} is held here", hint="make a lock() for each use")
        run_id = self._run_id = context.run.run_id
        for one in _HELD.get():
            if one._token and (one._run_id, one._name) == (run_id, self._name) and one._limit == 1:
                raise UsageError(
                    f"run {run_id!r} would wait for lock {self._name!r}, which it holds",
                    hint="take a lock once, or choose another name",
                    run_id=run_id,
                )
        token, held = yield partial(request, self._name, self._limit)
        pause = _FIRST_LOOK
        while not held:
            try:
                yield partial(receive, _topic(self._name, token), timeout=pause)
                held = True
            except TimeoutError:
                held = yield partial(look, self._name, self._limit, token)
                pause = min(2 * pause, _LONGEST_LOOK)
            except Cancelled:
                yield partial(release, self._name, self._limit, token)
                raise
        self._token = token


def _ask(name: str, limit: int, idempotency_key: str = "") -> tuple[str, bool]:
    """Ask for the lock; a token, and whether the run holds it now."""
    return idempotency_key, _entered(name, limit, idempotency_key)


def _entered(name: str, limit: int, token: str) -> bool:
    run = _run_here()
    entry = [run.run_id, token]

    def enter(table: _Table) -> None:
        if entry not in table["holders"] and entry not in table["waiting"]:
            table["waiting"].append(entry)
        if len(table["holders"]) >= limit:
            table["holders"] = [one for one in table["holders"] if _lives(run.manager, one)]
        _promote(run.manager, table, limit)

    return entry in _changed(run.manager, name, token, enter)


def _leave(name: str, limit: int, token: str) -> None:
    """Let go of the lock, or ask for it no more; once or several times."""
    run = _run_here()
    entry = [run.run_id, token]

    def leave(table: _Table) -> None:
        for entries in table.values():
            if entry in entries:
                entries.remove(entry)
        _promote(run.manager, table, limit)

    _changed(run.manager, name, token, leave)


def _promote(manager: CheckpointManager, table: _Table, limit: int) -> None:
    while table["waiting"] and len(table["holders"]) < limit:
        following = table["waiting"].pop(0)
        if _lives(manager, following):
            table["holders"].append(following)


def _lives(manager: CheckpointManager, entry: list[str]) -> bool:
    if entry[0] == _run_here().run_id:
        return True  # a loop may have stored nothing yet
    run = manager.reader.run(entry[0])
    return run is not None and run.status not in OVER


def _changed(
    manager: CheckpointManager, name: str, own: str, change: Callable[[_Table], None]
) -> list[list[str]]:
    """Change the table of a lock, and tell the new holders but for *own*; all holders.

    Without a change all are told: whoever made the change may have died before it told them.
    """
    run_id = f"lock-{name}"
    for _ in range(_TRIES):
        head = manager.reader.run(run_id)
        if head is None:
            try:
                manager.save_checkpoint(State.new({}, run_id=run_id))
            except ConflictError:
                manager.face.journal.invalidate(run_id)
            continue
        known = status_of(run_id, storage=manager)
        table = {word: [*known.get(word, ())] for word in ("holders", "waiting")}
        before = {word: [*entries] for word, entries in table.items()}
        change(table)
        told = table["holders"]
        if table != before:
            told = [one for one in told if one not in before["holders"]]
            content = Published(values=msgspec.Raw(encode(table)))
            note = Note(kind="published", content=content)
            try:
                manager.append_notes(run_id, (note,), head=head.seq)
            except ConflictError:
                manager.face.journal.invalidate(run_id)
                continue
        _tell(manager, name, [one for one in told if one[1] != own])
        return table["holders"]
    raise ConflictError(f"lock {name!r} was changed by others at each attempt", run_id=run_id)


def _tell(manager: CheckpointManager, name: str, holders: list[list[str]]) -> None:
    for run_id, token in holders:
        try:
            deliver(manager, run_id, message_note(_topic(name, token), None, token))
        except (ConflictError, NotFoundError):  # it has ended since
            continue


def _topic(name: str, token: str) -> str:
    """The topic of one request: branches of a run may wait for one lock."""
    return f"lock {name} {token[:8]}"


def _run_here() -> OpenRun:
    context = call_context()
    assert context is not None and context.run is not None
    return context.run


def _steps(name: str, function: Callable[..., T]) -> tuple[Step[..., T], AsyncStep[..., T]]:
    """*function* as a blocking step and as an awaited step."""

    @functools.wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> T:
        return await asyncio.to_thread(function, *args, **kwargs)

    return step(name=name)(function), step(name=name)(awaited)


_request, _request_awaited = _steps("lock", _ask)
_look, _look_awaited = _steps("lock look", _entered)
_release, _release_awaited = _steps("unlock", _leave)
