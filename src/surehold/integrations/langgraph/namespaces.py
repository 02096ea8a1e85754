"""Items by namespace and key, for a store and a cache: a run for each namespace.

Each item stands beside an empty list, under its key, with the time at which it ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec

from surehold.core.records import check_run_id
from surehold.core.values import Lazy
from surehold.engine.commit import Face
from surehold.integrations.item_lists import ItemList, ItemLists, ListChange
from surehold.integrations.langgraph.types import decode_value, encode_value
from surehold.storage.base import RunQuery

Namespace = tuple[str, ...]
_KEY = "item:"


class Kept(msgspec.Struct, omit_defaults=True):
    """An item as it is stored."""

    value: msgspec.Raw
    created: float
    updated: float
    until: float | None = None
    """The time at which the item ends, in seconds since 1970."""
    ttl: float | None = None
    """The seconds that it lasts after it was written or refreshed."""

    @classmethod
    def of(cls, value: Any, created: float | None, ttl: float | None) -> Kept:
        """*value*, written now."""
        now, text = time.time(), msgspec.Raw(encode_value(value))
        return cls(text, now if created is None else created, now, _end(now, ttl), ttl)

    def refreshed(self) -> Kept:
        """The same item, read now."""
        return msgspec.structs.replace(self, until=_end(time.time(), self.ttl))

    def read(self) -> Any:
        """The value."""
        return decode_value(bytes(self.value))

    @property
    def over(self) -> bool:
        """True if its time has passed."""
        return self.until is not None and self.until <= time.time()


def _end(now: float, ttl: float | None) -> float | None:
    return None if ttl is None else now + ttl


_read = msgspec.json.Decoder(Kept).decode


class Namespaces:
    """The namespaces of one kind in a storage. Blocking; callable from any thread."""

    def __init__(self, face: Face, name: str, what: str) -> None:
        self._face = face
        self._name = check_run_id(name, "name")
        self._lists = ItemLists(face, what)

    def all(self, prefix: Namespace = ()) -> Iterator[Namespace]:
        """The namespaces that begin with *prefix*, those without items too."""
        for run in self._face.storage.runs(RunQuery(name=self._name)):
            parts = run.run_id.removeprefix(f"{self._name}/").split("/")
            namespace = tuple(map(_unquoted, parts))
            if namespace[: len(prefix)] == prefix:
                yield namespace

    def items(self, namespace: Namespace) -> dict[str, Kept]:
        """The items of a namespace that have not ended, by key."""
        return _items(self._lists.read(self._run_id(namespace)))

    def change(
        self,
        namespace: Namespace,
        edit: Callable[[Mapping[str, Kept]], tuple[Mapping[str, Kept], Collection[str]]],
        what: str,
    ) -> None:
        """Write and remove the items that *edit* gives and names, in one commit."""

        def change(known: ItemList) -> ListChange | None:
            there = _items(known)
            new, gone = edit(there)
            ended = {key for key in known.rest if key.removeprefix(_KEY) not in there}
            removed = {_KEY + key for key in gone if key in there} | ended
            if not (new or removed):
                return None
            rest = {_KEY + key: Lazy(msgspec.json.encode(item)) for key, item in new.items()}
            return ListChange(rest=rest, gone=removed - rest.keys(), what=what)

        self._lists.change(self._run_id(namespace), self._name, change)

    def sweep(self, namespace: Namespace) -> int:
        """Remove the items that have ended; returns their number."""
        known = self._lists.read(self._run_id(namespace))
        ended = len(known.rest) - len(_items(known))
        if ended:
            self.change(namespace, lambda _: ({}, ()), "sweep")
        return ended

    def forget(self, namespace: Namespace) -> None:
        """Remove a namespace with its history."""
        self._lists.forget(self._run_id(namespace))

    def _run_id(self, namespace: Namespace) -> str:
        return "/".join([self._name, *map(_quoted, namespace)])


def _items(known: ItemList) -> dict[str, Kept]:
    found = {key.removeprefix(_KEY): _read(text) for key, text in known.rest.items()}
    return {key: item for key, item in found.items() if not item.over}


def _quoted(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")


def _unquoted(part: str) -> str:
    return part.replace("%2F", "/").replace("%25", "%")
