"""What the commands that act print with --json."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal

import msgspec

from holdfast.checkpoint.inspect import Origin
from holdfast.cli.framework import Document

__all__ = [
    "Answered",
    "Fork",
    "Marked",
    "Pending",
    "Resume",
    "WaitingRow",
]


class Resume(Document, kw_only=True):
    """``resume``"""

    type: Literal["resume"] = "resume"
    run_id: str
    entry_point: str
    plan: str
    """What was to happen, as `explain_resume` tells it."""
    status: str
    step: int
    outcome: Literal["planned", "completed", "parked"]


class Fork(Document, kw_only=True):
    """``fork``"""

    type: Literal["fork"] = "fork"
    run_id: str
    checkpoint_id: str
    step: int
    forked_from: Origin
    changed: list[str]


class Marked(Document, kw_only=True):
    """``tag`` and ``pin``"""

    type: Literal["marked"] = "marked"
    run_id: str
    checkpoint_id: str
    step: int
    tags: tuple[str, ...]
    pinned: bool


class WaitingRow(msgspec.Struct, kw_only=True):
    """Something that a run waits for."""

    run_id: str
    id: str
    kind: Literal["question", "effect", "event", "timer"]
    step: int
    node: str
    name: str
    question: msgspec.Raw
    schema: Any
    problem: str
    key: str
    policy: str
    began: datetime | None


class Pending(Document, kw_only=True):
    """``pending``"""

    items: ClassVar[str] = "pending"
    row: ClassVar[str] = "waiting"
    type: Literal["pending"] = "pending"
    pending: list[WaitingRow]


class Answered(Document, kw_only=True):
    """``approve``, ``reject`` and ``answer``"""

    type: Literal["answered"] = "answered"
    run_id: str
    id: str
    kind: Literal["question", "effect", "event", "timer"]
    outcome: Literal["answered", "happened", "failed", "repeat"]
    value: msgspec.Raw
