"""A TCP proxy on loopback between one worker and the database, which notes when it was heard."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Link"]


class Link:
    """Forwards connections to what *connect* opens.

    While it is a hole no byte passes in either direction, and connections stay open.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._passes = threading.Event()
        self._passes.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.heard: list[float] = [time.monotonic()]
        """Monotonic times at which bytes of the database were handed to the worker."""
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut every connection there is."""
        with self._lock:
            ends, self._open = self._open, []
        for end in ends:
            _close(end)

    def hole(self, seconds: float) -> None:
        """Hold all bytes back for a time, then let them pass."""
        self._passes.clear()
        time.sleep(seconds)
        self._passes.set()

    def close(self) -> None:
        """End it, with its connections."""
        self._passes.set()
        _close(self._listener)
        self.cut()

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
            for source, target, answers in ((client, server, False), (server, client, True)):
                threading.Thread(
                    target=self._pump, args=(source, target, answers), daemon=True
                ).start()

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                self._passes.wait()
                if answers:
                    self.heard.append(time.monotonic())
                target.sendall(data)
        except OSError:
            pass
        finally:
            _close(source)
            _close(target)
            with self._lock:
                self._open = [end for end in self._open if end not in (source, target)]


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
