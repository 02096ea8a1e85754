"""Cells and options: a status in its colour, short ids, KEY=VALUE."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from surehold.cli.framework.terminal import Cell
from surehold.errors import UsageError
from surehold.views.words import read_value

_STATUS = {
    "running": "green",
    "queued": "cyan",
    "dead": "red",
    "stale": "yellow",
    "completed": "",
    "cancelled": "",
    "failed": "red",
    "interrupted": "cyan",
    "waiting": "cyan",
    "stalled": "yellow",
}
_SHORT_ID = 27
"""Ids begin with the time; this many characters include seven of the random part."""


def status_cell(status: str) -> Cell:
    """A status in its colour."""
    return Cell(status, _STATUS.get(status, "yellow"))


def short_id(id: str, among: Iterable[str] = ()) -> str:
    """The start of a checkpoint's id that names it among others.

    >>> short_id("018bcfe5-6800-7000-8000-00000000beef", ["018bcfe5-6800-7000-8000-00000000abcd"])
    '018bcfe5-6800-7000-8000-00000000b'
    """
    length = _SHORT_ID
    while any(one != id and one.startswith(id[:length]) for one in among):
        length += 1
    return id[:length]


def read_pairs(option: str, texts: Iterable[str]) -> dict[str, Any]:
    """
    >>> read_pairs("--set", ["topic=kelp", "pages=[1, 2]"])
    {'topic': 'kelp', 'pages': [1, 2]}
    """
    made: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(
                f"{option} {text!r} is not of the form KEY=VALUE",
                hint=f"as in {option} topic=kelp, or {option} 'pages=[1, 2]'",
            )
        made[key] = read_value(value)
    return made
