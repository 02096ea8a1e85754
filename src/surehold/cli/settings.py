"""The settings of a command: options, environment, `surehold.toml`, defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from surehold.config import read_config
from surehold.core.policy import Expiry, Rules
from surehold.errors import NotFoundError, UsageError
from surehold.storage.addresses import mask_url, place_of
from surehold.storage.registry import configured_storage

T = TypeVar("T")


class Value(NamedTuple):
    """A setting and its origin."""

    value: Any
    origin: str


class CallSettings(NamedTuple):
    """All settings of one call."""

    storage: Value
    retention: Value
    expire: Value
    graphs: Value
    redact: bool
    file: Path | None

    def rules(self) -> Rules:
        """The retention rules; empty ones if there are none."""
        return _read(Rules.from_mapping, self.retention)

    def expiry(self) -> Expiry | None:
        """The rule by which whole runs expire, if there is one."""
        return _read(Expiry.from_mapping, self.expire) if self.expire.value else None


def _read(read: Callable[[Any], T], setting: Value) -> T:
    try:
        return read(setting.value)
    except UsageError as error:
        raise UsageError(f"{setting.origin}: {error.message}", hint=error.hint) from None


def load_settings(option: str | None, environ: Mapping[str, str], directory: Path) -> CallSettings:
    """The settings of a command that is called in *directory*."""
    config = read_config(directory)
    if option:
        storage = Value(option, "--storage")
    else:
        storage = Value(*configured_storage(environ, directory, config))
    file = str(config.file)
    return CallSettings(
        storage,
        Value(dict(config.retention), file if config.retention else "default"),
        Value(dict(config.expire), file if config.expire else "default"),
        Value(dict(config.graphs), file if config.graphs else "default"),
        config.redact,
        config.file,
    )


def check_exists(storage: Value) -> None:
    """Raise `NotFoundError` if *storage* does not exist: reading creates none."""
    place = place_of(storage.value)
    if place is not None and not place.exists():
        by_default = storage.origin == "default"
        named = "that is the default" if by_default else f"named by {storage.origin}"
        named += "" if place.is_absolute() else f", in {Path.cwd()}"
        raise NotFoundError(
            f"there is no storage at {mask_url(storage.value)}",
            hint=f"{named}; give --storage URL, or surehold init creates one",
            storage=mask_url(storage.value),
        )
