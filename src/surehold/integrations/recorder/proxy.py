"""A loopback proxy in the place of providers, for programs that are not Python.

They are pointed to it by the environment variables in which SDKs look for the address of a
provider. What it records is the same as elsewhere.
"""

from __future__ import annotations

import http.client
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from surehold.integrations.recorder.inside import Asked, Divergence, Exchange, begin
from surehold.integrations.recorder.recording import Recording

logger = logging.getLogger("surehold.recorder")

PROVIDERS = {
    "openai": ("https://api.openai.com/v1", ("OPENAI_BASE_URL", "OPENAI_API_BASE")),
    "anthropic": ("https://api.anthropic.com", ("ANTHROPIC_BASE_URL",)),
    "google": ("https://generativelanguage.googleapis.com", ("GOOGLE_GEMINI_BASE_URL",)),
    "groq": ("https://api.groq.com", ("GROQ_BASE_URL",)),
    "mistral": ("https://api.mistral.ai", ("MISTRAL_SERVER_URL",)),
}
"""The usual address of each provider, and the variables that name another one."""

_HOP = frozenset(
    [
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding"),
        *("upgrade", "host", "content-length"),
    ]
)
_TIMEOUT = 900


class Proxy(ThreadingHTTPServer):
    """Forwards to the providers, through a recording."""

    daemon_threads = True

    def __init__(self, environ: Mapping[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.recording: Recording | None = None
        self.seen = 0
        """Requests that came."""
        self.upstream = {
            name: next((environ[one] for one in names if environ.get(one)), usual).rstrip("/")
            for name, (usual, names) in PROVIDERS.items()
        }
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The address that it listens at."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def variables(self) -> dict[str, str]:
        """The environment that points SDKs here."""
        return {
            variable: f"{self.url}/{name}"
            for name, (_, variables) in PROVIDERS.items()
            for variable in variables
        }

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A program that is killed breaks its connections."""
        logger.debug("a connection to the proxy broke", exc_info=True)

    def close(self) -> None:
        """Stop listening."""
        self.shutdown()
        self.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def log_message(self, *_: Any) -> None:
        """Nothing is printed beside the program's own output."""

    def _pass(self) -> None:
        server = self.server
        server.seen += 1
        name, _, rest = self.path.lstrip("/").partition("/")
        upstream = server.upstream.get(name)
        if upstream is None or server.recording is None:
            self._refuse(404, f"surehold's proxy knows no provider {name!r}")
            return
        url = f"{upstream}/{rest}"
        body = self._body()
        headers = [(k, v) for k, v in self.headers.items() if k.lower() not in _HOP]
        recording = server.recording
        if not recording.selection.wants(self.command, url, lambda: body):
            self._live(url, headers, body, None)
            return
        try:
            exchange = begin(recording, Asked(self.command, url, headers, body))
        except Divergence as error:
            self._refuse(400, str(error))
            return
        if exchange.answer is not None:
            self._replay(exchange)
        else:
            self._live(url, headers, body if exchange.body is None else exchange.body, exchange)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = _pass

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _refuse(self, status: int, text: str) -> None:
        told = {"type": "error", "error": {"type": "surehold", "message": text}}
        data = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("x-should-retry", "false")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _replay(self, exchange: Exchange) -> None:
        answer = exchange.answer
        assert answer is not None
        try:
            self._head(answer.status, answer.reason, answer.headers)
            for number, chunk in enumerate(answer.chunks, 1):
                if number == len(answer.chunks):
                    exchange.delivered()
                self._chunk(chunk)
            if answer.complete:
                self._end()
            else:
                self.close_connection = True
        finally:
            exchange.delivered()

    def _live(
        self, url: str, headers: list[tuple[str, str]], body: bytes, exchange: Exchange | None
    ) -> None:
        parts = urlsplit(url)
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        link = kind(parts.netloc, timeout=_TIMEOUT)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        try:
            link.request(self.command, target, body or None, dict(headers))
            response = link.getresponse()
        except (OSError, http.client.HTTPException) as error:
            link.close()
            if exchange is not None:
                exchange.release()
            self._refuse(502, f"surehold's proxy cannot reach {parts.netloc}: {error}")
            return
        try:
            self._forward(response, exchange)
        finally:
            link.close()

    def _forward(self, response: http.client.HTTPResponse, exchange: Exchange | None) -> None:
        headers = [(k, v) for k, v in response.getheaders() if k.lower() not in _HOP]
        recorder = None
        if exchange is not None:
            recorder = exchange.record(response.status, response.reason, headers)
        try:
            self._head(response.status, response.reason, headers)
            for chunk in _chunks(response):
                if recorder is not None:
                    recorder.chunk(chunk)
                self._chunk(chunk)
        except BaseException:
            if recorder is not None:
                recorder.fail()
            raise
        if recorder is not None:
            recorder.end()
        self._end()

    def _head(self, status: int, reason: str, headers: list[tuple[str, str]]) -> None:
        self.send_response_only(status, reason)
        for key, value in headers:
            if key.lower() not in _HOP:
                self.send_header(key, value)
        if self.command == "HEAD" or status in (204, 304):
            self._empty = True
            self.send_header("Content-Length", "0")
        else:
            self._empty = False
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, chunk: bytes) -> None:
        if chunk and not self._empty:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
            self.wfile.flush()

    def _end(self) -> None:
        if not self._empty:
            self.wfile.write(b"0\r\n\r\n")
            with suppress(OSError):
                self.wfile.flush()


def _chunks(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while chunk := response.read1(1 << 16):
        yield chunk
