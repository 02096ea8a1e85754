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
from tests.crash.media import FULL, PLAIN

CUTS = 200 if FULL else 20
CONTROLS = 20 if FULL else 4
MEDIA = PLAIN if FULL else ("sqlite", "file")

pytestmark = pytest.mark.timeout(1_800 if FULL else 120)


@cache
def obstacle() -> str:
    """Why the power cannot be cut here; empty if it can."""
    if os.geteuid() != 0:
        return "mounting a file system needs root"
    for tool in ("mkfs.ext4", "mount", "umount", "unshare"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices"
    tried = subprocess.run(
        ["unshare", "--mount", "true"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip()


def cut_power(medium: str, cuts: int, scratch: Path, *options: str) -> list[tuple[int, str]]:
    """For every cut, how many saves had been acknowledged and what was wrong afterwards."""
    if why := obstacle():
        pytest.skip(f"no power cut: {why}")
    ran = subprocess.run(
        [
            *("unshare", "--mount", sys.executable, "-m", "tests.crash.power"),
            *(medium, str(cuts), str(scratch), *options),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert ran.returncode == 0
    return [tuple(json.loads(line)) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize("medium", MEDIA)
def test_a_power_cut_loses_nothing_that_was_acknowledged(
    medium: str, scratch: Path, figure: Callable[[str], None]
) -> None:
    results = cut_power(medium, CUTS, scratch)
    acknowledged = sum(count for count, _ in results)
    wrong = [text for _, text in results if text]
    figure(
        f"power cut on ext4, {medium}: {len(results):,} cuts, {acknowledged:,} acknowledged, "
        f"{len(wrong)} with a loss"
    )
    assert wrong == []
    assert len(results) == CUTS and acknowledged > CUTS


@pytest.mark.parametrize("medium", ["sqlite", "file"])
def test_the_cut_is_seen_where_nothing_is_synced(
    medium: str, scratch: Path, figure: Callable[[str], None]
) -> None:
    results = cut_power(medium, CONTROLS, scratch, "--without-sync")
    lost = sum(bool(text) for _, text in results)
    figure(f"control without fsync, {medium}: {lost} of {len(results)} cuts lost something")
    assert lost > 0.7 * len(results)
