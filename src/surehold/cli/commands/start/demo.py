"""`surehold demo`: kill a real job, start it again, leave runs to look at."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from surehold.cli import framework as ui
from surehold.demo.job import PAGES
from surehold.demo.runs import make_runs
from surehold.engine.managers import CheckpointManager
from surehold.errors import ConflictError

_ADDRESS = "sqlite:///.surehold/demo.db"
_KILL_AFTER = 9
_RUNS = ("crawl", "report-mon", "report-tue", "report-wed", "report-mon-kids")


class Demo(ui.Document, kw_only=True, tag="demo"):
    storage: str
    killed_after: int
    resumed_at: int
    pages_read: int
    read_twice: int
    sound: bool
    runs: list[str]


@ui.command
def demo(cli: ui.Cli) -> int:
    """Kill a job half way, start it again, and see it resume. Takes seconds.

    Leaves a completed, a failed, a waiting and a forked run to look at, in .surehold/demo.db unless
    --storage names another; that file is created again each time.
    """
    given = cli.settings.storage
    address = given.value if given.origin == "--storage" else _ADDRESS
    if address == _ADDRESS:
        for ending in ("", "-wal", "-shm"):
            Path(f".surehold/demo.db{ending}").unlink(missing_ok=True)
    tell: Callable[..., None] = cli.say
    if cli.for_people:  # the story is on stdout, unless that is for a program
        tell = lambda *cells: cli.terminal.show([ui.Line.of(*cells)])  # noqa: E731
    with CheckpointManager(address) as manager:
        _check_new(manager)
        document, steps = _story(tell, address, manager)
        make_runs(manager)
        document.runs = [run for run in _RUNS if manager.reader.run(run) is not None]
    cli.give(document, lambda: _report(document))
    # A page is read twice if the kill falls between its reading and its save.
    whole = steps == len(PAGES) == document.pages_read and document.read_twice <= 1
    return 0 if document.sound and whole else 1


def _check_new(manager: CheckpointManager) -> None:
    there = [run for run in _RUNS if manager.reader.run(run) is not None]
    if there:
        raise ConflictError(
            f"run {there[0]!r} exists already",
            hint="give the demo a storage of its own: surehold demo --storage sqlite:///demo.db",
            run_id=there[0],
        )


def _story(tell: Callable[..., None], address: str, manager: CheckpointManager) -> tuple[Demo, int]:
    """Tell what happens to the job; the steps that its journal has without a gap."""
    with tempfile.TemporaryDirectory() as directory:
        calls = Path(directory) / "calls"
        words = [sys.executable, "-m", "surehold.demo.job", address, str(calls)]
        tell(ui.Cell("A job reads twenty pages, one a step.", "bold"))
        killed_after = _start(tell, words, kill_after=_KILL_AFTER)
        tell(ui.Cell("SIGKILL", "bold red"), f" after step {killed_after} of {len(PAGES)}.")
        tell(ui.Cell("The same command again:", "bold"))
        _start(tell, words)
        read = calls.read_text().split()
    entries = manager.list_checkpoints("crawl", kind="routine")[::-1]
    resumed = next((one.step for one in entries if one.metadata.get("attempt") == 2), 0)
    steps = [one.step for one in entries]
    document = Demo(
        storage=address,
        killed_after=killed_after,
        resumed_at=resumed,
        pages_read=len(set(read)),
        read_twice=len(read) - len(set(read)),
        sound=bool(manager.verify("crawl")[0]),
        runs=[],
    )
    return document, len(steps) if steps == list(range(1, len(steps) + 1)) else 0


def _start(tell: Callable[..., None], words: list[str], kill_after: int | None = None) -> int:
    steps = 0
    # In a group of its own it does not get Ctrl-C, which is for the demo to tell.
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, process_group=0) as child:
        assert child.stdout is not None
        try:
            for line in child.stdout:
                tell(ui.Cell(line.rstrip(), "dim"))
                steps += "read page" in line
                if steps == kill_after:
                    child.send_signal(signal.SIGKILL)
        except BaseException:
            child.kill()
            raise
    return steps


def _report(document: Demo) -> Iterator[object]:
    yield ui.Line.of(
        f"It resumed at step {document.resumed_at}. Pages read: {document.pages_read}, twice: "
        f"{document.read_twice}. The journal is ",
        ui.Cell("sound" if document.sound else "damaged", "green" if document.sound else "red"),
        ".",
    )
    yield ""
    yield ui.Cell("Now look around:", "bold")
    yield f"  export SUREHOLD_STORAGE={document.storage}"
    for words, about in (
        ("runs", "completed, failed, waiting and forked runs"),
        ("log report-mon --graph", "a run and its fork"),
        ("diff report-mon report-mon-kids", "what the fork did differently"),
        ("approve report-wed", "answer the question it waits for"),
        ("resume report-wed --yes", "and let it continue"),
    ):
        yield ui.Line.of(ui.Cell(f"  # {about}", "dim"))
        yield f"  {ui.program()} {words}"
    words = "all of it in a browser, live: surehold ui (pip install 'surehold[web]')"
    yield ui.Line.of(ui.Cell(f"  # {words}", "dim"))
