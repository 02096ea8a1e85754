"""Classes of fields, known by their module and name without being registered.

Saving a value learns its class. Reading finds a class only in a module that this process has
imported already: a name in stored text never causes an import, and no constructor is called.
"""

from __future__ import annotations

import dataclasses
import sys
from enum import Enum, EnumType, Flag
from types import ModuleType
from typing import Any

import msgspec


def name_of(cls: type) -> str:
    """The stored name of a class that is not registered."""
    if known := pandas_name(cls):
        return known
    module = cls.__module__
    return f"{_main_name() if module == '__main__' else module}.{cls.__qualname__}"


def is_learnable(cls: type) -> bool:
    """True if *cls* is made of fields, is found by its name, and runs no code."""
    return _has_fields(cls) and find_class(name_of(cls)) is cls


def find_class(name: str) -> type | None:
    """The class of fields that this process has under that name; nothing is imported."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        module_name = ".".join(parts[:cut])
        module = sys.modules.get("__main__" if module_name == _main_name() else module_name)
        if not isinstance(module, ModuleType):
            continue
        # A module that loads late, or has a __getattr__ of its own, must not do so here.
        found: Any = object.__getattribute__(module, "__dict__").get(parts[cut])
        for part in parts[cut + 1 :]:
            found = vars(found).get(part) if isinstance(found, type) else None
        if isinstance(found, type) and _has_fields(found):
            return found
    return None


def is_numpy(cls: type) -> bool:
    """True for numpy's arrays and scalars; numpy is not imported for this."""
    numpy = sys.modules.get("numpy")
    if numpy is None or cls.__module__ != "numpy":
        return False
    return cls is numpy.ndarray or issubclass(cls, numpy.generic)


_PANDAS = {
    *("DataFrame", "Series", "Index", "RangeIndex", "MultiIndex", "DatetimeIndex"),
    *("TimedeltaIndex", "CategoricalIndex", "Timestamp", "Timedelta"),
}


def pandas_name(cls: type) -> str:
    """The name of a class of pandas whose values can be stored; empty for any other.

    pandas is not imported for this.
    """
    pandas = sys.modules.get("pandas")
    if pandas is None or not cls.__module__.startswith("pandas"):
        return ""
    name = cls.__name__
    if name in _PANDAS:
        return f"pandas.{name}" if vars(pandas).get(name) is cls else ""
    return f"pandas.api.typing.{name}" if name in ("NaTType", "NAType") else ""


def imported(module: str) -> Any:
    """A module that this process has imported."""
    return sys.modules[module]


def _main_name() -> str:
    """The name by which other processes import the program that this one executes."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    return (
        str(file).replace("\\", "/").rpartition("/")[2].removesuffix(".py") if file else "__main__"
    )


def _has_fields(cls: Any) -> bool:
    """True if no code of *cls* is executed when an object is made of stored fields."""
    if hasattr(cls, "__del__"):
        return False
    if is_numpy(cls) or pandas_name(cls):
        return True
    if issubclass(cls, Enum):
        base = Flag if issubclass(cls, Flag) else Enum
        return type(cls) is EnumType and cls._missing_.__func__ is base._missing_.__func__  # type: ignore[attr-defined]
    if issubclass(cls, msgspec.Struct):
        return not hasattr(cls, "__post_init__")
    if hasattr(cls, "__pydantic_fields__") and hasattr(cls, "model_fields"):
        return str(cls.__setstate__.__module__).startswith("pydantic")
    if issubclass(cls, tuple):
        return hasattr(cls, "_fields")
    return dataclasses.is_dataclass(cls) and cls.__new__ is object.__new__
