"""The settings of a command: from options, the environment, `holdfast.toml` and defaults.

`holdfast.toml` is searched for in the working directory and its parents:

.. code-block:: toml

   storage = "sqlite:///runs.db"     # relative to this file

   [retention]                       # the rules of `holdfast forget` when it is given none
   keep-last = 20
   keep-within = "24h"

   [graphs]                          # imported by `holdfast resume` for runs of a name
   report = "report:graph"
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import NotFoundError, UsageError
from holdfast.storage.addresses import StorageURL, has_scheme, mask_url, nearest
from holdfast.storage.registry import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from holdfast.core.policy import Rules

__all__ = [
    "FILE_NAME",
    "Settings",
    "Value",
    "beside",
    "check_exists",
    "load_settings",
    "place_of",
]

FILE_NAME = "holdfast.toml"
VARIABLE = "HOLDFAST_STORAGE"
_KEYS = ("storage", "retention", "graphs")


class Value(NamedTuple):
    """A setting and its origin."""

    value: Any
    origin: str


class Settings(NamedTuple):
    """All settings of one call."""

    storage: Value
    retention: Value
    graphs: Value
    file: Path | None

    def rules(self) -> Rules:
        """The retention rules; empty ones if there are none."""
        from holdfast.core.policy import Rules

        try:
            return Rules.from_mapping(self.retention.value)
        except UsageError as error:
            raise UsageError(f"{self.retention.origin}: {error.message}", hint=error.hint) from None


def load_settings(option: str | None, environ: Mapping[str, str], directory: Path) -> Settings:
    """The settings of a command that is called in *directory*."""
    file = _find(directory)
    read: dict[str, Any] = {} if file is None else _read(file)
    origin = str(file) if file is not None else "default"
    if option:
        storage = Value(option, "--storage")
    elif environ.get(VARIABLE):
        storage = Value(environ[VARIABLE], VARIABLE)
    elif file is not None and "storage" in read:
        base = None if file.parent == directory else file.parent
        storage = Value(beside(read["storage"], base), origin)
    else:
        storage = Value(DEFAULT_ADDRESS, "default")
    return Settings(
        storage,
        Value(read.get("retention", {}), origin if "retention" in read else "default"),
        Value(read.get("graphs", {}), origin if "graphs" in read else "default"),
        file,
    )


def _find(directory: Path) -> Path | None:
    for place in (directory, *directory.parents):
        if (place / FILE_NAME).is_file():
            return place / FILE_NAME
    return None


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        read = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    for key, value in read.items():
        if key not in _KEYS:
            raise UsageError(
                f"{file} has no key {key!r}",
                hint=f"{nearest(key, _KEYS)}there are: {', '.join(_KEYS)}",
            )
        if not isinstance(value, str if key == "storage" else dict):
            kind = "a string" if key == "storage" else "a table"
            raise UsageError(f"{file}: {key} must be {kind}")
    return read


def beside(address: str, base: Path | None) -> str:
    """*address*, with a relative path resolved against *base*.

    >>> beside("sqlite:///runs.db?compress=zstd", Path("/srv"))
    'sqlite:////srv/runs.db?compress=zstd'
    """
    path = place_of(address)
    if base is None or path is None or path.is_absolute():
        return address
    url = StorageURL.parse(address)
    options = f"?{address.partition('?')[2]}" if url.options else ""
    return f"{url.scheme}:{'///' if url.scheme == 'sqlite' else ''}{base / path}{options}"


def place_of(address: str) -> Path | None:
    """The file or directory of an address; None if it has none."""
    if not has_scheme(address):
        return None
    url = StorageURL.parse(address)
    if url.scheme == "sqlite":
        return Path(url.path.removeprefix("/"))
    if url.scheme == "file":
        return Path(f"{url.host}{url.path}" if url.host in (".", "..") else url.path)
    return None


def _named_by(origin: str) -> str:
    return "that is the default" if origin == "default" else f"named by {origin}"


def check_exists(storage: Value) -> None:
    """Raise `NotFoundError` if *storage* does not exist: reading creates none."""
    place = place_of(storage.value)
    if place is not None and not place.exists():
        raise NotFoundError(
            f"there is no storage at {mask_url(storage.value)}",
            hint=f"{_named_by(storage.origin)}; give --storage URL, or holdfast init creates one",
            storage=mask_url(storage.value),
        )
