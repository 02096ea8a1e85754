"""Requests, answers and claims as values, and as frames between processes."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

SECRET_HEADERS = frozenset(
    [
        *("authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key"),
        *("x-goog-api-key", "x-amz-security-token", "x-auth-token", "openai-organization"),
        *("openai-project", "www-authenticate", "anthropic-organization-id"),
    ]
)
"""Headers that are never stored."""

Headers = list[tuple[str, str]]


class Divergence(BaseException):
    """A request fits no recorded one. No client may catch and retry this."""


class Asked(NamedTuple):
    """A request as a transport shows it."""

    method: str
    url: str
    headers: Headers
    body: bytes
    token: str = ""
    """Names this attempt while it waits for its turn."""

    def header(self, name: str) -> str:
        """The first header of that name; empty if there is none."""
        return next((value for key, value in self.headers if key.lower() == name), "")


class HttpAnswer(NamedTuple):
    """A response as it came: raw bytes, in the chunks in which they came."""

    status: int
    reason: str
    headers: Headers
    chunks: list[bytes]
    complete: bool = True
    """False if the program stopped reading before the end."""
    seconds: float = 0.0

    def kept_headers(self) -> Headers:
        """The headers without credentials."""
        return [(k, v) for k, v in self.headers if k.lower() not in SECRET_HEADERS]


class TapeClaim(NamedTuple):
    """The reply of a tape to a request."""

    kind: str
    """``live``, ``replay``, ``wait``, ``diverged``."""
    id: int = 0
    answer: HttpAnswer | None = None
    hold: bool = False
    """The answer is given when those that came before it were given."""
    text: str = ""
    """The explanation of a divergence."""
    body: bytes | None = None
    """What to send instead of the request's own body."""


def pack(facts: dict[str, Any], parts: list[bytes]) -> bytes:
    """A frame: the length of its facts, the facts, and the parts."""
    head = json.dumps({**facts, "parts": [len(part) for part in parts]}).encode()
    return b"".join([len(head).to_bytes(4, "big"), head, *parts])


def asked_frame(asked: Asked) -> tuple[dict[str, Any], list[bytes]]:
    """A request as facts and parts."""
    facts = asked._asdict()
    return facts, [facts.pop("body")]


def asked_from(facts: dict[str, Any], parts: list[bytes]) -> Asked:
    """The request of `asked_frame`."""
    headers = [(key, value) for key, value in facts["headers"]]
    return Asked(facts["method"], facts["url"], headers, parts[0], facts["token"])


def answer_frame(answer: HttpAnswer) -> tuple[dict[str, Any], list[bytes]]:
    """An answer as facts and parts."""
    facts = answer._asdict()
    return facts, facts.pop("chunks")


def answer_from(facts: dict[str, Any], parts: list[bytes]) -> HttpAnswer:
    """The answer of `answer_frame`."""
    headers = [(key, value) for key, value in facts["headers"]]
    return HttpAnswer(
        facts["status"], facts["reason"], headers, parts, facts["complete"], facts["seconds"]
    )


_ENDS = (
    *(b"data: [DONE]", b"data:[DONE]"),
    *(b'"type":"message_stop"', b'"type": "message_stop"', b"event: message_stop"),
)
_CLOSING = (b"response.completed", b"response.failed", b"response.incomplete")


def ends_stream(chunk: bytes, before: bytes) -> bool:
    """True if *chunk* brings the event that ends a stream; *before* are earlier bytes.

    Some clients never read further.
    """
    text = before + chunk
    if any(end in text for end in _ENDS):
        return True
    found = next((end for end in _CLOSING if b'"type":"' + end in text), None) or next(
        (end for end in _CLOSING if b'"type": "' + end in text), None
    )
    # The event carries the whole response: it has passed when its empty line has.
    return found is not None and text.rstrip(b" ").endswith((b"\n\n", b"\r\n\r\n"))


def keep_open(headers: Headers) -> bool:
    """True for a stream of server-sent events."""
    return any(
        key.lower() == "content-type" and "event-stream" in value.lower() for key, value in headers
    )
