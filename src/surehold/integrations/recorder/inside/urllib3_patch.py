"""urllib3, below requests and botocore: the outermost `urlopen` is wrapped.

That is above urllib3's own retries, redirects and proxies.
"""

from __future__ import annotations

import http.client
import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .messages import Asked, HttpAnswer
from .tapes import MARK, Exchange, Recorder, begin, candidate, wanted
from .wire import BodyReader, body_of, head_of


def patch(library: Any) -> None:
    """Wrap `urlopen` of *library*'s connection pools."""
    pool = library.connectionpool.HTTPConnectionPool
    if MARK in vars(pool):
        return
    original = pool.urlopen

    def urlopen(
        self: Any, method: str, url: str, body: Any = None, headers: Any = None, **options: Any
    ) -> Any:
        address = _address(self, url)
        if candidate(method, address) is None:
            return original(self, method, url, body, headers, **options)
        content = _content(body)
        tape = wanted(method, address, lambda: content or b"") if content is not None else None
        if tape is None:
            return original(self, method, url, body, headers, **options)
        named = headers if headers is not None else self.headers
        pairs = [(_text(key), _text(value)) for key, value in (named or {}).items()]
        exchange = begin(tape, Asked(method, address, pairs, content or b""))
        if exchange.answer is not None:
            return _replayed(library, self, exchange, exchange.answer, method, url, options)
        if exchange.body is not None:
            content = exchange.body
            headers = {
                k: v for k, v in (named or {}).items() if _text(k).lower() != "content-length"
            }
        return _recorded(original, self, exchange, (method, url, content, headers), options)

    setattr(pool, MARK, True)
    pool.urlopen = urlopen


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _address(pool: Any, url: str) -> str:
    """The whole URL; through a plain proxy, it is given whole."""
    if "://" in url:
        return url
    port = f":{pool.port}" if pool.port else ""
    host = f"[{pool.host}]" if ":" in pool.host else pool.host
    return f"{pool.scheme}://{host}{port}{url}"


def _content(body: Any) -> bytes | None:
    """The bytes of a body; None if it cannot be read twice."""
    if body is None:
        return b""
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    if hasattr(body, "read"):
        data = body.read()
        return data.encode() if isinstance(data, str) else bytes(data)
    return None


def _recorded(original: Any, pool: Any, exchange: Exchange, asked: Any, options: Any) -> Any:
    preload = options.pop("preload_content", True)
    decode = options.get("decode_content", True)
    released = options.pop("release_conn", None)
    with exchange.asking():
        response = original(
            pool,
            *asked,
            preload_content=False,
            release_conn=False if released is None else released,
            **options,
        )
    headers = [(str(key), str(value)) for key, value in response.headers.items()]
    recorder = exchange.record(response.status, response.reason or "", headers)
    source: Any = getattr(response, "_fp", None)
    if recorder is not None:
        inner = getattr(source, "fp", None)
        if inner is None:  # the body was empty
            recorder.end()
        else:
            source.fp = _Tee(inner, recorder, BodyReader(headers))
    if preload:
        try:
            response._body = response.read(decode_content=decode)
        finally:
            response.release_conn()
    return response


class _Tee(io.RawIOBase):
    """The socket's file of a response, whose bytes go to the recorder too."""

    def __init__(self, inner: Any, recorder: Recorder, body: BodyReader) -> None:
        super().__init__()
        self._inner, self._recorder, self._body = inner, recorder, body
        self._sent = 0
        self._look()

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._recorder.fail()
            raise

    def _seen(self, data: bytes, wanted: bool = True) -> bytes:
        broken = False
        try:
            if data:
                self._body.feed(data)
            elif wanted:
                broken = not self._body.end()
        except ValueError:  # the server's framing is broken, which is http.client's to tell
            broken = True
        self._look()
        if broken:
            self._recorder.fail()
        return data

    def _look(self) -> None:
        for chunk in self._body.chunks[self._sent :]:
            self._recorder.chunk(chunk)
        self._sent = len(self._body.chunks)
        if self._body.done:
            self._recorder.end()

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        with self._reading():
            data: bytes = self._inner.read(-1 if size is None else size)
        return self._seen(data, size != 0)

    def read1(self, size: int = -1) -> bytes:
        with self._reading():
            data: bytes = self._inner.read1(size)
        return self._seen(data, size != 0)

    def readinto(self, buffer: Any) -> int:
        with self._reading():
            count: int = self._inner.readinto(buffer)
        self._seen(bytes(memoryview(buffer)[:count]), len(buffer) > 0)
        return count

    def readline(self, size: int | None = -1) -> bytes:
        with self._reading():
            data: bytes = self._inner.readline(-1 if size is None else size)
        return self._seen(data, size != 0)

    def peek(self, size: int = 0) -> bytes:
        data: bytes = self._inner.peek(size)
        return data

    def fileno(self) -> int:
        number: int = self._inner.fileno()
        return number

    def flush(self) -> None:
        if not self._inner.closed:
            self._inner.flush()

    def close(self) -> None:
        if not self.closed:
            self._recorder.close()
            self._inner.close()
        super().close()


class _Played(io.BytesIO):
    """The wire of a recorded answer."""

    def __init__(self, data: bytes, exchange: Exchange) -> None:
        super().__init__(data)
        self._exchange = exchange

    def makefile(self, *_: Any) -> _Played:
        return self

    def close(self) -> None:
        self._exchange.delivered()
        super().close()


def _replayed(
    library: Any,
    pool: Any,
    exchange: Exchange,
    answer: HttpAnswer,
    method: str,
    url: str,
    options: Any,
) -> Any:
    wire = head_of(answer) + b"".join(body_of(answer))
    source = http.client.HTTPResponse(_Played(wire, exchange), method=method)  # type: ignore[arg-type]
    source.begin()
    if not answer.complete:
        _end_early(source, exchange)
    response = library.response.HTTPResponse(
        body=source,
        headers=source.getheaders(),
        status=source.status,
        version=source.version,
        reason=source.reason,
        preload_content=options.get("preload_content", True),
        decode_content=options.get("decode_content", True),
        original_response=source,
        request_method=method,
        request_url=url,
        retries=options.get("retries"),
    )
    return response


def _end_early(source: Any, exchange: Exchange) -> None:
    """Raise where the program reads more than was recorded."""
    inner = source.fp
    plain = inner.readline

    def readline(*size: Any) -> bytes:
        line: bytes = plain(*size)
        if not line:
            exchange.check_end()
        return line

    inner.readline = readline
