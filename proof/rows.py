"""What was tried and seen, a row each, and the tables that show it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

__all__ = ["Row", "as_json", "merged", "passed", "show"]

Outcome = Literal["ok", "failed", "skipped"]

_WIDTH = 150
"""Columns of the table where no terminal says how many there are."""
_MARKS: dict[Outcome, str] = {
    "ok": "[green]PASS[/]",
    "failed": "[bold red]FAIL[/]",
    "skipped": "[yellow]SKIP[/]",
}


@dataclass
class Row:
    """One thing that was tried."""

    proof: str
    tried: str
    times: int = 0
    seen: str = ""
    control: bool = False
    """It was made to go wrong, to know that the proof can see that."""
    outcome: Outcome = "ok"
    worst: dict[str, float] = field(default_factory=dict)

    def text(self) -> str:
        """What was seen, in words."""
        return self.seen.format(**self.worst) if self.worst else self.seen


def merged(rows: list[Row]) -> list[Row]:
    """The rows, those of several tests that tried the same made one."""
    found: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        first = found.setdefault((row.proof, row.tried, row.outcome), row)
        if first is not row:
            first.times += row.times
            for name, value in row.worst.items():
                first.worst[name] = max(first.worst[name], value)
    return list(found.values())


def passed(rows: list[Row]) -> bool:
    """Whether nothing failed."""
    return all(row.outcome != "failed" for row in rows)


def show(promises: dict[str, str], rows: list[Row]) -> None:
    """Print one table."""
    table = Table(title="Surehold: what was tried and what was seen")
    table.add_column("tried")
    table.add_column("times", justify="right", no_wrap=True)
    table.add_column("seen")
    table.add_column("", no_wrap=True)
    for name, promise in promises.items():
        table.add_section()
        table.add_row(f"[bold]{name}[/]", "", f"[bold]{promise}[/]", "")
        for row in rows:
            if row.proof == name:
                control = "[dim]control, must go wrong:[/] " if row.control else ""
                times = f"{row.times:,}" if row.times else ""
                tried, seen = escape(row.tried), escape(row.text())
                table.add_row(f"  {control}{tried}", times, seen, _MARKS[row.outcome])
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    console.print(table)


def as_json(rows: list[Row]) -> list[dict[str, Any]]:
    """The rows as a JSON-able list."""
    return [{**asdict(row), "seen": row.text()} for row in rows]
