"""Which requests are recorded, and the key by which a recorded one is found again."""

from __future__ import annotations

import fnmatch
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from .messages import Asked

_JSON_ENDS = (
    *("/chat/completions", "/completions", "/responses", "/embeddings", "/moderations"),
    *("/messages", "/messages/count_tokens", "/rerank", "/embed", "/v1/chat", "/v2/chat"),
    *("/images/generations", "/audio/speech", "/api/chat", "/api/generate", "/api/embeddings"),
    *("/api/embed", "/converse", "/converse-stream", "/invoke", "/invoke-with-response-stream"),
)
_GOOGLE = re.compile(
    r":(generateContent|streamGenerateContent|embedContent|batchEmbedContents|countTokens"
    r"|predict|rawPredict|streamRawPredict)$"
)
_FORM_ENDS = ("/audio/transcriptions", "/audio/translations", "/images/edits")
_SIGNS = frozenset(
    [
        *("messages", "prompt", "input", "inputs", "contents", "content", "requests", "instances"),
        *("texts", "documents", "query", "message", "inputText", "images", "anthropic_version"),
    ]
)
_CREDENTIALS = frozenset(["key", "api_key", "api-key", "access_token", "token", "sig"])
_IN_BODIES = frozenset(["api_key", "apikey", "api-key", "access_token"])
"""Keys of a body whose values are credentials, as some search services have them."""
_LOCAL = re.compile(r"^(localhost|127\.\d+\.\d+\.\d+|::1|0\.0\.0\.0)$")


class Selection(NamedTuple):
    """The requests that a run records."""

    record: tuple[str, ...] = ()
    """Patterns of URLs that are recorded beside the model endpoints. A pattern without a scheme
    fits any, and a host all of its paths."""
    passed: tuple[str, ...] = ()
    """Patterns of URLs that are never recorded."""
    models: bool = True

    def wants(self, method: str, url: str, body: Callable[[], bytes]) -> bool:
        """True if the request is to be recorded; *body* is read if it decides."""
        if not self.may_want(method, url):
            return False
        return self.is_named(url) or _is_model(urlsplit(url).path, body)

    def may_want(self, method: str, url: str) -> bool:
        """True if the body decides, or none is needed to decide for recording."""
        if _fits(url, self.passed):
            return False
        if self.is_named(url):
            return True
        path = urlsplit(url).path.rstrip("/")
        return (
            self.models
            and method.upper() == "POST"
            and (path.endswith(_JSON_ENDS + _FORM_ENDS) or bool(_GOOGLE.search(path)))
        )

    def is_named(self, url: str) -> bool:
        """True if a pattern names the URL to be recorded."""
        return _fits(url, self.record)

    def beside(self, record: Iterable[str], passed: Iterable[str]) -> Selection:
        """This selection with more patterns."""
        both = dict.fromkeys([*self.record, *record]), dict.fromkeys([*self.passed, *passed])
        return self._replace(record=tuple(both[0]), passed=tuple(both[1]))


def _fits(url: str, patterns: tuple[str, ...]) -> bool:
    """True if one of the patterns names the URL.

    >>> [_fits("https://h.example/find?q=1", (one,)) for one in ("h.example", "h.*/find", "h")]
    [True, True, False]
    """
    plain = url.partition("?")[0]
    bare = plain.partition("://")[2]
    for one in patterns:
        host = one.partition("://")[2] or one
        whole = one if "/" in host or "*" in host else f"{one}/*"
        if fnmatch.fnmatchcase(plain if "://" in one or one.startswith("*") else bare, whole):
            return True
    return False


def _is_model(path: str, body: Callable[[], bytes]) -> bool:
    path = path.rstrip("/")
    if path.endswith(_FORM_ENDS):
        return True
    try:
        found = json.loads(body())
    except ValueError:
        return False
    return isinstance(found, dict) and not _SIGNS.isdisjoint(found)


def key_of(asked: Asked) -> str:
    """The digest of the canonical request: equal requests have equal keys.

    >>> one = Asked("POST", "https://h/v1/chat?key=a", [("X", "1")], b'{"a": 1, "b": 2}')
    >>> other = Asked("post", "https://h/v1/chat?key=b", [], b'{"b":2,"a":1}')
    >>> key_of(one) == key_of(other)
    True
    """
    return _digest(_canonical_text(asked))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def canonical(asked: Asked) -> dict[str, Any]:
    """The request without parts that differ between equal requests.

    A server of this machine is the same whatever its port.
    """
    parts = urlsplit(asked.url)
    host = (parts.hostname or "").lower()
    if _LOCAL.match(host):
        host = "localhost"
    elif parts.port and parts.port not in (80, 443):
        host = f"{host}:{parts.port}"
    query = [(k, v) for k, v in parse_qsl(parts.query, True) if k.lower() not in _CREDENTIALS]
    address = f"{host}{parts.path}" + (f"?{urlencode(sorted(query))}" if query else "")
    return {"method": asked.method.upper(), "url": address, "body": _body(asked)}


def _canonical_text(asked: Asked) -> str:
    return json.dumps(canonical(asked), sort_keys=True, ensure_ascii=False)


def _body(asked: Asked) -> Any:
    body = asked.body
    boundary = re.search(r'boundary="?([^";,]+)', asked.header("content-type"))
    if boundary:
        body = body.replace(boundary.group(1).encode(), b"boundary")
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return {"sha256": hashlib.sha256(body).hexdigest(), "bytes": len(body)}
    text = _renamed(text)
    try:
        found = json.loads(text)
    except ValueError:
        return text
    if isinstance(found, dict):
        return {key: value for key, value in found.items() if key.lower() not in _IN_BODIES}
    return found


_CLIENT_IDS = re.compile(
    r"pyd_ai_[0-9a-f]{32}"
    r"|(?<=\[\{'id': ')[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?=')"
)
"""Ids that frameworks make anew in each process: Pydantic AI's, and smolagents' in its prompts."""


def _renamed(text: str) -> str:
    """*text* with the ids that clients made named by the order in which they appear."""
    names: dict[str, str] = {}
    return _CLIENT_IDS.sub(lambda m: names.setdefault(m[0], f"client-id-{len(names) + 1}"), text)


MASKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "id",
        re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b|\b[0-9a-f]{32}\b"),
    ),
    (
        "time",
        re.compile(
            r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?"
            r"(?:Z|[+-]\d\d:?\d\d)?)?"
            r"|\b\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?(?:\s?[AP]M)?\b"
            r"|\b1[5-9]\d{8}(?:\.\d+|\d{3})?\b"
        ),
    ),
    ("address", re.compile(r"\b0x[0-9a-fA-F]{4,}\b")),
    ("temporary file", re.compile(r"/(?:private/)?(?:tmp|var/folders|var/tmp)/[^\s\"'\\]+")),
)
"""What a loose match overlooks."""


def mask(text: str) -> str:
    """*text* with times, ids, addresses and temporary names replaced.

    >>> mask("at 2026-11-18 20:00:01 in /tmp/x1f")
    'at <time> in <temporary file>'
    """
    for name, pattern in MASKS:
        text = pattern.sub(f"<{name}>", text)
    return text


def masked(asked: Asked) -> str:
    """The key of a request for a loose match."""
    return _digest(mask(_canonical_text(asked)))


def differing_kinds(one: str, other: str) -> list[str]:
    """The kinds of changing text in which alone *one* and *other* differ."""
    found: list[str] = []
    for name, pattern in MASKS:
        mark = f"<{name}>"
        new_one, new_other = pattern.sub(mark, one), pattern.sub(mark, other)
        if new_one != one and pattern.findall(one) != pattern.findall(other):
            found.append(name)
        one, other = new_one, new_other
    return found if one == other else []


def model_of(asked: Asked) -> str | None:
    """The model that a request names."""
    try:
        body = json.loads(asked.body)
    except ValueError:
        body = None
    if isinstance(body, dict) and isinstance(body.get("model"), str):
        return str(body["model"])
    found = re.search(r"/models?/([^/:]+)", urlsplit(asked.url).path)
    return found[1] if found else None
