"""`surehold policy`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from surehold.cli import framework as ui
from surehold.errors import UsageError
from surehold.views.forgetting import spelled


class Policy(ui.Document, kw_only=True, tag="policy"):
    origin: str
    rules: dict[str, Any]
    keeps_all: bool


@ui.command
def policy(
    cli: ui.Cli,
    action: Annotated[str, ui.Argument(metavar="show", help="Only this: show the rules.")] = "show",
) -> None:
    """Show the rules that `surehold forget` applies when it is given none."""
    if action != "show":
        raise UsageError(f"there is no policy {action!r}", hint="surehold policy show")
    rules, origin = cli.settings.rules(), cli.settings.retention.origin
    document = Policy(origin=origin, rules=spelled(rules), keeps_all=rules.empty)

    def text() -> Iterator[object]:
        if rules.empty:
            yield "everything is kept"
        for name, value in document.rules.items():
            shown = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            yield ui.Line.of(ui.Cell(f"{name:<14}", "blue"), shown)
        yield ui.Line.of(ui.Cell(f"from {document.origin}", "dim"))

    cli.give(document, text)
