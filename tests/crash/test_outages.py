"""While a primary fails, agents and runs go on with its copy, however long ago they saved.

The agent's loop is that of its document, word for word; the run is a loop with recorded calls.
Each trial is a process whose clocks are moved; it says what was saved, restored and lost.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.crash.media import FULL
from tests.crash.processes import child_environment

AFTER = (1, 10, 29, 31, 120, 1_800, 7_200) if FULL else (1, 7_200)
"""Seconds after the last save."""
DISKS = [(medium, how) for how in ("deleted", "full", "unmounted") for medium in ("sqlite", "file")]
MORE = [("file-gzip", "deleted"), ("file-zstd", "full"), ("postgres", "down"), ("valkey", "down")]
TRIALS = DISKS + MORE if FULL else DISKS[::3] + DISKS[1::3]

pytestmark = pytest.mark.timeout(3_600 if FULL else 600)


@pytest.mark.parametrize(("medium", "failure"), TRIALS)
def test_every_save_and_restore_lands_while_the_primary_fails(
    medium: str, failure: str, finding: Callable[..., None]
) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("unmounting a disk needs root and unshare")
    program = ("unshare", "--mount", sys.executable, "-m", "tests.crash.outages")
    with TemporaryDirectory(prefix="surehold-") as home:  # short enough for a socket
        ran = subprocess.run(
            [*program, medium, failure, home, *map(str, AFTER)],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            env=child_environment(),
            cwd=Path(__file__).parents[2],
        )
    assert ran.returncode == 0
    told = [json.loads(line) for line in ran.stdout.splitlines()]
    agents, loops = [one["agent"] for one in told], [one["loop"] for one in told]
    finding(
        f"primary {failure}, {AFTER[0]} s to {AFTER[-1]:,} s after the last save, {medium}",
        len(told),
        f"{sum(one['saved'] for one in agents)} saves and {sum(one['restored'] for one in agents)}"
        f" restores landed, {sum(one['lost'] for one in agents + loops)} lost,"
        f" {sum(one['repeated'] for one in loops)} calls repeated; longest save"
        f" {max(one['waited'] for one in agents)} s",
    )
    assert len(told) == len(AFTER)
    for one in agents + loops:
        assert (one["died"], one["lost"], one["diverged"], one["sound"]) == ("", 0, 0, True), told
    assert {one["restored"] for one in agents} == {3}
    assert {one["repeated"] for one in loops} == {0}
    assert min(one["saved"] for one in agents) >= 8
