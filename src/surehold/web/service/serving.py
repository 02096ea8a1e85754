"""Serves the requests about runs: binds a socket, and answers until it is stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import uvicorn

from surehold.engine.managers import CheckpointManager
from surehold.errors import UsageError
from surehold.executors import Worker
from surehold.web.server import Timely, bind, in_address, is_loopback
from surehold.web.service.application import service_app
from surehold.web.service.tokens import Tokens

_STOP_SECONDS = 2


def serve_runs(
    manager: CheckpointManager,
    code: Sequence[str],
    *,
    listen: str,
    port: int,
    tokens: str | None,
    user: str,
    worker: Worker | None,
    ready: Callable[[str, str | None], None],
) -> None:
    """Serve the runs of a storage until a signal.

    *worker* executes runs in this process. *tokens* is the file of `Tokens.read`. Without one, on
    loopback only, a token is made for *user*. *ready* is called with the address and the token that
    was made.
    """
    token = None
    if tokens is not None:
        try:
            auth = Tokens.read(Path(tokens).read_text("utf-8"))
        except OSError as error:
            raise UsageError(f"the tokens cannot be read: {error}", hint="--tokens FILE") from error
    elif is_loopback(listen):
        auth, token = Tokens.made_for(user)
    else:
        raise UsageError(
            f"{listen} can be reached from other machines, and there are no tokens",
            hint="add --tokens FILE, with a line NAME ROLE TOKEN for each caller",
        )
    with bind(listen, port) as bound:
        app = service_app(code, manager, auth=auth, worker=worker)
        config = uvicorn.Config(
            app,
            http=Timely,
            log_level="warning",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        ready(f"http://{in_address(listen)}:{bound.getsockname()[1]}", token)
        uvicorn.Server(config).run(sockets=[bound])
