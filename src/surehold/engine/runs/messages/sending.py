"""Sending a message to a run that any process executes, or none at the moment."""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

import msgspec

from surehold.core.policy import MESSAGE
from surehold.core.records import OVER, Message
from surehold.core.values import encode
from surehold.engine.journal import Note
from surehold.engine.managers import CheckpointManager, Target, opened
from surehold.engine.runs.positions import idempotency_key as key_of
from surehold.engine.runs.positions import recorded_value, recording_context
from surehold.errors import ConflictError, NotFoundError, StorageError, UsageError
from surehold.storage.base import RecordQuery

_TRIES = 64
"""Attempts to send to a run that is written to meanwhile."""


def send(
    run_id: str,
    topic: str,
    value: Any = None,
    *,
    idempotency_key: str | None = None,
    by: str = "",
    storage: Target = None,
) -> None:
    """Send *value* to a run, which takes it with ``surehold.receive(topic)``.

    The message is durable when this returns. The run need not wait for it, nor be executed: a
    queued run that waits is woken. Messages of one topic are taken in the order in which they were
    sent, each once. Another message with the same *idempotency_key* and topic is dropped. A run
    that is completed or cancelled is a `ConflictError`. *by* is recorded as the sender. A run that
    sends a message sends it once: a replay does not.
    """
    message_note(topic, value, idempotency_key, by)

    def send_at(place: str) -> None:
        key = idempotency_key or key_at(place)
        with opened(storage) as manager:
            deliver(manager, run_id, message_note(topic, value, key, by))

    recorded_value("send", send_at)


def key_at(place: str) -> str | None:
    """The key of a message that a run sends at *place*; None outside a run."""
    context = recording_context()
    run = context.run if context is not None else None
    return key_of(run, place) if run is not None else None


def message_note(topic: str, value: Any, idempotency_key: str | None = None, by: str = "") -> Note:
    """The message as a note; a `UsageError` if it cannot be one."""
    check_topic(topic)
    if idempotency_key is not None and (type(idempotency_key) is not str or not idempotency_key):
        raise UsageError(f"idempotency_key is {idempotency_key!r}", hint="give a text")
    id = str(uuid.uuid4()) if idempotency_key is None else idempotency_key
    told = {"topic": topic} | ({"by": by} if by else {})
    told |= {"key": id} if idempotency_key is not None else {}
    content = Message(id=id, topic=topic, value=msgspec.Raw(encode(value)))
    return Note(kind=MESSAGE, content=content, metadata=told)


def check_topic(topic: object) -> None:
    """Raise a `UsageError` unless *topic* can name messages."""
    if type(topic) is not str or not topic:
        raise UsageError(f"{topic!r} cannot name a topic", hint="give a text that is not empty")


def deliver(manager: CheckpointManager, run_id: str, note: Note) -> None:
    """Append the message to a run, whatever others write to it meanwhile.

    A run that is over and has the message already takes it as sent.
    """
    try:
        run = manager.reader.known(run_id)
    except NotFoundError as error:
        error.hint = "start_or_send() of a workflow begins the run first"
        raise
    # A function keeps all its messages, and drops a repeated one when it takes them.
    if "key" in note.metadata and (run.door != "function" or run.status in OVER):
        told = {name: note.metadata[name] for name in ("topic", "key")}
        query = RecordQuery(run_id=run_id, kind=MESSAGE, metadata=told, notes=True, limit=1)
        if any(manager.storage.headers(query)):
            return
    if run.status in OVER:
        raise ConflictError(
            f"run {run.run_id!r} is {run.status}, and takes no message any more",
            hint="send it to another run, or begin one",
            run_id=run.run_id,
        )
    append_from_outside(manager, run_id, note)


def ended_topic(run_id: str) -> str:
    """The topic with which a run tells its parent of its end."""
    return f"ended {run_id}"


def tell_end(manager: CheckpointManager, run_id: str, parent: str) -> None:
    """Tell *parent* of the run's end; if that fails, it finds out later by itself."""
    topic = ended_topic(run_id)
    with suppress(ConflictError, NotFoundError, StorageError):
        deliver(manager, parent, message_note(topic, None, topic))


def append_from_outside(manager: CheckpointManager, run_id: str, note: Note) -> None:
    """Append a note to a run that others write to meanwhile."""
    for left in reversed(range(_TRIES)):
        try:
            manager.append_notes(run_id, (note,))
            return
        except ConflictError:
            manager.face.journal.invalidate(run_id)
            if not left:
                raise
