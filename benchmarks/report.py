"""The figures of a benchmark, and the table that shows them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.table import Table

__all__ = ["Line", "Section", "best_of", "show"]

_WIDTH = 150
"""Columns of the table when the output is not a terminal."""


@dataclass(frozen=True)
class Line:
    """One figure, its limit, and the figures of other libraries on the same work."""

    what: str
    value: float | None
    """None if it could not be measured here; the note says why."""
    limit: float | None = None
    """None if the figure is only shown."""
    at_least: bool = False
    """True if the limit is a minimum."""
    unit: str = "x"
    peers: dict[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def passed(self) -> bool:
        if self.limit is None:
            return True
        if self.value is None:
            return False
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def cells(self) -> tuple[str, str, str]:
        """The figure, its limit and the verdict."""
        figure = "" if self.value is None else f"{self.value:.2f}{self.unit}"
        if self.limit is None:
            return figure, "", ""
        bound = f"{'>=' if self.at_least else '<='} {self.limit:g}{self.unit}"
        return figure, bound, "[green]PASS[/]" if self.passed else "[bold red]FAIL[/]"


@dataclass(frozen=True)
class Section:
    """The results of one benchmark."""

    name: str
    fsync: float
    """Seconds that one fsync took while it ran."""
    seconds: float
    lines: list[Line]


def best_of(tries: list[list[Line]]) -> list[Line]:
    """The best of several tries of the same lines; one that took several says so in its note."""
    found = []
    for same in zip(*tries, strict=True):
        measured = [line for line in same if line.value is not None]
        pick = max if same[0].at_least else min
        best = pick(measured, key=lambda line: line.value or 0) if measured else same[0]
        if len(tries) > 1:
            note = f"best of {len(tries)}"
            best = replace(best, note=f"{best.note}; {note}" if best.note else note)
        found.append(best)
    return found


def show(sections: list[Section], peers: list[str], caption: str) -> None:
    """Print all results."""
    table = Table(title="Surehold: ratios within this run", caption=caption)
    table.add_column("figure")
    table.add_column("Surehold", justify="right")
    table.add_column("limit", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for peer in peers:
        table.add_column(peer, justify="right", no_wrap=True)
    table.add_column("note")
    for section in sections:
        table.add_section()
        took = f"one fsync {section.fsync * 1e3:.3f} ms; took {section.seconds:.0f} s"
        table.add_row(f"[bold]{section.name}[/] [dim]({took})[/]")
        for line in section.lines:
            others = (line.peers.get(peer, "") for peer in peers)
            table.add_row(f"  {line.what}", *line.cells(), *others, line.note)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDTH)
    console.print(table)
