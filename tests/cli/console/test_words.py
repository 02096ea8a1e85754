"""What a line at the console means."""

from __future__ import annotations

import pytest

from holdfast.cli.console.words import COMMANDS, Command, Mistake, Task, read_line


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("checkpoints", "checkpoints", ()),
        ("list-checkpoints", "checkpoints", ()),
        ("checkpoints status=error owner=ann", "checkpoints", ("status=error", "owner=ann")),
        ("resume", "resume", ()),
        ("resume 01a1", "resume", ("01a1",)),
        ("resume writing", "resume", ("writing",)),
        ("  Resume   01a1  ", "resume", ("01a1",)),
        ("diff 01 02", "diff", ("01", "02")),
        ("approve", "approve", ()),
        ("approve 2", "approve", ("2",)),
        ('approve 2 edit {"a": 1}', "approve", ("2", "edit", '{"a":', "1}")),
        ("reject because it is late", "reject", ("because", "it", "is", "late")),
        ("q", "quit", ()),
        ("exit", "quit", ()),
    ],
)
def test_these_are_commands(line: str, name: str, arguments: tuple[str, ...]) -> None:
    assert read_line(line) == Command(name, arguments)


@pytest.mark.parametrize(
    "line",
    [
        "Analyze sales data",
        "resume writing my CV",
        "show me the sales data",
        "diff the two files for me",
        "checkpoints are useful",
        "approve the loan",
        "reject the hypothesis",
        "status of the sales",
        "quit smoking plan",
        "Analyze",
    ],
)
def test_these_are_tasks(line: str) -> None:
    assert read_line(line) == Task(line)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("show", "usage: show ID"),
        ("diff", "usage: diff A B"),
        ("diff 01a1", "usage: diff A B"),
        ("chekpoints", "did you mean checkpoints?"),
        ("resme", "did you mean resume?"),
    ],
)
def test_these_were_meant_as_commands_and_cost_nothing(line: str, says: str) -> None:
    meant = read_line(line)
    assert isinstance(meant, Mistake) and says in meant.message


def test_an_empty_line_means_nothing() -> None:
    assert read_line("   ") is None


def test_no_single_argument_makes_resume_a_task() -> None:
    for word in ("it", "../../etc/passwd", "100%", "--help", "💥"):
        assert read_line(f"resume {word}") == Command("resume", (word,))


def test_every_command_is_told_by_help() -> None:
    assert all(entry.about and entry.usage.startswith(name) for name, entry in COMMANDS.items())
