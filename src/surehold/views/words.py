"""Short forms of times, sizes, money, values and changes, and how to read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from surehold.core.values import encode
from surehold.engine.journal import Change

_SHORT = 60
_KINDS = {"routine": "checkpoint", "final": "end", "recovery": "stop", "interrupt": "pause"}
_WALL = 3
"""More keys than these that begin empty are counted, not named."""


def counted(count: int, noun: str) -> str:
    """
    >>> counted(1, "run"), counted(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


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
    >>> money(0), money(0.0002), money(0.0412), money(12.5)
    ('', '<$0.001', '$0.041', '$12.50')
    """
    if not dollars:
        return ""
    if dollars < 0.001:
        return "<$0.001"
    return f"${dollars:.2f}" if dollars >= 1 else f"${dollars:.3f}"


def span(seconds: float) -> str:
    """A duration in words.

    >>> [span(one) for one in (0.0004, 0.25, 12.3, 60, 200, 7500, 200_000)]
    ['0 ms', '250 ms', '12.3 s', '1 min', '3 min 20 s', '2 h 5 min', '2 d 7 h']
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, word, part, small in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // part
            return f"{whole // size} {word}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"


def ago(moment: datetime, now: datetime | None = None) -> str:
    """A rough age: ``12 s ago``, ``3 min ago``, ``2 h ago``, ``5 d ago``, or the date."""
    seconds = ((now or datetime.now(UTC)) - moment).total_seconds()
    if seconds < 0:
        return "in the future"
    for length, name, least in ((86_400, "d", 172_800), (3600, "h", 7200), (60, "min", 120)):
        if seconds >= least:
            days = seconds / length
            return f"{moment:%Y-%m-%d}" if name == "d" and days > 30 else f"{int(days)} {name} ago"
    return f"{int(seconds)} s ago"


def clock(moment: datetime) -> str:
    """Date and time in the reader's own zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S}"


def when(moment: datetime, now: datetime | None = None) -> str:
    """The time if it was today, else date and time, in the reader's own zone."""
    there = moment.astimezone()
    today = (now or datetime.now(UTC)).astimezone().date()
    return f"{there:%H:%M:%S}" if there.date() == today else f"{there:%Y-%m-%d %H:%M:%S}"


def cut(text: str, width: int) -> str:
    """*text*, shortened to *width* characters with an ellipsis."""
    return text if len(text) <= width else text[: width - 1] + "…"


def step_name(step: Any) -> str:
    """The node of a step, or what the step is if no node is recorded."""
    if step.kind == "routine" and not step.step:
        return str(step.node or "start")
    return str(step.node or _KINDS.get(step.kind, step.kind))


def value_text(value: Any, width: int = _SHORT) -> str:
    """A value as short JSON."""
    text = bytes(value) if isinstance(value, msgspec.Raw) else encode(value)
    return cut(text.decode(errors="replace"), width)


def readable(value: Any) -> str:
    """A text as it is, any other JSON value indented."""
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def read_value(text: str) -> Any:
    """The value of JSON text; text that is not JSON stands for itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def keys_of(pointer: str) -> list[str]:
    """
    >>> keys_of("/plan/0/a~1b")
    ['plan', '0', 'a/b']
    """
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/")]


def change_words(changes: Sequence[Change], width: int = _SHORT) -> str:
    """Changes by key: ``messages +2, round = 3, -draft``."""
    empty = [
        change
        for change in changes
        if change.op == "add" and change.path.count("/") == 1 and _is_empty(change.value)
    ]
    if len(empty) <= _WALL:
        empty = []
    left = [change for change in changes if change not in empty]
    words = [_of_key(key, its, width) for key, its in _by_key(left).items()]
    return ", ".join([*words, f"{len(empty)} empty keys"] if empty else words)


def _is_empty(value: Any) -> bool:
    return value is None or (hasattr(value, "__len__") and not len(value))


def _by_key(changes: Iterable[Change]) -> dict[str, list[Change]]:
    found: dict[str, list[Change]] = {}
    for change in changes:
        found.setdefault(keys_of(change.path)[0], []).append(change)
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
