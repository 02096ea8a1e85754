"""A tape in another process, reached through a local socket."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

from .messages import (
    Asked,
    Divergence,
    HttpAnswer,
    TapeClaim,
    answer_frame,
    answer_from,
    asked_frame,
    pack,
)
from .selection import Selection
from .tapes import Tape, own_state, play

Frame = tuple[dict[str, Any], list[bytes]]


def receive(stream: Any) -> Frame:
    """The next frame of a stream, or an `EOFError`."""
    import json

    length = int.from_bytes(_read(stream, 4), "big")
    facts: dict[str, Any] = json.loads(_read(stream, length))
    return facts, [_read(stream, size) for size in facts.pop("parts")]


def _read(stream: Any, size: int) -> bytes:
    data: bytes = stream.read(size) if size else b""
    if len(data) != size:
        raise EOFError
    return data


def serve_frames(connection: socket.socket, handle: Callable[..., Frame]) -> None:
    """Answer the frames of one connection until it ends."""
    with connection, connection.makefile("rb") as stream:
        while True:
            try:
                facts, parts = receive(stream)
                connection.sendall(pack(*handle(facts, parts)))
            except (EOFError, OSError):
                return


class RemoteTape(Tape):
    """Asks the process that holds the run."""

    def __init__(self, path: str, selection: Selection) -> None:
        self.selection = selection
        self._path = path
        self._free: list[tuple[socket.socket, Any]] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def _ask(self, facts: dict[str, Any], parts: list[bytes]) -> Frame:
        if self._pid != os.getpid():  # a connection is of one process
            self._free, self._lock, self._pid = [], threading.Lock(), os.getpid()
        with self._lock:
            link = self._free.pop() if self._free else None
        try:
            if link is None:
                made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                made.connect(self._path)
                link = made, made.makefile("rb")
            link[0].sendall(pack(facts, parts))
            found = receive(link[1])
        except (OSError, EOFError):
            raise Divergence(
                "the process that records this run has ended: start the command again with"
                " surehold exec"
            ) from None
        with self._lock:
            self._free.append(link)
        if "failed" in found[0]:
            raise Divergence(found[0]["failed"])
        return found

    def claim(self, asked: Asked) -> TapeClaim:
        facts, parts = asked_frame(asked)
        told, found = self._ask({"do": "claim", "keeps": own_state(), **facts}, parts)
        answer = answer_from(told["answer"], found) if told["answer"] else None
        body = found[0] if told["changed"] else None
        return TapeClaim(told["kind"], told["id"], answer, told["hold"], told["text"], body)

    def ready(self, id: int) -> bool:
        return bool(self._ask({"do": "ready", "id": id}, [])[0]["ready"])

    def commit(self, id: int, answer: HttpAnswer) -> None:
        facts, parts = answer_frame(answer)
        self._ask({"do": "commit", "id": id, "answer": facts}, parts)

    def release(self, id: int, refused: bool = False) -> None:
        self._ask({"do": "release", "id": id, "refused": refused}, [])

    def delivered(self, id: int) -> None:
        self._ask({"do": "delivered", "id": id}, [])


def play_remotely(told: str) -> None:
    """Have the requests of this process go to the one that *told* names."""
    import json

    facts = json.loads(told)
    selection = Selection(tuple(facts["record"]), tuple(facts["pass"]), facts["models"])
    play(RemoteTape(facts["socket"], selection))
