"""The requests about runs as an ASGI application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from surehold.doors.submit import QueueOptions
from surehold.engine.managers import CheckpointManager, manager_for
from surehold.engine.metrics import exposition
from surehold.engine.runs import answer, check_fits, pending, send, waiting_now
from surehold.errors import ConflictError, NotFoundError, SureholdError, UsageError
from surehold.executors import Startable, Worker, cancel, requeue, startables
from surehold.storage.base import RunInfo, RunQuery, Storage
from surehold.views.run import Accepted, Code, CodeList, read_outcome, run_of
from surehold.views.waiting import Pending
from surehold.web.api import Api, limit_of
from surehold.web.guard import MOST_BYTES, MOST_SECONDS, read_body
from surehold.web.live import STREAMED, Live, seen_before
from surehold.web.service.counting import RequestMetrics
from surehold.web.service.endpoints import (
    ENDPOINTS,
    AnswerRequest,
    CancelRequest,
    Endpoint,
    MessageRequest,
    RequeueRequest,
    StartRequest,
)
from surehold.web.service.following import Following
from surehold.web.service.openapi import describe
from surehold.web.service.tokens import Caller, CallerOf
from surehold.web.site import OpenStorage, Refusal, status_of

logger = logging.getLogger("surehold.web")

T = TypeVar("T", bound=msgspec.Struct)
_LISTED = 100


def service_app(
    code: Iterable[str],
    storage: CheckpointManager | Storage | str | None = None,
    *,
    auth: CallerOf,
    worker: Worker | None = None,
) -> Starlette:
    """Runs over HTTP, to be served or mounted in an ASGI application.

    *code* names modules, or objects as ``module:name``, whose workflows, graphs, agents and fleets
    can be started. *auth* is `Tokens`, or a function that returns the `Caller` of a request, or
    None to refuse it. Nothing is executed here: a worker does that, in this process too with
    `Worker.in_background`. ``/metrics`` and ``/healthz`` tell of that *worker* too.
    """
    manager = manager_for(storage)
    service = Service(manager, startables(code), auth, worker)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        if manager is not storage:
            manager.close()

    return Starlette(
        routes=[service.route(endpoint) for endpoint in ENDPOINTS],
        lifespan=lifespan,
        exception_handlers={HTTPException: unknown, Exception: failed},
    )


def failed(request: Request, error: Exception) -> Response:
    """Answer an error: the fact, and what helps. One of the server is logged."""
    status = status_of(error)
    if status >= 500 and isinstance(error, SureholdError):  # others are logged with a traceback
        logger.error("%s %s: %s: %s", request.method, request.url.path, type(error).__name__, error)
    return Refusal.of(error).response(status)


def unknown(request: Request, error: Exception) -> Response:
    """Answer a request that is none of the list."""
    assert isinstance(error, HTTPException)
    told = Refusal(
        error="NoSuchRequest",
        message=f"{request.method} {request.url.path}: {error.detail}",
        hint="see /openapi.json",
    ).response(error.status_code)
    told.headers.update(error.headers or {})
    return told


class Service:
    """The handlers of the requests, one for each endpoint."""

    def __init__(
        self,
        manager: CheckpointManager,
        code: dict[str, Startable],
        auth: CallerOf,
        worker: Worker | None,
    ) -> None:
        self._manager = manager
        self._code = code
        self._auth = auth
        self._api = Api(OpenStorage(manager))
        self._live = Live(manager)
        self._metrics = RequestMetrics()
        self._worker = worker
        self._document = msgspec.json.encode(describe(code))

    def route(self, endpoint: Endpoint) -> Route:
        """The route of an endpoint: its handler behind the check of the caller."""
        handle: Callable[..., Any] = getattr(self, endpoint.name)

        async def counted(request: Request) -> Response:
            began, status = time.monotonic(), 500
            try:
                made = await respond(request)
                status = made.status_code
                return made
            except SureholdError as error:
                refused = failed(request, error)
                status = refused.status_code
                return refused
            finally:
                self._metrics.answered(endpoint.name, status, time.monotonic() - began)

        async def respond(request: Request) -> Response:
            if endpoint.role is not None:
                caller = self._auth(request)
                if caller is None:
                    refused = Refusal(
                        error="NotSignedIn",
                        message="The request has no token that is known here.",
                        hint="Authorization: Bearer TOKEN",
                    ).response(401)
                    refused.headers["www-authenticate"] = "Bearer"
                    return refused
                if not caller.may(endpoint.role):
                    message = f"{caller.name} may {caller.role}, and this takes {endpoint.role}."
                    return Refusal(error="NotAllowed", message=message, hint="").response(403)
                request.scope["surehold_caller"] = caller
            if endpoint.name == "events":
                made: Response = await handle(request)
            elif endpoint.body is None:
                made = await run_in_threadpool(handle, request)
            else:
                try:
                    async with asyncio.timeout(MOST_SECONDS):
                        body = await read_body(request)
                except TimeoutError:
                    text = "The request did not arrive in time."
                    return Refusal(error="TooSlow", message=text, hint="").response(408)
                if body is None:
                    text = f"The body is larger than {MOST_BYTES:,} bytes."
                    return Refusal(error="TooLarge", message=text, hint="").response(413)
                given = _read(body, endpoint.body)
                run_id = await run_in_threadpool(handle, request, given)
                made = _json(Accepted(run_id=run_id), 202)
            made.headers.setdefault("cache-control", "no-store")
            return made

        path = endpoint.path.replace("{run}", "{run:path}").replace("{code}", "{code:path}")
        return Route(path, counted, methods=[endpoint.method], name=endpoint.name)

    # Looking

    def health(self, request: Request) -> Response:
        next(iter(self._manager.storage.runs(RunQuery(limit=1))), None)
        if self._worker is not None and not self._worker.is_healthy:
            return Response("the worker is stuck\n", 503, media_type="text/plain")
        return Response("ok\n", media_type="text/plain")

    def openapi(self, request: Request) -> Response:
        return Response(self._document, media_type="application/json")

    def metrics(self, request: Request) -> Response:
        text, worker = exposition([({}, self._metrics)]), self._worker
        if worker is not None:
            text += worker.metrics.text(active=worker.active)
        return Response(text, media_type="text/plain; version=0.0.4")

    def code(self, request: Request) -> Response:
        code = [
            Code(code=name, version=one.version, door=one.door, about=one.about)
            for name, one in self._code.items()
        ]
        return _json(CodeList(code=code))

    def runs(self, request: Request) -> Response:
        return self._api.runs(request)

    def run(self, request: Request) -> Response:
        return _json(read_outcome(self._manager, self._run(request)))

    def pending(self, request: Request) -> Response:
        limit = limit_of(request, _LISTED)
        return _json(Pending.of(pending(limit=limit, storage=self._manager)))

    def queues(self, request: Request) -> Response:
        return self._api.queues(request)

    def workers(self, request: Request) -> Response:
        return self._api.workers(request)

    async def events(self, request: Request) -> Response:
        run = await run_in_threadpool(self._run, request)
        following = Following(self._manager, run.run_id, seen_before(request))
        if await run_in_threadpool(following.is_at_end):
            return Response(status_code=204)  # a browser that gets it asks no more
        stream = following.stream(request, self._live.hub())
        return StreamingResponse(stream, media_type="text/event-stream", headers=STREAMED)

    # Acting

    def start(self, request: Request, given: StartRequest) -> str:
        one = self._chosen(request.path_params["code"])
        facts: dict[str, Any] = msgspec.structs.asdict(given)
        arguments = facts.pop("arguments")
        options = QueueOptions(**facts, idempotency_key=_key(request), by=_caller(request).name)
        named = options.run_id or options.idempotency_key
        wanted: Any = {
            name: getattr(options, name)
            for name in (*facts, "idempotency_key", "by")
            if getattr(options, name) is not None
        }
        try:
            return one.start(arguments, self._manager.storage, **wanted).run_id
        except UsageError as error:
            if named and self._is_begun(options, one):
                raise ConflictError(error.message, hint=error.hint) from error
            raise

    def _is_begun(self, options: QueueOptions, one: Startable) -> bool:
        return self._manager.storage.has_run(options.id_for(one.name))

    def answer(self, request: Request, given: AnswerRequest) -> str:
        run = self._run(request)
        outcome: dict[str, Any] = {"error": given.error, "repeat": given.repeat}
        if given.value is not msgspec.UNSET:
            outcome["value"] = given.value
            for one in waiting_now(self._manager.reader, run):
                if given.id in (one.id, one.name) and one.schema is not None:
                    check_fits(one.id, outcome["value"], one.schema)
        answer(run.run_id, given.id, **outcome, by=_caller(request).name, storage=self._manager)
        return run.run_id

    def send(self, request: Request, given: MessageRequest) -> str:
        run = self._run(request)
        by, key = _caller(request).name, _key(request)
        send(
            run.run_id, given.topic, given.value, idempotency_key=key, by=by, storage=self._manager
        )
        return run.run_id

    def cancel(self, request: Request, given: CancelRequest) -> str:
        run, by = self._run(request), _caller(request).name
        cancel(run.run_id, by=by, cleanup=given.cleanup, storage=self._manager)
        return run.run_id

    def requeue(self, request: Request, given: RequeueRequest) -> str:
        run = self._run(request)
        requeue(run.run_id, by=_caller(request).name, storage=self._manager)
        return run.run_id

    def _run(self, request: Request) -> RunInfo:
        return run_of(self._manager, request.path_params["run"])

    def _chosen(self, name: str) -> Startable:
        """The code of that name, or of that name in a module if it is the only one."""
        found = [
            one for known, one in self._code.items() if name in (known, known.partition(":")[2])
        ]
        if name in self._code:
            return self._code[name]
        if len(found) == 1:
            return found[0]
        there = ", ".join(self._code)
        raise NotFoundError(f"there is no code {name!r} to start", hint=f"there is {there}")


def _caller(request: Request) -> Caller:
    caller: Caller = request.scope["surehold_caller"]
    return caller


def _key(request: Request) -> str | None:
    return request.headers.get("idempotency-key", "").strip().strip('"') or None


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise UsageError(f"the body does not fit: {error}", hint="see /openapi.json") from error


def _json(document: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")
