"""What the console shows: rounds as they happen, listings, and how it all ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.cli.framework import (
    Cell,
    Column,
    Line,
    Table,
    Terminal,
    clock,
    plain,
    status_cell,
    value_text,
)
from holdfast.core.records import read_status
from holdfast.core.state import State
from holdfast.runtime.fleet import Fleet, FleetResult
from holdfast.runtime.tools import ApprovalRequest
from holdfast.runtime.watch import Event

__all__ = [
    "SHORT_ID",
    "Watcher",
    "checkpoint_facts",
    "checkpoint_table",
    "cost_text",
    "ended",
    "request_table",
    "rounds_taken",
]

SHORT_ID = 23
"""So much of an id tells it apart: the time, to the millisecond, and some of what is random."""


class Watcher:
    """An observer that tells what a run does while it does it."""

    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._stdout = terminal.stdout
        self._limit = 0
        self._streamed = ""

    def begin(self, limit: int) -> None:
        """A run begins that may have so many rounds."""
        self._limit = limit
        self._streamed = ""

    def on_event(self, event: Event) -> None:
        """Tell of *event*."""
        tell = getattr(self, f"_{event.type.partition('.')[2]}", None)
        if event.type.startswith("fleet.") and tell is not None:
            tell(event.data)

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
        where = f"round {data['round']}/{self._limit} "
        self._show(
            Line.of(Cell(where, "bold"), Cell(data["speaker"], "cyan"), ": ", data["instruction"])
        )

    def _tool(self, data: Mapping[str, Any]) -> None:
        self._show(Cell(f"  tool {data['tool']} {value_text(data['arguments'])}", "dim"))

    def _round(self, data: Mapping[str, Any]) -> None:
        told = self._streamed
        self._end_text()
        blocks: list[object] = [] if told.strip() else [data["text"]]
        spent = f"  {cost_text(data['usage'])}, {data['seconds']:.1f} s; in all"
        blocks.append(Cell(f"{spent} {cost_text(data['total'])}", "dim"))
        self._terminal.show(blocks)


def cost_text(usage: Mapping[str, Any]) -> str:
    """What something took.

    >>> cost_text({"calls": 2, "input_tokens": 900, "output_tokens": 100, "cost_usd": 0.0,
    ...            "unpriced": 2})
    '2 calls, 1,000 tokens'
    """
    tokens = usage["input_tokens"] + usage["output_tokens"]
    known = "" if usage["unpriced"] == usage["calls"] else f"${usage['cost_usd']:.4f}"
    return ", ".join(filter(None, [f"{usage['calls']} calls", f"{tokens:,} tokens", known]))


def ended(result: FleetResult) -> Iterable[object]:
    """How a run ended."""
    for attempt in result.attempts:
        yield Cell(str(attempt), "yellow")
    rounds = f"{result.rounds} round{'' if result.rounds == 1 else 's'}"
    if result.status == "completed":
        yield Cell(f"completed in {rounds}: {cost_text(result.usage)}", "green")
    else:
        yield Cell(f"{result.status} after {rounds}: {cost_text(result.usage)}", "yellow")
    if result.answer:
        yield result.answer
    if result.status != "completed" and result.checkpoint_id is not None:
        yield Cell(f"resume {result.checkpoint_id[:SHORT_ID]} goes on", "dim")


def checkpoint_table(listed: Sequence[Mapping[str, Any]], *, numbered: bool = False) -> Table:
    """Checkpoints as a table."""
    columns = [Column("checkpoint"), Column("workflow", gives=True), Column("time")]
    columns += [Column("round", right=True), Column("status")]
    rows = []
    for number, one in enumerate(listed, start=1):
        status = status_cell(read_status(one["status"]))
        rows.append(
            [
                *([str(number)] if numbered else []),
                Cell(one["checkpoint_id"][:SHORT_ID], "bold"),
                one["workflow_id"],
                clock(datetime.fromisoformat(one["timestamp"])),
                one["current_round"],
                Cell(one["status"], status.style),
            ]
        )
    if numbered:
        columns.insert(0, Column("", right=True))
    return Table(columns, rows)


def checkpoint_facts(state: State, checkpoint_id: str) -> Iterable[object]:
    """What a checkpoint holds, for people."""
    usage = state["usage"]
    facts = {
        "checkpoint": checkpoint_id,
        "workflow": state.run_id,
        "time": clock(state.timestamp),
        "status": state.status,
        "task": state["task"],
        "round": f"{state['current_round']}, {state['stall_count']} stalls,"
        f" {state['reset_count']} resets",
        "cost": f"{cost_text(usage)}, {state['elapsed']:.1f} s",
        "plan": state.get("plan", ""),
        "last": state["last_response"] or "",
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        text = str(value).replace("\n", "\n" + " " * (width + 2))
        yield f"{name:<{width}}  {text}"
    for name in state["context"]["available_agents"]:
        yield f"{name}: {len(state[f'history:{name}'])} messages"


def rounds_taken(fleet: Fleet, state: State) -> Iterable[object]:
    """The way that a run took, and each of its rounds."""
    path = fleet.graph.explain_resume(state.run_id).skipped
    rounds = [*state["rounds"]]
    worked = iter(rounds)
    way = []
    for node, after in zip(path, [*path[1:], None], strict=True):
        if node != "round":
            way.append(node)
        elif after not in ("answer", "replan"):
            way.append(next(worked, {"ledger": {"speaker": "?"}})["ledger"]["speaker"])
    yield " > ".join([*way, *([] if path[-1:] == ("answer",) else ["..."])])
    if rounds:
        columns = [Column("round", right=True), Column("who"), Column("instruction", gives=True)]
        columns += [Column("cost"), Column("seconds", right=True)]
        yield Table(columns, [_round_row(one) for one in rounds])


def _round_row(one: Mapping[str, Any]) -> list[object]:
    ledger = one["ledger"]
    who = Cell(
        ledger["speaker"], "yellow" if ledger["looping"] or not ledger["progressing"] else ""
    )
    return [
        one["round"],
        who,
        ledger["instruction"],
        cost_text(one["usage"]),
        f"{one['seconds']:.1f}",
    ]


def request_table(requests: Sequence[ApprovalRequest]) -> Table:
    """What waits for someone."""
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
