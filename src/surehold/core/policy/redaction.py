"""Finding secrets in values, by what they look like and by what they are called.

A found secret becomes ``[redacted:kind]``. Only its kind is ever counted or told.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from surehold.errors import UsageError

PATTERNS: Mapping[str, str] = {
    "private_key": (
        r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?:[^-]|-(?!----BEGIN |----END ))*-----END [A-Z0-9 ]{0,80}PRIVATE KEY(?: BLOCK)?-----"
        r"|[A-Za-z0-9+/=\s\\:,.-]*)"
    ),
    "api_key": (
        r"(?<![A-Za-z0-9])(?:"
        r"sk-(?=[A-Za-z_-]{0,64}[0-9])[A-Za-z0-9_-]{20,}"  # OpenAI, Anthropic, DeepSeek, ...
        r"|[sr]k_(?:live|test)_[A-Za-z0-9]{16,}"  # Stripe
        r"|AIza[A-Za-z0-9_-]{35}"  # Google
        r"|(?:hf_|gsk_|xai-)[A-Za-z0-9]{30,}"  # Hugging Face, Groq, xAI
        r"|glpat-[A-Za-z0-9_-]{20,})"  # GitLab
    ),
    "aws_key": r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
    "github_token": (
        r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})"
    ),
    "slack_token": r"(?<![A-Za-z0-9])(?:xox[a-z]|xapp)-[A-Za-z0-9-]{10,}",
    "jwt": (
        r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,4096}\.eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?"
    ),
    "bearer": (
        r"\b(?:Bearer|bearer|BEARER)[ \t]{1,8}"
        r"(?P<secret>(?=[A-Za-z._~+/-]{0,64}[0-9])[A-Za-z0-9._~+/-]{16,}=*)"
    ),
    "url_password": r"://[^\s/:@\"']{0,256}:(?P<secret>[^\s/@\"']{1,1024})@",
}
"""Patterns of secrets, by kind. If a pattern has a group ``secret``, only that is replaced."""

_NEEDLES: Mapping[str, tuple[str, ...]] = {
    "private_key": ("PRIVATE KEY",),
    "api_key": ("sk-", "k_live_", "k_test_", "AIza", "hf_", "gsk_", "xai-", "glpat-"),
    "aws_key": ("AKIA", "ASIA"),
    "github_token": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    "slack_token": ("xox", "xapp-"),
    "jwt": (".eyJ",),
    "bearer": ("earer ", "earer\t", "EARER ", "EARER\t"),
    "url_password": ("://",),
}
"""Text without any of these cannot match; asking that first is thirty times as fast."""

KEYS: tuple[str, ...] = (
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "secret",
    "secrets",
    "secret_key",
    "secret_access_key",
    "token",
    "api_key",
    "apikey",
    "private_key",
    "access_key",
    "authorization",
    "credential",
    "credentials",
    "cookie",
    "set_cookie",
)
"""Names of secrets.

A name that ends in one of these words is a secret too: `db_password`, `X-Api-Key` and
`accessToken`, but not `token_count` or `tokens`.
"""

_HARMLESS_BEFORE_TOKEN = frozenset(
    [
        *("next", "page", "continuation", "cursor", "sync", "start", "end", "first", "last"),
        *("eos", "bos", "pad", "sep", "cls", "unk", "mask", "special", "stop", "cancel"),
    ]
)
"""A token of these is a place in a list or in a vocabulary."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SCHEMA_TYPES = frozenset(["string", "number", "integer", "boolean", "array", "object", "null"])
_SCHEMA_WORDS = frozenset(
    [
        *("type", "title", "description", "format", "pattern", "minLength", "maxLength"),
        *("minimum", "maximum", "items", "properties", "required", "writeOnly", "readOnly"),
    ]
)
_KIND = re.compile(r"[a-z][a-z0-9_]*")
_MARKER = re.compile(r"\[redacted:[a-z0-9_]+\]")

_REMEMBERED = 16_000_000
"""Number of characters of clean texts that a `Redactor` remembers."""
_REMEMBERED_KEYS = 10_000


class RedactionRules(msgspec.Struct, frozen=True):
    """Rules for secret values; see `make_rules`."""

    patterns: tuple[tuple[str, re.Pattern[str], tuple[str, ...]], ...]
    """Each with its kind, and with the texts of which one must occur (none: no matter)."""
    keys: Mapping[tuple[str, ...], str]
    """The words of a name, and its kind."""
    longest: int
    """The most words a name has."""

    def kind_of(self, key: object) -> str | None:
        """The kind of secret that is kept under *key*, or None."""
        if not isinstance(key, str):
            return None
        words = tuple(word.lower() for word in _WORD.findall(key))
        if words[-1:] == ("token",) and _HARMLESS_BEFORE_TOKEN.intersection(words[-2:-1]):
            return None
        for count in range(min(self.longest, len(words)), 0, -1):
            if kind := self.keys.get(words[-count:]):
                return kind
        return None


def make_rules(
    patterns: Mapping[str, str | re.Pattern[str]] = PATTERNS, keys: Iterable[str] = KEYS
) -> RedactionRules:
    """The rules for these patterns, by kind, and these names of keys.

    >>> rules = make_rules({**PATTERNS, "ticket": r"TCK-[0-9]+"}, [*KEYS, "pin"])
    >>> redact({"pin": "1234", "note": "see TCK-77", "pins": 3}, rules)
    ({'pin': '[redacted:pin]', 'note': 'see [redacted:ticket]', 'pins': 3}, \
Counter({'pin': 1, 'ticket': 1}))
    """
    compiled = []
    for kind, pattern in patterns.items():
        if not _KIND.fullmatch(kind):
            raise UsageError(f"{kind!r} cannot be a kind of secret", hint="use a-z, 0-9 and _")
        try:
            known = pattern is PATTERNS.get(kind)
            compiled.append((kind, re.compile(pattern), _NEEDLES[kind] if known else ()))
        except re.error as error:
            raise UsageError(f"the pattern of {kind!r} is not valid: {error}") from error
    named = {}
    for key in keys:
        words = tuple(word.lower() for word in _WORD.findall(key))
        if not words:
            raise UsageError(f"{key!r} cannot name a secret", hint="use letters")
        named[words] = "_".join(words)
    return RedactionRules(tuple(compiled), named, max(map(len, named), default=0))


def redact(value: Any, rules: RedactionRules) -> tuple[Any, Counter[str]]:
    """*value* with its secrets replaced, and how many there were of each kind.

    Nothing is changed in place. What holds no secret comes back as the same object; a container
    that does comes back as an ordinary one of its sort. Dataclasses, `msgspec.Struct` and pydantic
    models are searched as well; other objects are not. In a list of pairs the first of each pair
    is the name of the second. The JSON Schema of a field that is called a secret is none.
    """
    return Redactor(rules).redact(value)


class Redactor:
    """Redacts again and again, and remembers which texts were clean.

    States that follow one another share most of their texts, and looking one up costs nothing.
    """

    def __init__(self, rules: RedactionRules) -> None:
        self.rules = rules
        self._clean: set[str] = set()
        self._weight = 0
        self._kinds: dict[object, str | None] = {}

    def redact(self, value: Any) -> tuple[Any, Counter[str]]:
        """See `redact`."""
        walk = _Walk(self)
        return walk.value(value), walk.counts

    def is_clean(self, text: str) -> bool:
        """Return whether *text* is known to match no pattern."""
        return text in self._clean

    def note_clean(self, text: str) -> None:
        """Remember that *text* matches no pattern."""
        if self._weight > _REMEMBERED:
            self._clean, self._weight = set(), 0
        self._clean.add(text)
        self._weight += len(text) + 50

    def kind_of(self, key: object) -> str | None:
        """The rules' function of this name, with its results cached."""
        if key not in self._kinds:
            if len(self._kinds) > _REMEMBERED_KEYS:
                self._kinds = {}
            self._kinds[key] = self.rules.kind_of(key)
        return self._kinds[key]


class _Walk:
    def __init__(self, redactor: Redactor) -> None:
        self.redactor = redactor
        self.counts: Counter[str] = Counter()

    def value(self, value: Any) -> Any:
        if value is None or isinstance(value, int | float):
            return value
        if isinstance(value, str):
            return self._text(value)
        return self._inside(value, self.value, self._item)

    def _item(self, key: object, value: Any) -> Any:
        kind = self.redactor.kind_of(key)
        if kind is None or _is_schema(value):
            return self.value(value)
        return self._all_of(value, kind)

    def _pair(self, pair: Any) -> Any:
        """A name and its value, as a list of HTTP headers has them."""
        name, old = pair
        new = self._item(name, old) if isinstance(name, str) else self.value(old)
        return _rebuilt(pair, [self.value(name), new])

    def _all_of(self, value: Any, kind: str) -> Any:
        """*value* with every piece of it replaced: it was called a secret."""
        if isinstance(value, str | bytes | bytearray | int | float):
            return self._called_secret(value, kind)
        return self._inside(
            value, lambda v: self._all_of(v, kind), lambda k, v: self._all_of(v, kind)
        )

    def _called_secret(self, value: Any, kind: str) -> Any:
        # A number called token is a count or a place in a vocabulary, not a secret.
        if isinstance(value, int | float):
            if isinstance(value, bool) or kind == "token":
                return value
        elif not value:
            return value
        if isinstance(value, str) and _MARKER.fullmatch(value):
            return value
        self.counts[kind] += 1
        marker = f"[redacted:{kind}]"
        return marker.encode() if isinstance(value, bytes | bytearray) else marker

    def _text(self, text: str) -> str:
        if self.redactor.is_clean(text):
            return text
        made = text
        for kind, pattern, needles in self.redactor.rules.patterns:
            if _may_match(text, needles):
                made = pattern.sub(self._marker(kind, pattern), made)
        if made[:1] in ("{", "[") and '":' in made:
            made = self._json(made)
        if made != text:
            return made
        self.redactor.note_clean(text)
        return text

    def _json(self, text: str) -> str:
        """JSON text as tools give it to models, with what it calls secrets replaced."""
        try:
            tree = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return text
        made = self.value(tree)
        return text if made is tree else msgspec.json.encode(made).decode()

    def _marker(self, kind: str, pattern: re.Pattern[str]) -> Callable[[re.Match[str]], str]:
        group = "secret" if "secret" in pattern.groupindex else 0

        def mark(found: re.Match[str]) -> str:
            whole, start = found.group(), found.start()
            first, last = found.start(group) - start, found.end(group) - start
            if first == last or _MARKER.fullmatch(whole, first, last):
                return whole
            self.counts[kind] += 1
            return f"{whole[:first]}[redacted:{kind}]{whole[last:]}"

        return mark

    def _bytes(self, data: bytes | bytearray) -> bytes | bytearray:
        text = data.decode("latin-1")
        made = self._text(text)
        return data if made is text else type(data)(made.encode("latin-1"))

    def _inside(
        self, value: Any, each: Callable[[Any], Any], item: Callable[[Any, Any], Any]
    ) -> Any:
        """*value* with what it holds replaced by *each*, or by *item* where it has a name."""
        if isinstance(value, dict):
            return self._dict(value, item)
        if isinstance(value, list | tuple | set | frozenset):
            if each == self.value and _are_pairs(value):
                each = self._pair
            return _rebuilt(value, [each(v) for v in value])
        if isinstance(value, bytes | bytearray):
            return self._bytes(value)
        fields = _fields_of(value)
        changes = {}
        for name in fields:
            old = getattr(value, name, None)
            new = item(name, old)
            if new is not old:
                changes[name] = new
        return _with(value, changes) if changes else value

    def _dict(self, value: dict[Any, Any], item: Callable[[Any, Any], Any]) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        same = True
        for key, old in value.items():
            new = item(key, old)
            stem = name = self._text(key) if isinstance(key, str) else key
            same = same and new is old and name == key
            number = 1
            while name in made:  # two keys that were secrets now have one name
                number += 1
                name = f"{stem}#{number}"
            made[name] = new
        return value if same else made


def _are_pairs(values: Any) -> bool:
    """Return whether all *values* are pairs, and there are some."""
    for pair in values:
        if not (isinstance(pair, list | tuple) and len(pair) == 2):
            return False
    return bool(values)


def _is_schema(value: Any) -> bool:
    """Return True if *value* is a field's JSON Schema: it has the name and no secret."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("type"), str)
        and value["type"] in _SCHEMA_TYPES
        and value.keys() <= _SCHEMA_WORDS
    )


def _may_match(text: str, needles: tuple[str, ...]) -> bool:
    for needle in needles:  # any() with a generator takes three times as long
        if needle in text:
            return True
    return not needles


def _rebuilt(value: Any, items: list[Any]) -> Any:
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    if isinstance(value, tuple):
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    for sort in (list, frozenset):
        if isinstance(value, sort):
            return sort(items)
    return set(items)


def _fields_of(value: Any) -> Iterable[str]:
    if isinstance(value, type):
        return ()
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return getattr(type(value), "model_fields", ())


def _with(value: Any, changes: dict[str, Any]) -> Any:
    """Copy *value*, frozen or not, with some fields changed, without running its code."""
    if hasattr(value, "model_copy"):
        return value.model_copy(update=changes)
    made = copy.copy(value)
    put = msgspec.structs.force_setattr if isinstance(value, msgspec.Struct) else object.__setattr__
    for name, new in changes.items():
        put(made, name, new)
    return made
