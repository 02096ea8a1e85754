"""Forms for JSON values: one field for each key, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from surehold.errors import UsageError
from surehold.views.words import readable

_MOST = 40
"""Keys that get a field of their own; a form may have 100 fields."""
_LONGEST = 20_000
PREFIX = "k-"
"""Begins the names of fields that stand for keys of a value."""
Given = Mapping[str, str]
"""The parameters of an address, or the fields of a form."""


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """A field of a form that confirms an action."""

    name: str
    label: str
    value: str = ""
    kind: Literal["text", "lines", "choice"] = "text"
    choices: tuple[str, ...] = ()
    rows: int = 6
    is_number: bool = False
    help: str = ""


def fields_of(values: Mapping[str, Any]) -> list[Field]:
    """A field for each key, by its value's kind; long values and late keys left out."""
    found: list[Field] = []
    for key, value in values.items():
        text = readable(value)
        if len(found) == _MOST or len(text) > _LONGEST:
            continue
        name = f"{PREFIX}{key}"
        if isinstance(value, bool):
            choices = ("true", "false")
            found.append(Field(name=name, label=key, value=text, kind="choice", choices=choices))
        elif isinstance(value, list | dict) or "\n" in text or len(text) > 80:
            rows = min(12, max(2, text.count("\n") + 1))
            found.append(Field(name=name, label=key, value=text, kind="lines", rows=rows))
        else:
            is_number = isinstance(value, int | float)
            found.append(Field(name=name, label=key, value=text, is_number=is_number))
    return found


def read_changes(values: Mapping[str, Any], given: Given) -> dict[str, Any]:
    """The keys whose field differs from what `fields_of` wrote, with their new values."""
    changed: dict[str, Any] = {}
    for key, value in values.items():
        text = given.get(f"{PREFIX}{key}")
        if text is not None and _normal(text) != _normal(readable(value)):
            is_text = isinstance(value, str)  # text stays text
            if is_text:
                changed[key] = text.replace("\r\n", "\n")
                continue
            try:
                changed[key] = read_json(text, f"the value of {key}")
            except UsageError as error:
                wanted = "a number" if isinstance(value, int | float) else "JSON"
                said = f"{key} is {wanted} here, and {text[:60]!r} is not"
                raise UsageError(said, hint=error.hint, field=f"{PREFIX}{key}") from error
    return changed


def _normal(text: str) -> str:
    """The text without what a browser changes in a field: line ends."""
    return text.replace("\r\n", "\n").strip("\n")


def read_json(text: str, what: str) -> Any:
    """A JSON value; *what* names it in the error."""
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError as error:
        raise UsageError(
            f"{what} is not JSON: {error}", hint='text is written "like this"'
        ) from error
