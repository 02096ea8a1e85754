"""The values that a run shows to others, and those by which it is found."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from math import isfinite
from typing import Any, TypeAlias

import msgspec

from surehold.core.records import Published
from surehold.core.values import decode
from surehold.engine.managers import Target, opened
from surehold.errors import UsageError
from surehold.storage.base import RecordQuery, RunInfo, Storage, newest_record

Attribute: TypeAlias = str | int | float | bool | datetime
_RANGE = re.compile(r"(.*?) *(>=|<=)")


def status_of(run_id: str, *, storage: Target = None) -> dict[str, Any]:
    """The values that a run has published last, by name; none if it published none."""
    return _kept(run_id, "published", storage)


def attributes_of(run_id: str, *, storage: Target = None) -> dict[str, Attribute]:
    """The attributes of a run, by name; none if it has set none."""
    return _kept(run_id, "attributes", storage)


def _kept(run_id: str, kind: str, storage: Target) -> dict[str, Any]:
    with opened(storage) as manager:
        reader = manager.reader
        newest = newest_record(reader.storage, run_id, kind)
        if newest is None:
            reader.known(run_id)
            return {}
        (record,) = reader.storage.read(run_id, first=newest.seq, last=newest.seq)
        content = msgspec.json.decode(reader.sealer.open(record), type=Published)
        values: dict[str, Any] = decode(bytes(content.values))
        return values


def header_value(name: str, value: object) -> Any:
    """An attribute as a header has it; a `UsageError` if it cannot be one."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise UsageError(f"attribute {name!r} has no time zone", hint="datetime.now(UTC)")
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    if value is None or type(value) in (str, int, bool):
        return value
    if type(value) is float and isfinite(value):
        return value
    raise UsageError(
        f"attribute {name!r} is {value!r:.60}",
        hint="give a text, a number, True, False or a datetime; publish() takes other values",
    )


def find_runs(
    where: Mapping[str, Attribute],
    *,
    status: str | None = None,
    limit: int | None = None,
    storage: Target = None,
) -> list[RunInfo]:
    """The runs whose attributes are as *where* says, the newest change of them first.

    ``{"customer": "c-7", "amount >=": 10}``: a name for an equal value, with ``>=`` or ``<=`` for
    the ends of a range. Equal values are looked up in the storage's index; a range alone reads the
    headers of all attributes.
    """
    found: list[RunInfo] = []
    with opened(storage) as manager:
        for run_id in run_ids_where(manager.storage, where):
            run = manager.reader.run(run_id)
            if run is not None and status in (None, run.status):
                found.append(run)
            if limit is not None and len(found) >= limit:
                break
    return found


def run_ids_where(storage: Storage, where: Mapping[str, Any]) -> Iterator[str]:
    """The ids of runs whose attributes are as *where* says, each once."""
    equal: dict[str, Any] = {}
    ranges: list[tuple[str, str, Any]] = []
    for text, given in where.items():
        value, at = header_value(text, given), _RANGE.fullmatch(text)
        if at is None:
            equal[text] = value
        else:
            ranges.append((at[1], at[2], value))
    seen: set[str] = set()
    query = RecordQuery(kind="attributes", metadata=equal or None, notes=True)
    for header in storage.headers(query):
        if header.run_id in seen:
            continue
        seen.add(header.run_id)
        if all(_within(header.metadata.get(name), *limit) for name, *limit in ranges):
            newest = newest_record(storage, header.run_id, "attributes")
            if newest is not None and newest.id == header.id:
                yield header.run_id


def _within(value: Any, sign: str, limit: Any) -> bool:
    """True if *value* is within *limit*, and of a type that compares with it."""
    if isinstance(value, str) is not isinstance(limit, str) or value is None:
        return False
    return bool(value >= limit if sign == ">=" else value <= limit)
