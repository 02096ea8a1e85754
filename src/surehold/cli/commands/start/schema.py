"""`surehold schema`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any

from surehold.cli import framework as ui
from surehold.cli.listing import COMMANDS, load
from surehold.errors import NotFoundError
from surehold.storage.addresses import nearest
from surehold.views.documents import schema_of, type_of


class Schemas(ui.Document, kw_only=True, tag="schemas"):
    """``schema`` without a name"""

    names: list[str]


@ui.command
def schema(
    cli: ui.Cli,
    name: Annotated[str | None, ui.Argument(help="The type of a document; else lists all.")] = None,
) -> None:
    """Print the JSON Schema of a document that commands print with --json."""
    made = make_schemas()
    if name is None:
        cli.give(Schemas(names=[*made]), lambda: [*made])
        return
    if name not in made:
        raise NotFoundError(
            f"there is no document {name!r}",
            hint=f"{nearest(name, made)}surehold schema lists them",
            document=name,
        )
    cli.terminal.stdout.write(ui.safe_json(made[name], indent=True) + "\n")


@cache
def make_schemas() -> dict[str, dict[str, Any]]:
    """The schema of every document, by its type."""
    for name in COMMANDS:
        load(name)
    return dict(sorted((type_of(one), schema_of(one)) for one in _documents(ui.Document)))


def _documents(kind: type[ui.Document]) -> Iterator[type[ui.Document]]:
    for one in kind.__subclasses__():
        yield one
        yield from _documents(one)
