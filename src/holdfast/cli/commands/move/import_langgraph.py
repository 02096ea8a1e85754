"""`holdfast import-langgraph`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import msgspec

from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    Column,
    Document,
    Line,
    Option,
    Table,
    command,
    counted,
    import_from_here,
)
from holdfast.errors import MissingExtraError, UsageError
from holdfast.storage.addresses import mask_url

_KINDS = ("sqlite", "postgres")


class ImportedThread(msgspec.Struct, kw_only=True):
    """A thread that was imported and found the same on both sides."""

    thread_id: str
    checkpoints: int
    added: int
    """The number of checkpoints that were new."""


class LangGraphImport(Document, kw_only=True, tag="import-langgraph"):
    """``import-langgraph``"""

    items: ClassVar[str] = "threads"
    row: ClassVar[str] = "thread"
    source: str
    threads: list[ImportedThread]


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
    """Import the threads of LangGraph's own checkpointers as runs of the same ids.

    The source is only read, and every thread is compared afterwards. Checkpoints that exist already
    are skipped, so it can be called again, also after an interruption.
    """
    if kind not in _KINDS:
        raise UsageError(f"there are no threads of kind {kind!r}", hint=" or ".join(_KINDS))
    rows: list[ImportedThread] = []
    for one in _imported(cli, kind, url, threads, types or [], name):
        rows.append(ImportedThread(**msgspec.structs.asdict(one)))
        cli.say(Cell(f"{one.thread_id}: {counted(one.checkpoints, 'checkpoint')}", "dim"))
    document = LangGraphImport(source=mask_url(url), threads=rows)
    cli.give(document, lambda: _text(document))


def _imported(
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
            raise UsageError(f"{entry} is not a class", hint="write module:Class")
    if kind == "sqlite":
        check_file(url)  # before a storage is created
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
    yield Line.of(
        f"{counted(len(document.threads), 'thread')}, {counted(new, 'checkpoint')} imported"
    )
