"""``surehold repl``: a console on a fleet, which takes tasks and resumes runs.

It reads from a terminal, or from a pipe: ``echo "Analyze sales data" | surehold repl``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from surehold.agents.fleet import Fleet, FleetResult, Settings, build_fleet, read_workflow
from surehold.cli.console.commands import Commands
from surehold.cli.console.lines import Lines, PipedLines, TerminalLines
from surehold.cli.console.show import Watcher, ended
from surehold.cli.console.words import ConsoleCommand, Mistake, read_line
from surehold.cli.framework import Cell, Terminal, exits, short_id
from surehold.core.records import read_status
from surehold.engine.runs import StopScope, hearing
from surehold.errors import SureholdError, UsageError
from surehold.storage.addresses import mask_url

_FILE = "workflow.yaml"
_PROMPT = "task> "
_TICK = 0.2


def main(path: str | Path | None = None, *, storage: str | None = None) -> int:
    """Open the console on the workflow in *path*, by default ``workflow.yaml`` here.

    *storage* is an address that replaces the file's. Gives the exit code: 0, or 1 if a line of a
    pipe failed.
    """
    file = Path(path or _FILE)
    if not file.is_file():
        raise UsageError(f"there is no {file}", hint="name a workflow.yaml, or write one here")
    sys.path.insert(0, "")  # the file may name tools in modules beside it
    settings = read_workflow(file)
    terminal = Terminal(environ=os.environ)
    watcher = Watcher(terminal)
    fleet = build_fleet(settings, tools={}, checkpoint_storage=storage, observer=watcher)

    async def read_lines() -> int:
        async with fleet:
            console = Console(fleet, settings, terminal, watcher)
            console.greet(storage)
            return await console.run()

    try:
        return asyncio.run(read_lines())
    except BrokenPipeError:
        exits.let_go(terminal.stdout)
        return exits.PIPE_CLOSED


class Console:
    """Reads lines and carries them out."""

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
        while (line := await self._line()) is not None and await self._do(line):
            pass
        return int(self._failed and not self.lines.interactive)

    async def _line(self) -> str | None:
        """The next line; a request that expires meanwhile is rejected if it is to be."""
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
        """Seconds until something that the run waits for is rejected; None for never."""
        state = self.fleet.state
        if state is None or state.status != "waiting" or not self.fleet.checkpointing:
            return None
        ends = [
            one.expires_at
            for one in await self.fleet.pending(state.run_id)
            if one.reject_when_expired and one.expires_at is not None
        ]
        return max(0.0, (min(ends) - datetime.now(UTC)).total_seconds()) if ends else None

    async def _do(self, line: str) -> bool:
        """Carry out *line*; False to leave."""
        meant = read_line(line)
        if meant is None:
            return True
        if isinstance(meant, Mistake):
            self.problem(meant.message)
            return True
        if isinstance(meant, ConsoleCommand):
            if meant.name == "quit":
                return False
            await self.guarded(lambda: self._commands.do(meant))
            return True
        await self.execute(lambda: self.fleet.run(meant.text))
        return True

    def greet(self, storage: str | None) -> None:
        """Print the participants, where runs are saved, and what needs approval."""
        say, saved = self.terminal.say, self.settings.checkpointing
        who = ", ".join(self.fleet.participants)
        about = f": {who}; help lists the commands, anything else is a task"
        say(Cell("Surehold console", "bold"), about)
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
        """Read the ids that can be completed."""
        self._known = [
            (
                one["checkpoint_id"],
                f"{one['workflow_id']} round {one['current_round']} {read_status(one['status'])}",
            )
            for one in await self.fleet.list_checkpoints(limit=200)
        ]

    def show(self, *blocks: object) -> None:
        """Write to the terminal."""
        self.terminal.show(blocks)

    def problem(self, message: str) -> None:
        """Print what is wrong."""
        self._failed = True
        self.terminal.show([Cell(message, "red")])

    async def guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do *work*; an error is printed, and the console continues."""
        try:
            await work()
        except SureholdError as error:
            self.problem(str(error))

    async def execute(
        self, work: Callable[[], Awaitable[FleetResult]], source: str | None = None
    ) -> None:
        """Execute a run and print it; ctrl-C stops it after the round, again: at once.

        *source* is the run that is resumed: a fork of it is announced.
        """
        self._watcher.begin(self.fleet.limits.rounds, source)
        scope = StopScope()
        with scope.entered():
            task = asyncio.ensure_future(work())

        def stop(name: str) -> None:
            self.show(Cell("stopping after this step; ctrl-C again breaks it off", "dim"))
            scope.stop(name)

        watching = asyncio.ensure_future(self._watch(task))
        try:
            try:
                with _interrupting(stop, task):
                    result = await task
            finally:
                watching.cancel()
                self._watcher.clear()
        except asyncio.CancelledError:
            if self._watcher.broken:
                raise BrokenPipeError from None
            self._stopped("interrupted")
        except SureholdError as error:
            self.problem(str(error))
            self._stopped("failed")
        else:
            if result.status == "waiting":
                self._waiting(result)
            elif result.status == "interrupted":
                self._stopped("interrupted")
            else:
                self.show(*ended(result))

    async def _watch(self, task: asyncio.Future[FleetResult]) -> None:
        """Show that the run is busy, and end it if nothing reads its output."""
        alive = self.lines.interactive and self.terminal.environ.get("TERM") != "dumb"
        while not task.done():
            await asyncio.sleep(_TICK)
            if self._watcher.broken:
                task.cancel()
            elif alive:
                self._watcher.tick()

    def _waiting(self, result: FleetResult) -> None:
        self.show(Cell(f"run {result.run_id} waits for you:", "yellow"))
        for one in result.waiting:
            self._commands.show_waiting(one)
        self.show(Cell("approve, approve edit, reject REASON, or later: pending", "dim"))

    def _stopped(self, how: str) -> None:
        saved = self.fleet.current_checkpoint_id
        self.show(Cell(f"{how} after round {self.fleet.current_round}", "yellow"))
        if saved is not None:
            self.show(Cell(f"saved; to continue: resume {short_id(saved)}", "dim"))


@contextlib.contextmanager
def _interrupting(stop: Callable[[str], None], task: asyncio.Future[FleetResult]) -> Iterator[None]:
    """Call *stop* on the first signal, and let the second cancel *task*."""
    loop = asyncio.get_running_loop()

    def heard(number: int, count: int) -> None:
        act = partial(stop, signal.Signals(number).name) if count == 1 else task.cancel
        loop.call_soon_threadsafe(act)

    with hearing(heard):
        yield


def _program() -> int:
    try:
        return main(sys.argv[1] if len(sys.argv) > 1 else None)
    except SureholdError as error:
        Terminal(environ=os.environ).say(Cell("surehold: ", "bold red"), str(error))
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(_program())
