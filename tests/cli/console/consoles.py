"""Workflows for the tests of the console, and the way to start it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir
from io import StringIO
from pathlib import Path
from unittest import mock

from tests.cli.console.console_program import open_scripted

from surehold.agents.models import model
from surehold.cli.console import repl

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
    """Have a console in this process read these lines; what it says, ending with that code."""
    typed = StringIO("".join(f"{line}\n" for line in lines))
    out, err = StringIO(), StringIO()
    with (
        chdir(directory),
        mock.patch.dict(os.environ, environment()),
        mock.patch.dict(model._factories, {"test": open_scripted}),
        mock.patch.multiple(sys, stdin=typed, stdout=out, stderr=err, path=[*sys.path]),
    ):
        ended = repl.main()
    assert ended == code, (out.getvalue(), err.getvalue())
    return out.getvalue()


def ids_in(text: str) -> list[str]:
    """The ids of checkpoints, as listings show them."""
    return re.findall(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{3,12}", text)


def calls(directory: Path) -> int:
    log = directory / "calls"
    return len(log.read_text().splitlines()) if log.exists() else 0
