"""`holdfast import-langgraph`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from holdfast.cli.commands.move.documents import LangGraphImport, ThreadRow
from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    Column,
    Line,
    Option,
    Table,
    command,
    import_from_here,
)
from holdfast.errors import MissingExtraError, UsageError
from holdfast.storage.addresses import mask_url

__all__ = ["import_langgraph"]

_KINDS = ("sqlite", "postgres")


@command
def import_langgraph(
    cli: Cli,
    kind: Annotated[str, Argument("KIND", help="What keeps the threads: sqlite or postgres.")],
    url: Annotated[str, Argument("SOURCE", help="The SQLite file, or the database's address.")],
    threads: Annotated[
        list[str] | None, Option("--thread", metavar="ID", help="Only this one; may be repeated.")
    ] = None,
    types: Annotated[
        list[str] | None,
        Option("--type", metavar="MODULE:CLASS", help="A class of yours that the states hold."),
    ] = None,
    name: Annotated[str, Option(help="The name of the runs.")] = "langgraph",
) -> None:
    """Take over the threads of LangGraph's own checkpointers, each as a run of the same id.

    The source is only read, and every thread is compared afterwards. What is there already is
    passed over, so that it can be called again, also after it was interrupted.
    """
    if kind not in _KINDS:
        raise UsageError(f"there are no threads of kind {kind!r}", hint=" or ".join(_KINDS))
    rows: list[ThreadRow] = []
    for told in _taken(cli, kind, url, threads, types or [], name):
        rows.append(ThreadRow(**msgspec.structs.asdict(told)))
        cli.say(Cell(f"{told.thread_id}: {told.checkpoints} checkpoints", "dim"))
    document = LangGraphImport(source=mask_url(url), threads=rows)
    cli.give(document, lambda: _text(document))


def _taken(
    cli: Cli, kind: str, url: str, threads: list[str] | None, types: list[str], name: str
) -> Iterator[Any]:
    from holdfast.runtime.resume import load_object

    try:
        from holdfast.integrations.langgraph import HoldfastSaver, check_file, import_threads
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            "LangGraph is not installed", hint="pip install 'holdfast[langgraph]'"
        ) from error
    import_from_here()
    classes = [load_object(entry) for entry in types]
    for entry, cls in zip(types, classes, strict=True):
        if not isinstance(cls, type):
            raise UsageError(f"{entry} is no class", hint="write module:Class")
    if kind == "sqlite":
        check_file(url)  # before a storage is made for what it holds
    with HoldfastSaver(cli.open(), name=name, types=classes) as saver:
        yield from import_threads(kind, url, saver, threads=threads, types=classes)  # type: ignore[arg-type]


def _text(document: LangGraphImport) -> Iterator[object]:
    if document.threads:
        columns = (
            Column("thread", gives=True),
            Column("checkpoints", right=True),
            Column("new", right=True),
        )
        rows = [
            [Cell(one.thread_id, "bold"), one.checkpoints, one.added] for one in document.threads
        ]
        yield Table(columns, rows)
    new = sum(one.added for one in document.threads)
    yield Line.of(f"{len(document.threads)} threads, {new} checkpoints taken over")
