"""The figures of `python -m benchmarks langgraph`: sizes always, times with HOLDFAST_FULL=1."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import langgraph

pytestmark = pytest.mark.serial


def test_a_thousand_steps_take_at_most_8_mb_and_4_compressed(
    scratch: Path, figure: Callable[[str], None]
) -> None:
    found = langgraph.sizes(scratch)
    figure(f"LangGraph, 1,000 steps of 1 KB, full history: {found}")
    assert found["plain"] <= 8_000_000
    assert found["zstd"] <= 4_000_000


@pytest.mark.skipif(not os.environ.get("HOLDFAST_FULL"), reason="writes 600 MB: HOLDFAST_FULL=1")
def test_every_figure_keeps_its_limit(tmp_path: Path, figure: Callable[[str], None]) -> None:
    lines = list(langgraph.measure(tmp_path))
    for line in lines:
        figure(f"{line.what}: {line.cells()[0]} {line.note}")
    assert [line.what for line in lines if not line.passed] == []
