"""A proxy on loopback that refuses some requests as Cosmos DB does when throughput is used up."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

__all__ = ["Throttling"]


class Throttling:
    """Forwards HTTP requests to *port*, and answers every third POST with 429 and a delay."""

    def __init__(self, port: int) -> None:
        self.port_behind = port
        self.refused = 0
        self.writes = 0
        self.lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            throttling = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def is_due(self) -> bool:
        with self.lock:
            self.writes += 1
            self.refused += self.writes % 3 == 0
            return self.writes % 3 == 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    throttling: Throttling
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _forward(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.command == "POST" and self.throttling.is_due():
            self._answer(429, {"x-ms-retry-after-ms": "20"}, b'{"code":"429","message":"slow"}')
            return
        behind = http.client.HTTPConnection("127.0.0.1", self.throttling.port_behind, timeout=60)
        try:
            behind.request(self.command, self.path, data or None, dict(self.headers))
            answer = behind.getresponse()
            body = answer.read()
            headers = {k: v for k, v in answer.getheaders() if k.lower() not in _HOP}
            self._answer(answer.status, headers, body)
        finally:
            behind.close()

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _forward


_HOP = ("content-length", "transfer-encoding", "connection", "keep-alive")
