"""Looking is quick, however much there is to look at."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import cli

pytestmark = pytest.mark.figures

FULL = bool(os.environ.get("HOLDFAST_FULL"))


@pytest.mark.timeout(280)
def test_looking_costs_the_page_and_not_the_storage(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    few = cli.fill(tmp_path / "few.db", 1, 100)
    many = cli.fill(tmp_path / "many.db", 1000 if FULL else 40, 100)
    for words, (growth, bare, milliseconds) in cli.ratios(few, many, 9 if FULL else 5).items():
        figure(f"holdfast {words}: {growth:.2f}x of few, {bare:.1f}x python, {milliseconds:.0f} ms")
        assert growth <= 1.5, words
        assert bare <= 25, words
