"""At a real terminal: questions are asked, colours are shown, bars go away."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pexpect
import pytest
from tests.cli.conftest import call

from surehold import CheckpointManager, State
from surehold.cli.framework import short_id


def spawn(database: Path, *words: str, columns: int = 80, **environ: str) -> pexpect.spawn:
    # The variable would count more than the terminal.
    inherited = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    return pexpect.spawn(
        sys.executable,
        ["-m", "surehold", "-s", f"sqlite:///{database}", *words],
        env={**inherited, "TERM": "xterm", **environ},  # type: ignore[arg-type]
        encoding="utf-8",
        dimensions=(24, columns),
        timeout=300,
    )


@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, 1), ("n", 6, 6)])
def test_what_destroys_asks_first(database: Path, answer: str, code: int, left: int) -> None:
    child = spawn(database, "forget", "crawl", "--keep-last", "1")
    child.expect_exact("5 checkpoints would be dropped. Continue? [y/N] ")
    child.sendline(answer)
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == code
    rows = call("-s", f"sqlite:///{database}", "log", "crawl", "--json").json()["checkpoints"]
    assert len(rows) == left


def test_a_terminal_gets_colours_and_lines_that_fit(database: Path) -> None:
    child = spawn(database, "log", "report-mon")
    printed = child.read()
    assert "\x1b[1m" in printed
    lines = re.sub(r"\x1b\[[0-9;]*m", "", printed).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["STEP", "TIME", "NODE", "MARKS", "SIZE", "WHAT", "CHANGED"]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_row_of_runs_wraps(database: Path, columns: int) -> None:
    with CheckpointManager(f"sqlite:///{database}") as manager:
        state = State.new({"n": 1}, run_id="0198c0de-" * 4, name="support-agent-production")
        manager.save_checkpoint(state.at(step=41, node="summarize", status="max_rounds_reached"))
    lines = spawn(database, "runs", columns=columns, NO_COLOR="1").read().splitlines()
    assert max(map(len, lines)) <= columns
    assert all(status in str(lines) for status in ("STATUS", "max_rounds_reached", "failed"))
    assert [line.split()[0] for line in lines if "waiting" in line] == ["report-wed"]
    piped = call("-s", f"sqlite:///{database}", "runs").out
    assert "…" not in piped and "0198c0de-" * 4 in piped and "s ago summarize" in piped


@pytest.mark.parametrize("environ", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_refused(database: Path, environ: dict[str, str]) -> None:
    assert "\x1b" not in spawn(database, "runs", **environ).read()
    assert "\x1b" not in spawn(database, "runs", "--no-color").read()


def test_progress_is_shown_on_a_terminal_and_not_in_the_data(database: Path) -> None:
    child = spawn(database, "verify", "--read-data", "--json")
    printed = child.read()
    assert "verifying" in printed
    assert '"sound": true' in printed
    piped = call("-s", f"sqlite:///{database}", "verify", "--read-data")
    assert piped.err == "" and "verifying" not in piped.out


def test_ctrl_c_at_a_question_ends_with_130(database: Path) -> None:
    child = spawn(database, "forget", "crawl", "--keep-last", "1")
    child.expect_exact("[y/N] ")
    child.sendintr()
    child.expect_exact("interrupted")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130


def test_every_short_id_that_is_shown_names_one_checkpoint(tmp_path: Path) -> None:
    database = tmp_path / "many.db"
    with CheckpointManager(f"sqlite:///{database}") as manager:
        state = State.new({"n": 0}, run_id="r")
        for number in range(200):  # within few milliseconds, so that the ids begin alike
            state = state.set("n", number).at(step=number)
            manager.save_checkpoint(state)
        ids = [one.checkpoint_id for one in manager.list_checkpoints("r")]
    short = [short_id(one) for one in ids]
    assert len({*short}) == 200
    assert all(len(one.replace("-", "")) - len("018bcfe568007") >= 7 for one in short)
    with CheckpointManager(f"sqlite:///{database}") as manager:
        for one, id in zip(short[::20], ids[::20], strict=True):
            assert manager.reader.resolve(one).id == id
