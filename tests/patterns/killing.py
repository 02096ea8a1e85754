"""Programs that are killed before and after every record they write, and started again.

A program is the text of a script. Each start is a fork of this process, which has everything
imported. What a program prints outlives it, and is all that is compared.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import importlib
import os
import random
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
from surehold.storage.postgres.storage import PostgresStorage
from surehold.storage.sqlite.storage import SQLiteStorage

Where = Literal["before", "after"]
_LONGEST = 300.0
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
    worker: bool = False
    """Runs are queued, and a worker in the same process executes them."""
    address: Callable[[Path], str] | None = None
    """The storage for a directory; None for the default one in it."""


class Seen(NamedTuple):
    """The output of all starts of a play."""

    lines: list[str]
    last: list[str]
    """The output of the last command."""
    killed: bool
    printed: set[str]
    """The last line of each start of a program: what it prints about its run."""
    appends: int


Killer = Callable[[int], None]
"""Given the process id of a start, kills that process at some moment."""


def play(
    made: Play, directory: Path, at: int | None, where: Where, killer: Killer | None = None
) -> Seen:
    """Make the play once, in an empty directory; killed at append number *at*, if one is given."""
    for name, text in made.files.items():
        (directory / name).write_text(text, "utf-8")
    lines: list[str] = []
    last: list[str] = []
    printed: set[str] = set()
    total = 0
    killed, left = False, at
    for command in made.commands:
        for _ in range(_STARTS):
            code, appends, last = _start(made, command, directory, left, where, killer)
            total += appends
            if command[0].endswith(".py"):
                lines += last
                printed |= {*last[-1:]}
            left = None if left is None else left - appends
            if code != -signal.SIGKILL:
                # An answer that was stored before the kill is refused the second time.
                fine = code == 0 or (killed and not command[0].endswith(".py"))
                assert fine, f"{command}: exit {code}: {last}"
                break
            killed, left, killer = True, None, None
            made.ask(directory)
        else:
            raise AssertionError(f"{command} did not end: {last}")
    return Seen(lines, last, killed, printed, total)


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
    made: Play,
    make_directory: Callable[[str], Path],
    where: Where = "before",
    most: int | None = None,
) -> int:
    """Kill the play before or after each of its records, or *most* of them; the number of kills.

    After a kill the last command must print what it prints undisturbed. A line may come once more
    only if it is of a call in flight, before its record. After a record one call fewer is.
    """
    _warm_up()
    wanted = play(made, make_directory("undisturbed"), None, "after")
    places: Sequence[int] = range(1, wanted.appends + 1)
    if most is not None and len(places) > most:
        places = sorted({1 + number * (len(places) - 1) // (most - 1) for number in range(most)})
    kills = 0
    for place in places:
        seen = play(made, make_directory(f"{where}-{place}"), place, where)
        kills += seen.killed
        at = f"killed {where} append {place}"
        _compare(made, wanted, seen, made.at_once - (where == "after"), at)
    assert kills > 0, "nothing was recorded"
    return kills


def check_random_kills(made: Play, make_directory: Callable[[str], Path], times: int) -> int:
    """Kill the play *times* at moments that chance chooses; the number of kills that hit."""
    _warm_up()
    began = time.monotonic()
    wanted = play(made, make_directory("undisturbed"), None, "after")
    each = (time.monotonic() - began) / len(made.commands)
    chance, kills = random.Random(7), 0
    for number in range(times):

        def kill(pid: int) -> None:
            time.sleep(chance.uniform(0, each))
            os.kill(pid, signal.SIGKILL)

        seen = play(made, make_directory(f"random-{number}"), None, "before", kill)
        kills += seen.killed
        _compare(made, wanted, seen, made.at_once, f"random kill {number}")
    return kills


def _compare(made: Play, wanted: Seen, seen: Seen, repeats: int, at: str) -> None:
    """Fail unless *seen* ends as *wanted*, with at most so many calls repeated."""
    at = f"{at}: {seen.lines}"
    assert seen.last[-1:] == wanted.last[-1:], at
    assert not Counter(wanted.lines) - Counter(seen.lines), at
    # The line of a start that ended is printed again by the next one.
    more = Counter(seen.lines) - Counter(wanted.lines)
    ends = wanted.printed | {*made.ends}
    repeated = Counter({line: count for line, count in more.items() if line not in ends})
    assert repeated.total() <= repeats, at


def _start(
    made: Play,
    command: Sequence[str],
    directory: Path,
    at: int | None,
    where: Where,
    killer: Killer | None,
) -> tuple[int, int, list[str]]:
    """Execute one command; its exit code, the appends it made, and what it printed."""
    output, count = directory / ".output", directory / ".appends"
    output.write_text("")
    count.write_text("0")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _work(made, command, directory, output, count, at, where)
    if killer is not None:
        killer(pid)
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
    made: Play,
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
        if made.address is not None:
            os.environ["SUREHOLD_STORAGE"] = made.address(directory)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        file = os.open(output, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(os.open(output.with_name(".errors"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        _count_appends(count, at, where)
        if command[0].endswith(".py"):
            sys.argv = [*command]
            _execute(directory / command[0], worker=made.worker)
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


def _execute(file: Path, *, worker: bool) -> None:
    """Execute a program; with *worker*, its runs are queued and executed by a worker."""
    text = file.read_text("utf-8")
    sys.path.insert(0, str(file.parent))
    if not worker:
        names: dict[str, Any] = {"__name__": "__main__", "__file__": file.name}
        main = vars(sys.modules["__main__"])
        main.update(names)
        exec(compile(text, file.name, "exec", dont_inherit=True), main)
        return
    module = importlib.import_module(file.stem)
    _run_by_worker(file.stem)
    tree = ast.parse(text)
    tree.body = [one for block in tree.body if isinstance(block, ast.If) for one in block.body]
    exec(compile(tree, file.name, "exec", dont_inherit=True), vars(module))


def _run_by_worker(served: str) -> None:
    """Let `run` of a workflow queue the run, and execute what is queued."""
    from surehold.doors.functions import AsyncWorkflow, Workflow
    from surehold.executors import Worker

    def work() -> None:
        with surehold.open_storage() as storage:
            worker = Worker.of_modules(storage, [served], ["default"], 2, lease_seconds=30)
            worker.run(until_idle=True)

    def run(self: Any, *args: Any, run_id: str, wait: bool = True, **options: Any) -> Any:
        self.start(*args, run_id=run_id, **options)
        work()
        while wait and self.result(run_id).status == "waiting":  # for others in this program
            time.sleep(0.01)
            work()
        return self.result(run_id)

    async def run_async(
        self: Any, *args: Any, run_id: str, wait: bool = True, **options: Any
    ) -> Any:
        await self.start(*args, run_id=run_id, **options)
        await asyncio.to_thread(work)
        return await self.result(run_id)

    setattr(Workflow, "run", run)  # noqa: B010
    setattr(AsyncWorkflow, "run", run_async)  # noqa: B010


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

    for kind in (SQLiteStorage, PostgresStorage):
        for name in ("append", "append_all"):
            if name in vars(kind):
                setattr(kind, name, counted(getattr(kind, name)))
