"""The `surehold` command: finds a command, runs it, and prints its errors."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from types import ModuleType

from surehold.cli.framework import Cell, Terminal, exits, plain, safe_json
from surehold.cli.listing import COMMANDS, help_text, load

_OPTIONS = (
    *("-s", "--storage", "--json", "--jsonl", "--no-color", "--debug", "--version", "-h", "--help"),
)


def main(
    argv: Sequence[str] | None = None,
    *,
    page: Callable[[], ModuleType],
    terminal: Terminal | None = None,
) -> int:
    """Run the command line *argv*; gives the exit code. *page* is as in `Cli`."""
    words = list(sys.argv[1:] if argv is None else argv)
    if terminal is None:
        terminal = Terminal(environ=os.environ)
        for stream in (terminal.stdout, terminal.stderr):
            if isinstance(stream, TextIOWrapper):  # characters it cannot write are escaped
                stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            # Such a value is shown as it is stored.
            warnings.filterwarnings("ignore", message="no type is known as")
            return _run(words, terminal, page)
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


def _run(words: list[str], terminal: Terminal, page: Callable[[], ModuleType]) -> int:
    if terminal.environ.get("SUREHOLD_COMPLETE"):
        from surehold.cli.commands.start import candidates

        terminal.stdout.write("".join(f"{one}\n" for one in candidates(words, terminal)))
        return 0
    options, name, rest = _split(words)
    if name is None:
        return _without_command(options, terminal)
    if name not in COMMANDS and options:
        _check_option(options[-1])
    code = load(name)([*options, *rest], terminal, page=page)
    terminal.stdout.flush()
    return code


def _split(words: list[str]) -> tuple[list[str], str | None, list[str]]:
    """The options before the command, the command, and the words after it."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in ("-s", "--storage") else 1
    return words[:at], words[at] if at < len(words) else None, words[at + 1 :]


def _check_option(word: str) -> None:
    """Raise a `UsageError` if *word* is not an option: no command can follow it."""
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
        from surehold.views.documents import Failure

        failure = Failure(code=code, error=type(error).__name__, message=message, hint=hint)
        terminal.stderr.write(safe_json(failure) + "\n")
    else:
        terminal.say(
            Cell("surehold: ", "bold red"), message, Cell(f" ({hint})" if hint else "", "dim")
        )
    return code
