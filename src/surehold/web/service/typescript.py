"""TypeScript types of an OpenAPI document: of its schemas and its operations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_SCALARS = {
    **{"string": "string", "integer": "number", "number": "number"},
    **{"boolean": "boolean", "null": "null"},
}
_NAME = re.compile(r"[A-Za-z_$][\w$]*")


def types_of(document: Mapping[str, Any]) -> str:
    """The types as the text of a ``.ts`` module."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    yield "// Made by: surehold serve CODE --typescript"
    for name, schema in document["components"]["schemas"].items():
        yield ""
        if text := schema.get("description"):
            yield f"/** {_comment(text)} */"
        yield f"export type {_identifier(name)} = {_type(schema)};"
    yield ""
    yield "/** The requests by operation: their path, what they send and what they get. */"
    yield "export interface Operations {"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            success = next(iter(operation["responses"].values()))
            yield f"  /** {_comment(operation['summary'])} */"
            yield f"  {_key(operation['operationId'])}: {{"
            yield f"    method: {json.dumps(method.upper())};"
            yield f"    path: {json.dumps(path)};"
            yield f"    request: {_of_content(operation.get('requestBody', {}))};"
            yield f"    response: {_of_content(success)};"
            yield "  };"
    yield "}"


def _of_content(body: Mapping[str, Any]) -> str:
    return next((_type(one["schema"]) for one in body.get("content", {}).values()), "undefined")


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return _identifier(str(schema["$ref"]).rpartition("/")[2])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(map(_type, schema[key])))
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(_SCALARS.get(one, "unknown") for one in kind)
    if kind == "array":
        return _array(schema)
    if kind == "object":
        return _object(schema)
    return _SCALARS.get(str(kind), "unknown")


def _array(schema: Mapping[str, Any]) -> str:
    first = schema.get("prefixItems")
    if first is not None:
        return f"[{', '.join(map(_type, first))}]"
    items = schema.get("items")
    return f"({_type(items)})[]" if isinstance(items, Mapping) else "unknown[]"


def _object(schema: Mapping[str, Any]) -> str:
    more, needed = schema.get("additionalProperties"), schema.get("required", ())
    given = [
        f"{_key(name)}{'' if name in needed else '?'}: {_type(one)}"
        for name, one in schema.get("properties", {}).items()
    ]
    if isinstance(more, Mapping) and not given:
        return f"Record<string, {_type(more)}>"
    if more is True or (more is None and not given):
        given.append("[key: string]: unknown")
    return f"{{ {'; '.join(given)} }}" if given else "Record<string, never>"


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _key(name: str) -> str:
    return name if _NAME.fullmatch(name) else json.dumps(name)


def _comment(text: str) -> str:
    return " ".join(text.split()).replace("*/", "* /")
