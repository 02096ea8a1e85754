"""What a line at the console means."""

from __future__ import annotations

import pytest

from surehold.cli.console.words import COMMANDS, ConsoleCommand, Mistake, Task, read_line


@pytest.mark.parametrize(
    ("line", "name", "arguments"),
    [
        ("checkpoints", "checkpoints", ()),
        ("list-checkpoints", "checkpoints", ()),
        ("checkpoints status=error owner=ann", "checkpoints", ("status=error", "owner=ann")),
        ("resume", "resume", ()),
        ("resume 01a1", "resume", ("01a1",)),
        ("resume writing", "resume", ("writing",)),
        ("resume 01a1 Add a table", "resume", ("01a1", "Add", "a", "table")),
        ("checkpoints fleet_f63e1c42", "checkpoints", ("fleet_f63e1c42",)),
        ("help resume", "help", ("resume",)),
        ("reject too dangerous", "reject", ("too", "dangerous")),
        ('fork 01a1 --set "topic=sea kelp"', "fork", ("01a1", "--set", "topic=sea kelp")),
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
    assert read_line(line) == ConsoleCommand(name, arguments)


@pytest.mark.parametrize(
    "line",
    ["Analyze sales data", "Analyze", "list the planets", "Summarize the log of last night"],
)
def test_these_are_tasks(line: str) -> None:
    assert read_line(line) == Task(line)


def test_a_task_that_begins_like_a_command_is_given_with_the_word_task() -> None:
    assert read_line("task resume writing my CV") == Task("resume writing my CV")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("approve all", "usage: approve"),
        ("approve the loan", "task approve the loan"),
        ("checkpoints are useful", "usage: checkpoints"),
        ("checkpoints status = error", "usage: checkpoints"),
        ("checkpoints --status error", "usage: checkpoints"),
        ("checkpoints | grep error", "usage: checkpoints"),
        ("pending 1", "usage: pending"),
        ("status of the sales", "usage: status"),
        ("quit smoking plan", "task quit smoking plan"),
        ("chekpoints status=error", "did you mean checkpoints?"),
        ("resme 01a1", "did you mean resume?"),
        ("ls -la", "no command 'ls' here"),
        ("clear", "no command 'clear' here"),
        ("exit()", "no command 'exit()' here"),
        ("chekpoints", "did you mean checkpoints?"),
        ("resme", "did you mean resume?"),
    ],
)
def test_these_were_meant_as_commands_and_cost_nothing(line: str, says: str) -> None:
    meant = read_line(line)
    assert isinstance(meant, Mistake) and says in meant.message


def test_an_empty_line_means_nothing() -> None:
    assert read_line("   ") is None


@pytest.mark.parametrize("name", COMMANDS)
def test_no_argument_makes_a_command_a_task(name: str) -> None:
    for words in ("it", "../../etc/passwd", "100%", "--help", "💥", "the last one", "a=1 b"):
        meant = read_line(f"{name} {words}")
        assert isinstance(meant, ConsoleCommand | Mistake) or name == "task"


def test_every_command_is_told_by_help() -> None:
    assert all(entry.about and entry.usage.startswith(name) for name, entry in COMMANDS.items())
