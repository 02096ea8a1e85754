"""The console in a real terminal: prompts, completion, history, and ctrl-C."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest
from tests.cli.console.consoles import COMMAND, SHELL, WORKFLOW, calls, environment, ids_in

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")
CTRL_C, CTRL_D, TAB, UP = "\x03", "\x04", "\t", "\x1b[A"


class Terminal:
    """Someone who types, and reads what comes."""

    def __init__(self, directory: Path) -> None:
        self.child = pexpect.spawn(
            COMMAND[0],
            COMMAND[1:],
            cwd=str(directory),
            env={**environment(), "PROMPT_TOOLKIT_NO_CPR": "1", "NO_COLOR": "1"},
            encoding="utf-8",
            dimensions=(40, 120),
            timeout=300,
        )
        self.prompt()

    def prompt(self, text: str = "task>") -> str:
        """What came before the next prompt, without its escapes."""
        self.child.expect_exact(text)
        shown: str = self.child.before
        return ESCAPES.sub("", shown)

    def send(self, keys: str) -> None:
        self.child.send(keys)

    def until(self, text: str) -> str:
        self.child.expect(text)
        shown: Any = self.child.before + self.child.after
        return ESCAPES.sub("", shown)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "workflow.yaml").write_text(WORKFLOW + SHELL)
    return tmp_path


@pytest.fixture
def terminal(place: Path) -> Iterator[Terminal]:
    made = Terminal(place)
    yield made
    made.child.close(force=True)


def test_a_transcript(terminal: Terminal, place: Path) -> None:
    terminal.send("Analyze sales data\r")
    shown = terminal.until("The answer after 3 rounds")
    assert "round 1/10 researcher: do part 1" in shown
    assert "round 3/10 analyst: do part 3" in shown
    assert re.search(r"in all 8 calls, [\d,]+ tokens, \$\d", shown)
    terminal.prompt()
    terminal.send("checkpoints\r")
    shown = terminal.until("Available Checkpoints") + terminal.prompt()
    assert len(ids_in(shown)) == 7
    assert "WORKFLOW" in shown and "STATUS" in shown
    before = calls(place)
    terminal.send("resume nothing\r")
    terminal.until("no checkpoint 'nothing'")
    terminal.prompt()
    terminal.send(f"resume {ids_in(shown)[0]}\r")
    terminal.prompt("more to say, or nothing >")
    terminal.send("\r")
    terminal.until("The answer after 3 rounds")
    assert calls(place) == before
    terminal.prompt()
    terminal.send("quit\r")
    terminal.child.expect(pexpect.EOF)
    terminal.child.close()
    assert terminal.child.exitstatus == 0


def test_ctrl_c_interrupts_the_run_saves_it_and_returns(terminal: Terminal, place: Path) -> None:
    terminal.send("Do the slow thing\r")
    terminal.until("round 1/10 researcher")
    while not (place / "waiting").exists():
        os.sched_yield()
    terminal.until("researcher is working, [0-9]+ s")
    terminal.send(CTRL_C)
    terminal.until("ctrl-C again breaks it off")
    terminal.send(CTRL_C)
    shown = terminal.until("to continue: resume \\S+") + terminal.prompt()
    assert "interrupted after round 0" in shown
    (id,) = ids_in(shown)
    (place / "quick").touch()
    before = calls(place)
    terminal.send(f"resume {id}\r")
    terminal.prompt("more to say, or nothing >")
    terminal.send("\r")
    terminal.until("completed in 3 rounds")
    terminal.prompt()
    assert calls(place) - before == 1 + 2 + 2 + 2  # no plan, and no first ledger, again
    terminal.send(CTRL_D)
    terminal.child.expect(pexpect.EOF)


def test_commands_and_ids_are_completed_and_lines_remembered(
    terminal: Terminal, place: Path
) -> None:
    terminal.send("Analyze\r")
    terminal.until("The answer after 3 rounds")
    terminal.prompt()
    terminal.send("chec" + TAB)
    terminal.until("kpoints")
    terminal.send("\r")
    shown = terminal.until("Available Checkpoints") + terminal.prompt()
    id = ids_in(shown)[2]
    terminal.send(f"show {id[:-2]}" + TAB)
    terminal.until(f"{id[-2:]}[0-9a-f]+")
    terminal.send("\r")
    terminal.until("task.*Analyze")
    terminal.prompt()
    terminal.send(UP + UP + "\r")
    terminal.until("Available Checkpoints")
    terminal.prompt()
    terminal.send("half a li" + CTRL_C)
    terminal.prompt()
    terminal.send("quit\r")
    terminal.child.expect(pexpect.EOF)
    history = place / ".surehold" / "console_history"
    assert "+checkpoints" in history.read_text() and history.stat().st_mode & 0o077 == 0


def test_a_run_is_chosen_from_a_list_and_approved(terminal: Terminal, place: Path) -> None:
    terminal.send("Do the shell thing\r")
    terminal.until("waits for you")
    terminal.prompt()
    terminal.send("resume\r")
    assert "Do the shell thing" in terminal.prompt("which? >")
    terminal.send("\r")
    terminal.until("Resuming cancelled")
    terminal.prompt()
    terminal.send("resume\r")
    terminal.prompt("which? >")
    terminal.send("1\r")
    terminal.prompt("more to say, or nothing >")
    terminal.send("\r")
    terminal.until("waits for you")
    terminal.prompt()
    terminal.send("approve edit\r")
    terminal.until("rm -r kelp")  # the arguments are there to be changed
    terminal.send("\x15" + '{"command": "ls"}\r')
    terminal.until("ran ls")
    terminal.until("completed in 3 rounds")
    terminal.prompt()


def test_what_nobody_approves_in_time_is_rejected_at_the_prompt(place: Path) -> None:
    hitl = "human_in_the_loop: {approval_timeout_seconds: 1, auto_reject_on_timeout: true}\n"
    (place / "workflow.yaml").write_text(WORKFLOW + SHELL + hitl)
    terminal = Terminal(place)
    terminal.send("Do the shell thing\r")
    terminal.until("waits for you")
    terminal.until("the time to approve it is over")
    terminal.until("refused: no answer came in time")
    terminal.until("completed in 3 rounds")
    terminal.prompt()
    terminal.child.close(force=True)
