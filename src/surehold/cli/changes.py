"""Changes of a state, as commands print them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from surehold.cli import framework as ui
from surehold.views.documents import ChangeRow

_INLINE = 60
"""An old and a new value of this many characters share a line."""
_LONGEST = 200
_SIGNS = {
    "add": ui.Cell("+ ", "green"),
    "remove": ui.Cell("- ", "red"),
    "replace": ui.Cell("~ ", "yellow"),
}


def change_lines(rows: Iterable[ChangeRow]) -> Iterator[object]:
    """Changes of a state for people: old and new values."""
    for row in rows:
        shown = [_SIGNS[row.op], ui.Cell(row.path[1:].removesuffix("/-"), "blue"), " "]
        old, new = _written(row.old), _written(row.value)
        match row.op:
            case "add":
                yield ui.Line.of(*shown, ui.Cell(ui.cut(new, _LONGEST), "green"))
            case "remove":
                yield ui.Line.of(*shown, ui.Cell(ui.cut(old, _LONGEST), "red"))
            case _ if len(old) + len(new) <= _INLINE:
                yield ui.Line.of(*shown, ui.Cell(old, "red"), " -> ", ui.Cell(new, "green"))
            case _:
                yield ui.Line.of(*shown)
                yield ui.Line.of(ui.Cell(f"  - {ui.cut(old, _LONGEST)}", "red"))
                yield ui.Line.of(ui.Cell(f"  + {ui.cut(new, _LONGEST)}", "green"))


def _written(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else ""
