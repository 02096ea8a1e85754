"""The growth of a storage as bars."""

from __future__ import annotations

from collections.abc import Sequence

from surehold.views.stats import Growth

_WIDE, _TALL = 640.0, 120.0


class GrowthBar(Growth, frozen=True):
    """A span of time with the place of its bar."""

    x: float
    y: float
    width: float
    height: float


def draw_growth(spans: Sequence[Growth]) -> list[GrowthBar]:
    """Place the bars of spans that follow each other."""
    if not spans:
        return []
    most = max(span.stored for span in spans) or 1
    width = min(60.0, _WIDE / len(spans))
    return [
        GrowthBar(
            span.label,
            span.stored,
            span.runs,
            at * width + width * 0.1,
            _TALL - _TALL * span.stored / most,
            width * 0.8,
            _TALL * span.stored / most,
        )
        for at, span in enumerate(spans)
    ]
