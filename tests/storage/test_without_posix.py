"""Media that need no file locks work on a Python without the names of POSIX systems."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests import servers

PROGRAM = Path(__file__).with_name("without_posix.py")


@pytest.mark.parametrize("medium", ["memory", "sqlite", "postgres", "redis"])
def test_a_run_is_executed_stopped_resumed_and_read(medium: str, tmp_path: Path) -> None:
    address = {
        "memory": lambda: "memory",
        "sqlite": lambda: f"sqlite:///{tmp_path}/runs.db",
        "postgres": lambda: f"{servers.postgres().url}&schema=without_posix",
        "redis": lambda: f"{servers.valkey().url}?prefix=without_posix&durability=relaxed",
    }[medium]()
    command = [sys.executable, "-W", "error", PROGRAM, address]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["done"]), done.stderr
