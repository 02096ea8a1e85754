"""A scripted model server on loopback: it counts, charges and streams, and kills who asks it.

It speaks OpenAI's chat and responses protocols, embeddings, and Anthropic's messages. Every answer
holds a number that is never given twice, so an answer of the server cannot pass for a recorded one.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DOLLARS = 0.01
"""The price of a call."""


class ModelServer(ThreadingHTTPServer):
    """Answers model calls, and keeps what it was asked."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        """The bodies of all model calls, in their order."""
        self.headers: list[dict[str, str]] = []
        self.other: list[str] = []
        """Paths of calls that are no model's."""
        self.other_headers: list[dict[str, str]] = []
        self.at_other: Callable[[], None] | None = None
        """What to do, once, when such a call comes."""
        self.refuse_other: list[int] = []
        """Statuses to answer the next of them with."""
        self.lock = threading.Lock()
        self.refuse: list[int] = []
        """Statuses to answer the next calls with."""
        self.tools: Callable[[dict[str, Any]], Any] = lambda body: None
        """The name and arguments of the tool that an answer calls; None for text."""
        self.text: Callable[[dict[str, Any], int], str] = lambda body, n: f"answer {n} é€"
        self.kill: dict[tuple[int, str], Callable[[], None]] = {}
        """What to do at a call, by its number and ``asked``, ``midway`` or ``answered``."""
        self.delay: Callable[[], float] = float
        self.compress = False
        self.cut_bytes = 7
        """The bytes of the segments in which streams are sent."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def count(self) -> int:
        return len(self.requests)

    @property
    def charged(self) -> float:
        return self.count * DOLLARS

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A killed client is not an error."""

    def at(self, number: int, phase: str) -> None:
        act = self.kill.pop((number, phase), None)
        if act is not None:
            act()


@contextmanager
def model_server() -> Iterator[ModelServer]:
    server = ModelServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ModelServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.other.append(self.path)
        self._json({"path": self.path, "number": len(self.server.other)})

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        try:
            body = json.loads(data)
        except ValueError:
            body = {"bytes": len(data)}
        if not path.endswith(("/completions", "/responses", "/messages", "/embeddings")):
            self.server.other.append(self.path)
            self.server.other_headers.append(dict(self.headers.items()))
            act, self.server.at_other = self.server.at_other, None
            if act is not None:
                act()
            status = self.server.refuse_other.pop(0) if self.server.refuse_other else 200
            self._json({"path": self.path, "number": len(self.server.other)}, status)
            return
        with self.server.lock:
            refused = self.server.refuse.pop(0) if self.server.refuse else 0
            self.server.requests.append(body)
            self.server.headers.append(dict(self.headers.items()))
            number = len(self.server.requests)
        self.server.at(number, "asked")
        time.sleep(self.server.delay())
        if refused:
            self._json({"error": {"message": "slow down", "type": "limit"}}, refused)
            return
        make = {
            "completions": _chat,
            "responses": _responses,
            "messages": _messages,
            "embeddings": _embeddings,
        }[path.rpartition("/")[2]]
        whole, events = make(body, number, self.server)
        if body.get("stream"):
            self._events(events, number)
        else:
            self._json(whole, number=number)
        self.server.at(number, "answered")

    def _json(self, tree: Any, status: int = 200, number: int = 0) -> None:
        data = json.dumps(tree).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Set-Cookie", "session=SECRET-COOKIE")
        if self.server.compress:
            data = gzip.compress(data)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if (number, "midway") in self.server.kill:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.server.at(number, "midway")
            data = data[len(data) // 2 :]
        self.wfile.write(data)

    def _events(self, events: list[bytes], number: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        data, size = b"".join(events), self.server.cut_bytes
        pieces = [data[at : at + size * 9] for at in range(0, len(data), size * 9)]
        for at, piece in enumerate(pieces):
            if at == len(pieces) // 2:
                self.server.at(number, "midway")
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def _event(tree: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(tree, ensure_ascii=False)}\n\n".encode()


def _chat(body: dict[str, Any], n: int, server: ModelServer) -> tuple[Any, list[bytes]]:
    tool, text = server.tools(body), server.text(body, n)
    message: dict[str, Any] = {"role": "assistant", "content": None if tool else text}
    if tool:
        function = {"name": tool[0], "arguments": json.dumps(tool[1])}
        message["tool_calls"] = [{"id": f"call_{n}", "type": "function", "function": function}]
    head = {"id": f"chatcmpl-{n}", "created": 1_700_000_000 + n, "model": body.get("model", "m")}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    reason = "tool_calls" if tool else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason, "logprobs": None}
    whole = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
    head["object"] = "chat.completion.chunk"

    def part(delta: Any, ended: str | None = None) -> bytes:
        return _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": ended}]})

    events = [part({"role": "assistant", "content": ""})]
    if tool:
        events.append(part({"tool_calls": [{**message["tool_calls"][0], "index": 0}]}))
    else:
        events += [part({"content": word}) for word in text.split(" ")]
    events += [part({}, reason), _event({**head, "choices": [], "usage": usage})]
    return whole, [*events, b"data: [DONE]\n\n"]


def _responses(body: dict[str, Any], n: int, server: ModelServer) -> tuple[Any, list[bytes]]:
    tool, text = server.tools(body), server.text(body, n)
    if tool:
        item: dict[str, Any] = {
            "type": "function_call",
            "id": f"fc_{n}",
            "call_id": f"call_{n}",
            "name": tool[0],
            "arguments": json.dumps(tool[1]),
            "status": "completed",
        }
    else:
        part = {"type": "output_text", "text": text, "annotations": []}
        item = {
            "type": "message",
            "id": f"msg_{n}",
            "role": "assistant",
            "status": "completed",
            "content": [part],
        }
    whole = {
        "id": f"resp_{n}",
        "object": "response",
        "created_at": 1_700_000_000 + n,
        "status": "completed",
        "model": body.get("model", "m"),
        "output": [item],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 10,
            "output_tokens": 5,
            "total_tokens": 15,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    steps: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
    ]
    if not tool:
        steps += [
            {
                "type": "response.output_text.delta",
                "item_id": f"msg_{n}",
                "output_index": 0,
                "content_index": 0,
                "delta": word,
                "logprobs": [],
            }
            for word in text.split(" ")
        ]
    steps += [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    return whole, [
        _event({**step, "sequence_number": at}, step["type"]) for at, step in enumerate(steps)
    ]


def _messages(body: dict[str, Any], n: int, server: ModelServer) -> tuple[Any, list[bytes]]:
    tool, text = server.tools(body), server.text(body, n)
    block: dict[str, Any] = {"type": "text", "text": text}
    if tool:
        block = {"type": "tool_use", "id": f"toolu_{n}", "name": tool[0], "input": tool[1]}
    head = {
        "id": f"msg_{n}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model", "m"),
        "stop_sequence": None,
    }
    reason = "tool_use" if tool else "end_turn"
    usage = {"input_tokens": 10, "output_tokens": 5}
    whole = {**head, "content": [block], "stop_reason": reason, "usage": usage}
    begun = {**head, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    empty = {**block, "input": {}} if tool else {"type": "text", "text": ""}
    steps: list[dict[str, Any]] = [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": empty},
    ]
    if tool:
        delta = {"type": "input_json_delta", "partial_json": json.dumps(tool[1])}
        steps.append({"type": "content_block_delta", "index": 0, "delta": delta})
    else:
        steps += [
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": word},
            }
            for word in text.split(" ")
        ]
    ended = {"stop_reason": reason, "stop_sequence": None}
    steps += [
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]
    return whole, [_event(step, step["type"]) for step in steps]


def _embeddings(body: dict[str, Any], n: int, server: ModelServer) -> tuple[Any, list[bytes]]:
    data = [{"object": "embedding", "index": 0, "embedding": [n / 100, 0.5]}]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    return {"object": "list", "data": data, "model": "e", "usage": usage}, []
