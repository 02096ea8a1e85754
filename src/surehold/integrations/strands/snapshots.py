"""Snapshots of Strands as lists, of which only changes are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from surehold.core.values import encode
from surehold.integrations.item_lists import ITEMS, ItemList, ListChange

HISTORY = "history"
"""The tag of an immutable snapshot, which is not the latest."""
_MESSAGES = "messages"
_ABOUT = "snapshot."
_ORDER = "snapshot.order"
_BYTES = "snapshot.bytes"
"""What is not a snapshot in the SDK's JSON form is stored as its bytes."""
_FIRST = "first"
"""How many messages at the beginning of the list the snapshot has no longer."""


def change_to(data: bytes, known: ItemList, what: str, tags: tuple[str, ...] = ()) -> ListChange:
    """The change that makes *known* hold the snapshot *data*."""
    messages, rest = _parts(data)
    texts = [encode(one) for one in messages]
    first = _hidden(known)
    start, common = _overlap(known.texts[first : known.count], texts)
    kept, first = first + start + common, first + start if common else 0
    dropped = 0
    if first > len(texts):  # more is hidden than shown: the list is stored anew
        dropped, first = first, 0
    if first:
        rest[_FIRST] = first
    return ListChange(
        added=messages[common:],
        kept=kept if common else 0,
        dropped=dropped,
        rest=rest,
        gone=known.rest.keys() - rest.keys(),
        what=what,
        tags=tags,
    )


def data_of(known: ItemList) -> bytes:
    """The bytes of the snapshot that *known* holds."""
    given = known.value(_BYTES)
    if given is not None:
        return bytes(given)
    outer, inner = known.value(_ORDER)
    data = {
        key: known.value(key) if key in known.rest else known.values(_hidden(known))
        for key in inner
    }
    return _text({key: data if key == "data" else known.value(_ABOUT + key) for key in outer})


def _parts(data: bytes) -> tuple[list[Any], dict[str, Any]]:
    """The messages of a snapshot, and the values beside them."""
    try:
        whole = json.loads(data)
        given = isinstance(whole, dict) and isinstance(whole.get("data"), dict)
        if not given or _text(whole) != data or not _is_plain(whole["data"]):
            return [], {_BYTES: data}
    except ValueError:
        return [], {_BYTES: data}
    inner: Mapping[str, Any] = whole["data"]
    rest = {_ABOUT + key: value for key, value in whole.items() if key != "data"}
    messages = inner.get(_MESSAGES)
    listed = isinstance(messages, list)
    rest |= {key: value for key, value in inner.items() if not (listed and key == _MESSAGES)}
    rest[_ORDER] = [[*whole], [*inner]]
    return messages if isinstance(messages, list) else [], rest


def _is_plain(inner: Mapping[str, Any]) -> bool:
    return not any(key in (ITEMS, _FIRST) or key.startswith(_ABOUT) for key in inner)


def _text(whole: Any) -> bytes:
    """The JSON text that the SDK writes."""
    return json.dumps(whole, ensure_ascii=False).encode()


def _hidden(known: ItemList) -> int:
    return known.value(_FIRST) or 0


def _overlap(old: Sequence[bytes], new: Sequence[bytes]) -> tuple[int, int]:
    """The index in *old* at which *new* begins, and how many items are equal there."""
    if not new or new[0] not in old:
        return 0, 0
    start = old.index(new[0])
    common = 0
    for before, after in zip(old[start:], new, strict=False):
        if before != after:
            break
        common += 1
    return start, common
