"""What was acknowledged survives a power cut, and the test would notice if it did not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.crash.media import FULL, PLAIN, times
from tests.crash.processes import child_environment

KINDS = ("ext4", "xfs")
MEDIA = PLAIN if FULL else ("sqlite", "file")
# A thousand for each file system.
CUTS = times(5, 1_000 // len(PLAIN), "SUREHOLD_CUTS")
CONTROLS = times(4, 20)

pytestmark = pytest.mark.timeout(3_600 if FULL else 600)


@cache
def obstacle(kind: str) -> str:
    """Why the power cannot be cut under such a file system here; empty if it can."""
    if os.geteuid() != 0:
        return "mounting a file system needs root"
    for tool in (f"mkfs.{kind}", "mount", "umount", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices"
    tried = subprocess.run(
        ["unshare", "--mount", "true"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip()


def cut_power(
    medium: str, cuts: int, tmp_path: Path, kind: str, *options: str
) -> list[tuple[int, str]]:
    """For every cut, how many saves had been acknowledged and what was wrong afterwards."""
    if why := obstacle(kind):
        pytest.skip(f"no power cut: {why}")
    ran = subprocess.run(
        [
            *("unshare", "--mount", sys.executable, "-m", "tests.crash.power"),
            *(medium, str(cuts), str(tmp_path), kind, *options),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=child_environment(),
    )
    assert ran.returncode == 0
    return [tuple(json.loads(line)) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("medium", MEDIA)
def test_a_power_cut_loses_nothing_that_was_acknowledged(
    medium: str, kind: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    results = cut_power(medium, CUTS, tmp_path, kind)
    acknowledged = sum(count for count, _ in results)
    wrong = [text for _, text in results if text]
    finding(
        f"power cut on {kind}, {medium}",
        len(results),
        f"{acknowledged:,} saves acknowledged, {len(wrong)} cuts with a loss",
    )
    assert wrong == []
    assert len(results) == CUTS and acknowledged > CUTS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("medium", ["sqlite", "file"])
def test_the_cut_is_seen_where_nothing_is_synced(
    medium: str, kind: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    results = cut_power(medium, CONTROLS, tmp_path, kind, "--without-sync")
    lost = sum(bool(text) for _, text in results)
    finding(
        f"power cut on {kind} without fsync, {medium}",
        len(results),
        f"{lost} cuts lost something",
        control=True,
    )
    assert lost > 0.7 * len(results)
