"""A payment server on loopback that counts requests and idempotency keys."""

from __future__ import annotations

import json
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = ["Bank"]


class Bank:
    """Charges once for each key, and remembers every request."""

    def __init__(self) -> None:
        self.requests: dict[str, list[str]] = defaultdict(list)
        self.charges: dict[str, dict[str, str]] = {}
        bank = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                key = self.headers["Idempotency-Key"]
                run_id = self.path.rpartition("/")[2]
                bank.requests[run_id].append(key)
                bank.charges.setdefault(key, {"run_id": run_id})
                self.answer(bank.charges[key])

            def do_GET(self) -> None:
                self.answer(bank.charges.get(self.headers["Idempotency-Key"]))

            def answer(self, tree: Any) -> None:
                body = json.dumps(tree).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
