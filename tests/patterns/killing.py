"""Programs that are killed before and after every record they write, and started again.

A program is the text of a script. Each start is a fork of this process, which has everything
imported. What a program prints outlives it, and is all that is compared.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

import surehold
from surehold.storage.sqlite.storage import SQLiteStorage

Where = Literal["before", "after"]
_LONGEST = 60.0
_STARTS = 12


class Play(NamedTuple):
    """Commands that make a run from its begin to its end; a killed one is given again."""

    files: dict[str, str]
    """The programs, by file name."""
    commands: Sequence[Sequence[str]]
    """``["job.py"]`` starts a program, ``["answer", RUN, VALUE]`` is a `surehold` command."""
    ends: Collection[str] = ()
    """Lines that programs print outside of recorded calls, at each start that comes there."""
    at_once: int = 1
    """Calls in flight at a time."""
    ask: Callable[[Path], None] = lambda directory: None
    """Settles what is in doubt after a kill, as a person would, in the program's directory."""


class Seen(NamedTuple):
    """The output of all starts of a play."""

    lines: list[str]
    last: list[str]
    """The output of the last command."""
    killed: bool


def play(made: Play, directory: Path, at: int | None, where: Where) -> Seen:
    """Make the play once, in an empty directory; killed at append number *at*, if one is given."""
    for name, text in made.files.items():
        (directory / name).write_text(text, "utf-8")
    lines: list[str] = []
    last: list[str] = []
    killed, left = False, at
    for command in made.commands:
        for _ in range(_STARTS):
            code, appends, last = _start(command, directory, left, where)
            lines += last if command[0].endswith(".py") else []
            left = None if left is None else left - appends
            if code != -signal.SIGKILL:
                # An answer that was stored before the kill is refused the second time.
                fine = code == 0 or (killed and not command[0].endswith(".py"))
                assert fine, f"{command}: exit {code}: {last}"
                break
            killed, left = True, None
            made.ask(directory)
        else:
            raise AssertionError(f"{command} did not end: {last}")
    return Seen(lines, last, killed)


@functools.cache
def _warm_up() -> None:
    """Import what programs need here, and not once in every fork."""
    for name in surehold.__all__:
        getattr(surehold, name)

    @surehold.workflow
    def nothing() -> str:
        return str(surehold.uuid4())

    with TemporaryDirectory() as directory:
        nothing.run(run_id="warm", storage=f"sqlite:///{directory}/runs.db")


def check_every_kill(
    made: Play, make_directory: Callable[[str], Path], where: Where = "before"
) -> int:
    """Kill the play before or after each of its records; the number of kills.

    After a kill the last command must print what it prints undisturbed. A line may come once more
    only if it is of a call in flight, before its record.
    """
    _warm_up()
    wanted = play(made, make_directory("undisturbed"), None, "after")
    kills = 0
    while True:
        seen = play(made, make_directory(f"{where}-{kills}"), kills + 1, where)
        if not seen.killed:
            break
        kills += 1
        at = f"killed {where} append {kills}: {seen.lines}"
        assert seen.last[-1:] == wanted.last[-1:], at
        assert not Counter(wanted.lines) - Counter(seen.lines), at
        more = Counter(seen.lines) - Counter(wanted.lines)
        # The line of a start that ended is printed again by the next one.
        repeated = Counter({line: count for line, count in more.items() if line not in made.ends})
        assert repeated.total() <= (made.at_once if where == "before" else 0), at
    assert kills > 1, "nothing was recorded"
    return kills


def _start(
    command: Sequence[str], directory: Path, at: int | None, where: Where
) -> tuple[int, int, list[str]]:
    """Execute one command; its exit code, the appends it made, and what it printed."""
    output, count = directory / ".output", directory / ".appends"
    output.write_text("")
    count.write_text("0")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _work(command, directory, output, count, at, where)
    until = time.monotonic() + _LONGEST
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError(f"{command} hung: {output.read_text()}")
        time.sleep(0.001)
    return (
        os.waitstatus_to_exitcode(ended[1]),
        int(count.read_text()),
        output.read_text().splitlines(),
    )


def _work(
    command: Sequence[str],
    directory: Path,
    output: Path,
    count: Path,
    at: int | None,
    where: Where,
) -> None:
    """The life of a forked process; never returns."""
    status = 70
    try:
        os.chdir(directory)
        os.environ.pop("SUREHOLD_STORAGE", None)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        file = os.open(output, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(os.open(output.with_name(".errors"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        _count_appends(count, at, where)
        if command[0].endswith(".py"):
            names: dict[str, Any] = {"__name__": "__main__", "__file__": command[0]}
            sys.modules["__main__"].__dict__.update(names)
            sys.argv = [*command]
            text = (directory / command[0]).read_text("utf-8")
            exec(
                compile(text, command[0], "exec", dont_inherit=True), vars(sys.modules["__main__"])
            )
        else:
            from surehold.__main__ import main

            sys.argv = ["surehold", *command]
            raise SystemExit(main())
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _count_appends(count: Path, at: int | None, where: Where) -> None:
    made = 0

    def counted(append: Callable[..., Any]) -> Callable[..., Any]:
        def with_kill(*arguments: Any) -> Any:
            nonlocal made
            made += 1
            if made == at and where == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            done = append(*arguments)
            count.write_text(str(made))
            if made == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return done

        return with_kill

    for name in ("append", "append_all"):
        setattr(SQLiteStorage, name, counted(getattr(SQLiteStorage, name)))
