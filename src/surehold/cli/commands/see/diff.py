"""`surehold diff`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from surehold.cli import framework as ui
from surehold.cli.changes import change_lines
from surehold.core.records import Header
from surehold.errors import NotFoundError
from surehold.views.comparison import Diff, read_diff


@ui.command
def diff(
    cli: ui.Cli,
    a: Annotated[str, ui.Argument(help="A checkpoint; a run stands for its newest.")],
    b: Annotated[
        str | None, ui.Argument(help="Another; else A is compared with its parent.")
    ] = None,
    quiet: Annotated[
        bool, ui.Option("--quiet", "-q", help="Print nothing; exit 1 if they differ.")
    ] = False,
) -> int:
    """Show what turns the state of A into that of B: keys, items of lists, cost."""
    document = read_diff(cli.manager, *_both(cli, a, b))
    if quiet:
        return 1 if document.changes else 0
    cli.give(document, lambda: diff_lines(document))
    return 0


def _both(cli: ui.Cli, a: str, b: str | None) -> tuple[Header, Header]:
    if b is not None:
        return cli.finder.checkpoint(a), cli.finder.checkpoint(b)
    second = cli.finder.checkpoint(a)
    if second.parent is None:
        raise NotFoundError(
            f"{a} is the first checkpoint of its run",
            hint="give two checkpoints",
            run_id=second.run_id,
        )
    return cli.finder.checkpoint(second.parent), second


def diff_lines(document: Diff) -> Iterator[object]:
    """The difference for people."""
    for sign, info in (("---", document.a), ("+++", document.b)):
        yield ui.Line.of(
            ui.Cell(f"{sign} {info.run_id}@{info.step}", "bold"),
            ui.Cell(f"  {ui.clock(info.saved_at)}  {info.checkpoint_id}", "dim"),
        )
    yield from change_lines(document.changes)
    yield ui.Line.of(ui.Cell(_summary(document), "dim"))


def _summary(document: Diff) -> str:
    if not document.changes:
        return "the states are the same"
    differ = "differs" if len(document.keys) == 1 else "differ"
    key = "top-level key" if len(document.changes) > len(document.keys) else "key"
    parts = [f"{ui.counted(len(document.keys), key)} {differ}"]
    parts += (f"{place[1:]} +{count}" for place, count in document.appended.items())
    if document.dollars or document.tokens:
        sign = "-" if document.dollars < 0 else "+"
        parts.append(f"cost {sign}{ui.money(abs(document.dollars)) or '$0'}")
    return ", ".join(parts)
