"""The steps of a run over time, with long pauses compressed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise

import msgspec

from surehold.views.timeline import TimelineEntry
from surehold.views.words import cut, step_name

_WIDE = 660
_LEFT = 112
"""Room for the names of lanes."""
_LANE, _TOP = 26.0, 34.0
_MOST_LANES = 14
_LEAST = 5.0
_GAP = 44.0
"""Width of a pause, however long it was."""
_OTHERS = "other nodes"


class TimeBar(msgspec.Struct, frozen=True, kw_only=True):
    """A step: from the checkpoint before it to its own."""

    seq: int
    step: int
    node: str
    seconds: float
    ended: datetime
    x: float
    y: float
    width: float
    is_cut: bool
    """True if it took so long that it is drawn shorter."""
    is_resumed: bool
    """True if another process took the run over: the time before is a pause."""
    status: str


class TimeDrawing(msgspec.Struct, frozen=True, kw_only=True):
    """Bars in lanes, one lane for each node."""

    bars: list[TimeBar]
    lanes: list[tuple[str, float]]
    pauses: list[tuple[float, float]]
    """Place and seconds of each pause."""
    first: datetime
    last: datetime
    width: float
    height: float
    left: int = _LEFT
    """The place of the first step."""


def draw_times(entries: Sequence[TimelineEntry]) -> TimeDrawing | None:
    """Draw checkpoints, given newest first; None if there are fewer than two."""
    ordered = [entry.header for entry in reversed(entries)]
    if len(ordered) < 2:
        return None
    spans = [
        max(0.0, (after.saved_at - before.saved_at).total_seconds())
        for before, after in pairwise(ordered)
    ]
    resumed = [after.epoch > before.epoch > 0 for before, after in pairwise(ordered)]
    worked = sorted(s for s, pause in zip(spans, resumed, strict=True) if not pause and s > 0)
    longest = 4 * worked[len(worked) * 3 // 4] if worked else 1.0
    units = [0.0 if pause else min(s, longest) for s, pause in zip(spans, resumed, strict=True)]
    room = max(200.0, _WIDE - _LEFT - 24 - (_GAP + 1) * sum(resumed) - len(units))
    scale = room / (sum(units) or 1.0)
    names = [step_name(one) for one in ordered[1:]]
    lanes = [*dict.fromkeys(names)]
    if len(lanes) > _MOST_LANES:
        lanes = [*lanes[: _MOST_LANES - 1], _OTHERS]
    place = {name: _TOP + _LANE * at for at, name in enumerate(lanes)}
    bars: list[TimeBar] = []
    pauses: list[tuple[float, float]] = []
    x = float(_LEFT)
    for header, seconds, unit, pause, name in zip(
        ordered[1:], spans, units, resumed, names, strict=True
    ):
        if pause:
            pauses.append((x + _GAP / 2, seconds))
            x += _GAP
        width = max(_LEAST, unit * scale)
        bars.append(
            TimeBar(
                seq=header.seq,
                step=header.step,
                node=name,
                seconds=seconds,
                ended=header.saved_at,
                x=x,
                y=place.get(name, place.get(_OTHERS, _TOP)),
                width=width,
                is_cut=not pause and seconds > longest,
                is_resumed=pause,
                status=header.status,
            )
        )
        x += width + 1
    return TimeDrawing(
        bars=bars,
        lanes=[(cut(name, 16), y) for name, y in place.items()],
        pauses=pauses,
        first=ordered[0].saved_at,
        last=ordered[-1].saved_at,
        width=max(_WIDE, x + 10),
        height=_TOP + _LANE * len(lanes) + 6,
    )
