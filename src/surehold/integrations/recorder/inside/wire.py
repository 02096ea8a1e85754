"""HTTP/1.1 responses as they are on the wire: read into chunks, and written again."""

from __future__ import annotations

from .messages import Headers, HttpAnswer


class BodyReader:
    """The body of a response, fed with bytes of the wire, chunk by chunk."""

    def __init__(self, headers: Headers) -> None:
        named = {key.lower(): value.strip().lower() for key, value in headers}
        self.is_chunked = "chunked" in named.get("transfer-encoding", "")
        length = named.get("content-length", "")
        self._left: int | None = int(length) if length.isdigit() and not self.is_chunked else None
        self.chunks: list[bytes] = []
        self.done = self._left == 0
        self._rest = b""
        self._trailer = False

    def feed(self, data: bytes) -> None:
        """Take in bytes of the wire."""
        if self.done or not data:
            return
        if not self.is_chunked:
            self.chunks.append(data)
            if self._left is not None:
                self._left -= len(data)
                self.done = self._left <= 0
            return
        self._rest += data
        while self._rest and self._take() and not self.done:
            pass

    def _take(self) -> bool:
        line, found, rest = self._rest.partition(b"\r\n")
        if not found:
            return False
        if self._trailer:
            self.done, self._rest = not line, rest
            return True
        size = int(line.partition(b";")[0], 16)
        if not size:
            self._trailer, self._rest = True, rest
            return True
        if len(rest) < size + 2:
            return False
        self.chunks.append(rest[:size])
        self._rest = rest[size + 2 :]
        return True

    def end(self) -> bool:
        """The connection ended; True if the body is whole."""
        if not self.is_chunked and self._left is None:
            self.done = True
        return self.done


class WireReader:
    """A whole response, fed with the bytes of the wire."""

    def __init__(self) -> None:
        self.status = 0
        self.reason = ""
        self.headers: Headers = []
        self.body: BodyReader | None = None
        self._head = b""

    @property
    def done(self) -> bool:
        """True if the response is whole."""
        return self.body is not None and self.body.done

    def feed(self, data: bytes) -> None:
        """Take in bytes of the wire."""
        if self.body is not None:
            self.body.feed(data)
            return
        self._head += data
        head, found, rest = self._head.partition(b"\r\n\r\n")
        if not found:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        _, _, told = first.partition(" ")
        status, _, self.reason = told.partition(" ")
        self._head = b""
        if status.startswith("1") and status != "101":  # the response follows
            self.feed(rest)
            return
        self.status = int(status)
        pairs = (line.partition(":") for line in lines)
        self.headers = [(key.strip(), value.strip()) for key, _, value in pairs]
        self.body = BodyReader(self.headers)
        if self.status in (204, 304):
            self.body.done = True
        self.body.feed(rest)


def head_of(answer: HttpAnswer) -> bytes:
    """The status line and the headers, as they are on the wire."""
    lines = [f"HTTP/1.1 {answer.status} {answer.reason}"]
    framed = False
    for key, told in answer.headers:
        name, value = key.lower(), told
        if name == "transfer-encoding":
            framed = True
        elif name == "content-length":
            framed, value = True, str(sum(map(len, answer.chunks)))
        elif name in ("connection", "keep-alive"):
            continue
        lines.append(f"{key}: {value}")
    if not framed:
        lines.append("Transfer-Encoding: chunked")
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def body_of(answer: HttpAnswer) -> list[bytes]:
    """The body as it is on the wire, a segment for each chunk; the last ends it."""
    names = {key.lower(): value.lower() for key, value in answer.headers}
    if "content-length" in names and "chunked" not in names.get("transfer-encoding", ""):
        return answer.chunks
    framed = [b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in answer.chunks if chunk]
    if answer.complete:  # with the last chunk: aiohttp shows an end that comes alone
        framed[-1:] = [b"".join(framed[-1:]) + b"0\r\n\r\n"]
    return framed
