"""`surehold watch` on a real terminal, and `surehold costs`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import surehold


def on_a_terminal(*words: str) -> tuple[int, str]:
    """The exit code, and all that was written to a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "surehold", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "110", "TERM": "xterm"},
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65_536):
            said += part
    except OSError:  # the other end was closed
        pass
    os.close(ours)
    return process.wait(), said.decode(errors="replace")


def test_watch_is_a_panel_on_a_terminal_and_ends_with_the_run(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"
    with surehold.run("watched", storage=address) as run:
        run.effect("ask", lambda: 1, usage=lambda _: {"tokens": 30, "dollars": 0.25})
        run.checkpoint(node="plan\x1b]0;owned\x07", n=1)
    code, said = on_a_terminal("-s", address, "watch", "watched")
    assert code == 0
    for words in ("╭", "watched", "completed", "$0.250", "30 tokens", "n = 1"):
        assert words in said
    assert "\x1b]0;owned" not in said, "a node does not steer the terminal"


def test_costs_prints_what_was_spent_by_day_name_node_model_and_run(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/runs.db"
    with surehold.run("paid", storage=address, name="job") as run:
        run.effect("ask", lambda: 1, usage=lambda _: {"tokens": 30, "dollars": 0.25, "model": "m"})
        run.checkpoint(node="plan", n=1)
    command = [sys.executable, "-m", "surehold", "-s", address, "costs"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "$0.250" in said and "1 call" in said
    for word in ("day", "name", "job", "node", "ask", "model", "run", "paid"):
        assert word in said.lower()
