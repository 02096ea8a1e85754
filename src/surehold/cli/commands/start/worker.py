"""`surehold worker`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Annotated

from surehold.cli import framework as ui
from surehold.cli.commands.start.worker_log import WorkerLog
from surehold.cli.settings import check_exists
from surehold.engine.managers import CheckpointManager
from surehold.engine.runs import hearing
from surehold.errors import StorageError, UsageError
from surehold.executors import Worker, schedules_in, serve_metrics, served_by
from surehold.storage.shared import patiently

Concurrency = Annotated[int, ui.Option(help="Runs that it executes at the same time.", min=1)]
Lease = Annotated[float, ui.Option(help="After so long a silence others take its runs.", min=1)]
Grace = Annotated[float, ui.Option(help="How long a stop waits for steps to end.", min=0)]
Patience = Annotated[
    float, ui.Option(help="How long a start waits for a server that is away.", min=0)
]

_LETTING_GO = 2.0
"""Seconds that the process takes at most to let go of its runs when it ends."""


@ui.command
def worker(
    cli: ui.Cli,
    code: Annotated[
        list[str],
        ui.Argument(metavar="MODULE[:NAME]", help="Workflows, graphs, agents or fleets to serve."),
    ],
    queues: Annotated[
        str, ui.Option(metavar="A,B", help="The queues that it takes runs from.")
    ] = "default",
    concurrency: Concurrency = 8,
    lease: Lease = 30.0,
    grace: Grace = 30.0,
    listen: Annotated[
        str | None, ui.Option(metavar="HOST:PORT", help="Serve /healthz and /metrics there.")
    ] = None,
    until_idle: Annotated[bool, ui.Option(help="End when no run is ready or executed.")] = False,
    patience: Patience = 60.0,
) -> int:
    """Execute queued runs until it is stopped.

    Any number of workers may share a PostgreSQL database, or a Redis or Valkey server; those of
    one machine a SQLite file. A run is given only to a worker that serves its code in its
    version. SIGTERM or Ctrl-C stops it: each run ends its step, is saved, and is continued by
    another worker. A second one, or the end of --grace, leaves steps in the middle: another
    worker continues their runs at once.

    Each event is a line of JSON on stdout, and so is what libraries and your code log.
    """
    ui.import_from_here()
    names = [name.strip() for name in queues.split(",") if name.strip()]
    if not names:
        raise UsageError(f"--queues is {queues!r}", hint="name queues: --queues mail,default")
    place = place_of(listen) if listen is not None else None
    with closing(WorkerLog(cli.terminal.stdout)) as log:
        log.hear_libraries()
        made, _ = worker_on(
            cli, log, code, patience, queues=names, concurrency=concurrency, lease=lease
        )
        server = None
        if place is not None:
            host, port = place
            server = serve_metrics(
                host,
                port,
                metrics=lambda: made.metrics.text(active=made.active),
                is_healthy=lambda: made.is_healthy,
            )
            log.tell("worker.listen", {"address": f"{host}:{server.server_address[1]}"})
        with hearing(Stopping(made, grace).heard):
            made.run(until_idle=until_idle)
        if server is not None:
            server.shutdown()
    return 0


def worker_on(
    cli: ui.Cli,
    log: WorkerLog,
    code: list[str],
    patience: float,
    *,
    queues: Sequence[str] = ("default",),
    concurrency: int,
    lease: float,
    creates: bool = False,
) -> tuple[Worker, CheckpointManager]:
    """A worker for *code* with the settings of the command line, and its manager.

    With *creates* the storage need not exist, because runs are begun here.
    """
    served, schedules = served_by(code), schedules_in(code)
    if not (creates or schedules):  # schedules begin runs, too
        check_exists(cli.settings.storage)
    opened = open_patiently(cli, log, patience)
    made = Worker(
        opened.storage,
        served,
        schedules=schedules,
        log=log.tell,
        hook_manager=opened.hook_manager,
        expire=cli.settings.expiry(),
        queues=queues,
        concurrency=concurrency,
        lease_seconds=lease,
    )
    log.worker = made.id
    return made, opened


def open_patiently(cli: ui.Cli, log: WorkerLog, patience: float) -> CheckpointManager:
    """The storage; a server that is away is waited for."""

    def open_storage() -> CheckpointManager:
        try:
            return cli.open()
        except StorageError as error:
            log.tell("storage.error", {"error": str(error)})
            raise

    return patiently(open_storage, patience, longest_wait=5.0)


def place_of(text: str) -> tuple[str, int]:
    """The host and the port of HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen is {text!r}", hint="give HOST:PORT, as in 127.0.0.1:9100")
    return host.strip("[]") or "127.0.0.1", int(port)


class Stopping:
    """Turns SIGTERM and SIGINT into a stop, and ends the process if it takes too long."""

    def __init__(self, worker: Worker, grace: float) -> None:
        self._worker = worker
        self._grace = grace

    def heard(self, number: int, count: int) -> None:
        """Stop the worker; let its runs go on the second signal, and end on the third."""
        if count > 2:
            os._exit(128 + number)
        threading.Thread(target=self._end, args=(number, count), daemon=True).start()

    def _end(self, number: int, heard: int) -> None:
        if heard == 1:
            self._worker.stop(f"the worker got {signal.Signals(number).name}")
            time.sleep(self._grace)
        ending = threading.Timer(_LETTING_GO, os._exit, (128 + number,))
        ending.daemon = True
        ending.start()
        self._worker.let_go()
        os._exit(128 + number)
