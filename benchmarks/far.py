"""A server as from far away: a proxy on loopback that delays every byte."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Self

__all__ = ["Far"]


class Far:
    """Forwards connections to what *connect* opens, each way half of *round_trip* later."""

    def __init__(self, connect: Callable[[], socket.socket], round_trip: float) -> None:
        self._connect = connect
        self._delay = round_trip / 2
        self._loop = asyncio.new_event_loop()
        self.port = 0

    def __enter__(self) -> Self:
        started = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = started.sockets[0].getsockname()[1]
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _serve(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        far, forth = await asyncio.open_connection(sock=self._connect())
        await asyncio.gather(self._pump(near, forth), self._pump(far, back))

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Hand on what comes, each piece after the delay, in order."""
        with suppress(OSError):
            while data := await source.read(1 << 16):
                self._loop.call_later(self._delay, target.write, data)
        await asyncio.sleep(self._delay)
        with suppress(OSError):
            target.close()
