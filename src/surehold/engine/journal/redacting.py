"""Redaction of everything that is about to be sealed, whoever asked for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from surehold.core.policy import redact_text
from surehold.engine.journal.draft import CheckpointDraft
from surehold.engine.journal.requests import Note
from surehold.errors import VetoError

_EXEMPT = frozenset(["key", "prune"])
"""Notes that hold nothing of a user's."""


class Redacts(Protocol):
    """Replaces the secrets in a value; returns the same object if there are none."""

    def redact(self, value: Any) -> Any: ...


class Redacting:
    """Redacts drafts and notes on their way into the journal.

    *rules* returns what redacts, asked anew for every request. The values of a state were redacted
    before, by the hook, so that a delta is made from what is stored; everything else is here.
    """

    def __init__(self, rules: Callable[[], Sequence[Redacts]]) -> None:
        self._rules = rules

    def draft(self, draft: CheckpointDraft) -> CheckpointDraft:
        """The draft without secrets in its metadata, its tags and what the door keeps."""
        rules = self._rules()
        if not rules:
            return draft
        place, extra = draft.place, draft.extra
        redact = _guarded(rules, place.run_id)
        metadata, tags = redact(place.metadata), redact(place.tags)
        if metadata is not place.metadata or tags is not place.tags:
            place = msgspec.structs.replace(place, metadata=metadata, tags=tags)
            draft = msgspec.structs.replace(draft, place=place)
        if extra is not None:
            draft = msgspec.structs.replace(
                draft, extra=lambda is_key: redact_text(extra(is_key), redact)
            )
        return draft

    def note(self, run_id: str, note: Note, text: bytes) -> tuple[Note, bytes]:
        """The note and the text of its content without secrets."""
        rules = self._rules()
        if not rules or note.kind in _EXEMPT:
            return note, text
        redact = _guarded(rules, run_id)
        metadata, tags = redact(note.metadata), redact(note.tags)
        if metadata is not note.metadata or tags is not note.tags:
            note = msgspec.structs.replace(note, metadata=metadata, tags=tags)
        return note, redact_text(text, redact)


def _guarded(rules: Sequence[Redacts], run_id: str) -> Callable[[Any], Any]:
    def redact(value: Any) -> Any:
        try:
            for rule in rules:
                value = rule.redact(value)
        except Exception as error:
            # Its message may quote the value at fault, so only its class is named.
            raise VetoError(
                f"run {run_id!r}: a record was not written:"
                f" {type(error).__name__} while redacting it",
                run_id=run_id,
            ) from None
        return value

    return redact
