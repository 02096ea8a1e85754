"""A FAKE object store on loopback: the few requests that we send, kept in memory.

It stands in for what cannot run on a developer's machine: Google Cloud Storage, and stores that
ignore the conditions of writes. It tests our side of the protocol and nothing of the real service.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Collection
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

__all__ = ["FakeObjects"]

_PAGE = 1000


class FakeObjects:
    """A server of one bucket; it *ignores* the conditions named, and answers as if they held."""

    def __init__(self, ignores: Collection[str] = (), *, port: int = 0) -> None:
        self.ignores = ignores
        self.objects: dict[str, tuple[bytes, int, datetime]] = {}
        self.requests: list[str] = []
        """The methods of all requests, in order."""
        self.lock = threading.Lock()
        self._generation = 0
        store = self

        class Handler(_Handler):
            fake = store

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def put(self, key: str, data: bytes, wanted: str | None) -> int:
        """Store an object and return its generation; 0 if it is not the one that is *wanted*."""
        with self.lock:
            there = str(self.objects[key][1]) if key in self.objects else "0"
            if wanted is not None and wanted != there:
                return 0
            self._generation += 1
            self.objects[key] = (data, self._generation, datetime.now(UTC))
            return self._generation

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    fake: FakeObjects
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        pass

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]

    def _answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        self.fake.requests.append(self.command)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.wfile.flush()

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if source := self.headers.get("x-amz-copy-source"):
            key = unquote(source).lstrip("/").partition("/")[2]
            self.fake.put(self._key(), self.fake.objects[key][0], None)
            self._answer(200, b"<CopyObjectResult><ETag>0</ETag></CopyObjectResult>")
            return
        wanted = None
        if self.headers.get("If-None-Match") == "*" and "If-None-Match" not in self.fake.ignores:
            wanted = "0"
        elif (tag := self.headers.get("If-Match")) and "If-Match" not in self.fake.ignores:
            wanted = tag.strip('"')
        elif generation := self.headers.get("x-goog-if-generation-match"):
            wanted = generation
        made = self.fake.put(self._key(), data, wanted)
        if made:
            self._answer(200, ETag=f'"{made}"', x_goog_generation=str(made))
        else:
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if not self._key():
            self._list(query)
            return
        with self.fake.lock:
            found = self.fake.objects.get(self._key())
        if found is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        data, generation, changed = found
        status, extra = 200, {}
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            end = min(int(last) + 1, len(data)) if last else len(data)
            extra = {"Content_Range": f"bytes {first}-{end - 1}/{len(data)}"}
            data, status = data[int(first) : end], 206
        self._answer(
            status,
            data,
            ETag=f'"{generation}"',
            x_goog_generation=str(generation),
            Last_Modified=format_datetime(changed, usegmt=True),
            **extra,
        )

    do_HEAD = do_GET

    def do_DELETE(self) -> None:
        with self.fake.lock:
            gone = self.fake.objects.pop(self._key(), None)
        self._answer(404 if gone is None else 204)

    def do_POST(self) -> None:
        """Delete many objects, as S3 does it."""
        text = self.rfile.read(int(self.headers.get("Content-Length", "0"))).decode()
        keys = [unescaped(part.partition("</Key>")[0]) for part in text.split("<Key>")[1:]]
        with self.fake.lock:
            for key in keys:
                self.fake.objects.pop(key, None)
        done = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix = query.get("prefix", [""])[0]
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        with self.fake.lock:
            keys = sorted(k for k in self.fake.objects if k.startswith(prefix) and k > after)
            page = [(key, *self.fake.objects[key]) for key in keys[:_PAGE]]
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size>"
            f'<ETag>"{generation}"</ETag>'
            f"<LastModified>{changed:%Y-%m-%dT%H:%M:%S.%fZ}</LastModified></Contents>"
            for key, data, generation, changed in page
        )
        more = len(keys) > _PAGE
        last = escape(page[-1][0]) if more else ""
        token = f"<NextContinuationToken>{last}</NextContinuationToken>" if more else ""
        cut = f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        self._answer(200, f"<ListBucketResult>{cut}{rows}{token}</ListBucketResult>".encode())


def unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


if __name__ == "__main__":
    FakeObjects(port=int(sys.argv[1]))
    threading.Event().wait()
