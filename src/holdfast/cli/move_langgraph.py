"""`holdfast import-langgraph`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Annotated, Any

import msgspec

from holdfast.cli.calling import Cli, DryRun, command
from holdfast.cli.move_documents import LangGraphImport
from holdfast.cli.output import Cell, Line
from holdfast.cli.parsing import Argument, Option
from holdfast.errors import UsageError
from holdfast.storage.addresses import mask_url

__all__ = ["import_langgraph"]

_MODULE = "holdfast.integrations.langgraph_import"


@command
def import_langgraph(
    cli: Cli,
    kind: Annotated[str, Argument("KIND", help="What keeps the threads: sqlite or postgres.")],
    url: Annotated[str, Argument("URL", help="Where: a file, or an address.")],
    threads: Annotated[
        list[str] | None, Option("--thread", metavar="ID", help="Only these threads; else all.")
    ] = None,
    dry_run: DryRun = False,
) -> None:
    """Take over the threads of a LangGraph checkpointer, each as a run of the same id.

    What is there already is passed over, so that it can be called again.
    """
    try:
        take: Any = import_module(_MODULE).import_threads
    except ModuleNotFoundError as error:
        if error.name != _MODULE:
            raise
        raise UsageError(
            "this build of Holdfast cannot import LangGraph's threads", hint="update holdfast"
        ) from None
    report = take(kind, url, cli.open().storage, threads=threads or None, dry_run=dry_run)
    told: dict[str, Any] = msgspec.to_builtins(report)
    document = LangGraphImport(
        source=mask_url(url),
        dry_run=dry_run,
        threads=report.threads,
        checkpoints=report.checkpoints,
        details=told,
    )

    def text() -> Iterator[object]:
        word = "would be taken over" if dry_run else "taken over"
        yield Line.of(
            Cell(f"{report.threads} threads", "bold"), f", {report.checkpoints} checkpoints {word}"
        )

    cli.give(document, text)
