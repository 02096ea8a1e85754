"""The commands of the console."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint.effects import Waiting
from holdfast.cli.console.show import (
    SHORT_ID,
    checkpoint_facts,
    checkpoint_table,
    cost_text,
    request_table,
    rounds_taken,
)
from holdfast.cli.console.words import COMMANDS, Command, Task, read_line
from holdfast.cli.framework import Cell, value_text
from holdfast.core.state import State
from holdfast.errors import NotFoundError, UsageError
from holdfast.runtime.tools import PLAN_REVIEW, Approval, ApprovalRequest

if TYPE_CHECKING:
    from holdfast.cli.console.repl import Console

__all__ = ["Commands"]

_PAGE = 50


class Commands:
    """Does what a command says."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._fleet = console.fleet
        self._manager = console.fleet.graph.manager

    async def do(self, command: Command) -> None:
        """Carry out *command*."""
        await getattr(self, f"_{command.name}")(command)

    # Looking

    async def _help(self, command: Command) -> None:
        width = max(len(entry.usage) for entry in COMMANDS.values())
        self._console.show(*(f"{one.usage:<{width}}  {one.about}" for one in COMMANDS.values()))
        self._console.show("anything else is a task for the fleet; ctrl-C interrupts a run")

    async def _checkpoints(self, command: Command) -> None:
        filters = dict(one.split("=", 1) for one in command.arguments)
        status = filters.pop("status", None)
        workflow = filters.pop("workflow", None)
        found = await self._fleet.list_checkpoints(
            workflow,
            status=status,
            metadata={key: _value(text) for key, text in filters.items()},
            limit=_PAGE,
        )
        if not found:
            self._console.show("No checkpoints found.")
            return
        more = f", the newest {_PAGE}" if len(found) == _PAGE else ""
        title = f"Available Checkpoints ({len(found)}{more})"
        self._console.show(Cell(title, "bold"), checkpoint_table(found))

    async def _show(self, command: Command) -> None:
        state = await self._loaded(command.arguments[0])
        self._console.show(*checkpoint_facts(state, state.checkpoint_id or ""))

    async def _loaded(self, checkpoint_id: str) -> State:
        state = await self._manager.load_checkpoint(await self._whole(checkpoint_id))
        assert isinstance(state, State)
        return state

    async def _whole(self, checkpoint_id: str) -> str:
        """The whole id of a checkpoint of the fleet."""
        shown = json.loads(await self._fleet.export_checkpoint(checkpoint_id))
        return str(shown["checkpoint_id"])

    async def _diff(self, command: Command) -> None:
        first, second = [await self._whole(one) for one in command.arguments]
        changes = await self._manager.diff_checkpoints(first, second)
        if not changes:
            self._console.show("they hold the same")
        for change in changes:
            value = "" if change.op == "remove" else f" {value_text(change.value)}"
            mark = {"add": "+", "remove": "-", "replace": "~"}[change.op]
            style = {"+": "green", "-": "red", "~": "yellow"}[mark]
            self._console.show(Cell(f"{mark} {change.path}{value}", style))

    async def _graph(self, command: Command) -> None:
        state = self._fleet.state
        if command.arguments:
            state = await self._loaded(command.arguments[0])
        if state is None or not self._fleet.checkpointing:
            raise UsageError("no run was taken here yet", hint="give a task, or graph ID")
        newest = await self._manager.resume_from_latest(state.run_id)
        blocks = await asyncio.to_thread(lambda: [*rounds_taken(self._fleet, newest)])
        self._console.show(*blocks)

    async def _status(self, command: Command) -> None:
        fleet, limits = self._fleet, self._fleet.limits
        show = self._console.show
        show(f"participants: {', '.join(fleet.participants)}")
        show(
            f"limits: {limits.rounds} rounds, {limits.stalls} stalls, {limits.resets} resets"
            + (f", {limits.seconds:g} s" if limits.seconds is not None else "")
        )
        show("checkpointing: " + ("enabled" if fleet.checkpointing else "disabled"))
        if fleet.state is None:
            show("no run yet")
        else:
            show(
                f"run {fleet.workflow_id}: {fleet.state.status}, round {fleet.current_round},"
                f" {cost_text(fleet.state['usage'])}"
            )
        waiting = await fleet.pending()
        if waiting:
            show(f"waiting for you: {len(waiting)} (pending)")

    # Going on

    async def _resume(self, command: Command) -> None:
        chosen = command.arguments[0] if command.arguments else await self._choose()
        if chosen is None:
            return
        await self._fleet.restore_from_checkpoint(chosen)
        chosen = self._fleet.current_checkpoint_id or chosen
        text = await self._continuation()
        if text is None:
            self._console.show("Resuming cancelled.")
            return
        self._console.show(f"resuming from {chosen[:SHORT_ID]}")
        await self._console.execute(lambda: self._fleet.run(text, chosen))

    async def _choose(self) -> str | None:
        found = await self._fleet.resumable()
        if not found:
            self._console.show("No checkpoints found.")
            return None
        asks = self._console.lines.interactive
        self._console.show(checkpoint_table(found, numbered=asks))
        if not asks:  # the next line of a pipe is a command of its own, no answer
            raise UsageError("resume needs an ID here", hint="resume ID, one of those above")
        line = (await self._console.lines.next("which? > ") or "").strip()
        if not line:
            self._console.show("Resuming cancelled.")
            return None
        if line.isdigit() and 1 <= int(line) <= len(found):
            return str(found[int(line) - 1]["checkpoint_id"])
        return line

    async def _continuation(self) -> str | None:
        """The text to go on with; None if the resume is called off.

        A command there is no text: at a terminal it calls the resume off, in a pipe it comes next.
        """
        lines = self._console.lines
        text = await lines.next("text to go on with, or nothing > ")
        if text is None:
            return None if lines.interactive else ""
        if text.strip() and not isinstance(read_line(text), Task):
            lines.give_back(text)
            return None if lines.interactive else ""
        return text.strip()

    async def _fork(self, command: Command) -> None:
        run_id = await self._fleet.fork_checkpoint(command.arguments[0])
        (newest,) = await self._fleet.list_checkpoints(run_id, limit=1)
        self._console.show(f"forked: run {run_id}; resume {newest['checkpoint_id'][:SHORT_ID]}")

    # Approvals

    async def _pending(self, command: Command) -> None:
        found = await self._fleet.pending()
        if not found:
            self._console.show("nothing waits for you")
            return
        self._console.show(request_table(found))

    def show_waiting(self, waiting: Waiting) -> None:
        """What a run has just been parked for."""
        asked: Any = waiting.question
        if waiting.kind == "effect":
            hint = f"holdfast answer {waiting.run_id} --help"
            self._console.show(f"  nobody knows whether {waiting.id} happened: {hint}")
            return
        if not isinstance(asked, Mapping) or "approve" not in asked:
            self._console.show(f"  {waiting.id}: {value_text(asked)}")
            return
        who = f" of {asked['agent_name']}" if asked.get("agent_name") else ""
        self._console.show(Cell(f"  {asked['approve']}{who}", "bold"))
        for key, value in asked["arguments"].items():
            text = value if isinstance(value, str) else value_text(value, 400)
            self._console.show(f"  {key}: {text}")

    async def _approve(self, command: Command) -> None:
        request, words = await self._meant(command)
        if not words:
            await self._answer(request, Approval(True))
            return
        text = " ".join(words[1:]) or await self._edited(request)
        if text is None:
            return
        await self._answer(request, Approval(True, _arguments(request, text)))

    async def _reject(self, command: Command) -> None:
        request, words = await self._meant(command)
        await self._answer(request, Approval(False, reason=" ".join(words[1:])))

    async def _answer(self, request: ApprovalRequest, said: Approval) -> None:
        run_id, request_id = request.workflow_id, request.request_id
        await self._console.execute(lambda: self._fleet.answer(run_id, said, request_id=request_id))

    async def _meant(self, command: Command) -> tuple[ApprovalRequest, tuple[str, ...]]:
        """Which request a command is about, and its other words."""
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
        """The request's plan, or its arguments, as someone changes them."""
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
    value = _value(text)
    if not isinstance(value, dict):
        raise UsageError(f"{text!r} are no arguments", hint='write JSON, as in {"command": "ls"}')
    return value


def _value(text: str) -> Any:
    """JSON, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
