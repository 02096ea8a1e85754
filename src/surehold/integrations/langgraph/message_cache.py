"""Encodes channel values; unchanged messages are encoded only once.

LangGraph passes every channel whole at each step, and a conversation is a list of a thousand
messages of which one is new. The text of each message is kept with a copy of its fields; while the
fields are equal, the text is. Comparing costs much less than encoding, is safe if someone changes a
message in place, and works for messages that were read back as well.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, islice
from threading import Lock
from typing import Any

import msgspec

from surehold.core.values import Items, at_path
from surehold.errors import EncodeError
from surehold.integrations.langgraph.types import (
    MAKERS,
    MESSAGES,
    MessageParts,
    assemble,
    decode_value,
    encode_value,
)

_MOST_BYTES = 64 << 20
"""Bytes of message texts to keep, for the channels used last."""
_FEW = 8
"""Shorter lists are encoded without the cache."""

_MESSAGE = b'[{"$t":"langchain_core.'

_SCALARS = frozenset({str, int, float, bool, type(None)})

_plain = msgspec.json.Encoder().encode


class _Uncommon(Exception):
    """A message with values that cannot be compared safely; its text is not kept."""


class _List(list[bytes]):
    """The texts of a list of messages, with copies of the messages' parts.

    It only grows. The parts are kept in one list per kind, so a few list comparisons check a
    thousand messages.
    """

    __slots__ = ("classes", "fields", "given", "nested", "proofs", "size")

    def __init__(self) -> None:
        self.classes: list[Any] = []
        self.fields: list[dict[str, Any]] = []
        self.given: list[set[str]] = []
        self.nested: list[list[str]] = []
        """The names of the fields that hold mutable values."""
        self.proofs: dict[int, bytes] = {}
        """By index, for messages whose fields are not all text."""
        self.size = 0

    def begins(self, messages: Sequence[Any]) -> int:
        """Count the leading *messages* whose texts are known."""
        count = min(len(messages), len(self))
        head: Sequence[Any] = messages[:count]
        if (
            [type(one) for one in head] == self.classes[:count]
            and [one.__dict__ for one in head] == self.fields[:count]
            and [one.__pydantic_fields_set__ for one in head] == self.given[:count]
            and not any([one.__pydantic_extra__ or one.__pydantic_private__ for one in head])
            and all(_proof(head[n].__dict__) == self.proofs[n] for n in self.proofs if n < count)
        ):
            return count
        return next((n for n in range(count) if not self._is(n, head[n])), count)

    def _is(self, index: int, message: Any) -> bool:
        return (
            type(message) is self.classes[index]
            and message.__dict__ == self.fields[index]
            and message.__pydantic_fields_set__ == self.given[index]
            and not (message.__pydantic_extra__ or message.__pydantic_private__)
            and _proof(message.__dict__) == self.proofs.get(index)
        )

    def first(self, count: int) -> _List:
        """The list of the first *count*, to which others may be added."""
        if count == len(self):
            return self
        made = _List()
        made.extend(self[:count])
        made.classes, made.fields = self.classes[:count], self.fields[:count]
        made.given, made.nested = self.given[:count], self.nested[:count]
        made.proofs = {n: proof for n, proof in self.proofs.items() if n < count}
        made.size = sum(map(len, made))
        return made

    def add(self, message: Any, text: bytes) -> None:
        """Add the next message; `_Uncommon` if it cannot be recognised again."""
        if type(message) not in MESSAGES:
            raise _Uncommon
        if message.__pydantic_extra__ != {} or message.__pydantic_private__:
            raise _Uncommon
        fields = {name: _copy(value) for name, value in message.__dict__.items()}
        proof = _proof(message.__dict__)
        if proof is not None:
            self.proofs[len(self)] = proof
        self.classes.append(type(message))
        self.fields.append(fields)
        self.given.append(set(message.__pydantic_fields_set__))
        self.nested.append([name for name, value in fields.items() if type(value) in (dict, list)])
        self.append(text)
        self.size += len(text)

    def messages(self, count: int) -> list[Any]:
        """Rebuild the first *count* messages."""
        made: list[Any] = []
        for cls, known, given, nested in islice(
            zip(self.classes, self.fields, self.given, self.nested, strict=False), count
        ):
            fields = known.copy()
            for name in nested:
                value = fields[name]
                fields[name] = _copy(value) if value else value.copy()
            made.append(assemble(cls, fields, given.copy(), {}))
        return made


def _copy(value: Any) -> Any:
    kind = type(value)
    if value is None or kind is str or kind is int or kind is float or kind is bool:
        return value
    if kind is list:
        return [_copy(item) for item in value]
    if kind is dict:
        return {_copy(key): _copy(item) for key, item in value.items()}
    raise _Uncommon


def _proof(fields: dict[str, Any]) -> bytes | None:
    """Text that tells values apart that compare equal: 1, 1.0, True; 0, False."""
    rest = [one for one in fields.values() if type(one) is not str and (one or one == 0)]
    if not rest:
        return None
    try:
        return _plain(rest)
    except (TypeError, ValueError, OverflowError):
        raise _Uncommon from None


class MessageCache:
    """Encodes channel values and remembers messages; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._lists: OrderedDict[tuple[str, str, str], _List] = OrderedDict()
        self._bytes = 0

    def of(self, key: tuple[str, str, str], value: Any) -> bytes | Items:
        """Encode the value of a channel, given by thread, namespace and channel."""
        try:
            if type(value) is list and len(value) > _FEW and type(value[0]) in MESSAGES:
                return self._of_messages(key, value)
            return encode_value(value)
        except EncodeError as error:
            at_path(error, key[2])
            raise

    def _of_messages(self, key: tuple[str, str, str], messages: list[Any]) -> bytes | Items:
        known = self._take(key)
        try:
            begins = known.begins(messages)
        except _Uncommon:
            begins = 0
        known = known.first(begins)
        rest: list[bytes] = []
        for index in range(begins, len(messages)):
            text = _text_at(messages, index)
            # Messages after one that cannot be recognised are not kept either.
            with suppress(_Uncommon):
                if not rest:
                    known.add(messages[index], text)
                    continue
            rest.append(text)
        made = Items(known, len(known))
        self._give_back(key, known)
        return b"[%b]" % b",".join([*made.after(0), *rest]) if rest else made

    def _take(self, key: tuple[str, str, str]) -> _List:
        """Take what is known of a channel, for this thread alone until it is given back."""
        with self._lock:
            known = self._lists.pop(key, None)
            if known is None:
                return _List()
            self._bytes -= known.size
            return known

    def _give_back(self, key: tuple[str, str, str], known: _List) -> None:
        with self._lock:
            if key in self._lists:
                return
            self._lists[key] = known
            self._bytes += known.size
            while self._bytes > _MOST_BYTES and len(self._lists) > 1:
                self._bytes -= self._lists.popitem(last=False)[1].size

    def forget(self, thread_id: str) -> None:
        """Drop everything about a thread."""
        with self._lock:
            for key in [key for key in self._lists if key[0] == thread_id]:
                self._bytes -= self._lists.pop(key).size


def _text_at(messages: list[Any], index: int) -> bytes:
    try:
        return encode_value(messages[index])
    except EncodeError as error:
        at_path(error, index)
        raise


class _Message(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """A stored message in which nothing is tagged."""

    tag: str = msgspec.field(name="$t")
    parts: MessageParts = msgspec.field(name="v")


_read_messages = msgspec.json.Decoder(list[_Message]).decode


def value_of(text: bytes | Items) -> Any:
    """Decode a text; an unregistered type is a `DecodeError`."""
    if isinstance(text, Items):
        if isinstance(text.texts, _List):
            return text.texts.messages(text.count)
        text = text.text
    if text.startswith(_MESSAGE):
        with suppress(msgspec.MsgspecError, LookupError, ValueError):  # raised below
            made = _messages_of(text)
            if made is not None:
                return made
    return decode_value(text)


def _messages_of(text: bytes) -> list[Any] | None:
    """Decode a list of messages; None if something inside them is tagged."""
    stored = _read_messages(text)
    if not _are_plain(stored, text):
        return None
    return [MAKERS[one.tag](one.parts) for one in stored]


def _are_plain(stored: list[_Message], text: bytes) -> bool:
    """True if nothing inside these messages, decoded from *text*, is tagged."""
    parts = [one.parts for one in stored]
    kinds = set(map(type, chain.from_iterable([one.fields.values() for one in parts])))
    if kinds <= _SCALARS and not any([one.extra or one.private for one in parts]):
        return True
    # With as many tags as messages, the tags are the messages' own and all else is plain.
    return text.count(b"$") == len(stored) or text.count(b'"$t"') == len(stored)
