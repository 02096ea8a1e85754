"""The checks that every request passes before any handler sees it."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass
from html import escape
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surehold.web.sessions import COOKIE_DAYS, Sessions, form_token

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
MOST_BYTES = 1 << 20
MOST_FIELDS = 100
MOST_SECONDS = 20.0
_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'; object-src 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"></head>
<body><main><h1>{title}</h1><p>{text}</p></main></body></html>"""

UserOf = Callable[[Request], str | None]


class Visitor(NamedTuple):
    """The person behind a request that was let in."""

    name: str
    form_token: str


@dataclass(eq=False, repr=False)
class Guard:
    """Checks Host, sign-in, Origin, form token, size and time of a request.

    *auth* is a `Sessions`, or a function that returns the user of a request, or None.
    Only *hosts* are answered, so that another site's name cannot be pointed at this server.
    """

    inner: ASGIApp
    _: KW_ONLY
    auth: Sessions | UserOf
    key: bytes
    hosts: Collection[str]
    read_only: bool

    def __post_init__(self) -> None:
        self.hosts = {host.lower() for host in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.inner(scope, receive, send)
            return
        request = Request(scope, receive)
        answer = self._host_refused(request) or self._signed_in_now(request)
        if answer is None and not _is_asset(request):
            answer = self._admit(request)
        if answer is None and request.method == "POST":
            answer = await self._check_post(request)
        elif answer is None and request.method not in ("GET", "HEAD"):
            answer = _refuse(405, "Method not allowed", f"{request.method} is not answered here.")
        await (answer or self.inner)(scope, receive, _with_headers(send))

    def _host_refused(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        name = host.lower() if host.endswith("]") else host.lower().rpartition(":")[0] or host
        if name.lower() in self.hosts:
            return None
        text = "This page does not answer to the name in the address. Use the address that was"
        return _refuse(403, "Wrong host", f"{text} printed, or allow the name with --host.")

    def _cookie_name(self, request: Request) -> str:
        server = request.scope.get("server") or ("", 0)
        return f"surehold_{server[1]}"

    def _signed_in_now(self, request: Request) -> Response | None:
        """Exchange a one-time link's token for a cookie; drop it from the address."""
        token = request.query_params.get("token")
        if token is None or not isinstance(self.auth, Sessions) or request.method != "GET":
            return None
        cookie = self.auth.exchange(token)
        if cookie is None:
            if self._user(request) is None:
                return _refuse(403, "This link was used", _NEW_LINK)
            cookie = request.cookies[self._cookie_name(request)]
        left = [pair for pair in request.query_params.multi_items() if pair[0] != "token"]
        query = f"?{urlencode(left)}" if left else ""
        answer = RedirectResponse(f"/{request.url.path.lstrip('/')}{query}", 303)
        answer.set_cookie(
            self._cookie_name(request),
            cookie,
            max_age=COOKIE_DAYS * 86_400,
            path=request.scope.get("root_path") or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    def _user(self, request: Request) -> str | None:
        if isinstance(self.auth, Sessions):
            return self.auth.user_of(request.cookies.get(self._cookie_name(request), ""))
        return self.auth(request)

    def _admit(self, request: Request) -> Response | None:
        name = self._user(request)
        if name is None:
            return _refuse(401, "Not signed in", _NEW_LINK)
        signed = isinstance(self.auth, Sessions)
        session = request.cookies[self._cookie_name(request)] if signed else name
        request.scope["surehold"] = Visitor(name, form_token(self.key, session))
        return None

    async def _check_post(self, request: Request) -> Response | None:
        """Refuse a form that this page did not send; its fields go into the scope."""
        if self.read_only:
            text = "This page was started with --read-only: it changes nothing."
            return _refuse(403, "Read-only", text)
        if not _same_origin(request):
            text = "The request did not come from this page."
            return _refuse(403, "Wrong origin", text)
        try:
            async with asyncio.timeout(MOST_SECONDS):
                body = await read_body(request)
        except TimeoutError:
            return _refuse(408, "Too slow", "The request did not arrive in time.")
        given = None if body is None else _fields(body)
        if given is None:
            return _refuse(413, "Too large", "The most is 1 MiB in 100 fields.")
        wanted = request.scope["surehold"].form_token
        if not hmac.compare_digest(given.get("form_token", "").encode(), wanted.encode()):
            text = "The form is not of this session. Go back, reload the page, and send it again."
            return _refuse(403, "Form out of date", text)
        request.scope["surehold_form"] = given
        return None


_NEW_LINK = (
    "The link that surehold ui printed signs in once. Use the browser that opened it, choose"
    " “Link for another browser” there, or start surehold ui again for a new link."
)


def _is_asset(request: Request) -> bool:
    path: str = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return path.startswith("/static/") and request.method in ("GET", "HEAD")


def _same_origin(request: Request) -> bool:
    origin = urlsplit(request.headers.get("origin", ""))
    return bool(origin.netloc) and origin.netloc == request.headers.get("host")


async def read_body(request: Request) -> bytes | None:
    """The body; None if it is larger than allowed."""
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MOST_BYTES:
        return None
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            return None
    return body


def _fields(body: bytes) -> dict[str, str] | None:
    """The fields of a form; None if there are too many."""
    text = body.decode("utf-8", "replace")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS))
    except ValueError:
        return None


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return guarded


def _refuse(status: int, title: str, text: str) -> Response:
    return HTMLResponse(_PAGE.format(title=escape(title), text=escape(text)), status)
