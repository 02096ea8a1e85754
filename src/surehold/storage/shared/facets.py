"""Facets: what a record can be found by, and which of it a query asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from surehold.core.records import Header
from surehold.storage.base import RecordQuery

Facet = tuple[str, str]
"""A word (name, kind, status, tag, metadata) and a value."""

COMMON_KIND = "routine"
COMMON_STATUS = "running"
"""Values that most records have are not facets: a page of it is found by walking."""
_DEEPEST = 20


def facets_of(header: Header) -> Iterator[Facet]:
    """The facets of a record; scope and run are left to the medium.

    A note has no facet for its name, since its run's checkpoints have one.
    """
    name = header.name if header.frame != "note" else ""
    yield from common_facets(name, header.kind, header.status)
    for tag in set(header.tags):
        yield "tag", tag
    yield from _facets_of_metadata(header.metadata)


def common_facets(name: str, kind: str, status: str) -> Iterator[Facet]:
    """The facets of a record's name, kind and status."""
    if name:
        yield "name", name
    if kind != COMMON_KIND:
        yield "kind", kind
    if status != COMMON_STATUS:
        yield "status", status


def facets_in(query: RecordQuery) -> Iterator[Facet]:
    """The facets that every record has which *query* wants, the rarest word first."""
    yield from _facets_of_metadata(query.metadata or {})
    if query.tag is not None:
        yield "tag", query.tag
    if query.kind not in (None, COMMON_KIND):
        yield "kind", query.kind
    if query.status not in (None, COMMON_STATUS):
        yield "status", query.status
    if query.name and not query.notes:
        yield "name", query.name


def _facets_of_metadata(metadata: Mapping[str, Any]) -> Iterator[Facet]:
    """An object has none: it is seldom asked for, and every run that ends has one."""
    for name, value in metadata.items():
        if not isinstance(value, dict) and (text := _canonical(value)) is not None:
            yield "metadata", f"{json.dumps(name)}:{text}"


def _canonical(value: Any, depth: int = 0) -> str | None:
    """A text that is the same for equal values; None for what is not plain JSON."""
    if depth > _DEEPEST:
        return None
    match value:
        case None:
            return "null"
        case bool() | int():
            return str(int(value))
        case float():
            return str(int(value)) if value.is_integer() else repr(value)
        case str():
            return json.dumps(value)
        case list():
            parts = [_canonical(item, depth + 1) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            parts = [_canonical(part, depth + 1) for item in sorted(value.items()) for part in item]
            parts.append("{}")
        case _:
            return None
    if None in parts:
        return None
    return f"[{','.join(map(str, parts))}]"
