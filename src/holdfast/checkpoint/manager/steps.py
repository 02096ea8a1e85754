"""Operations written once, and carried out by a blocking or by an async manager.

An operation is a generator. It yields what it needs from outside: hooks to be fired, a commit, a
piece of blocking work, a pause. Whoever drives it does that in its own way and sends the result
back in.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from holdfast.checkpoint.hooks import HookEvent
from holdfast.checkpoint.journal import Request

__all__ = ["Commit", "Fire", "Pause", "Step", "Steps", "Work", "drive"]

T = TypeVar("T")


class Fire(msgspec.Struct, frozen=True):
    """Fire an event; the hooks' results are sent back."""

    event: HookEvent
    agent_id: str
    data: Mapping[str, Any]


class Commit(msgspec.Struct, frozen=True):
    """Write a request; its outcome is sent back, or a `StorageError` thrown in."""

    request: Request


class Work(msgspec.Struct, frozen=True):
    """Call something that blocks; what it returns is sent back."""

    call: Callable[[], Any]


class Pause(msgspec.Struct, frozen=True):
    """Wait so many seconds."""

    seconds: float


Step: TypeAlias = Fire | Commit | Work | Pause
Steps: TypeAlias = Generator[Step, Any, T]


def drive(steps: Steps[T], do: Callable[[Step], Any]) -> T:
    """Carry *steps* out with *do*, which blocks, and give what they come to."""
    try:
        step = next(steps)
        while True:
            try:
                result = do(step)
            except Exception as error:
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
