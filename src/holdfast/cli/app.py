"""The `holdfast` command: finds the command that is wanted, runs it, and tells what went wrong."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from typing import IO, TYPE_CHECKING, NamedTuple

from holdfast.cli.framework import Cell, Terminal, exits, plain, safe_json

if TYPE_CHECKING:
    from holdfast.cli.framework import Command

__all__ = ["COMMANDS", "Entry", "load", "main"]


class Entry(NamedTuple):
    """A command as the list of commands knows it; its module is loaded when it is called."""

    group: str
    module: str
    about: str


COMMANDS = {
    "runs": Entry("See", "see.runs", "list the runs: status, steps, size, cost, forks"),
    "log": Entry("See", "see.log", "what each step of a run changed"),
    "show": Entry("See", "see.state", "one checkpoint: where it stands and what it holds"),
    "cat": Entry("See", "see.state", "one value, as in RUN@12:state.messages[-1]"),
    "diff": Entry("See", "see.diff", "what differs between two checkpoints"),
    "blame": Entry("See", "see.diff", "which step last wrote a value"),
    "status": Entry("See", "see.health", "whether anything is wrong; if so, exits non-zero"),
    "stats": Entry("See", "see.health", "bytes, resumes and latencies"),
    "watch": Entry("See", "see.live", "follow a run as it goes on"),
    "tree": Entry("See", "see.live", "runs and their forks"),
    "resume": Entry("Act", "act.resume", "go on with a run whose graph is known"),
    "fork": Entry("Act", "act.fork", "begin a new run from any checkpoint"),
    "tag": Entry("Act", "act.marks", "give a checkpoint tags, or take some away"),
    "pin": Entry("Act", "act.marks", "keep a checkpoint, whatever the rules say"),
    "pending": Entry("Act", "act.answers", "what runs wait for"),
    "approve": Entry("Act", "act.answers", "answer yes to the question a run waits for"),
    "reject": Entry("Act", "act.answers", "answer no to the question a run waits for"),
    "answer": Entry("Act", "act.answers", "answer a question, or tell an effect's outcome"),
    "forget": Entry("Keep", "keep.forget", "drop checkpoints by rules; shows why each stays"),
    "prune": Entry("Keep", "keep.prune", "free the space of what was forgotten"),
    "verify": Entry("Keep", "keep.sound", "check every digest"),
    "repair": Entry("Keep", "keep.sound", "mend what can be mended"),
    "policy": Entry("Keep", "keep.forget", "the rules that forget applies by default"),
    "rotate-key": Entry("Keep", "keep.sound", "bring encrypted runs under a new key"),
    "export": Entry("Move", "move.files", "write a run to a file, as JSON or as a web page"),
    "import": Entry("Move", "move.files", "take in a run that was exported"),
    "copy": Entry("Move", "move.storages", "copy runs to another storage"),
    "migrate": Entry("Move", "move.storages", "bring runs to the newest version of their state"),
    "import-langgraph": Entry("Move", "move.langgraph", "take over LangGraph's threads"),
    "demo": Entry("Start", "start.demo", "a job is killed and goes on; leaves runs to look at"),
    "repl": Entry("Start", "start.programs", "a console for a fleet's workflow"),
    "init": Entry("Start", "start.here", "make a storage and a holdfast.toml here"),
    "doctor": Entry("Start", "start.here", "what is installed, set and guaranteed"),
    "selftest": Entry("Start", "start.programs", "prove on this machine that runs survive"),
    "completion": Entry("Start", "start.completion", "completion for bash, zsh or fish"),
}

_FIRST = ("demo", "runs", "log", "show", "resume", "status")
_HELP = """\
Usage: holdfast [OPTIONS] COMMAND [ARGUMENTS]

Durable runs: see what they did, go on where they stopped, keep what matters.

{first}

{groups}

RUN is a run's id or the start of it, its name, or latest. RUN@12 is step 12 of
it, RUN~2 two checkpoints back, tag:NAME the newest checkpoint with that tag.

  -s, --storage URL  where the runs are (else HOLDFAST_STORAGE, holdfast.toml)
  --json, --jsonl    for programs: one document, or a line for each
  --debug            show where an error came from
  --version, --help  COMMAND --help tells all about a command
"""


def main(argv: Sequence[str] | None = None, *, terminal: Terminal | None = None) -> int:
    """Run the command line *argv*; gives the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if terminal is None:
        terminal = Terminal(environ=os.environ)
        for stream in (terminal.stdout, terminal.stderr):
            if isinstance(stream, TextIOWrapper):  # what it cannot write is written out
                stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            # Such a value is shown as it is stored, which says enough.
            warnings.filterwarnings("ignore", message="no type is registered as")
            return _run(words, terminal)
    except KeyboardInterrupt:
        terminal.say("interrupted")
        return exits.INTERRUPTED
    except BrokenPipeError:
        _let_go(terminal.stdout)
        return exits.PIPE_CLOSED
    except BaseException as error:
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        return _tell(error, words, terminal)


def _run(words: list[str], terminal: Terminal) -> int:
    if terminal.environ.get("HOLDFAST_COMPLETE"):
        from holdfast.cli.commands.start import candidates

        terminal.stdout.write("".join(f"{one}\n" for one in candidates(words, terminal)))
        return 0
    options, name, rest = _split(words)
    if name is None:
        return _without_command(options, terminal)
    loaded = load(name)
    if isinstance(loaded, str):
        terminal.say(Cell("holdfast: ", "bold red"), loaded)
        return exits.USAGE
    code = loaded([*options, *rest], terminal)
    terminal.stdout.flush()
    return code


def _split(words: list[str]) -> tuple[list[str], str | None, list[str]]:
    """Options before the command, the command, and what follows it."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in ("-s", "--storage") else 1
    return words[:at], words[at] if at < len(words) else None, words[at + 1 :]


def _without_command(options: list[str], terminal: Terminal) -> int:
    if "--version" in options:
        from importlib.metadata import version

        terminal.stdout.write(f"holdfast {version('holdfast')}\n")
        return 0
    wanted = not options or "--help" in options or "-h" in options
    (terminal.stdout if wanted else terminal.stderr).write(help_text())
    return 0 if "--help" in options or "-h" in options else exits.USAGE


def help_text() -> str:
    """What ``holdfast --help`` prints."""
    first = "\n".join(f"  {name:<10}{COMMANDS[name].about}" for name in _FIRST)
    groups: dict[str, list[str]] = {}
    for name, entry in COMMANDS.items():
        groups.setdefault(entry.group, []).append(name)
    lines = "\n".join(f"  {group:<8}{' '.join(names)}" for group, names in groups.items())
    return _HELP.format(first=first, groups=lines)


def load(name: str) -> Command | str:
    """The command of that name, ready to be called; if there is none, a text that says so."""
    entry = COMMANDS.get(name)
    if entry is None:
        from holdfast.storage.addresses import nearest

        return f"there is no command {plain(name)!r} ({nearest(name, COMMANDS)}holdfast --help)"
    module = import_module(f"holdfast.cli.commands.{entry.module}")
    found: Command = getattr(module, "import_" if name == "import" else name.replace("-", "_"))
    return found


def _tell(error: BaseException, words: list[str], terminal: Terminal) -> int:
    """Say what went wrong: the fact, and the command that helps."""
    from holdfast.errors import HoldfastError, Signal

    hint = ""
    if isinstance(error, HoldfastError):
        code, message, hint = exits.code_of(error), error.message, exits.help_for(error)
    elif isinstance(error, Signal):
        code, message = exits.code_of(error), error.message
    else:
        code, message = exits.FAILED, f"{type(error).__name__}: {error}"
        hint = "this is a defect of Holdfast; --debug shows where it is"
    if "--debug" in words:
        import traceback

        terminal.stderr.write(plain("".join(traceback.format_exception(error)), lines=True))
    if "--json" in words or "--jsonl" in words:
        from holdfast.cli.framework import Failure

        told = Failure(code=code, error=type(error).__name__, message=message, hint=hint)
        terminal.stderr.write(safe_json(told) + "\n")
    else:
        terminal.say(
            Cell("holdfast: ", "bold red"), message, Cell(f" ({hint})" if hint else "", "dim")
        )
    return code


def _let_go(stream: IO[str]) -> None:
    """Whoever read the output has gone: see that closing it does not fail again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


if __name__ == "__main__":
    sys.exit(main())
