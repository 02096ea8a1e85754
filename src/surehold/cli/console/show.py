"""The output of the console: rounds as they happen, listings, and how a run ended."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from surehold.agents.fleet import Fleet, FleetResult
from surehold.agents.tools import ApprovalRequest
from surehold.cli.framework import Cell, Column, Line, Table, Terminal, plain, short_id, status_cell
from surehold.core.records import read_status
from surehold.core.state import State
from surehold.doors.events import Event
from surehold.doors.result import ModelSpent
from surehold.views.words import clock, counted, value_text

_IDLE = 1.0
"""After so many seconds without output, a line shows that the run is still busy."""
_FRAMES = "|/-\\"


class Watcher:
    """An observer that prints the progress of a run."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._stdout = terminal.stdout
        self._limit = 0
        self._source: str | None = None
        self._streamed = ""
        self._busy = ""
        self._drawn = False
        self._last = 0.0
        self.broken = False
        """True once the reader of the output stopped reading."""

    def begin(self, limit: int, source: str | None = None) -> None:
        """A run begins that may have *limit* rounds; *source* is the run that is resumed."""
        self._limit = limit
        self._source = source
        self._streamed = ""
        self._busy = "planning"
        self._last = time.monotonic()

    def on_event(self, event: Event) -> None:
        """Print *event*."""
        show = getattr(self, f"_{event.type.partition('.')[2]}", None)
        if event.type.startswith("fleet.") and show is not None and not self.broken:
            try:
                self.clear()
                self._announce_fork(event.data["run_id"])
                show(event.data)
            except BrokenPipeError:
                self.broken = True

    def _announce_fork(self, run_id: str) -> None:
        if self._source not in (None, run_id):
            text = f"forked: this is the new run {run_id}; {self._source} stays as it is"
            self._show(Cell(text, "yellow"))
        self._source = None

    def tick(self) -> None:
        """Show that the run is busy, if nothing was printed for a while."""
        idle = time.monotonic() - self._last
        if idle >= _IDLE and not self._streamed:
            frame = _FRAMES[int(idle * 4) % len(_FRAMES)]
            self._stdout.write(f"\r\x1b[K{frame} {plain(self._busy)}, {idle:.0f} s")
            self._stdout.flush()
            self._drawn = True

    def clear(self) -> None:
        """Remove the line that shows that the run is busy."""
        self._last = time.monotonic()
        if self._drawn:
            self._stdout.write("\r\x1b[K")
            self._drawn = False

    def _show(self, *blocks: object) -> None:
        self._end_text()
        self._terminal.show(blocks)

    def _text(self, data: Mapping[str, Any]) -> None:
        if data["speaker"] != "manager":
            self._streamed += data["text"]
            self._stdout.write(plain(data["text"], lines=True))
            self._stdout.flush()

    def _end_text(self) -> None:
        if self._streamed and not self._streamed.endswith("\n"):
            self._stdout.write("\n")
        self._streamed = ""

    def _plan(self, data: Mapping[str, Any]) -> None:
        self._show(Cell("plan", "bold"), data["plan"])

    def _reset(self, data: Mapping[str, Any]) -> None:
        self._show(Cell(f"no progress: a new plan (reset {data['resets']})", "yellow"))

    def _turn(self, data: Mapping[str, Any]) -> None:
        self._busy = f"{data['speaker']} is working"
        where = f"round {data['round']}/{self._limit} "
        self._show(
            Line.of(Cell(where, "bold"), Cell(data["speaker"], "cyan"), ": ", data["instruction"])
        )

    def _tool(self, data: Mapping[str, Any]) -> None:
        self._show(Cell(f"  tool {data['tool']} {value_text(data['arguments'])}", "dim"))

    def _round(self, data: Mapping[str, Any]) -> None:
        streamed = self._streamed
        self._busy = "choosing what comes next"
        self._end_text()
        blocks: list[object] = [] if streamed.strip() else [data["text"]]
        spent = f"  {cost_text(data['usage'])}, {data['seconds']:.1f} s; in all"
        blocks.append(Cell(f"{spent} {cost_text(data['total'])}", "dim"))
        self._terminal.show(blocks)


def cost_text(usage: Mapping[str, Any] | ModelSpent) -> str:
    """The cost of something.

    >>> cost_text({"calls": 2, "input_tokens": 900, "output_tokens": 100, "cost_usd": 0.0,
    ...            "unpriced": 2})
    '2 calls, 1,000 tokens'
    """
    tokens = usage["input_tokens"] + usage["output_tokens"]
    known = "" if usage["unpriced"] == usage["calls"] else f"${usage['cost_usd']:.4f}"
    return ", ".join(filter(None, [counted(usage["calls"], "call"), f"{tokens:,} tokens", known]))


def ended(result: FleetResult) -> Iterable[object]:
    """The lines that report how a run ended."""
    for attempt in result.attempts:
        yield Cell(str(attempt), "yellow")
    rounds = counted(result.rounds, "round")
    if result.status == "completed":
        yield Cell(f"completed in {rounds}: {cost_text(result.usage)}", "green")
    else:
        yield Cell(f"{result.status} after {rounds}: {cost_text(result.usage)}", "yellow")
    if result.answer:
        yield result.answer
    if result.status != "completed" and result.checkpoint_id is not None:
        yield Cell(f"to continue: resume {short_id(result.checkpoint_id)}", "dim")


def checkpoint_table(
    listed: Sequence[Mapping[str, Any]], tasks: Sequence[str] | None = None
) -> Table:
    """Checkpoints as a table; with *tasks*, numbered, and each with its task."""
    ids = [one["checkpoint_id"] for one in listed]
    columns = [
        *([] if tasks is None else [Column("", right=True)]),
        Column("checkpoint"),
        Column("workflow", gives=True, rank=1),
        Column("time", gives=True, whole=True),
        Column("round", right=True),
        Column("status"),
        *([] if tasks is None else [Column("task", gives=True, rank=2, enough=20)]),
    ]
    rows = [
        [
            *([] if tasks is None else [str(number)]),
            Cell(short_id(one["checkpoint_id"], ids), "bold"),
            one["workflow_id"],
            clock(datetime.fromisoformat(one["timestamp"])),
            one["current_round"],
            status_cell(read_status(one["status"])),
            *([] if tasks is None else [tasks[number - 1]]),
        ]
        for number, one in enumerate(listed, start=1)
    ]
    return Table(columns, rows)


def rounds_taken(fleet: Fleet, state: State) -> Iterable[object]:
    """The nodes that a run passed, and each of its rounds."""
    path = fleet.graph.explain_resume(state.run_id).skipped
    rounds = [*state["rounds"]]
    worked = iter(rounds)
    path_shown = []
    for node, after in zip(path, [*path[1:], None], strict=True):
        if node != "round":
            path_shown.append(node)
        elif after not in ("answer", "replan"):
            path_shown.append(next(worked, {"ledger": {"speaker": "?"}})["ledger"]["speaker"])
    yield " > ".join([*path_shown, *([] if path[-1:] == ("answer",) else ["..."])])
    if rounds:
        yield Table.of(
            rounds,
            Column("round", lambda one: one["round"], right=True),
            Column("who", lambda one: _speaker(one["ledger"])),
            Column("instruction", lambda one: one["ledger"]["instruction"], gives=True),
            Column("cost", lambda one: cost_text(one["usage"])),
            Column("seconds", lambda one: f"{one['seconds']:.1f}", right=True),
        )


def _speaker(ledger: Mapping[str, Any]) -> Cell:
    stalled = ledger["looping"] or not ledger["progressing"]
    return Cell(ledger["speaker"], "yellow" if stalled else "")


def request_table(requests: Sequence[ApprovalRequest]) -> Table:
    """Requests that wait for a person."""
    columns = [Column("", right=True), Column("workflow"), Column("what"), Column("who")]
    columns += [Column("details", gives=True), Column("time left")]
    rows = [
        [
            number,
            one.workflow_id,
            Cell(one.operation, "bold"),
            one.agent_name,
            value_text(one.details, 200),
            _left(one, datetime.now(UTC)),
        ]
        for number, one in enumerate(requests, start=1)
    ]
    return Table(columns, rows)


def _left(request: ApprovalRequest, now: datetime) -> str:
    if request.expires_at is None:
        return "any"
    seconds = (request.expires_at - now).total_seconds()
    if seconds <= 0:
        return "over: rejected" if request.reject_when_expired else "over, still open"
    return f"{seconds:.0f} s" + (", then rejected" if request.reject_when_expired else "")
