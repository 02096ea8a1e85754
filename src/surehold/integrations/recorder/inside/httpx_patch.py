"""httpx and httpx2: the transport that a client chose is wrapped.

That is below redirects, authentication and the retries of SDKs, and above every transport, those of
proxies and other libraries included. The two packages have the same interface under two names.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from .messages import Asked, HttpAnswer
from .tapes import MARK, Exchange, Recorder, begin, begin_async, candidate, wanted

_PRETENDED = ("MockTransport", "ASGITransport", "WSGITransport")


def patch(library: Any) -> None:
    """Wrap the transports of *library*'s clients."""
    if MARK in vars(library.Client):
        return
    blocking, awaited = _transports(library)
    _wrap(library.Client, blocking)
    _wrap(library.AsyncClient, awaited)


def _wrap(client: Any, made: Any) -> None:
    choose = client._transport_for_url

    def _transport_for_url(self: Any, url: Any) -> Any:
        chosen = choose(self, url)
        if isinstance(chosen, made) or type(chosen).__name__ in _PRETENDED:
            return chosen
        return made(chosen)

    setattr(client, MARK, True)
    client._transport_for_url = _transport_for_url


def _asked(request: Any, body: bytes) -> Asked:
    headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in request.headers.raw]
    return Asked(request.method, str(request.url), headers, body)


def _recorder(exchange: Exchange, response: Any) -> Any:
    headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in response.headers.raw]
    reason = response.extensions.get("reason_phrase", b"").decode("latin-1")
    return exchange.record(response.status_code, reason, headers)


def _transports(library: Any) -> Any:
    class Replayed(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        """The chunks of a recorded answer."""

        def __init__(self, exchange: Exchange, answer: HttpAnswer) -> None:
            self._exchange, self._answer = exchange, answer

        def _chunks(self) -> Iterator[bytes]:
            chunks: list[bytes] = self._answer.chunks
            for number, chunk in enumerate(chunks, 1):
                if number == len(chunks):
                    self._exchange.delivered()
                yield chunk
            self._exchange.delivered()
            self._exchange.check_end()

        def __iter__(self) -> Iterator[bytes]:
            return self._chunks()

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in self._chunks():
                yield chunk

        def close(self) -> None:
            self._exchange.delivered()

        async def aclose(self) -> None:
            self._exchange.delivered()

    class Recorded(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc]
        """A body that is recorded while it is read."""

        def __init__(self, inner: Any, recorder: Recorder) -> None:
            self._inner, self._recorder = inner, recorder

        @contextmanager
        def _reading(self) -> Iterator[None]:
            try:
                yield
            except GeneratorExit:
                raise
            except BaseException:
                self._recorder.fail()
                raise
            self._recorder.end()

        def __iter__(self) -> Iterator[bytes]:
            with self._reading():
                for chunk in self._inner:
                    self._recorder.chunk(chunk)
                    yield chunk

        async def __aiter__(self) -> AsyncIterator[bytes]:
            with self._reading():
                async for chunk in self._inner:
                    self._recorder.chunk(chunk)
                    yield chunk

        def close(self) -> None:
            self._recorder.close()
            self._inner.close()

        async def aclose(self) -> None:
            self._recorder.close()
            await self._inner.aclose()

        def __del__(self) -> None:
            self._recorder.close()

    def changed(exchange: Exchange, request: Any) -> Any:
        if exchange.body is None:
            return request
        headers = [pair for pair in request.headers.raw if pair[0].lower() != b"content-length"]
        return library.Request(
            request.method,
            request.url,
            headers=headers,
            content=exchange.body,
            extensions=request.extensions,
        )

    def recorded(exchange: Exchange, response: Any) -> Any:
        recorder = _recorder(exchange, response)
        if recorder is not None:
            response.stream = Recorded(response.stream, recorder)
        return response

    def replayed(exchange: Exchange, answer: HttpAnswer, request: Any) -> Any:
        headers = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in answer.headers]
        extensions = {
            "http_version": b"HTTP/1.1",
            "reason_phrase": answer.reason.encode("latin-1"),
        }
        return library.Response(
            answer.status,
            headers=headers,
            stream=Replayed(exchange, answer),
            extensions=extensions,
            request=request,
        )

    class Inner:
        """A transport whose requests go through the tape."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

    class Transport(Inner, library.BaseTransport):  # type: ignore[misc]
        def handle_request(self, request: Any) -> Any:
            tape = wanted(request.method, str(request.url), request.read)
            if tape is None:
                return self._inner.handle_request(request)
            exchange = begin(tape, _asked(request, request.read()))
            if exchange.answer is not None:
                return replayed(exchange, exchange.answer, request)
            with exchange.asking():
                response = self._inner.handle_request(changed(exchange, request))
            return recorded(exchange, response)

    class AsyncTransport(Inner, library.AsyncBaseTransport):  # type: ignore[misc]
        async def handle_async_request(self, request: Any) -> Any:
            url = str(request.url)
            if candidate(request.method, url) is None:
                return await self._inner.handle_async_request(request)
            body = await request.aread()
            tape = wanted(request.method, url, lambda: body)
            if tape is None:
                return await self._inner.handle_async_request(request)
            exchange = await begin_async(tape, _asked(request, body))
            if exchange.answer is not None:
                return replayed(exchange, exchange.answer, request)
            with exchange.asking():
                response = await self._inner.handle_async_request(changed(exchange, request))
            return recorded(exchange, response)

    return Transport, AsyncTransport
