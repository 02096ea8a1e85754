"""Ctrl-C at any moment ends the README's loop, and the next start continues it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.media import FULL, times
from tests.crash.processes import child_environment

TIMES = times(8, 5_000, "SUREHOLD_INTERRUPTS")

pytestmark = pytest.mark.timeout(14_400 if FULL else 600)


@pytest.mark.parametrize("medium", ["sqlite:///", "file:"])
def test_an_interrupted_loop_ends_and_continues(
    medium: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    command = [sys.executable, "-m", "proof.interrupts", str(TIMES), medium, str(tmp_path)]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, env=child_environment()
    )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    finding(
        f"Ctrl-C in the README's loop, {medium.rstrip(':/')}",
        TIMES,
        f"{seen['hung']} hung, {len(seen['wrong'])} failed, {seen['items']:,} items done, "
        f"{seen['asked']:,} calls in doubt",
    )
    assert (seen["hung"], seen["wrong"]) == (0, [])
    assert seen["items"] > 0
