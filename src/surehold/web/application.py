"""The page as an ASGI application."""

from __future__ import annotations

import getpass
import secrets
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from surehold.core.policy import Rules
from surehold.engine.managers import CheckpointManager, manager_for
from surehold.errors import NotFoundError, SureholdError, UsageError
from surehold.storage.addresses import mask_url
from surehold.storage.base import Storage
from surehold.web.actions import Actions
from surehold.web.api import DOCUMENTS, Api
from surehold.web.guard import LOOPBACK, Guard, UserOf
from surehold.web.live import Live
from surehold.web.pages import Pages
from surehold.web.rendering import Assets, Renderer
from surehold.web.sessions import Sessions
from surehold.web.site import Site

_SHORTEST_TOKEN = 16


def app(
    storage: CheckpointManager | Storage | str | None = None,
    *,
    auth: str | UserOf,
    hosts: Collection[str] = LOOPBACK,
    read_only: bool = False,
) -> ASGIApp:
    """The page of a storage, to be mounted in an ASGI application.

    *auth* is a secret of at least 16 characters, which signs in once as ``?token=`` in the address,
    or a function that returns the user of a request, or None to refuse it. Requests to other
    *hosts* are refused. With *read_only* nothing can be changed.
    """
    key = secrets.token_bytes(32)
    allowed: Sessions | UserOf
    if isinstance(auth, str):
        if len(auth) < _SHORTEST_TOKEN:
            raise UsageError(
                f"the token has {len(auth)} characters", hint=f"at least {_SHORTEST_TOKEN}"
            )
        allowed = Sessions(key, getpass.getuser())
        allowed.admit(auth)
    elif callable(auth):
        allowed = auth
    else:
        raise UsageError("auth is neither a token nor a function", hint="see surehold.web.app")
    return build(storage, auth=allowed, key=key, hosts=hosts, read_only=read_only)


def build(
    storage: CheckpointManager | Storage | str | None,
    *,
    auth: Sessions | UserOf,
    key: bytes,
    hosts: Collection[str],
    read_only: bool,
    rules: Rules | None = None,
    graphs: Mapping[str, str] | None = None,
    address: str = "",
) -> ASGIApp:
    """The application; with *address*, runs can be resumed by a process of their own."""
    manager = manager_for(storage)
    assets = Assets()
    shown = mask_url(address or (storage if isinstance(storage, str) else ""))
    facts = {"storage": shown, "read_only": read_only, "has_links": isinstance(auth, Sessions)}
    site = Site(
        manager,
        Renderer(assets, facts),
        read_only=read_only,
        rules=rules or Rules(),
        graphs=graphs or {},
        address=address,
    )
    pages, api, live = Pages(site), Api(site), Live(manager)
    actions = Actions(site, address=address, links=auth if isinstance(auth, Sessions) else None)
    routes = [
        Route("/", pages.runs),
        Route("/run", pages.run),
        Route("/compare", pages.compare),
        Route("/forks", pages.forks),
        Route("/costs", pages.costs),
        Route("/waiting", pages.waiting),
        Route("/queues", pages.queues),
        Route("/storage", pages.storage),
        Route("/health", pages.health),
        Route("/event", pages.event),
        Route("/export", actions.export),
        Route("/act/{action}", actions.ask, methods=["GET"]),
        Route("/act/{action}", actions.perform, methods=["POST"]),
        *(Route(f"/api/{name}", getattr(api, name)) for name in DOCUMENTS),
        Route("/api/schema", api.schema),
        Route("/api/events", live.run),
        Route("/api/changes", live.storage),
        Route("/static/{version}/{name}", assets.respond),
    ]

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        if manager is not storage:
            manager.close()

    def not_found(request: Request, error: Exception) -> Response:
        missing = NotFoundError("There is no such page.", hint="check the address")
        return site.failed(request, missing)

    handlers: dict[Any, Any] = {SureholdError: site.failed, 404: not_found, Exception: site.failed}
    inner = Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers)
    return Guard(inner, auth=auth, key=key, hosts=hosts, read_only=read_only)
