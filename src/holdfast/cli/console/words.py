"""What a line at the console means: a command, a task, or something that was meant as a command.

A line is a command only if it is one as a whole. ``resume X`` is, whatever X is, and so never
becomes a task that is paid for; "resume writing my CV" is a task.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

__all__ = ["COMMANDS", "Command", "Entry", "Mistake", "Task", "read_line"]


class Command(NamedTuple):
    """Something that the console does itself."""

    name: str
    arguments: tuple[str, ...]


class Task(NamedTuple):
    """Something for the fleet."""

    text: str


class Mistake(NamedTuple):
    """What looks like a command and is none."""

    message: str


class Entry(NamedTuple):
    """A command, as help tells of it."""

    usage: str
    about: str
    fits: Callable[[tuple[str, ...]], bool]
    ids: bool = False
    """Whether its arguments are ids of checkpoints."""


def _count(*counts: int) -> Callable[[tuple[str, ...]], bool]:
    return lambda arguments: len(arguments) in counts


def _filters(arguments: tuple[str, ...]) -> bool:
    return all("=" in one[1:] for one in arguments)


def _answer(arguments: tuple[str, ...]) -> bool:
    """``approve``, ``approve 2``, ``approve edit ...``: other words make it a task."""
    rest = arguments[1:] if arguments and arguments[0].isdigit() else arguments
    return not rest or rest[0] == "edit"


def _refusal(arguments: tuple[str, ...]) -> bool:
    rest = arguments[1:] if arguments and arguments[0].isdigit() else arguments
    return not rest or rest[0] == "because"


COMMANDS = {
    "checkpoints": Entry(
        "checkpoints [status=...] [workflow=...] [KEY=VALUE]", "list checkpoints", _filters
    ),
    "resume": Entry("resume [ID]", "go on with a run", _count(0, 1), ids=True),
    "show": Entry("show ID", "what a checkpoint holds", _count(1), ids=True),
    "diff": Entry("diff A B", "what differs between two checkpoints", _count(2), ids=True),
    "fork": Entry("fork ID", "begin a new run from a checkpoint", _count(1), ids=True),
    "graph": Entry("graph [ID]", "the rounds that a run took", _count(0, 1), ids=True),
    "pending": Entry("pending", "what waits for you", _count(0)),
    "approve": Entry("approve [N] [edit [VALUE]]", "let it go on, or let it be this", _answer),
    "reject": Entry("reject [N] [because REASON]", "do not let it", _refusal),
    "status": Entry("status", "the fleet and its run", _count(0)),
    "help": Entry("help", "this list", _count(0)),
    "quit": Entry("quit", "leave", _count(0)),
}
_SPELLINGS = {"list-checkpoints": "checkpoints", "exit": "quit", "q": "quit", "?": "help"}
_NEAR = 0.75
_ELSEWHERE = frozenset(
    ["answer", "cat", "h", "list", "log", "ls", "runs", "stats", "tree", "verify"]
)
"""Commands of the shell or of `holdfast`: nobody means them as a task."""


def read_line(line: str) -> Command | Task | Mistake | None:
    """What *line* means; None if it is empty.

    >>> read_line("resume 01a1")
    Command(name='resume', arguments=('01a1',))
    >>> read_line("resume writing my CV")
    Task(text='resume writing my CV')
    >>> read_line("show").message
    'usage: show ID'
    """
    words = tuple(line.split())
    if not words:
        return None
    name = _SPELLINGS.get(words[0].lower(), words[0].lower())
    entry = COMMANDS.get(name)
    if entry is not None and entry.fits(words[1:]):
        return Command(name, words[1:])
    if entry is not None and len(words) <= 1 + entry.ids:
        return Mistake(f"usage: {entry.usage}")
    if len(words) > 1:
        return Task(line.strip())
    if name in _ELSEWHERE:
        return Mistake(f"no command {words[0]!r} here: help lists those there are")
    near = get_close_matches(name, [*COMMANDS, *_SPELLINGS], n=1, cutoff=_NEAR)
    if near:
        return Mistake(f"no command {words[0]!r}: did you mean {near[0]}?")
    return Task(line.strip())
