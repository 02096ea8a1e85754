"""A run's steps as a line of cells: width time, heat cost, colour status."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from surehold.views.run import Past, StripStep, in_buckets
from surehold.views.words import cut, money, span, step_name


class StripCell(msgspec.Struct, frozen=True, kw_only=True):
    """A step, or several neighbours."""

    seq: int
    """The newest record in it."""
    step: int
    x: float
    width: float
    status: str
    heat: int
    """From 0 for no cost to 4 for the dearest."""
    marks: tuple[str, ...]
    """``fork``, ``tag``, ``failed``, ``waited``, ``resumed``."""
    text: str
    chosen: bool


class StripDrawing(msgspec.Struct, frozen=True, kw_only=True):
    """The cells of a run, oldest first."""

    cells: list[StripCell]
    per_cell: int
    is_whole: bool
    first: float
    last: float
    marks: tuple[str, ...]
    """All marks that any cell has."""


_WIDE = 1000.0
_MOST = 500
"""Cells of a strip; longer runs have several steps in a cell."""
_LEAST = 1.0
_HEATS = 4


def draw_strip(past: Past, chosen: int, forked: Collection[str]) -> StripDrawing | None:
    """Draw the moments of a run; *forked* are the checkpoints that were forked from."""
    groups = in_buckets(past.moments, _MOST)
    if not groups:
        return None
    spans = [_worked(group) for group in groups]
    worked = sorted(seconds for seconds in spans if seconds > 0)
    longest = 4 * worked[len(worked) * 3 // 4] if worked else 1.0
    units = [min(seconds, longest) for seconds in spans]
    least = min(_WIDE / len(groups), max(_LEAST, _WIDE / len(groups) / 3))
    scale = (_WIDE - least * len(groups)) / (sum(units) or 1.0)
    even = 0.0 if sum(units) else (_WIDE - least * len(groups)) / len(groups)
    dearest = max(sum(one.dollars for one in group) for group in groups)
    cells: list[StripCell] = []
    x = 0.0
    for group, unit in zip(groups, units, strict=True):
        width = least + even + unit * scale
        dollars = sum(one.dollars for one in group)
        marks = tuple(mark for mark, has in _marks(group, forked) if has)
        cells.append(
            StripCell(
                seq=group[-1].seq,
                step=group[-1].step,
                x=x,
                width=width,
                status=_status(group),
                heat=-(-int(1000 * dollars * _HEATS / dearest) // 1000) if dearest else 0,
                marks=marks,
                text=_text(group, marks),
                chosen=group[0].seq <= chosen <= group[-1].seq
                or (group is groups[-1] and chosen > group[-1].seq),
            )
        )
        x += width
    return StripDrawing(
        cells=cells,
        per_cell=len(groups[0]),
        is_whole=past.is_whole,
        first=past.moments[0].saved_at,
        last=past.moments[-1].saved_at,
        marks=tuple(dict.fromkeys(mark for cell in cells for mark in cell.marks)),
    )


def _worked(group: list[StripStep]) -> float:
    return sum(one.seconds for one in group if not one.is_resumed)


def _status(group: list[StripStep]) -> str:
    """The status of the first step that is neither running nor completed."""
    return next((o.status for o in group if o.status not in ("running", "completed")), "completed")


def _marks(group: list[StripStep], forked: Collection[str]) -> list[tuple[str, bool]]:
    return [
        ("failed", any(one.status == "failed" for one in group)),
        ("waited", any(one.waited for one in group)),
        ("fork", any(one.id in forked for one in group)),
        ("tag", any(one.tags for one in group)),
        ("resumed", any(one.is_resumed for one in group)),
    ]


def _text(group: list[StripStep], marks: tuple[str, ...]) -> str:
    one, several = group[-1], len(group) > 1
    dollars = sum(each.dollars for each in group)
    step = f"steps {group[0].step} to {one.step}" if several else f"step {one.step}"
    facts = [
        f"{step} {'' if several else cut(step_name(one), 40)}".strip(),
        span(_worked(group)),
        money(dollars),
        *("another process resumed" if mark == "resumed" else mark for mark in marks),
        *(f"#{cut(tag, 20)}" for each in group for tag in each.tags[:3]),
    ]
    return " · ".join(fact for fact in facts if fact)
