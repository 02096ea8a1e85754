"""Times, sizes, money and changes in the few words that a table has room for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.checkpoint.inspect import Change
from holdfast.cli.framework.terminal import Cell
from holdfast.core.values import encode

__all__ = ["ago", "change_words", "clock", "money", "size", "status_cell", "value_text", "when"]

_STATUS = {
    "running": "green",
    "stale": "yellow",
    "completed": "",
    "failed": "red",
    "interrupted": "cyan",
    "stalled": "yellow",
}
_SHORT = 60


def size(count: int) -> str:
    """
    >>> size(999), size(15_600), size(3_400_000)
    ('999 B', '15.6 kB', '3.4 MB')
    """
    if count < 1000:
        return f"{count} B"
    power = min((len(str(count)) - 1) // 3, 4)
    return f"{count / 1000**power:.1f} {' kMGT'[power]}B"


def money(dollars: float) -> str:
    """
    >>> money(0), money(0.0412), money(12.5)
    ('', '$0.041', '$12.50')
    """
    if not dollars:
        return ""
    return f"${dollars:.2f}" if dollars >= 1 else f"${dollars:.3f}"


def ago(moment: datetime, now: datetime | None = None) -> str:
    """How long ago that was, roughly: ``12 s``, ``3 min``, ``2 h``, ``5 d``, or the date."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if seconds < 0:
        return "in the future"
    for length, name, least in ((86_400, "d", 172_800), (3600, "h", 7200), (60, "min", 120)):
        if seconds >= least:
            days = seconds / length
            return f"{moment:%Y-%m-%d}" if name == "d" and days > 30 else f"{int(days)} {name} ago"
    return f"{int(seconds)} s ago"


def clock(moment: datetime) -> str:
    """The time in the reader's own zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def when(moment: datetime, now: datetime | None = None) -> str:
    """The time of what was today, the date as well of what was not, in the reader's own zone."""
    there = moment.astimezone()
    today = (now or datetime.now(UTC)).astimezone().date()
    return f"{there:%H:%M:%S}" if there.date() == today else f"{there:%Y-%m-%d %H:%M:%S}"


def status_cell(status: str) -> Cell:
    """A status in its colour."""
    return Cell(status, _STATUS.get(status, "yellow"))


def value_text(value: Any, width: int = _SHORT) -> str:
    """A value as short JSON."""
    text = encode(value).decode(errors="replace")
    return text if len(text) <= width else text[: width - 1] + "…"


def change_words(changes: Sequence[Change], width: int = _SHORT) -> str:
    """What changed, by key: ``messages +2, round = 3, -draft``."""
    return ", ".join(_of_key(key, its, width) for key, its in _by_key(changes).items())


def _by_key(changes: Iterable[Change]) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    for change in changes:
        key = change.path[1:].partition("/")[0].replace("~1", "/").replace("~0", "~")
        found.setdefault(key, []).append(change)
    return found


def _of_key(key: str, changes: list[Change], width: int) -> str:
    appended = [change for change in changes if change.path.endswith("/-")]
    if len(appended) == len(changes) == 1:
        return f"{key} + {value_text(appended[0].value, width)}"
    if len(appended) == len(changes):
        return f"{key} +{len(changes)}"
    if len(changes) == 1 and changes[0].path.count("/") == 1:
        if changes[0].op == "remove":
            return f"-{key}"
        return f"{key} = {value_text(changes[0].value, width)}"
    return f"{key} ~{len(changes)}"
