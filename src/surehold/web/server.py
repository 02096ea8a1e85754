"""Serves the page: binds a socket, prints a one-time link, runs until stopped."""

from __future__ import annotations

import asyncio
import getpass
import ipaddress
import os
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import uvicorn
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from surehold.core.policy import Rules
from surehold.engine.managers import CheckpointManager
from surehold.errors import UsageError
from surehold.web.application import build
from surehold.web.guard import LOOPBACK, MOST_SECONDS, UserOf
from surehold.web.sessions import Sessions

DEFAULT_PORT = 4653
"""HOLD on the keys of a telephone."""
_STOP_SECONDS = 1
_MOST_CONNECTIONS = 10_000


def serve(
    manager: CheckpointManager,
    *,
    address: str,
    listen: str = "127.0.0.1",
    port: int = DEFAULT_PORT,
    auth: str | None = None,
    hosts: Sequence[str] = (),
    read_only: bool = False,
    rules: Rules | None = None,
    graphs: Mapping[str, str] | None = None,
    ready: Callable[[str], None],
) -> None:
    """Serve the page of a storage until a signal; *ready* is called with its link.

    Beyond loopback, *auth* must be chosen: ``token``, the one-time link, or ``proxy:HEADER``, the
    header in which a proxy that signed the user in names them.
    """
    wide = not is_loopback(listen)
    if wide and auth is None:
        raise UsageError(
            f"{listen} can be reached from other machines, and no sign-in was chosen",
            hint="add --auth token, or --auth proxy:HEADER behind a proxy that signs users in",
        )
    if wide and not hosts and listen in ("0.0.0.0", "::", ""):
        raise UsageError(
            f"listening on {listen}, the page has no name to answer to",
            hint="add --host NAME, the name in the address that people use",
        )
    with bind(listen, port) as bound:
        at = bound.getsockname()[1]
        key = _key()
        allowed = _auth(auth or "token", key)
        token = f"?token={allowed.new_token()}" if isinstance(allowed, Sessions) else ""
        name = hosts[0] if hosts else in_address(listen)
        site = build(
            manager,
            auth=allowed,
            key=key,
            hosts={*hosts, *LOOPBACK, in_address(listen)},
            read_only=read_only,
            rules=rules,
            graphs=graphs,
            address=address,
        )
        config = uvicorn.Config(
            site,
            http=Timely,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=256,
            timeout_graceful_shutdown=_STOP_SECONDS,
        )
        ready(f"http://{name}:{at}/{token}")
        uvicorn.Server(config).run(sockets=[bound])


class Timely(H11Protocol):
    """Closes a connection on which no whole request has begun within `MOST_SECONDS`.

    The server would wait for the rest of the headers without end, and answer nobody once it holds
    as many such connections as it takes. A connection beyond `most_connections` is closed at once,
    so that files are left for the storage.
    """

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            transport.abort()
            return
        self._limit = self.loop.call_later(MOST_SECONDS, transport.close)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        cycle: RequestResponseCycle | None = self.cycle
        in_request = cycle is not None and not cycle.response_complete
        if in_request and self._limit is not None:
            self._limit.cancel()
            self._limit = None
        elif not in_request and self._limit is None:
            self._limit = self.loop.call_later(MOST_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        super().connection_lost(exc)


@cache
def most_connections() -> int:
    """The number of connections that are served: half of the files that may be open."""
    try:
        import resource
    except ImportError:  # not a POSIX system
        return 512
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_CONNECTIONS if files < 0 else min(_MOST_CONNECTIONS, files // 2)


def bind(listen: str, port: int) -> socket.socket:
    """A socket that listens there; a `UsageError` if it cannot."""
    try:
        family = socket.AF_INET6 if ":" in listen else socket.AF_INET
        return socket.create_server((listen, port), family=family)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {listen} port {port}: {error.strerror or error}",
            hint="--port N takes another port, --port 0 any that is free",
        ) from error


def _auth(choice: str, key: bytes) -> Sessions | UserOf:
    if choice == "token":
        return Sessions(key, getpass.getuser())
    kind, _, header = choice.partition(":")
    if kind != "proxy" or not header:
        raise UsageError(f"there is no auth {choice!r}", hint="token, or proxy:HEADER")

    def user_of(request: Request) -> str | None:
        return request.headers.get(header) or None

    return user_of


def _key() -> bytes:
    """The key that signs cookies, readable by its owner, so that they last."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    path = Path(home) / "surehold" / "page.key"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with open(made, "wb") as file:
                file.write(secrets.token_bytes(32))
        except FileExistsError:
            pass
        key = path.read_bytes()
    except OSError:
        key = b""
    return key if len(key) == 32 else secrets.token_bytes(32)


def is_loopback(listen: str) -> bool:
    """True if only this machine can reach that address."""
    try:
        return ipaddress.ip_address(listen).is_loopback
    except ValueError:
        return listen == "localhost"


def in_address(listen: str) -> str:
    """The host as it stands in an address."""
    return f"[{listen}]" if ":" in listen else listen
