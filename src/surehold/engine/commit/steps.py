"""The steps of an operation, which a blocking or an async manager carries out.

An operation is a generator. It yields what it needs from outside: hooks to fire, a commit, a piece
of blocking work, a pause. The manager that drives it does that and sends the result back in.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec

from surehold.engine.journal import Request

if TYPE_CHECKING:
    from surehold.engine.hooks import HookEvent

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
