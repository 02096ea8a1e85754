"""`surehold serve`."""

from __future__ import annotations

from contextlib import ExitStack, closing
from typing import Annotated, Any

import msgspec

from surehold.cli import framework as ui
from surehold.cli.commands.start.worker import (
    Grace,
    Lease,
    Patience,
    Stopping,
    open_patiently,
    place_of,
    worker_on,
)
from surehold.cli.commands.start.worker_log import WorkerLog
from surehold.engine.runs import hearing


@ui.command
def serve(
    cli: ui.Cli,
    code: Annotated[
        list[str],
        ui.Argument(metavar="MODULE[:NAME]", help="Workflows, graphs, agents or fleets to serve."),
    ],
    listen: Annotated[
        str, ui.Option(metavar="HOST:PORT", help="Where to listen; beyond loopback with --tokens.")
    ] = "127.0.0.1:4654",
    tokens: Annotated[
        str | None, ui.Option(metavar="FILE", help="The callers: in each line NAME ROLE TOKEN.")
    ] = None,
    concurrency: Annotated[
        int, ui.Option(help="Runs that it executes at the same time; 0: workers do.", min=0)
    ] = 8,
    lease: Lease = 30.0,
    grace: Grace = 30.0,
    patience: Patience = 60.0,
    openapi: Annotated[bool, ui.Option(help="Only print the OpenAPI document.")] = False,
    typescript: Annotated[bool, ui.Option(help="Only print TypeScript types.")] = False,
) -> None:
    """Serve runs over HTTP: start, follow, answer and cancel them, from any language.

    A run's first record is stored before the request is accepted, so that no accepted run is lost.
    GET /openapi.json describes the requests. A caller with the role read sees runs, one with answer
    also answers them, one with operate may do everything. Without --tokens it prints a token that
    may do everything. It executes the runs of the queue default too, as surehold worker does; with
    --concurrency 0 other processes do.

    Each event is a line of JSON on stdout, and so is what libraries and your code log.
    """
    ui.import_from_here()
    if openapi or typescript:
        document = cli.page.openapi_of(code)
        text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
        cli.terminal.stdout.write(cli.page.types_of(document) if typescript else text)
        return
    host, port = place_of(listen)
    with closing(WorkerLog(cli.terminal.stdout)) as log, ExitStack() as stack:
        log.hear_libraries()
        made = None
        if not concurrency:
            manager = open_patiently(cli, log, patience)
        else:
            made, manager = worker_on(
                cli, log, code, patience, concurrency=concurrency, lease=lease, creates=True
            )
            stack.enter_context(hearing(Stopping(made, grace).heard))

        def ready(address: str, token: str | None) -> None:
            if made is not None:  # a server that cannot listen executes nothing
                stack.enter_context(made.in_background(grace))
            facts: dict[str, Any] = {"address": address}
            log.tell("serve.listen", facts | ({"token": token} if token is not None else {}))

        cli.page.serve_runs(
            manager,
            code,
            listen=host,
            port=port,
            tokens=tokens,
            user=cli.who,
            worker=made,
            ready=ready,
        )
