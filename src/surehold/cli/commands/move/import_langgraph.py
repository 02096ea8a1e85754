"""`surehold import-langgraph`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from surehold.cli import framework as ui
from surehold.doors.resume import load_object
from surehold.errors import UsageError
from surehold.lazy import extra
from surehold.storage.addresses import mask_url

_KINDS = ("sqlite", "postgres")


class ImportedThread(msgspec.Struct, kw_only=True):
    """A thread that was imported and found the same on both sides."""

    thread_id: str
    checkpoints: int
    added: int
    """The number of checkpoints that were new."""


class LangGraphImport(ui.Document, kw_only=True, tag="import-langgraph"):
    source: str
    threads: Annotated[list[ImportedThread], ui.Rows("thread")]


@ui.command
def import_langgraph(
    cli: ui.Cli,
    kind: Annotated[str, ui.Argument("KIND", help="What keeps the threads: sqlite or postgres.")],
    url: Annotated[str, ui.Argument("SOURCE", help="The SQLite file, or the database's address.")],
    threads: Annotated[
        list[str] | None,
        ui.Option("--thread", metavar="ID", help="Only this one; may be repeated."),
    ] = None,
    types: Annotated[
        list[str] | None,
        ui.Option("--type", metavar="MODULE:CLASS", help="A class of yours that the states hold."),
    ] = None,
    name: Annotated[str, ui.Option(help="The name of the runs.")] = "langgraph",
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
        cli.say(ui.Cell(f"{one.thread_id}: {ui.counted(one.checkpoints, 'checkpoint')}", "dim"))
    document = LangGraphImport(source=mask_url(url), threads=rows)
    cli.give(document, lambda: _text(document))


def _imported(
    cli: ui.Cli, kind: str, url: str, threads: list[str] | None, types: list[str], name: str
) -> Iterator[Any]:
    with extra("langgraph", "LangGraph is not installed"):
        from surehold.integrations.langgraph import SureholdSaver, check_file, import_threads
    ui.import_from_here()
    classes = [load_object(entry) for entry in types]
    for entry, cls in zip(types, classes, strict=True):
        if not isinstance(cls, type):
            raise UsageError(f"{entry} is not a class", hint="write module:Class")
    if kind == "sqlite":
        check_file(url)  # before a storage is created
    with SureholdSaver(cli.open(), name=name, types=classes) as saver:
        yield from import_threads(kind, url, saver, threads=threads, types=classes)  # type: ignore[arg-type]


def _text(document: LangGraphImport) -> Iterator[object]:
    yield ui.Table.of(
        document.threads,
        ui.Column("thread", lambda one: ui.Cell(one.thread_id, "bold"), gives=True),
        ui.Column("checkpoints", right=True),
        ui.Column("new", lambda one: one.added, right=True),
    )
    new = sum(one.added for one in document.threads)
    yield ui.Line.of(
        f"{ui.counted(len(document.threads), 'thread')}, {ui.counted(new, 'checkpoint')} imported"
    )
