"""The commands of the console; those of `surehold` are called, not repeated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from surehold.agents.tools import PLAN_REVIEW, Approval, ApprovalRequest
from surehold.cli.console.show import checkpoint_table, cost_text, request_table, rounds_taken
from surehold.cli.console.words import COMMANDS, ConsoleCommand, Task, read_line
from surehold.cli.framework import Cell, read_pairs, short_id
from surehold.cli.listing import load
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import Waiting
from surehold.errors import NotFoundError, UsageError
from surehold.views.words import counted, read_value, value_text

if TYPE_CHECKING:
    from surehold.cli.console.repl import Console

_PAGE = 50


class Commands:
    """Carries out the commands of a console."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._fleet = console.fleet
        self._manager = console.fleet.graph.manager

    async def do(self, command: ConsoleCommand) -> None:
        """Carry out *command*."""
        if COMMANDS[command.name].shared:
            await asyncio.to_thread(self._call, command)
        else:
            await getattr(self, f"_{command.name}")(command)

    def _call(self, command: ConsoleCommand) -> None:
        """Call the command of `surehold` on the fleet's storage."""
        if not self._fleet.checkpointing:
            raise UsageError("this fleet saves nothing", hint="give it a checkpoint_storage")
        with CheckpointManager(self._manager.storage) as manager:
            load(command.name)(command.arguments, self._console.terminal, manager=manager)

    async def _help(self, command: ConsoleCommand) -> None:
        if command.arguments:
            entry = COMMANDS.get(command.arguments[0])
            if entry is None:
                raise UsageError(f"no command {command.arguments[0]!r}", hint="help lists them")
            self._console.show(f"{entry.usage}: {entry.about}")
            return
        width = max(len(entry.usage) for entry in COMMANDS.values())
        self._console.show(*(f"{one.usage:<{width}}  {one.about}" for one in COMMANDS.values()))
        self._console.show("anything else is a task for the fleet; ctrl-C interrupts a run")

    async def _checkpoints(self, command: ConsoleCommand) -> None:
        words = [one if "=" in one else f"workflow={one}" for one in command.arguments]
        filters = read_pairs("checkpoints", words)
        status, workflow = filters.pop("status", None), filters.pop("workflow", None)
        found = await self._fleet.list_checkpoints(
            workflow, status=status, metadata=filters, limit=_PAGE
        )
        if not found:
            self._console.show("No checkpoints found.")
            return
        more = f", the newest {_PAGE}" if len(found) == _PAGE else ""
        title = f"Available Checkpoints ({len(found)}{more})"
        self._console.show(Cell(title, "bold"), checkpoint_table(found))

    async def _graph(self, command: ConsoleCommand) -> None:
        state = self._fleet.state
        if command.arguments:
            await self._fleet.restore_from_checkpoint(command.arguments[0])
            state = self._fleet.state
        if state is None or not self._fleet.checkpointing:
            raise UsageError("no run was started here yet", hint="give a task, or graph ID")
        newest = await self._manager.resume_from_latest(state.run_id)
        blocks = await asyncio.to_thread(lambda: [*rounds_taken(self._fleet, newest)])
        self._console.show(*blocks)

    async def _status(self, command: ConsoleCommand) -> None:
        fleet, limits = self._fleet, self._fleet.limits
        show = self._console.show
        seconds = f", {limits.seconds:g} s" if limits.seconds is not None else ""
        show(f"participants: {', '.join(fleet.participants)}")
        show(
            f"limits: {counted(limits.rounds, 'round')}, {counted(limits.stalls, 'stall')},"
            f" {counted(limits.resets, 'reset')}{seconds}"
        )
        if fleet.state is not None:
            show(
                f"run {fleet.workflow_id}: {fleet.state.status}, round {fleet.current_round},"
                f" {cost_text(fleet.state['usage'])}"
            )
        waiting = await fleet.pending()
        if waiting:
            show(f"waiting for you: {len(waiting)} (pending)")

    async def _resume(self, command: ConsoleCommand) -> None:
        words = command.arguments[1:]
        chosen = command.arguments[0] if command.arguments else await self._choose()
        if chosen is None:
            return
        await self._fleet.restore_from_checkpoint(chosen)
        chosen = self._fleet.current_checkpoint_id or chosen
        source = self._fleet.workflow_id
        text = " ".join(words) if words else await self._more_text()
        if text is None:
            self._console.show("Resuming cancelled.")
            return
        self._console.show(f"resuming from {short_id(chosen)}")
        await self._console.execute(lambda: self._fleet.run(text, chosen), source)

    async def _choose(self) -> str | None:
        found = await self._fleet.resumable()
        if not found:
            self._console.show("No checkpoints found.")
            return None
        asks = self._console.lines.interactive
        tasks = [await self._task(one["checkpoint_id"]) for one in found]
        self._console.show(checkpoint_table(found, tasks))
        if not asks:  # the next line of a pipe is a command of its own
            raise UsageError("resume needs an ID here", hint="resume ID, one of those above")
        line = (await self._console.lines.next("which? > ") or "").strip()
        if not line:
            self._console.show("Resuming cancelled.")
            return None
        if line.isdigit() and 1 <= int(line) <= len(found):
            return str(found[int(line) - 1]["checkpoint_id"])
        return line

    async def _task(self, checkpoint_id: str) -> str:
        state: Any = await self._manager.load_checkpoint(checkpoint_id)
        return " ".join(str(state["task"]).split())

    async def _more_text(self) -> str | None:
        """The text to resume with; None if the resume is cancelled.

        A command instead of a text cancels the resume at a terminal; in a pipe it comes next.
        """
        lines = self._console.lines
        text = await lines.next("more to say, or nothing > ")
        if text is None:
            return None if lines.interactive else ""
        if text.strip() and not isinstance(read_line(text), Task):
            lines.give_back(text)
            return None if lines.interactive else ""
        return text.strip()

    async def _pending(self, command: ConsoleCommand) -> None:
        found = await self._fleet.pending()
        self._console.show(request_table(found) if found else "nothing waits for you")

    def show_waiting(self, waiting: Waiting) -> None:
        """Show what a run has begun to wait for."""
        asked: Any = waiting.question
        if waiting.kind == "effect":
            hint = f"answer {waiting.run_id} --help"
            self._console.show(f"  the outcome of {waiting.id} is unknown: {hint}")
            return
        if not isinstance(asked, Mapping) or "approve" not in asked:
            self._console.show(f"  {waiting.id}: {value_text(asked)}")
            return
        who = f" of {asked['agent_name']}" if asked.get("agent_name") else ""
        self._console.show(Cell(f"  {asked['approve']}{who}", "bold"))
        for key, value in asked["arguments"].items():
            text = value if isinstance(value, str) else value_text(value, 400)
            self._console.show(f"  {key}: {text}")

    async def _approve(self, command: ConsoleCommand) -> None:
        request, words = await self._meant(command)
        if not words:
            await self._answer(request, Approval(True))
            return
        text = " ".join(words[1:]) or await self._edited(request)
        if text is not None:
            await self._answer(request, Approval(True, _arguments(request, text)))

    async def _reject(self, command: ConsoleCommand) -> None:
        request, words = await self._meant(command)
        reason = words[1:] if words[:1] == ("because",) else words
        await self._answer(request, Approval(False, reason=" ".join(reason)))

    async def _answer(self, request: ApprovalRequest, said: Approval) -> None:
        run_id, request_id = request.workflow_id, request.request_id
        await self._console.execute(lambda: self._fleet.answer(run_id, said, request_id=request_id))

    async def _meant(self, command: ConsoleCommand) -> tuple[ApprovalRequest, tuple[str, ...]]:
        """The request that a command is about, and its other words."""
        found, words = await self._fleet.pending(), command.arguments
        if not found:
            raise NotFoundError("nothing waits for you", hint="pending lists what does")
        if words and words[0].isdigit():
            number = int(words[0])
            if not 1 <= number <= len(found):
                raise NotFoundError(f"there is no request {number}", hint="pending lists them")
            return found[number - 1], words[1:]
        if len(found) > 1:
            mine = [one for one in found if one.workflow_id == self._fleet.workflow_id]
            if len(mine) != 1:
                raise UsageError(
                    f"{len(found)} requests wait", hint=f"{command.name} N, as pending numbers them"
                )
            found = mine
        return found[0], words

    async def _edited(self, request: ApprovalRequest) -> str | None:
        """The request's plan, or its arguments, after a person changed them."""
        before = json.dumps(request.details, ensure_ascii=False)
        if request.operation_type == PLAN_REVIEW:
            before = str(request.details["plan"])
        line = await self._console.lines.next("edit > ", default=before)
        if not line or not line.strip():
            self._console.show("nothing was approved")
            return None
        return line


def _arguments(request: ApprovalRequest, text: str) -> dict[str, Any]:
    if request.operation_type == PLAN_REVIEW:
        return {"plan": text}
    value = read_value(text)
    if not isinstance(value, dict):
        raise UsageError(f"{text!r} are not arguments", hint='write JSON, as in {"command": "ls"}')
    return value
