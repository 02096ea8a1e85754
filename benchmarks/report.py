"""What a benchmark found, and the table that shows it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

__all__ = ["Line", "show"]


@dataclass(frozen=True)
class Line:
    """One figure, the limit it is held to, and how others do on the same work."""

    what: str
    value: float
    limit: float | None = None
    """None: it is only shown."""
    at_least: bool = False
    """The limit is the least it may be, not the most."""
    unit: str = "x"
    peers: dict[str, str] = field(default_factory=dict)
    note: str = ""

    @property
    def passed(self) -> bool:
        if self.limit is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def verdict(self) -> str:
        if self.limit is None:
            return ""
        return "[green]PASS[/]" if self.passed else "[bold red]FAIL[/]"

    def limit_text(self) -> str:
        if self.limit is None:
            return ""
        return f"{'>=' if self.at_least else '<='} {self.limit:g}{self.unit}"


def show(sections: Iterable[tuple[str, float, list[Line]]], peers: list[str]) -> None:
    """Print all; a section is its name, the seconds of one fsync while it ran, and its lines."""
    table = Table(title="Holdfast, as ratios within this run", show_lines=False)
    table.add_column("figure")
    table.add_column("Holdfast", justify="right")
    table.add_column("limit", justify="right")
    table.add_column("", justify="center")
    for peer in peers:
        table.add_column(peer, justify="right")
    table.add_column("note")
    for name, fsync, lines in sections:
        table.add_section()
        head = f"[bold]{name}[/] [dim](one fsync: {fsync * 1e3:.3f} ms)[/]"
        table.add_row(head)
        for line in lines:
            table.add_row(
                f"  {line.what}",
                f"{line.value:.2f}{line.unit}",
                line.limit_text(),
                line.verdict(),
                *(line.peers.get(peer, "") for peer in peers),
                line.note,
            )
    console = Console()
    console.print(table, soft_wrap=not console.is_terminal)
