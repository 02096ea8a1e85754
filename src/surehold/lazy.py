"""Late imports: names when they are first used, packages of an extra.

A package states what it offers once, in its stub `__init__.pyi`, which type checkers read too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from surehold.errors import MissingExtraError


def attach(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Give `__getattr__`, `__dir__` and `__all__` of the package with this *file*.

    The stub may import objects from any module, and modules from *package* itself.
    """
    homes = _homes(package, file)

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if homes[name] == package:
            return import_module(f"{package}.{name}")
        value = getattr(import_module(homes[name]), name)
        setattr(import_module(package), name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    return load, names, sorted(homes)


@contextmanager
def extra(name: str, need: str = "") -> Iterator[None]:
    """Import packages of an extra in the block, or raise `MissingExtraError`.

    *need* says what it is needed for; else the error says what could not be imported.
    """
    try:
        yield
    except ImportError as error:
        hint = f"pip install 'surehold[{name}]'"
        raise MissingExtraError(need or str(error), hint=hint) from error


def _homes(package: str, file: str) -> dict[str, str]:
    """The module that each name of the stub beside *file* comes from."""
    loader: Any = sys.modules[package].__spec__.loader  # type: ignore[union-attr]  # also of a zip
    stub = loader.get_data(f"{file.removesuffix('.py')}.pyi").decode()
    statements = f"\n{stub}".split("\nfrom ")[1:]
    homes: dict[str, str] = {}
    for statement in statements:
        module, _, names = statement.partition(" import ")
        # Either in brackets, or to the end of the line.
        names = names[1:].partition(")")[0] if names[:1] == "(" else names.partition("\n")[0]
        for name in names.split(","):
            if name := name.split(" as ")[-1].strip():
                homes[name] = module
    return homes
