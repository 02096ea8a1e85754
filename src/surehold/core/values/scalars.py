"""The values without parts that JSON cannot say, and how each is written and read.

A writer gives the whole tree of a value, with its tag if it needs one; a reader gets what stands
beside the tag.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from math import isfinite
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from surehold.core.values.frozen import unknown_type
from surehold.errors import EncodeError


def _itself(value: Any) -> Any:
    return value


def write_str(value: str) -> Any:
    """A string: itself if it is valid Unicode."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {"$t": "str", "v": b64encode(value.encode("utf-16-le", "surrogatepass")).decode()}
    return value


def _read_str(tree: Any) -> str:
    return b64decode(tree, validate=True).decode("utf-16-le", "surrogatepass")


def _read_text(tree: Any) -> str:
    """Read what `write_str` wrote."""
    return tree if isinstance(tree, str) else _read_str(tree["v"])


def _write_int(value: int) -> Any:
    return value if -(1 << 63) <= value < 1 << 64 else {"$t": "int", "v": hex(value)}


def _write_float(value: float) -> Any:
    return value if isfinite(value) else {"$t": "float", "v": repr(value)}


def _read_float(tree: Any) -> float:
    if tree not in ("nan", "inf", "-inf"):
        raise ValueError(f"{tree!r} is not a float that needs a tag")
    return float(tree)


def _write_complex(value: complex) -> Any:
    return {"$t": "complex", "v": [repr(value.real), repr(value.imag)]}


def _read_complex(tree: Any) -> complex:
    real, imaginary = tree
    return complex(float(real), float(imaginary))


def _fixed(zone: tzinfo) -> timezone | None:
    """The fixed zone that *zone* is or equals."""
    if type(zone) is timezone:
        return zone
    offset = zone.utcoffset(None)
    same = timezone(offset) if offset is not None else None
    return same if same == zone else None


def check(value: Any) -> None:
    """Raise an `EncodeError` if *value*, of a type that can be stored, cannot be."""
    if type(value) is datetime or type(value) is time:
        _check_zone(value.tzinfo)


def _check_zone(zone: tzinfo | None) -> None:
    if zone is None or type(zone) is timezone:
        return
    if type(zone) is not ZoneInfo:
        if _fixed(zone) is None:
            raise unknown_type(zone)
    elif zone.key is None:
        raise EncodeError("a ZoneInfo made from a file has no name to store")


def _write_moment(value: datetime | time) -> Any:
    """ISO text where that says it all, else a list: local ISO text, zone, fold."""
    zone, fold = value.tzinfo, value.fold
    if not fold and (zone is None or zone is UTC):
        return value.isoformat()
    _check_zone(zone)
    written: Any = None
    if type(zone) is ZoneInfo:
        written = zone.key
    elif zone is not None and (fixed := _fixed(zone)) is not None:
        offset = fixed.utcoffset(None)
        name = fixed.tzname(None)
        named = name != timezone(offset).tzname(None)
        # Python does not read back all offsets with a fraction of a second.
        if not fold and not named and not offset.microseconds:
            return value.replace(tzinfo=fixed).isoformat()
        written = [*_write_timedelta(offset), *([write_str(name)] if named else [])]
    return [value.replace(tzinfo=None, fold=0).isoformat(), written, fold]


def _read_moment(read: Callable[[str], Any]) -> Callable[[Any], Any]:
    def moment(tree: Any) -> Any:
        if isinstance(tree, str):
            return read(tree)
        text, zone, fold = tree
        return read(text).replace(tzinfo=_read_zone(zone), fold=fold)

    return moment


def _read_zone(tree: Any) -> tzinfo | None:
    if tree is None:
        return None
    if isinstance(tree, str):
        return ZoneInfo(tree)
    days, seconds, microseconds, *name = tree
    return timezone(timedelta(days, seconds, microseconds), *map(_read_text, name))


def _write_timedelta(value: timedelta) -> Any:
    return [value.days, value.seconds, value.microseconds]


_PATHS: dict[str, tuple[type[PurePath], type[PurePath]]] = {
    "path": (PosixPath, PurePosixPath),
    "windows-path": (WindowsPath, PureWindowsPath),
    "pure-path": (PurePosixPath, PurePosixPath),
    "pure-windows-path": (PureWindowsPath, PureWindowsPath),
}
"""Tag, class, and what stands in for the class on a system that does not have it."""


def _read_path(cls: type[PurePath]) -> Callable[[Any], PurePath]:
    return lambda tree: cls(_read_text(tree))


def _tagged(tag: str, write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: {"$t": tag, "v": write(value)}


WRITERS: dict[type, Callable[[Any], Any]] = {
    type(None): _itself,
    bool: _itself,
    str: write_str,
    int: _write_int,
    float: _write_float,
    complex: _write_complex,
    bytes: _tagged("bytes", lambda value: b64encode(value).decode()),
    datetime: _tagged("datetime", _write_moment),
    date: _tagged("date", date.isoformat),
    time: _tagged("time", _write_moment),
    timedelta: _tagged("timedelta", _write_timedelta),
    Decimal: _tagged("decimal", str),
    UUID: _tagged("uuid", str),
    **{cls: _tagged(tag, lambda path: write_str(str(path))) for tag, (cls, _) in _PATHS.items()},
}

READERS: dict[str, Callable[[Any], Any]] = {
    "str": _read_str,
    "int": lambda tree: int(tree, 16),
    "float": _read_float,
    "complex": _read_complex,
    "bytes": lambda tree: b64decode(tree, validate=True),
    "datetime": _read_moment(datetime.fromisoformat),
    "date": date.fromisoformat,
    "time": _read_moment(time.fromisoformat),
    "timedelta": lambda tree: timedelta(*tree),
    "decimal": Decimal,
    "uuid": UUID,
    **{
        tag: _read_path(cls if issubclass(type(Path()), cls) else pure)
        for tag, (cls, pure) in _PATHS.items()
    },
}
