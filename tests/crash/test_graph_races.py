"""Several processes resume one crashed run: one executes it, the others are turned away.

200 rounds for each medium with SUREHOLD_FULL=1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.media import times

ROUNDS = times(4, 200)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_one_of_many_processes_executes_the_run(
    scheme: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    program = Path(__file__).with_name("graph_racers.py")
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "base"), scheme, str(ROUNDS)],
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rounds = json.loads(done.stdout)
    assert len(rounds) == ROUNDS
    for one in rounds:
        assert one["statuses"] == [0] * one["racers"], done.stderr
        assert one["world"] == ["acted", "ended"]
        assert one["won"] == ["completed"]
        assert one["turned_away"] == one["racers"] - 1
    finding(
        f"2 to 8 processes resume one run, {scheme}",
        ROUNDS,
        "one executed it, the others were told",
    )
