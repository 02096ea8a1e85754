"""Validation of answers against a JSON Schema, for plain JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from surehold.core.values import encode

_TYPES: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_WORDS = {
    "string": ("a string",),
    "integer": ("an integer",),
    "number": ("a number",),
    "array": ("a list",),
    "object": ("an object",),
    "boolean": ("true", "false"),
    "null": ("null",),
}
_PLAIN = {type for types in _TYPES.values() for type in types}
_SHOWN = 40


class _Problem(NamedTuple):
    where: tuple[str, ...]
    text: str


def validate_answer(value: Any, schema: Any) -> str:
    """Return why *value* does not fit *schema*; "" if it does, or the asker must tell.

    Values that are not plain JSON are let through, and so are texts with a format, which may be
    given otherwise. An object is looked into only where its schema allows nothing else in it.

    >>> validate_answer("no", {"type": "boolean"})
    '"no" is not true or false'
    """
    problem = _look(value, schema, schema, ())
    if problem is None:
        return ""
    return f"{'.'.join(problem.where)} {problem.text}" if problem.where else problem.text


def describe_schema(schema: Any) -> str:
    """Describe the values that fit *schema*.

    >>> describe_schema({"anyOf": [{"type": "integer"}, {"type": "null"}]})
    'an integer or null'
    """
    *others, last = _words(schema, schema) or ["anything"]
    if len(others) < 2:
        return " or ".join([*others, last])
    return f"{', '.join(others)}, or {last}"


def _look(value: Any, schema: Any, root: Any, where: tuple[str, ...]) -> _Problem | None:
    schema = _referred(schema, root)
    if type(value) not in _PLAIN:
        return None
    if choices := schema.get("anyOf"):
        found = [_look(value, one, root, where) for one in choices]
        problems = [one for one in found if one is not None]
        if len(problems) < len(found):
            return None
        # What came furthest is what was meant.
        deepest = max(problems, key=lambda one: len(one.where))
        return deepest if deepest.where != where else _other(value, schema, root, where)
    if not _is_one(value, schema):
        return _other(value, schema, root, where)
    if isinstance(value, dict) and schema.get("additionalProperties") is False:
        return _inside(value, schema, root, where)
    return None


def _is_one(value: Any, schema: Mapping[str, Any]) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    wanted = schema.get("type")
    if wanted not in _TYPES or "format" in schema:
        return True
    whole = wanted == "integer" and type(value) is float and value.is_integer()
    return type(value) in _TYPES[wanted] or whole


def _inside(
    value: Mapping[str, Any], schema: Mapping[str, Any], root: Any, where: tuple[str, ...]
) -> _Problem | None:
    known = schema.get("properties", {})
    for name in value:
        if name not in known:
            return _Problem((*where, str(name)), "is unknown")
    for name in schema.get("required", ()):
        if name not in value:
            return _Problem((*where, name), "is missing")
    found = (_look(one, known[name], root, (*where, name)) for name, one in value.items())
    return next((problem for problem in found if problem is not None), None)


def _other(value: Any, schema: Any, root: Any, where: tuple[str, ...]) -> _Problem:
    text = encode(value).decode()
    text = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
    wanted = describe_schema({**schema, "$defs": root.get("$defs", {})})
    return _Problem(where, f"is {text}, not {wanted}" if where else f"{text} is not {wanted}")


def _referred(schema: Any, root: Any) -> Mapping[str, Any]:
    seen = 0
    while isinstance(schema, Mapping) and "$ref" in schema and seen < len(root.get("$defs", {})):
        schema = root["$defs"].get(str(schema["$ref"]).removeprefix("#/$defs/"))
        seen += 1
    return schema if isinstance(schema, Mapping) else {}


def _words(schema: Any, root: Any) -> list[str]:
    schema = _referred(schema, root)
    if "anyOf" in schema:
        return [word for one in schema["anyOf"] for word in _words(one, root)]
    if "enum" in schema:
        return [encode(one).decode() for one in schema["enum"]]
    if schema.get("properties"):
        return [f"{{{', '.join(schema['properties'])}}}"]
    return list(_WORDS.get(str(schema.get("type")), ()))
