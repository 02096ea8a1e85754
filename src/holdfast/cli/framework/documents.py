"""What the commands print with --json: one class for each kind of document.

Every document says its `type` and `version`. Within a version fields are added, never changed. The
JSON Schemas in `holdfast/cli/schemas` are made from these classes by ``python -m
holdfast.cli.schemas``. With --jsonl, a document that has a list becomes a line for each item, the
item's type being `row`; any other document is one line.

Values of a state are written as the journal writes them, so that nothing is lost: what JSON cannot
say is an object with the key ``$t``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, ClassVar, Literal

import msgspec

from holdfast.checkpoint.inspect import Change, Told
from holdfast.core.records import Header
from holdfast.core.values import encode

__all__ = [
    "Address",
    "ChangeRow",
    "Checkpoint",
    "Document",
    "Failure",
    "NoteRow",
    "Text",
    "raw",
    "rows",
]


def raw(value: Any) -> msgspec.Raw:
    """A value of a state as the journal writes it."""
    return msgspec.Raw(encode(value))


class Document(msgspec.Struct, kw_only=True):
    """The root of a document."""

    items: ClassVar[str] = ""
    """The field that holds the list, if there is one."""
    row: ClassVar[str] = ""
    """The type of an item of the list."""
    version: int = 1

    def parts(self) -> Iterator[Any]:
        """The lines of --jsonl."""
        if not self.items:
            yield self
            return
        for item in getattr(self, self.items):
            told = msgspec.structs.asdict(item)
            told = {name: value for name, value in told.items() if value is not msgspec.UNSET}
            yield {"type": self.row, "version": self.version, **told}


class ChangeRow(msgspec.Struct, kw_only=True):
    """One change: `op` is add, replace or remove, `path` a JSON Pointer."""

    op: Literal["add", "replace", "remove"]
    path: str
    value: Any = msgspec.UNSET
    """What is there now; absent after a removal."""
    old: Any = msgspec.UNSET
    """What was there, where that is told."""


def rows(changes: Iterable[Change]) -> list[ChangeRow]:
    """Changes as documents hold them."""
    return [
        ChangeRow(
            op=change.op,  # type: ignore[arg-type]
            path=change.path,
            value=msgspec.UNSET if change.op == "remove" else raw(change.value),
        )
        for change in changes
    ]


class NoteRow(msgspec.Struct, kw_only=True):
    """A note of a journal."""

    seq: int
    kind: str
    scope: str
    step: int
    node: str | None
    id: str
    name: str
    state: str
    value: msgspec.Raw
    error: str
    seconds: float
    tokens: int
    dollars: float
    facts: dict[str, Any]

    @classmethod
    def of(cls, told: Told) -> NoteRow:
        return cls(**{**msgspec.structs.asdict(told), "value": raw(told.value)})


class Address(msgspec.Struct, kw_only=True):
    """A checkpoint, without its state."""

    run_id: str
    name: str
    checkpoint_id: str
    parent_checkpoint_id: str | None
    scope: str
    seq: int
    step: int
    node: str | None
    kind: str
    status: str
    saved_at: datetime
    size_bytes: int
    stored_bytes: int
    tags: tuple[str, ...]
    metadata: dict[str, Any]

    @classmethod
    def of(cls, header: Header) -> Address:
        return cls(**_fields(header))


def _fields(header: Header) -> dict[str, Any]:
    return {
        "run_id": header.run_id,
        "name": header.name,
        "checkpoint_id": header.id,
        "parent_checkpoint_id": header.parent,
        "scope": header.scope,
        "seq": header.seq,
        "step": header.step,
        "node": header.node,
        "kind": header.kind,
        "status": header.status,
        "saved_at": header.saved_at,
        "size_bytes": header.size,
        "stored_bytes": header.stored,
        "tags": header.tags,
        "metadata": header.metadata,
    }


class Checkpoint(Address, kw_only=True):
    """A checkpoint with what it changed and what was noted before it."""

    pinned: bool
    changes: list[ChangeRow]
    notes: list[NoteRow]
    error: str = ""
    """What its run failed with: the error's class and text."""
    failed_in: str = ""
    """The node that its run failed in; `node` is the last that was executed."""


class Failure(Document, kw_only=True):
    """An error, on stderr."""

    type: Literal["error"] = "error"
    code: int
    """The exit code."""
    error: str
    message: str
    hint: str


class Text(Document, kw_only=True):
    """``completion``: a script."""

    type: Literal["text"] = "text"
    name: str
    text: str
