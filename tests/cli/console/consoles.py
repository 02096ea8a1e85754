"""Workflows for the tests of the console, and the way to start it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROGRAM = "tests.cli.console.console_program"
WORKFLOW = """\
checkpointing: {storage_type: "sqlite:///runs.db"}
fleet: {manager: {model: "test:boss"}, callbacks: {streaming_enabled: false}}
defaults: {model: "test:hand"}
"""
SHELL = """\
agents:
  researcher: {}
  coder:
    tools: [{name: shell, operation: code_execution, function: "%s:shell"}]
  analyst: {}
""".replace("%s", PROGRAM)
COMMAND = [sys.executable, "-m", PROGRAM]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", "TERM": "xterm"}


def start(
    directory: Path, lines: Sequence[str], command: Sequence[str] = COMMAND
) -> subprocess.CompletedProcess[str]:
    """Have the console read these lines from a pipe."""
    done = subprocess.run(
        [*command],
        input="".join(f"{line}\n" for line in lines),
        cwd=directory,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def pipe(directory: Path, *lines: str, code: int = 0) -> str:
    """What the console says to these lines, ending with that code."""
    done = start(directory, lines)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout


def ids_in(text: str) -> list[str]:
    """The ids of checkpoints, as listings show them."""
    return re.findall(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{3,12}", text)


def calls(directory: Path) -> int:
    log = directory / "calls"
    return len(log.read_text().splitlines()) if log.exists() else 0
