"""Submitting a run: its first checkpoint and its place in a queue, in one commit."""

from __future__ import annotations

import time
import uuid
from typing import Any, TypedDict

import msgspec

from surehold.core.policy import QUEUED, Submission, is_duration, target_of
from surehold.core.records import check_run_id
from surehold.engine.commit import save_draft
from surehold.engine.journal import CheckpointDraft, Note
from surehold.engine.managers import Target, opened
from surehold.errors import ConflictError, UsageError
from surehold.storage.queueing import check_queues


class StartOptions(TypedDict, total=False):
    """The keyword arguments of every ``start``, as `surehold.workflow` describes them."""

    run_id: str | None
    queue: str
    priority: int
    key: str | None
    delay: float | None
    idempotency_key: str | None
    entry_point: str | None
    by: str


class QueueOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a ``start``, checked."""

    run_id: str | None = None
    queue: str = "default"
    priority: int = 0
    key: str | None = None
    delay: float | None = None
    idempotency_key: str | None = None
    entry_point: str | None = None
    """The code to execute, where it is not the variable of a module: ``module:name``."""
    by: str = ""
    """The person or program that asked for the run."""

    def __post_init__(self) -> None:
        queue: object = self.queue
        if not isinstance(queue, str) or not queue:
            raise UsageError(f"queue is {self.queue!r}", hint="give its name")
        priority, key = (self.priority, self.key)  # type: tuple[object, object]
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise UsageError(f"priority is {self.priority!r}", hint="give a whole number")
        if abs(self.priority) >= 1 << 31:
            raise UsageError(f"priority is {self.priority}", hint="give a smaller number")
        if key is not None and not isinstance(key, str):
            raise UsageError(f"key is {self.key!r}", hint="give a text, such as a tenant's name")
        if self.delay is not None and not is_duration(self.delay):
            hint = "give a number of seconds from 0 to 1e9"
            raise UsageError(f"delay is {self.delay!r}", hint=hint)
        if self.run_id is not None and self.idempotency_key is not None:
            raise UsageError("run_id= and idempotency_key= are given", hint="give one of them")

    def id_for(self, name: str) -> str:
        """The run's id: given, made from the idempotency key and *name*, or new."""
        if self.run_id is not None:
            return check_run_id(self.run_id)
        if self.idempotency_key is not None:
            return f"{name}-{uuid.uuid5(_IDEMPOTENCY, f'{name}/{self.idempotency_key}')}"
        return str(uuid.uuid4())

    def note(self, entry_point: str, version: int, *, now: float) -> Note:
        """The record of the submission."""
        wanted = Submission(
            queue=self.queue,
            target=target_of(entry_point, version),
            priority=self.priority,
            key=self.key or "",
            due=None if not self.delay else now + self.delay,
        )
        told = {QUEUED: msgspec.to_builtins(wanted)} | ({"by": self.by} if self.by else {})
        return Note(kind=QUEUED, content={}, metadata=told)


_IDEMPOTENCY = uuid.UUID("5b6f2a53-5c0b-4f0e-9d39-4b8b2f1d7c11")


def begin_queued(
    storage: Target,
    draft: CheckpointDraft,
    entry_point: str,
    version: int,
    options: QueueOptions,
    *notes: Note,
) -> bool:
    """Save a run's first checkpoint, submission and *notes*; False if it exists.

    Nothing is executed. A run whose code another process could not find is a `UsageError`.
    """
    name = draft.place.name
    if not entry_point:
        raise UsageError(
            f"{name!r} is not a variable of a module, so that no worker could find it",
            hint="define it at the top of a module",
        )
    with opened(storage) as manager:
        check_queues(manager.storage)
        note = options.note(entry_point, version, now=time.time())
        steps: Any = save_draft(manager.face, draft, force=True, notes=(note, *notes), new_run=True)
        try:
            manager.perform(steps)
        except ConflictError:
            return False
        return True
