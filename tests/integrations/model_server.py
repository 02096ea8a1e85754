"""A model server on loopback that speaks OpenAI's chat protocol, and kills who asks it.

It answers by a script, streamed or not, and keeps a list of all calls: those of the model, and
those of tools, which call it too. Before it answers call number `fatal`, it kills the caller.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[[list[dict[str, Any]]], dict[str, Any]]
"""The next message of the model, by the messages before it."""
USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}


class ModelServer(ThreadingHTTPServer):
    """Serves until it is closed."""

    daemon_threads = True

    def __init__(self, script: Script) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.script = script
        self.calls: list[str] = []
        self.fatal: int | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()

    def called(self, what: str, caller: int) -> bool:
        """Note a call; False if it was fatal for its caller."""
        with self._lock:
            self.calls.append(what)
            if len(self.calls) != self.fatal:
                return True
            os.kill(caller, signal.SIGKILL)
            return False


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        caller = int(self.headers["X-Caller"])
        if self.path == "/tool":
            if self.server.called(asked["call"], caller):
                self._send("application/json", json.dumps(f"done {asked['call']}"))
            return
        message = self.server.script(asked["messages"])
        if not self.server.called(message.pop("name"), caller):
            return
        if asked.get("stream"):
            events = [*_chunks(message), "[DONE]"]
            self._send("text/event-stream", "".join(f"data: {one}\n\n" for one in events))
        else:
            reason = "tool_calls" if "tool_calls" in message else "stop"
            choice = {"index": 0, "message": message, "finish_reason": reason}
            whole = _envelope("chat.completion") | {"choices": [choice], "usage": USAGE}
            self._send("application/json", json.dumps(whole))

    def _send(self, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _envelope(kind: str) -> dict[str, Any]:
    return {"id": "reply", "object": kind, "created": 1, "model": "scripted"}


def _chunks(message: dict[str, Any]) -> list[str]:
    calls = [{"index": at, **call} for at, call in enumerate(message.get("tool_calls", []))]
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": letter} for letter in message.get("content") or ""]
    deltas += [{"tool_calls": [call]} for call in calls]
    made = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
    reason = "tool_calls" if calls else "stop"
    made.append([{"index": 0, "delta": {}, "finish_reason": reason}])
    chunks = [_envelope("chat.completion.chunk") | {"choices": one} for one in made]
    chunks.append(_envelope("chat.completion.chunk") | {"choices": [], "usage": USAGE})
    return [json.dumps(one) for one in chunks]
