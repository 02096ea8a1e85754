"""Values of pandas as values that can be stored, and back.

pandas is not imported for this. A table is stored as its columns and its index, a column as its
dtype and its values: numbers and times as numpy arrays, texts and objects as lists. Dtypes whose
values are more than that are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from surehold.core.values.classes import imported, pandas_name
from surehold.errors import EncodeError

Take = Callable[[Any], Any]
Make = Callable[[Any], Any]

_PLAIN = re.compile(r"[<>|=][biufcMm]\d+(\[\d*[a-zA-Z]+\])?")
"""dtypes of numpy that hold numbers or times."""
_LISTED = re.compile(r"object|str|string|boolean|U?Int(8|16|32|64)|Float(32|64)")
"""dtypes whose values are stored in a list, with None for a missing one."""
_ZONED = re.compile(r"datetime64\[(s|ms|us|ns), (.+)\]")
_SINGLE = {"NaTType": "NaT", "NAType": "NA"}


def pandas_parts(cls: Any) -> tuple[Take, Make, bool]:
    """Two functions that take and make a value of *cls*, and whether it may change."""
    name = pandas_name(cls).rpartition(".")[2]
    if name in _SINGLE:
        single = getattr(_pandas(), _SINGLE[name])
        return (lambda value: None), (lambda parts: single), False
    if name in ("Timestamp", "Timedelta"):
        return _take_moment, _moment_of(cls), False
    if name == "DataFrame":
        return _take_table, _table, True
    if name == "Series":
        return _take_series, _series, True
    return _take_index, _index, False


def _pandas() -> Any:
    return imported("pandas")


def _refused(what: str) -> EncodeError:
    return EncodeError(
        f"pandas values of {what} cannot be stored",
        hint='convert them with astype, or store plain values, such as frame.to_dict("list")',
    )


# Moments


def _take_moment(value: Any) -> list[Any]:
    zone = getattr(value, "tz", None)
    if zone is not None:
        _zone_name(value.unit, zone)
    return [value.asm8, None if zone is None else str(zone)]


def _moment_of(cls: Any) -> Make:
    def make(parts: Any) -> Any:
        moment, zone = parts
        made = cls(moment)
        return made if zone is None else made.tz_localize("UTC").tz_convert(zone)

    return make


def _zone_name(unit: str, zone: Any) -> str:
    """The dtype of times in *zone*, if a text names it."""
    pandas = _pandas()
    text = f"datetime64[{unit}, {zone}]"
    try:
        found = pandas.api.types.pandas_dtype(text)
    except TypeError:
        found = None
    if found is None or found != pandas.DatetimeTZDtype(unit, zone):
        raise EncodeError(
            f"pandas times in the zone {zone} cannot be stored",
            hint='use tz_convert("UTC"), or a zone with a name',
        )
    return text


# Columns


def _take_values(values: Any) -> list[Any]:
    """The dtype and the values of a column or an index."""
    pandas, dtype = _pandas(), values.dtype
    if isinstance(dtype, pandas.CategoricalDtype):
        given = pandas.Categorical(values)
        codes, categories = given.codes.tolist(), _take_index(given.categories)
        return ["category", [codes, categories, bool(given.ordered)]]
    if isinstance(dtype, pandas.DatetimeTZDtype):
        kind = _zone_name(dtype.unit, dtype.tz)
        return [kind, pandas.DatetimeIndex(values).tz_convert("UTC").tz_localize(None).to_numpy()]
    text = getattr(dtype, "str", "") if not pandas.api.types.is_extension_array_dtype(dtype) else ""
    if _PLAIN.fullmatch(text):
        return [text, values.to_numpy()]
    if not _LISTED.fullmatch(str(dtype)) or pandas.api.types.pandas_dtype(str(dtype)) != dtype:
        raise _refused(str(dtype))
    items = values.astype(object).tolist()
    if str(dtype) != "object":
        items = [None if pandas.isna(one) else one for one in items]
    return [str(dtype), items]


def _values(parts: Any) -> Any:
    """An array of pandas or numpy."""
    pandas = _pandas()
    kind, stored = parts
    if kind == "category":
        codes, categories, ordered = stored
        return pandas.Categorical.from_codes([*codes], _index(categories), ordered=ordered)
    if _ZONED.fullmatch(kind):
        zone = kind[:-1].partition(", ")[2]
        return pandas.DatetimeIndex(stored).tz_localize("UTC").tz_convert(zone).array
    if _PLAIN.fullmatch(kind):
        return stored
    if not _LISTED.fullmatch(kind):
        raise ValueError(f"{kind!r} is no dtype of stored values")
    if kind == "object":
        return pandas.Series([*stored], dtype=object).to_numpy()
    return pandas.array([*stored], dtype=kind)


# Tables


def _take_index(index: Any) -> list[Any]:
    name = pandas_name(type(index)).rpartition(".")[2]
    if name == "RangeIndex":
        return [name, [index.start, index.stop, index.step], index.name]
    if name == "MultiIndex":
        codes = [one.tolist() for one in index.codes]
        return [name, [[_take_index(one) for one in index.levels], codes], list(index.names)]
    if not name:
        raise _refused(type(index).__name__)
    return [name, [_take_values(index), _frequency(index)], index.name]


def _frequency(index: Any) -> str | None:
    found: str | None = getattr(index, "freqstr", None)
    return found


def _index(parts: Any) -> Any:
    pandas = _pandas()
    kind, stored, name = parts
    if kind == "RangeIndex":
        return pandas.RangeIndex(*stored, name=name)
    if kind == "MultiIndex":
        levels, codes = stored
        return pandas.MultiIndex(
            [_index(one) for one in levels], [[*one] for one in codes], names=[*name]
        )
    values, frequency = stored
    made = pandas.Index(_values(values), name=name, dtype=_dtype(values))
    if frequency is not None:
        made.freq = frequency
    return made


def _dtype(parts: Any) -> Any:
    """The dtype to give where pandas would guess one from objects."""
    return object if parts[0] == "object" else None


def _take_series(value: Any) -> list[Any]:
    return [_take_values(value), _take_index(value.index), value.name, dict(value.attrs)]


def _series(parts: Any) -> Any:
    values, index, name, attrs = parts
    made = _pandas().Series(_values(values), _index(index), dtype=_dtype(values), name=name)
    made.attrs.update(attrs)
    return made


def _take_table(value: Any) -> list[Any]:
    columns = [_take_values(value.iloc[:, at]) for at in range(value.shape[1])]
    return [columns, _take_index(value.columns), _take_index(value.index), dict(value.attrs)]


def _table(parts: Any) -> Any:
    pandas = _pandas()
    stored, columns, index, attrs = parts
    rows = _index(index)
    made = [pandas.Series(_values(one), rows, dtype=_dtype(one)) for one in stored]
    table = pandas.DataFrame(dict(enumerate(made)), rows)
    table.columns = _index(columns)
    table.attrs.update(attrs)
    return table
