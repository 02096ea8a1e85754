"""`surehold ui`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from surehold.cli.framework import Cell, Cli, Line, Option, command
from surehold.cli.settings import check_exists
from surehold.views.documents import Document


class PageAddress(Document, kw_only=True, tag="ui"):
    url: str
    """The address; its token signs in one browser, once."""
    storage: str
    read_only: bool


@command
def ui(
    cli: Cli,
    port: Annotated[int, Option(help="0 takes any free one.", min=0, max=65535)] = 4653,
    read_only: Annotated[bool, Option(help="Change nothing.")] = False,
    open: Annotated[bool, Option(help="Open it in a browser.")] = False,
    listen: Annotated[
        str, Option(metavar="ADDRESS", help="Where to listen; beyond loopback needs --auth.")
    ] = "127.0.0.1",
    auth: Annotated[
        str | None,
        Option(metavar="HOW", help="token, or proxy:HEADER behind a proxy that signs users in."),
    ] = None,
    host: Annotated[
        list[str] | None, Option(metavar="NAME", help="A further name that the page answers to.")
    ] = None,
) -> None:
    """Serve the page: runs, steps, questions, storage, in a browser.

    It listens on this machine only and prints a link that signs in one browser. It works offline
    and loads nothing from elsewhere. Ctrl-C stops it.
    """
    if read_only or cli.settings.storage.origin == "--storage":
        check_exists(cli.settings.storage)

    def ready(url: str) -> None:
        document = PageAddress(url=url, storage=cli.address, read_only=read_only)
        cli.give(document, lambda: _text(document))
        cli.terminal.stdout.flush()
        if open:
            import webbrowser

            webbrowser.open(url)

    cli.page.serve(
        cli.open(),
        address=cli.settings.storage.value,
        listen=listen,
        port=port,
        auth=auth,
        hosts=host or (),
        read_only=read_only,
        rules=cli.settings.rules(),
        graphs=cli.settings.graphs.value,
        ready=ready,
    )


def _text(document: PageAddress) -> Iterator[object]:
    yield Line.of(Cell("Surehold", "bold"), f" shows {document.storage} at")
    yield Line.of("  ", Cell(document.url, "bold"))
    yield Cell("The link signs in one browser. Ctrl-C stops the page.", "dim")
