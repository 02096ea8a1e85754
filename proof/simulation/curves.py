"""The figures of a simulation as one SVG."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import log10
from typing import Any

__all__ = ["drawing"]

_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 760, 230, 70, 34, 70
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#5f6b76}.title{font-weight:600;fill:#3d4852}"
    "path{fill:none;stroke-width:2}.axis{stroke:#b8c2cc;stroke-width:1}"
    ".a{stroke:#0b7285}.b{stroke:#e8590c}.ideal{stroke:#b8c2cc;stroke-dasharray:4 4}"
    "@media(prefers-color-scheme:dark){text{fill:#adb5bd}.title{fill:#dee2e6}}"
)


def drawing(found: dict[str, Any]) -> str:
    """Throughput by the number of workers, and over the time of failures."""
    parts = [*_by_workers(found["scale"]), *_over_time(found["failing"])]
    height = 2 * (_HEIGHT + _GAP) + _TOP
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH + 2 * _LEFT} {height}">'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg>\n"
    )


def _by_workers(scale: dict[str, list[dict[str, Any]]]) -> Iterable[str]:
    rows = [row for one in scale.values() for row in one]
    most, sizes = max(log10(row["free"]) for row in rows), [row["workers"] for row in rows]
    low, high = log10(min(sizes)), log10(max(sizes))
    least = min(log10(row["steps"]) for row in rows)

    def place(size: float, steps: float) -> tuple[float, float]:
        along = (log10(size) - low) / (high - low)
        return along, (log10(steps) - least) / (most - least)

    yield from _frame(0, "Steps a second by the number of workers (both logarithmic)")
    for (seconds, of_one), kind in zip(scale.items(), "ab", strict=False):
        yield _path(0, "ideal", [place(row["workers"], row["free"]) for row in of_one])
        points = [place(row["workers"], row["steps"]) for row in of_one]
        yield _path(0, kind, points)
        yield _text(0, *points[-1], f"{of_one[-1]['steps']:,.0f}, steps of {seconds} s", "end", -8)
    for size in sorted({*sizes}):
        yield _text(0, (log10(size) - low) / (high - low), 0, f"{size:,}", "middle", 18)


def _over_time(told: dict[str, Any]) -> Iterable[str]:
    curve = [(at, rate) for at, rate in told["curve"]]
    last, most = max(at for at, _ in curve), max(rate for _, rate in curve)
    yield from _frame(1, "Runs that end a second, by minute, while nodes and the database fail")
    yield _path(1, "a", [(at / last, rate / most) for at, rate in curve])
    yield _text(1, 0, 1, f"{most:,.0f}", "end", 4, -6)
    for number, (at, what) in enumerate(told["faults"]):
        along = min(at / last, 1.0)
        yield _path(1, "ideal", [(along, 0), (along, 1)])
        yield _text(1, along, 1, what, "start", 14 + 14 * (number % 4), 4)
    for minute in range(0, int(last / 60) + 1, max(int(last / 600), 1)):
        yield _text(1, 60 * minute / last, 0, f"{minute}", "middle", 18)


def _frame(row: int, title: str) -> Iterable[str]:
    yield _text(row, 0, 1, title, "start", -14, kind="title")
    yield _path(row, "axis", [(0, 1), (0, 0), (1, 0)])


def _point(row: int, x: float, y: float) -> tuple[float, float]:
    top = _TOP + row * (_HEIGHT + _GAP)
    return _LEFT + x * _WIDTH, top + (1 - y) * _HEIGHT


def _path(row: int, kind: str, points: Sequence[tuple[float, float]]) -> str:
    placed = " L".join("{:.1f} {:.1f}".format(*_point(row, *one)) for one in points)
    return f'<path class="{kind}" d="M{placed}"/>'


def _text(
    row: int,
    x: float,
    y: float,
    text: str,
    anchor: str,
    down: float = 0,
    right: float = 0,
    kind: str = "",
) -> str:
    left, top = _point(row, x, y)
    where = f'x="{left + right:.0f}" y="{top + down:.0f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {where}>{escape(text)}</text>'
