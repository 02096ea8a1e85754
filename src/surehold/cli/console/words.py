"""The meaning of a line at the console: a command, a task, or a mistake.

A line whose first word is a command, or nearly one, never becomes a task that is paid for. Such a
task is given as ``task TEXT``.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from surehold.cli.listing import COMMANDS as SUREHOLD


class ConsoleCommand(NamedTuple):
    """A command of the console."""

    name: str
    arguments: tuple[str, ...]


class Task(NamedTuple):
    """A task for the fleet."""

    text: str


class Mistake(NamedTuple):
    """A line that looks like a command and is none."""

    message: str


class HelpEntry(NamedTuple):
    """A command as help lists it."""

    usage: str
    about: str
    fits: Callable[[tuple[str, ...]], bool] = lambda _: True
    ids: bool = False
    """True if its arguments are ids of checkpoints."""
    shared: bool = False
    """True if it is the command of the same name of `surehold`."""


def _most(count: int) -> Callable[[tuple[str, ...]], bool]:
    return lambda arguments: len(arguments) <= count


def _filters(arguments: tuple[str, ...]) -> bool:
    rest = arguments[1:] if arguments and "=" not in arguments[0] else arguments
    return all("=" in one[1:] for one in rest) and not any(one[0] in "-|=" for one in arguments)


def _approval(arguments: tuple[str, ...]) -> bool:
    rest = arguments[1:] if arguments and arguments[0].isdigit() else arguments
    return not rest or rest[0] == "edit"


COMMANDS = {
    "checkpoints": HelpEntry(
        "checkpoints [WORKFLOW] [status=...] [KEY=VALUE]", "list checkpoints", _filters
    ),
    "resume": HelpEntry(
        "resume [ID [TEXT]]", "resume a run, with more to say if you like", ids=True
    ),
    "graph": HelpEntry("graph [ID]", "the rounds of a run", _most(1), ids=True),
    "pending": HelpEntry("pending", "what waits for you", _most(0)),
    "approve": HelpEntry("approve [N] [edit [VALUE]]", "allow it, or allow it changed", _approval),
    "reject": HelpEntry("reject [N] [REASON]", "do not allow it"),
    "status": HelpEntry("status", "the fleet and its run", _most(0)),
    "task": HelpEntry("task TEXT", "give the fleet a task that begins like a command", bool),
    **{
        name: HelpEntry(f"{name} {usage}".strip(), SUREHOLD[name].about, ids=True, shared=True)
        for name, usage in (
            ("show", "ID"),
            ("diff", "A B"),
            ("fork", "ID"),
            ("runs", ""),
            ("log", "RUN"),
            ("cat", "ID:PATH"),
            ("blame", "RUN KEY"),
            ("tree", ""),
            ("tag", "ID NAME"),
            ("pin", "ID"),
            ("answer", "RUN VALUE"),
        )
    },
    "help": HelpEntry("help [COMMAND]", "this list, or the usage of a command", _most(1)),
    "quit": HelpEntry("quit", "leave", _most(0)),
}
_SPELLINGS = {"list-checkpoints": "checkpoints", "exit": "quit", "q": "quit", "?": "help"}
_NEAR = 0.8
_ELSEWHERE = frozenset(
    ["clear", "cls", "exit()", "h", "history", "list", "ls", "quit()", "stats", "verify"]
)
"""Words that people mean for a shell, not for a fleet."""


def read_line(line: str) -> ConsoleCommand | Task | Mistake | None:
    """The meaning of *line*; None if it is empty.

    >>> read_line("resume 01a1 and add a table")
    ConsoleCommand(name='resume', arguments=('01a1', 'and', 'add', 'a', 'table'))
    >>> read_line("task resume writing my CV")
    Task(text='resume writing my CV')
    >>> read_line("approve the loan").message
    'usage: approve [N] [edit [VALUE]]; to give it as a task: task approve the loan'
    """
    words = tuple(line.split())
    if not words:
        return None
    first = words[0].lower()
    name = _SPELLINGS.get(first, first)
    as_task = f"to give it as a task: task {line.strip()}"
    entry = COMMANDS.get(name)
    if entry is not None:
        if not entry.fits(words[1:]):
            return Mistake(f"usage: {entry.usage}; {as_task}")
        if name == "task":
            return Task(line.strip().partition(" ")[2].strip())
        return ConsoleCommand(name, _quoted(line) if entry.shared else words[1:])
    if first in _ELSEWHERE and (len(words) == 1 or words[1].startswith("-")):
        return Mistake(f"no command {words[0]!r} here: help lists those there are; {as_task}")
    near = get_close_matches(first, [*COMMANDS, *_SPELLINGS], n=1, cutoff=_NEAR)
    if near and (len(words) <= 2 or any("=" in one for one in words)):
        return Mistake(f"no command {words[0]!r}: did you mean {near[0]}? {as_task}")
    return Task(line.strip())


def _quoted(line: str) -> tuple[str, ...]:
    """The words after the first, with quotes as in a shell."""
    try:
        return tuple(shlex.split(line)[1:])
    except ValueError:
        return tuple(line.split()[1:])
