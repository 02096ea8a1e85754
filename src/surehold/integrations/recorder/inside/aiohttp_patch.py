"""aiohttp: connections whose bytes are recorded, or come from a recording.

aiohttp's own parser makes the response from them in both cases.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from .messages import Asked, Divergence, HttpAnswer
from .tapes import MARK, Exchange, Recorder, begin_async, candidate, wanted
from .wire import WireReader, body_of, head_of


def patch(library: Any) -> None:
    """Wrap `connect` of *library*'s connectors, and what its protocols receive."""
    from aiohttp import client_proto
    from aiohttp import connector as connectors

    connector = connectors.BaseConnector
    if MARK in vars(connector):
        return
    original = connector.connect

    async def connect(self: Any, req: Any, *args: Any, **options: Any) -> Any:
        url = str(req.url)
        if candidate(req.method, url) is None:
            return await original(self, req, *args, **options)
        body = await _content(req)
        tape = wanted(req.method, url, lambda: body or b"") if body is not None else None
        if tape is None:
            return await original(self, req, *args, **options)
        headers = [(str(key), str(value)) for key, value in req.headers.items()]
        exchange = await begin_async(tape, Asked(req.method, url, headers, body or b""))
        if exchange.answer is not None:
            return _played(connectors, client_proto, self, req, exchange, exchange.answer)
        try:
            if exchange.body is not None:
                req.headers["Content-Length"] = str(len(exchange.body))
                req.body = library.payload.BytesPayload(exchange.body)
            made = await original(self, req, *args, **options)
        except BaseException:
            exchange.release()
            raise
        _WATCHED[made.protocol] = _Watched(exchange, (library.ClientError,))
        return made

    setattr(connector, MARK, True)
    connector.connect = connect
    _watch(client_proto.ResponseHandler)


_WATCHED: Any = {}
"""The protocols whose response is being recorded."""


async def _content(req: Any) -> bytes | None:
    """The bytes of a request's body; None if it cannot be read twice."""
    body = getattr(req, "body", None)
    if isinstance(body, (bytes, bytearray)):
        return bytes(body)
    if body is None or type(body).__name__ == "tuple":
        return b""
    value = getattr(body, "_value", None)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode(getattr(body, "encoding", None) or "utf-8")
    try:
        made: bytes = await body.as_bytes()
    except (AttributeError, TypeError, NotImplementedError):
        return None
    return made


class _Watched:
    """A live response: the bytes that the protocol receives for it."""

    def __init__(self, exchange: Exchange, failures: tuple[type[BaseException], ...]) -> None:
        self._exchange = exchange
        self._failures = failures
        self._reader = WireReader()
        self._recorder: Recorder | None = None
        self._sent = 0

    def feed(self, data: bytes) -> bool:
        """Take in bytes; False if nothing more is to be recorded."""
        reader = self._reader
        reader.feed(data)
        if reader.body is None:
            return True
        if self._recorder is None:
            recorder = self._exchange.record(reader.status, reader.reason, reader.headers)
            if recorder is None:
                return False
            self._recorder = recorder
        for chunk in reader.body.chunks[self._sent :]:
            self._recorder.chunk(chunk)
        self._sent = len(reader.body.chunks)
        if reader.done:
            self._recorder.end()
        return not reader.done

    def left(self) -> None:
        """The program reads no further."""
        if self._recorder is None:
            self._exchange.release()
        elif isinstance(sys.exception(), (asyncio.CancelledError, OSError, *self._failures)):
            self._recorder.fail()
        else:
            self._recorder.close()

    def lost(self) -> None:
        """The connection ended, and not because the program closed it."""
        if self._recorder is None:
            self._exchange.release()
        elif self._reader.body is not None and self._reader.body.end():
            self._recorder.end()
        else:
            self._recorder.fail()


def _watch(protocol: Any) -> None:
    receive, lose, close = protocol.data_received, protocol.connection_lost, protocol.close

    def data_received(self: Any, data: bytes) -> None:
        watched = _WATCHED.get(self)
        if watched is not None and not watched.feed(data):
            _WATCHED.pop(self, None)
        receive(self, data)

    def connection_lost(self: Any, exc: Any) -> None:
        watched = _WATCHED.pop(self, None)
        if watched is not None:
            watched.lost()
        lose(self, exc)

    def closed(self: Any) -> None:
        watched = _WATCHED.pop(self, None)
        if watched is not None:
            watched.left()
        close(self)

    protocol.data_received = data_received
    protocol.connection_lost = connection_lost
    protocol.close = closed


_LOOK = 0.02


class _Wire(asyncio.Transport):
    """Takes the request, and gives the recorded answer once all of it was written."""

    def __init__(self, protocol: Any, exchange: Exchange, answer: HttpAnswer) -> None:
        super().__init__()
        self._protocol, self._exchange, self._answer = protocol, exchange, answer
        self._loop = asyncio.get_running_loop()
        self._closing = False
        self._playing: Any = None

    def write(self, data: Any) -> None:
        if self._playing is None:
            self._playing = self._loop.create_task(self._play())

    def writelines(self, data: Any) -> None:
        self.write(data)

    async def _play(self) -> None:
        await asyncio.sleep(0)  # the request is written in parts
        await asyncio.sleep(0)
        segments = body_of(self._answer)
        self._protocol.data_received(head_of(self._answer))
        for number, segment in enumerate(segments, 1):
            await asyncio.sleep(0)
            if self._closing:
                break
            if number == len(segments):
                self._exchange.delivered()
            self._protocol.data_received(segment)
        self._exchange.delivered()
        try:
            self._exchange.check_end()
        except Divergence as error:
            await self._refuse(error)

    async def _refuse(self, error: Divergence) -> None:
        """Raise *error* where the program waits for more than was recorded."""
        body = self._protocol._payload
        while not self._closing and getattr(body, "_waiter", None) is None:
            await asyncio.sleep(_LOOK)
        if not self._closing:
            body.set_exception(error)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._exchange.delivered()
            self._loop.call_soon(self._protocol.connection_lost, None)

    abort = close

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_reading(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return 0


def _played(
    connectors: Any, client_proto: Any, connector: Any, req: Any, exchange: Any, answer: HttpAnswer
) -> Any:
    protocol = client_proto.ResponseHandler(loop=connector._loop)
    protocol.connection_made(_Wire(protocol, exchange, answer))
    protocol.force_close()  # it must not be kept for a live request
    return connectors.Connection(connector, req.connection_key, protocol, connector._loop)
