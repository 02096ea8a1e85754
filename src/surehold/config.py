"""The settings file `surehold.toml`, read alike by the library and the command.

The file is searched for in the working directory and its parents:

.. code-block:: toml

   storage = "sqlite:///runs.db"     # relative to this file

   [retention]                       # the rules of `surehold forget` when it is given none
   keep-last = 20
   keep-within = "24h"

   [expire]                          # the rule of `surehold expire`, which workers apply too
   older = "30d"

   [graphs]                          # imported by `surehold resume` for runs of a name
   report = "report:graph"
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from surehold.errors import UsageError

DEFAULT_ADDRESS = "sqlite:///.surehold/surehold.db"
FILE_NAME = "surehold.toml"
VARIABLE = "SUREHOLD_STORAGE"
_KEYS = {
    "storage": (str, "a string"),
    "retention": (dict, "a table"),
    "expire": (dict, "a table"),
    "graphs": (dict, "a table"),
    "redact": (bool, "true or false"),
}
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Config(msgspec.Struct, frozen=True):
    """The content of a settings file; all empty if there is no file."""

    file: Path | None = None
    storage: str | None = None
    """The address as it is written, relative to the file."""
    retention: Mapping[str, Any] = _NOTHING
    expire: Mapping[str, Any] = _NOTHING
    graphs: Mapping[str, Any] = _NOTHING
    redact: bool = False
    """The command and `surehold.answer` take secrets out of what they write."""


def read_config(directory: Path) -> Config:
    """Read the nearest `surehold.toml` in *directory* or above it."""
    for place in (directory, *directory.parents):
        file = place / FILE_NAME
        if file.is_file():
            return Config(file, **_read(file))
    return Config()


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        read = tomllib.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from error
    for key, value in read.items():
        if key not in _KEYS:
            near = get_close_matches(key, _KEYS, n=1)
            meant = f"did you mean {near[0]}? " if near else ""
            raise UsageError(
                f"{file} has no key {key!r}", hint=f"{meant}there are: {', '.join(_KEYS)}"
            )
        kind, name = _KEYS[key]
        if not isinstance(value, kind):
            raise UsageError(f"{file}: {key} must be {name}")
    return read
