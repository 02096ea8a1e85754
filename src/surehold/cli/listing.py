"""The list of commands; calling a command loads its module."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from surehold.cli.framework import plain

if TYPE_CHECKING:
    from surehold.cli.framework import Command

_COMMANDS = {
    "See": {
        "runs": "list the runs: status, steps, size, cost, forks",
        "log": "what each step of a run changed",
        "show": "one checkpoint: its place in the run, and its state",
        "cat": "one value, as in RUN@12:state.messages[-1]",
        "diff": "what differs between two checkpoints",
        "blame": "the step that last wrote a value",
        "status": "whether anything is wrong; exits non-zero if so",
        "stats": "bytes, resumes and latencies",
        "costs": "what was spent, by day, name, node, model and run",
        "watch": "follow a run live",
        "tree": "runs and their forks",
    },
    "Act": {
        "resume": "resume a run whose code is known",
        "fork": "start a new run from any checkpoint",
        "tag": "add tags to a checkpoint, or remove some",
        "pin": "keep a checkpoint whatever the rules say",
        "group": "checkpoint, compare and fork several runs as one",
        "pending": "what runs wait for",
        "approve": "answer yes to the question a run waits for",
        "reject": "answer no to the question a run waits for",
        "answer": "answer a question, or state an effect's outcome",
        "send": "send a message to a run, which keeps it until it is received",
        "queue": "see, limit, pause and requeue queued runs",
    },
    "Record": {
        "exec": "start a program, record its model calls, resume it",
        "replay": "start a program on the recorded calls of a run",
        "check": "whether new code continues the open runs",
        "bisect": "the first step whose state is bad",
        "savings": "what resumes and replays did not pay again",
    },
    "Keep": {
        "forget": "drop checkpoints by rules; shows why each stays",
        "prune": "free the space of what was forgotten",
        "expire": "remove whole runs that are old",
        "verify": "check every digest",
        "repair": "repair what is damaged",
        "policy": "the rules that forget applies by default",
        "encrypt": "encrypt runs that are in the clear",
        "rotate-key": "encrypt runs with a new key",
        "storage": "upgrade the tables of a storage; --check only looks",
    },
    "Move": {
        "export": "write a run to a file, as JSON or as a web page",
        "import": "import a run that was exported",
        "copy": "copy runs to another storage",
        "migrate": "bring runs to the newest version of their state",
        "migrate-runs": "move queued runs to another version of their code",
        "import-langgraph": "import LangGraph's threads",
    },
    "Start": {
        "demo": "kill a job and see it resume; leaves runs to look at",
        "ui": "the page: see, compare, answer and resume in a browser",
        "worker": "execute queued runs until it is stopped",
        "serve": "start, follow, answer and cancel runs over HTTP",
        "repl": "a console for a fleet's workflow",
        "init": "create a storage and a surehold.toml here",
        "doctor": "what is installed, set and guaranteed",
        "selftest": "test on this machine that runs survive",
        "completion": "completion for bash, zsh or fish",
        "schema": "the JSON Schema of a document",
        "help": "the help of a command",
    },
}


class CommandEntry(NamedTuple):
    """A command in the list of commands; its module is loaded when it is called."""

    group: str
    about: str


COMMANDS = {
    name: CommandEntry(group, about)
    for group, commands in _COMMANDS.items()
    for name, about in commands.items()
}

_MEANT = {
    "cancel": "queue cancel RUN",
    "delete": "forget RUN --whole-run",
    "list": "runs",
    "ls": "runs",
    "ps": "runs",
    "remove": "forget RUN --whole-run",
    "rm": "forget RUN --whole-run",
    "version": "--version",
}
"""What a command of other tools is here."""

_FIRST = ("demo", "runs", "log", "show", "resume", "status")
_HELP = """\
Usage: surehold [OPTIONS] COMMAND [ARGUMENTS]

Durable runs: see what they did, resume them, keep what matters.

{first}

{groups}

RUN is a run's id or the start of it, its name, or latest. RUN@12 is its step
12, RUN~2 two checkpoints back, tag:NAME the newest checkpoint with that tag.

  -s, --storage URL  where the runs are (else SUREHOLD_STORAGE, surehold.toml)
  --json, --jsonl    for programs: one document, or a line for each
  --debug, --version, --help  COMMAND --help describes a command
"""


def help_text() -> str:
    """The text of ``surehold --help``."""
    first = "\n".join(f"  {name:<10}{COMMANDS[name].about}" for name in _FIRST)
    groups = "\n".join(f"  {group:<8}{' '.join(names)}" for group, names in _COMMANDS.items())
    return _HELP.format(first=first, groups=groups)


def load(name: str) -> Command:
    """The command of that name; a `UsageError` if there is none."""
    entry = COMMANDS.get(name)
    if entry is None:
        from surehold.errors import UsageError
        from surehold.storage.addresses import nearest

        meant = _MEANT.get(name)
        hint = f"surehold {meant}" if meant else f"{nearest(name, COMMANDS)}surehold --help"
        raise UsageError(f"there is no command {plain(name)!r}", hint=hint)
    spelled = f"{name}_" if name in ("import", "exec") else name.replace("-", "_")
    module = import_module(f"surehold.cli.commands.{entry.group.lower()}.{spelled}")
    found: Command = getattr(module, spelled)
    return found
