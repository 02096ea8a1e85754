"""Base classes of the JSON documents that commands print with --json.

Every document states its `type` and `version`. Within a version fields are added, never changed;
`surehold schema NAME` prints the JSON Schema of one. With --jsonl a document that has a list
becomes one line per item of the list that `Rows` marks; any other document is one line.

Values of a state are written as the journal writes them, so nothing is lost: a value that JSON
cannot express is an object with the key ``$t``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, Literal, Self, get_type_hints

import msgspec

from surehold.core.records import Header
from surehold.core.values import encode
from surehold.engine.journal import Change, CheckpointFacts, facts_of

_FORM = "https://json-schema.org/draft/2020-12/schema"


def raw(value: Any) -> msgspec.Raw:
    """A value of a state as the journal writes it."""
    return msgspec.Raw(encode(value))


class Rows(msgspec.Struct, frozen=True):
    """Marks the list whose items are lines of --jsonl, each of the type *type*."""

    type: str


class Document(msgspec.Struct, kw_only=True, tag_field="type"):
    """The root of a document; its tag is the `type`."""

    version: int = 1

    def parts(self) -> Iterator[Any]:
        """The lines of --jsonl."""
        for field, hint in get_type_hints(type(self), include_extras=True).items():
            for mark in getattr(hint, "__metadata__", ()):
                if isinstance(mark, Rows):
                    yield from (self._line(mark.type, item) for item in getattr(self, field))
                    return
        yield self

    def _line(self, type: str, item: Any) -> dict[str, Any]:
        fields = msgspec.structs.asdict(item)
        fields = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        return {"type": type, "version": self.version, **fields}


class ChangeRow(msgspec.Struct, kw_only=True):
    """One change; `path` is a JSON Pointer."""

    op: Literal["add", "replace", "remove"]
    path: str
    value: Any = msgspec.UNSET
    """The new value; absent after a removal."""
    old: Any = msgspec.UNSET
    """The value before, where a document states it."""


def change_rows(changes: Iterable[Change]) -> list[ChangeRow]:
    """Changes as documents hold them."""
    return [
        ChangeRow(
            op=change.op,  # type: ignore[arg-type]
            path=change.path,
            value=msgspec.UNSET if change.op == "remove" else raw(change.value),
        )
        for change in changes
    ]


class CheckpointInfo(CheckpointFacts, frozen=True, kw_only=True):
    """A checkpoint without its state."""

    saved_at: datetime

    @classmethod
    def of(cls, header: Header, **more: Any) -> Self:
        """The fields of *header*, and *more* fields of a subclass."""
        return cls(**facts_of(header, CheckpointInfo.__struct_fields__), **more)


class Failure(Document, kw_only=True, tag="error"):
    """An error, on stderr."""

    code: int
    """The exit code."""
    error: str
    message: str
    hint: str


def type_of(document: type[Document]) -> str:
    """The `type` that the document states."""
    return str(document.__struct_config__.tag)


def schema_of(document: type[Document]) -> dict[str, Any]:
    """The JSON Schema of a document."""
    made = msgspec.json.schema(document)
    made["$defs"][document.__name__]["required"] += ["version"]
    return {"$schema": _FORM, "title": f"surehold {type_of(document)}, version 1", **made}
