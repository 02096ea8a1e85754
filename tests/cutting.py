"""A TCP proxy on loopback that cuts a connection at a chosen moment of the next exchange."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Literal, Self

__all__ = ["MOMENTS", "CuttingProxy", "Moment"]

Moment = Literal["before the request", "after the request", "before the answer"]
MOMENTS: tuple[Moment, ...] = ("before the request", "after the request", "before the answer")


class CuttingProxy:
    """Forwards connections to what *connect* opens, until it is armed.

    Once armed, the next request is lost before it is sent, or sent and its connection cut at
    once, or sent and answered with the answer lost.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._armed: Moment | None = None
        self._passing = 0
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.cuts = 0
        self.round_trips = 0
        """Requests that came after an answer, of a client with one connection."""
        self._answered = True
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def arm(self, moment: Moment, *, after: int = 0) -> None:
        """Cut the next exchange at *moment*, once *after* others have passed."""
        with self._lock:
            self._armed, self._passing = moment, after

    def cut_all(self) -> None:
        """Cut every connection there is."""
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            _close(end)

    def close(self) -> None:
        _close(self._listener)
        self.cut_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = self._connect()
            except OSError:
                _close(client)
                continue
            with self._lock:
                self._open += [client, server]
            answer_is_lost = threading.Event()
            for source, target, requests in ((client, server, True), (server, client, False)):
                threading.Thread(
                    target=self._pump,
                    args=(source, target, requests, answer_is_lost),
                    daemon=True,
                ).start()

    def _pump(
        self,
        source: socket.socket,
        target: socket.socket,
        requests: bool,
        answer_is_lost: threading.Event,
    ) -> None:
        try:
            while data := source.recv(1 << 16):
                self._count(requests)
                moment = self._take() if requests else None
                if moment == "before the request" or (not requests and answer_is_lost.is_set()):
                    break
                if moment == "before the answer":
                    answer_is_lost.set()
                target.sendall(data)
                if moment == "after the request":
                    break
        except OSError:
            return
        finally:
            _close(source)
            _close(target)

    def _count(self, requests: bool) -> None:
        with self._lock:
            self.round_trips += requests and self._answered
            self._answered = not requests

    def _take(self) -> Moment | None:
        with self._lock:
            if self._passing > 0:
                self._passing -= 1
                return None
            moment, self._armed = self._armed, None
            self.cuts += moment is not None
        return moment


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
