"""Values as small HTML cards, which notebooks show; nothing in them loads or runs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from surehold.core.plain import plain
from surehold.core.values import encode
from surehold.errors import EncodeError

_COLOURS = {"completed": "#17692f", "failed": "#a81e1e", "dead": "#a81e1e", "running": "#0b665f"}
_OTHER = "#7a4b00"
_MOST_ROWS = 30
_MOST = 300
"""Characters of one value."""
_BOX = (
    "border:1px solid #8888;border-left:4px solid {colour};border-radius:8px;padding:8px 12px;"
    "font:14px system-ui,sans-serif;max-width:60em"
)


def card(title: str, status: str, facts: Iterable[str], rows: Mapping[str, Any]) -> str:
    """A title with its status, facts in a line, and a table of values.

    >>> "nightly" in card("nightly", "completed", ["step 3"], {"n": 1})
    True
    """
    colour = _COLOURS.get(status, _OTHER)
    said = " · ".join(filter(None, map(_text, facts)))
    head = f"<b>{_text(title)}</b> <span style='color:{colour}'>{_text(status)}</span>"
    lines = [f"<div style='color:#777;font-size:12px'>{said}</div>"] if said else []
    if rows:
        shown = [*rows.items()][:_MOST_ROWS]
        cells = "".join(
            f"<tr><td style='text-align:left;vertical-align:top'>{_text(key)}</td>"
            f"<td style='text-align:left'><code>{_value(value)}</code></td></tr>"
            for key, value in shown
        )
        more = len(rows) - len(shown)
        lines.append(f"<table>{cells}</table>")
        lines += [f"<div style='color:#777'>{more} more</div>"] if more else []
    return f"<div style='{_BOX.format(colour=colour)}'>{head}{''.join(lines)}</div>"


def _value(value: Any) -> str:
    try:
        text = value if isinstance(value, str) else encode(value).decode(errors="replace")
    except EncodeError:
        text = repr(value)
    if not isinstance(value, str) and text.startswith(("{", "[")):
        text = json.dumps(json.loads(text), ensure_ascii=False)
    return _text(text if len(text) <= _MOST else f"{text[:_MOST]}…", lines=True)


def _text(text: str, *, lines: bool = False) -> str:
    return escape(plain(text, lines=lines)).replace("\n", "<br>")
