"""The `surehold` command: finds a command, runs it, and prints its errors."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, NamedTuple

from surehold.cli.framework import Cell, Terminal, exits, plain, safe_json

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
        "watch": "follow a run live",
        "tree": "runs and their forks",
    },
    "Act": {
        "resume": "resume a run whose graph is known",
        "fork": "start a new run from any checkpoint",
        "tag": "add tags to a checkpoint, or remove some",
        "pin": "keep a checkpoint whatever the rules say",
        "group": "checkpoint, compare and fork several runs as one",
        "pending": "what runs wait for",
        "approve": "answer yes to the question a run waits for",
        "reject": "answer no to the question a run waits for",
        "answer": "answer a question, or state an effect's outcome",
        "worker": "execute queued runs until it is stopped",
        "queue": "see, limit, pause and requeue queued runs",
    },
    "Keep": {
        "forget": "drop checkpoints by rules; shows why each stays",
        "prune": "free the space of what was forgotten",
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
        "import-langgraph": "import LangGraph's threads",
    },
    "Start": {
        "demo": "kill a job and see it resume; leaves runs to look at",
        "ui": "the page: see, compare, answer and resume in a browser",
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

_FIRST = ("demo", "runs", "log", "show", "resume", "status")
_OPTIONS = (
    *("-s", "--storage", "--json", "--jsonl", "--no-color", "--debug", "--version", "-h", "--help"),
)
_HELP = """\
Usage: surehold [OPTIONS] COMMAND [ARGUMENTS]

Durable runs: see what they did, resume them, keep what matters.

{first}

{groups}

RUN is a run's id or the start of it, its name, or latest. RUN@12 is its step
12, RUN~2 two checkpoints back, tag:NAME the newest checkpoint with that tag.

  -s, --storage URL  where the runs are (else SUREHOLD_STORAGE, surehold.toml)
  --json, --jsonl    for programs: one document, or a line for each
  --debug            show the traceback of an error
  --version, --help  COMMAND --help describes a command
"""


def main(argv: Sequence[str] | None = None, *, terminal: Terminal | None = None) -> int:
    """Run the command line *argv*; gives the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if terminal is None:
        terminal = Terminal(environ=os.environ)
        for stream in (terminal.stdout, terminal.stderr):
            if isinstance(stream, TextIOWrapper):  # characters it cannot write are escaped
                stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            # Such a value is shown as it is stored.
            warnings.filterwarnings("ignore", message="no type is registered as")
            return _run(words, terminal)
    except KeyboardInterrupt:
        terminal.say("interrupted")
        return exits.INTERRUPTED
    except BrokenPipeError:
        exits.let_go(terminal.stdout)
        return exits.PIPE_CLOSED
    except BaseException as error:
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        return _print_error(error, words, terminal)


def _run(words: list[str], terminal: Terminal) -> int:
    if terminal.environ.get("SUREHOLD_COMPLETE"):
        from surehold.cli.commands.start import candidates

        terminal.stdout.write("".join(f"{one}\n" for one in candidates(words, terminal)))
        return 0
    options, name, rest = _split(words)
    if name is None:
        return _without_command(options, terminal)
    if name not in COMMANDS and options:
        _check_option(options[-1])
    code = load(name)([*options, *rest], terminal)
    terminal.stdout.flush()
    return code


def _split(words: list[str]) -> tuple[list[str], str | None, list[str]]:
    """The options before the command, the command, and the words after it."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in ("-s", "--storage") else 1
    return words[:at], words[at] if at < len(words) else None, words[at + 1 :]


def _check_option(word: str) -> None:
    """Raise a `UsageError` if *word* is no option; what follows it is then no command."""
    option = word.partition("=")[0]
    if option not in _OPTIONS:
        from surehold.errors import UsageError
        from surehold.storage.addresses import nearest

        hint = f"{nearest(option, _OPTIONS)}options of a command follow it; surehold --help"
        raise UsageError(f"there is no option {plain(option)!r} before the command", hint=hint)


def _without_command(options: list[str], terminal: Terminal) -> int:
    if "--version" in options:
        from importlib.metadata import version

        terminal.stdout.write(f"surehold {version('surehold')}\n")
        return 0
    wanted = not options or "--help" in options or "-h" in options
    (terminal.stdout if wanted else terminal.stderr).write(help_text())
    return 0 if "--help" in options or "-h" in options else exits.USAGE


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

        hint = f"{nearest(name, COMMANDS)}surehold --help"
        raise UsageError(f"there is no command {plain(name)!r}", hint=hint)
    spelled = "import_" if name == "import" else name.replace("-", "_")
    module = import_module(f"surehold.cli.commands.{entry.group.lower()}.{spelled}")
    found: Command = getattr(module, spelled)
    return found


def _print_error(error: BaseException, words: list[str], terminal: Terminal) -> int:
    """Print what went wrong, and the command that helps."""
    from surehold.errors import Signal, SureholdError

    hint = ""
    if isinstance(error, SureholdError):
        code, message, hint = exits.code_of(error), error.message, exits.help_for(error)
    elif isinstance(error, Signal):
        code, message = exits.code_of(error), error.message
    else:
        code, message = exits.FAILED, f"{type(error).__name__}: {error}"
        hint = "this is a defect of Surehold; --debug shows where it is"
    if "--debug" in words:
        import traceback

        terminal.stderr.write(plain("".join(traceback.format_exception(error)), lines=True))
    if "--json" in words or "--jsonl" in words:
        from surehold.cli.framework import Failure

        failure = Failure(code=code, error=type(error).__name__, message=message, hint=hint)
        terminal.stderr.write(safe_json(failure) + "\n")
    else:
        terminal.say(
            Cell("surehold: ", "bold red"), message, Cell(f" ({hint})" if hint else "", "dim")
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
