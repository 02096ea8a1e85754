"""What records are found by: a mark for each thing a query may ask for, and the SQL that asks.

A mark is a key, whether the record is a note, and the record's place in the order of all commits.
So every list is sorted as it is asked for, newest first, and a page costs what it holds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.records import Header
from holdfast.storage.base import RecordQuery

__all__ = [
    "COMMON_KIND",
    "HIDDEN",
    "NOTE",
    "Listing",
    "id_key",
    "kind_key",
    "listing",
    "marks_of",
    "micros",
    "state_of",
]

NOTE = 1
HIDDEN = 2
NESTED = 4
"""Bits of a record's state; a visible checkpoint of the run itself has none of them."""

_LONGEST = 48
_DEEPEST = 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMMON_KIND = "routine"
_COMMON_STATUS = "running"
"""What most records have is not marked: a page of it is found by walking."""


class Listing(msgspec.Struct, frozen=True):
    """A query in SQL. A page is asked for with `:bound` and `:size`.

    Its rows are place, seq, digest, run_id and header; place is what the next bound is.
    """

    sql: str
    values: dict[str, Any]
    by_seq: bool = False
    """The place is the seq, not the place among all commits."""
    whole: bool = False
    """Every record of the run has a row; unwanted ones have no header."""

    def page(self, bound: int, size: int) -> dict[str, Any]:
        """The values for the page of *size* rows below *bound*."""
        return {**self.values, "bound": bound, "size": size}


def state_of(header: Header) -> int:
    """The state of a record that is new."""
    return (NOTE if header.frame == "note" else 0) | (NESTED if header.scope else 0)


def marks_of(header: Header, run: int) -> Iterator[bytes]:
    """The keys under which a visible record is found; the first, by its id, hidden ones too."""
    yield id_key(header.id)
    if header.name:
        yield _key(b"n", header.name)
    if header.frame != "note" and header.scope:
        yield _scope_key(run, header.scope)
    if header.kind != COMMON_KIND:
        yield _key(b"k", header.kind)
        yield kind_key(run, header.kind)
    if header.status != _COMMON_STATUS:
        yield _key(b"s", header.status)
    for tag in set(header.tags):
        yield _key(b"t", tag)
    for name, value in header.metadata.items():
        if (mark := _metadata_key(name, value)) is not None:
            yield mark


def id_key(id_: str) -> bytes:
    """An id is kept whole, so that a prefix of it is a range."""
    return b"i" + _bytes(id_)


def _scope_key(run: int, scope: str) -> bytes:
    return _key(b"c%d:" % run, scope)


def kind_key(run: int, kind: str) -> bytes:
    """The key of a run's records of one kind.

    Notes of a kind are looked for often, and may be few among very many records."""
    return _key(b"r%d:" % run, kind)


def micros(moment: datetime) -> int:
    """*moment* in microseconds since 1970; one without a time zone is taken as UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1)


def listing(query: RecordQuery, run: int | None) -> Listing:
    """How to list what *query* wants, and perhaps more; *run* is the key of its run, if it has one.

    Its rows are still to be compared with the query.
    """
    keys = list(_keys_in(query))
    if run is not None and query.tag is not None:
        # Few records have a tag, however many the run has.
        keys.sort(key=lambda key: key[:1] != b"t")
    elif run is not None and query.kind not in (None, COMMON_KIND):
        keys.insert(0, kind_key(run, query.kind))
    elif run is not None and (query.notes or query.scope is None):
        return _of_run(query, run, keys)
    elif run is not None and query.scope == "":
        return _of_run_itself(query, run, keys)
    elif run is not None and query.scope is not None:
        keys.insert(0, _scope_key(run, query.scope))
    values = _values(keys)
    if not keys:
        wanted = _conditions(query, 0, 0, values)
        rows = f"SELECT r.ord, {_ROW} FROM records r CROSS JOIN runs u ON u.pk = r.run"
        return Listing(
            f"{rows} WHERE r.ord < :bound AND {wanted} ORDER BY r.ord DESC LIMIT :size", values
        )
    wanted = _conditions(query, 1, len(keys), values)
    if run is not None:
        wanted += " AND r.run = :run"
        values["run"] = run
    arms = (
        f"SELECT m.ord, {_ROW} FROM marks m CROSS JOIN records r ON r.ord = m.ord"
        f" CROSS JOIN runs u ON u.pk = r.run"
        f" WHERE m.key = :key0 AND m.note = {note} AND m.ord < :bound AND {wanted}"
        for note in ((0, NOTE) if query.notes else (0,))
    )
    return Listing(f"{' UNION ALL '.join(arms)} ORDER BY 1 DESC LIMIT :size", values)


_ROW = "r.seq, r.digest, u.run_id, CAST(r.header AS BLOB)"
_RUN = "FROM runs u CROSS JOIN records r ON r.run = u.pk WHERE u.pk = :run AND r.seq <"


def _of_run(query: RecordQuery, run: int, keys: list[bytes]) -> Listing:
    """All records of a run, so that one that is missing is missed."""
    values = _values(keys) | {"run": run}
    wanted = _conditions(query, 0, len(keys), values)
    sql = (
        "SELECT r.seq, r.seq, r.digest, u.run_id,"
        f" CASE WHEN {wanted} THEN CAST(r.header AS BLOB) END"
        f" {_RUN} :bound ORDER BY r.seq DESC LIMIT :size"
    )
    return Listing(sql, values, by_seq=True, whole=True)


def _of_run_itself(query: RecordQuery, run: int, keys: list[bytes]) -> Listing:
    """The checkpoints in scope "", from the newest on, however many records follow that one."""
    values = _values(keys) | {"run": run}
    wanted = _conditions(query, 0, len(keys), values)
    sql = (
        f"SELECT r.seq, {_ROW} {_RUN} min(:bound, u.latest + 1) AND r.state = 0 AND {wanted}"
        " ORDER BY r.seq DESC LIMIT :size"
    )
    return Listing(sql, values, by_seq=True)


def _values(keys: list[bytes]) -> dict[str, Any]:
    return {f"key{n}": key for n, key in enumerate(keys)}


def _conditions(query: RecordQuery, first: int, last: int, values: dict[str, Any]) -> str:
    """What a row must fulfil, the marks with the keys from *first* up to *last* among it."""
    conditions = [f"r.state & {HIDDEN if query.notes else HIDDEN | NOTE} = 0"]
    if query.since is not None:
        conditions.append("r.at >= :since")
        values["since"] = micros(query.since)
    if query.until is not None:
        conditions.append("r.at <= :until")
        values["until"] = micros(query.until)
    conditions += (
        "EXISTS (SELECT 1 FROM marks x WHERE"
        f" x.key = :key{n} AND x.note = (r.state & {NOTE}) AND x.ord = r.ord)"
        for n in range(first, last)
    )
    return " AND ".join(conditions)


def _keys_in(query: RecordQuery) -> Iterator[bytes]:
    """What *query* asks for that is marked, the rarest kind of mark first."""
    for name, value in (query.metadata or {}).items():
        if (mark := _metadata_key(name, value)) is not None:
            yield mark
    if query.tag is not None:
        yield _key(b"t", query.tag)
    if query.kind not in (None, COMMON_KIND):
        yield _key(b"k", query.kind)
    if query.status not in (None, _COMMON_STATUS):
        yield _key(b"s", query.status)
    if query.name:
        yield _key(b"n", query.name)


def _key(letter: bytes, text: str) -> bytes:
    data = _bytes(text)
    return letter + (data if len(data) <= _LONGEST else hashlib.sha256(data).digest())


def _metadata_key(name: str, value: Any) -> bytes | None:
    canonical = _canonical(value)
    if canonical is None:
        return None
    return b"m" + hashlib.sha256(_bytes(f"{json.dumps(name)}:{canonical}")).digest()[:16]


def _canonical(value: Any, depth: int = 0) -> str | None:
    """A text that is the same for values that are equal; None for what is no plain JSON value."""
    if depth > _DEEPEST:
        return None
    match value:
        case None:
            return "null"
        case bool() | int():
            return str(int(value))
        case float():
            return str(int(value)) if value.is_integer() else repr(value)
        case str():
            return json.dumps(value)
        case list():
            parts = [_canonical(item, depth + 1) for item in value]
        case dict() if all(isinstance(key, str) for key in value):
            parts = [_canonical(part, depth + 1) for item in sorted(value.items()) for part in item]
            parts.append("{}")
        case _:
            return None
    if None in parts:
        return None
    return f"[{','.join(map(str, parts))}]"


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
