"""The growth of a storage as bars."""

from __future__ import annotations

from collections.abc import Sequence

from surehold.views.stats import Growth

_WIDE, _TALL = 640.0, 120.0
_FEWEST = 12
"""Bars that fill the width: a storage that is an hour old is no wall."""


class GrowthBar(Growth, frozen=True):
    """A span of time with the place of its bar."""

    x: float
    y: float
    width: float
    height: float
    fresh: float
    """Height of what was written in the span."""


def draw_growth(spans: Sequence[Growth]) -> list[GrowthBar]:
    """Place the bars of spans that follow each other."""
    if not spans:
        return []
    most = max(span.total for span in spans) or 1
    width = _WIDE / max(len(spans), _FEWEST)
    return [
        GrowthBar(
            span.label,
            span.stored,
            span.runs,
            span.total,
            at * width + width * 0.1,
            _TALL - _TALL * span.total / most,
            width * 0.8,
            _TALL * span.total / most,
            _TALL * min(span.stored, span.total) / most,
        )
        for at, span in enumerate(spans)
    ]
