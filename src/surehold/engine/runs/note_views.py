"""Notes of a journal as values that can be shown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from surehold.core.records import (
    NOTE_KINDS,
    Effect,
    Mailbox,
    Message,
    Published,
    Question,
    Record,
    Timer,
)
from surehold.core.values import decode
from surehold.engine.journal import Reader
from surehold.errors import SureholdError


class NoteView(msgspec.Struct, frozen=True, kw_only=True):
    """A note of a journal, opened."""

    seq: int
    kind: str
    scope: str
    step: int
    node: str | None
    id: str = ""
    name: str = ""
    state: str = ""
    """Of an effect ``done``, ``failed``, ``in doubt`` or ``repeat``, of a timer ``over``."""
    value: Any = None
    """An effect's outcome, a question, an answer, or the time that a timer ends at."""
    inputs: str = ""
    """The arguments of an effect, short and redacted, where they are kept."""
    error: str = ""
    seconds: float = 0.0
    tokens: int = 0
    dollars: float = 0.0
    facts: dict[str, Any] = {}
    """Metadata of the note's header."""
    saved_at: datetime | None = None
    """When it was written; None for a record whose header is lost."""


_OPENED = {kind: content for kind, content in NOTE_KINDS.items() if kind != "item"}


def view_note(reader: Reader, record: Record) -> NoteView:
    """Return a note's content, or only its header if the body cannot be opened."""
    header = record.header
    common: dict[str, Any] = {
        "seq": header.seq,
        "kind": header.kind,
        "scope": header.scope,
        "step": header.step,
        "node": header.node,
        "facts": dict(header.metadata),
        "saved_at": header.saved_at,
    }
    kind = _OPENED.get(header.kind)
    if kind is None:
        return NoteView(**common)
    try:
        content: Any = msgspec.json.decode(reader.sealer.open(record), type=kind)
    except (SureholdError, msgspec.MsgspecError) as error:
        return NoteView(error=str(error), **common)
    if isinstance(content, Effect):
        return NoteView(**common, **_effect(content))
    if isinstance(content, Timer):
        until = None if content.until is None else datetime.fromtimestamp(content.until, UTC)
        state = "over" if content.expired else ""
        return NoteView(id=content.id, name=content.name, state=state, value=until, **common)
    if isinstance(content, Published):
        return NoteView(value=decode(bytes(content.values)), **common)
    if isinstance(content, Mailbox):
        return NoteView(value=content.taken, **common)
    text = content.text if isinstance(content, Question) else content.value
    name = content.topic if isinstance(content, Message) else ""
    return NoteView(id=content.id, name=name, value=decode(bytes(text)), **common)


def _effect(effect: Effect) -> dict[str, Any]:
    state = "done" if effect.done else "repeat" if effect.repeat else "in doubt"
    return {
        "id": effect.id,
        "name": effect.name,
        "state": "failed" if effect.error else state,
        "value": decode(bytes(effect.value)) if bytes(effect.value) else None,
        "inputs": effect.inputs,
        "error": ": ".join(effect.error) if effect.error else "",
        "seconds": effect.seconds,
        "tokens": effect.tokens,
        "dollars": effect.dollars,
    }
