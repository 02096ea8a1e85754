"""``holdfast repl``: a console on a fleet. Tasks are given to it, and runs resumed.

It reads from a terminal, or from a pipe: ``echo "Analyze sales data" | holdfast repl``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from holdfast.cli.console.commands import Commands
from holdfast.cli.console.lines import Lines, PipedLines, TerminalLines
from holdfast.cli.console.show import SHORT_ID, Watcher, ended
from holdfast.cli.console.words import Command, Mistake, read_line
from holdfast.cli.framework import Cell, Terminal
from holdfast.errors import HoldfastError, Interrupted, UsageError
from holdfast.runtime.fleet import Fleet, FleetResult, Settings, build_fleet, read_workflow
from holdfast.storage.addresses import mask_url

__all__ = ["Console", "main"]

_FILE = "workflow.yaml"
_PROMPT = "task> "


def main(path: str | Path | None = None, *, storage: str | None = None) -> int:
    """Open the console on the workflow in *path*, by default ``workflow.yaml`` here.

    *storage* is an address that takes the place of the file's. Gives the exit code: 0, or 1 if
    something went wrong in what a pipe had brought.
    """
    file = Path(path or _FILE)
    if not file.is_file():
        raise UsageError(f"there is no {file}", hint="name a workflow.yaml, or write one here")
    sys.path.insert(0, "")  # the tools that the file names may stand beside it
    settings = read_workflow(file)
    terminal = Terminal(environ=os.environ)
    watcher = Watcher(terminal)
    fleet = build_fleet(settings, tools={}, checkpoint_storage=storage, observer=watcher)
    return asyncio.run(_open(fleet, settings, terminal, watcher, storage))


async def _open(
    fleet: Fleet, settings: Settings, terminal: Terminal, watcher: Watcher, storage: str | None
) -> int:
    async with fleet:
        console = Console(fleet, settings, terminal, watcher)
        console.greet(storage)
        return await console.run()


class Console:
    """Reads lines and does what they say."""

    def __init__(
        self, fleet: Fleet, settings: Settings, terminal: Terminal, watcher: Watcher
    ) -> None:
        self.fleet = fleet
        self.settings = settings
        self.terminal = terminal
        self._watcher = watcher
        self._known: list[tuple[str, str]] = []
        self._failed = False
        self.lines: Lines = (
            TerminalLines(lambda: self._known) if terminal.asks else PipedLines(terminal.stdin)
        )
        self._commands = Commands(self)

    async def run(self) -> int:
        """Until there are no more lines, or one says quit."""
        while True:
            line = await self._line()
            if line is None:
                break
            if not await self._do(line):
                break
        return int(self._failed and not self.lines.interactive)

    async def _line(self) -> str | None:
        """The next line; meanwhile what nobody approves in time is rejected, if it is to be."""
        if not self.lines.interactive:
            return await self.lines.next(_PROMPT)
        await self._know_ids()
        try:
            return await asyncio.wait_for(self.lines.next(_PROMPT), await self._time_left())
        except TimeoutError:
            saved = self.fleet.current_checkpoint_id
            self.show(Cell("the time to approve it is over", "yellow"))
            await self.execute(lambda: self.fleet.run(resume_from_checkpoint=saved))
            return ""

    async def _time_left(self) -> float | None:
        """Seconds until something that the run waits for is rejected; None if nothing will be."""
        state = self.fleet.state
        if state is None or state.status != "interrupted" or not self.fleet.checkpointing:
            return None
        ends = [
            one.expires_at
            for one in await self.fleet.pending(state.run_id)
            if one.reject_when_expired and one.expires_at is not None
        ]
        return max(0.0, (min(ends) - datetime.now(UTC)).total_seconds()) if ends else None

    async def _do(self, line: str) -> bool:
        """Do what *line* says; False to leave."""
        meant = read_line(line)
        if meant is None:
            return True
        if isinstance(meant, Mistake):
            self.problem(meant.message)
            return True
        if isinstance(meant, Command):
            if meant.name == "quit":
                return False
            await self.guarded(lambda: self._commands.do(meant))
            return True
        await self.execute(lambda: self.fleet.run(meant.text))
        return True

    def greet(self, storage: str | None) -> None:
        """Say who is here, where runs are saved, and what needs approval."""
        say, saved = self.terminal.say, self.settings.checkpointing
        who = ", ".join(self.fleet.participants)
        about = f": {who}; help lists the commands, anything else is a task"
        say(Cell("Holdfast console", "bold"), about)
        if self.fleet.checkpointing:
            where = storage or saved.storage_type
            place = f" {saved.storage_path}" if where in ("file", "sqlite") else ""
            say(f"Checkpointing enabled (storage: {mask_url(where)}{place})")
        else:
            say(Cell("Checkpointing disabled: nothing can be resumed", "yellow"))
        asks = self.settings.human_in_the_loop
        if asks.enabled:
            what = ", ".join(asks.require_approval_for)
            say(f"Approval needed within {asks.approval_timeout_seconds:g} s for: {what}")

    async def _know_ids(self) -> None:
        """Learn the ids that can be completed."""
        self._known = [
            (
                one["checkpoint_id"],
                f"{one['workflow_id']} round {one['current_round']} {one['status']}",
            )
            for one in await self.fleet.list_checkpoints(limit=200)
        ]

    # What the commands use

    def show(self, *blocks: object) -> None:
        """Write to the terminal."""
        self.terminal.show(blocks)

    def problem(self, message: str) -> None:
        """Tell that something is wrong."""
        self._failed = True
        self.terminal.show([Cell(message, "red")])

    async def guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do *work*; what is wrong is told, and the console goes on."""
        try:
            await work()
        except HoldfastError as error:
            self.problem(str(error))

    async def execute(self, work: Callable[[], Awaitable[FleetResult]]) -> None:
        """Execute a run, showing it; ctrl-C interrupts it, and it is saved."""
        self._watcher.begin(self.fleet.limits.rounds)
        task = asyncio.ensure_future(work())
        try:
            with _interrupting(task):
                result = await task
        except Interrupted as parked:
            self._parked(parked)
        except asyncio.CancelledError:
            self._stopped("interrupted")
        except HoldfastError as error:
            self.problem(str(error))
            self._stopped("failed")
        else:
            self.show(*ended(result))

    def _parked(self, parked: Interrupted) -> None:
        self.show(Cell(f"run {parked.run_id} waits for you:", "yellow"))
        for one in parked.facts.get("waiting", ()):
            self._commands.show_waiting(one)
        self.show(Cell("approve, approve edit, reject because ..., or later: pending", "dim"))

    def _stopped(self, how: str) -> None:
        saved = self.fleet.current_checkpoint_id
        self.show(Cell(f"{how} after round {self.fleet.current_round}", "yellow"))
        if saved is not None:
            self.show(Cell(f"saved; resume {saved[:SHORT_ID]} goes on", "dim"))


@contextlib.contextmanager
def _interrupting(task: asyncio.Future[FleetResult]) -> Iterator[None]:
    """Have ctrl-C cancel *task*, and nothing else, meanwhile."""
    loop = asyncio.get_running_loop()
    before = signal.getsignal(signal.SIGINT)
    loop.add_signal_handler(signal.SIGINT, task.cancel)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, before)


def _program() -> int:
    try:
        return main(sys.argv[1] if len(sys.argv) > 1 else None)
    except HoldfastError as error:
        Terminal(environ=os.environ).say(Cell("holdfast: ", "bold red"), str(error))
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(_program())
