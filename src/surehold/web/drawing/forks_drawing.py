"""The family of a run as a tree, a line for each run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from surehold.views.forks import TreeRun

_WIDE = 320.0


class ForkLine(msgspec.Struct, frozen=True, kw_only=True):
    """One run."""

    run_id: str
    status: str
    path: str
    """From the parent to the head."""
    x: float
    y: float
    """The place of the head."""


class ForkDrawing(msgspec.Struct, frozen=True, kw_only=True):
    """All runs of a family, in the order of the tree."""

    lines: list[ForkLine]
    height: int
    width: int = int(_WIDE)


ROW = 40
"""Height of a line; the list beside the drawing has the same."""
_EDGE = 10.0


def draw_forks(runs: Sequence[TreeRun]) -> ForkDrawing:
    """Place each run's line; the steps of all are on one scale."""
    last = max((run.step for run in runs), default=0) or 1
    scale = (_WIDE - 2 * _EDGE) / last
    place = {run.run_id: at * ROW + ROW / 2 for at, run in enumerate(runs)}
    lines = []
    for run in runs:
        y, end = place[run.run_id], _EDGE + run.step * scale
        origin = run.forked_from
        if origin is None or origin.run_id not in place:
            path = f"M {_EDGE:.1f} {y:.1f} H {end:.1f}"
        else:
            at = _EDGE + origin.step * scale
            bend = min(8.0, ROW / 3)
            path = (
                f"M {at:.1f} {place[origin.run_id]:.1f} V {y - bend:.1f}"
                f" Q {at:.1f} {y:.1f} {at + bend:.1f} {y:.1f} H {max(end, at + bend):.1f}"
            )
            end = max(end, at + bend)
        lines.append(ForkLine(run_id=run.run_id, status=run.status, path=path, x=end, y=y))
    return ForkDrawing(lines=lines, height=ROW * len(runs))
