"""The figures of `python -m benchmarks langgraph`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks import langgraph

pytestmark = pytest.mark.figures
FULL = os.environ.get("HOLDFAST_FULL") == "1"


@pytest.mark.timeout(300)
def test_every_figure_keeps_its_limit(tmp_path: Path, figure: Callable[[str], None]) -> None:
    """How much faster a put is hangs on how long this disk takes to sync, so that is only shown
    here, and must hold where all figures are wanted (HOLDFAST_FULL=1)."""
    for attempt in ("first", "second"):  # another process may have been in the way
        directory = tmp_path / attempt
        directory.mkdir()
        lines = list(langgraph.measure(directory))
        shutil.rmtree(directory)
        missed = [line.what for line in lines if not line.passed]
        if not FULL:
            missed = [what for what in missed if not what.startswith("put")]
        if not missed:
            break
    for line in lines:
        figure(f"{line.what}: {line.cells()[0]} {line.note}")
    assert missed == []
