"""Addresses an agent saves to: its storage and the copies of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from surehold.errors import UsageError
from surehold.storage.base import Storage
from surehold.storage.registry import default_address

logger = logging.getLogger("surehold.checkpoint")

_FALLBACK = "file:.surehold/fallback"
_warned: set[tuple[str, str]] = set()


def with_fallbacks(storage: Storage | str | None, fallbacks: Sequence[str] | None) -> Storage | str:
    """Return *storage*, or the address of a `ResilientStorage` with its fallbacks."""
    if fallbacks is not None and isinstance(storage, Storage):
        raise UsageError(
            "fallbacks go with the address of a storage",
            hint="give ResilientStorage(storage, fallback) as the storage",
        )
    if isinstance(storage, Storage):
        return storage
    address = default_address() if storage is None else storage
    if fallbacks is None:
        # A registered name is shared, and has copies if its owner wants them.
        own = storage is None and ":" in address and not address.startswith("resilient:")
        fallbacks = [_FALLBACK] if own else []
    for one in fallbacks:
        _warn_if_same_device(address, one)
    return f"resilient:{'|'.join([address, *fallbacks])}" if fallbacks else address


def _warn_if_same_device(primary: str, copy: str) -> None:
    """Log once that a copy is lost together with its primary."""
    pair = primary, copy
    if pair in _warned or _device(primary) is None or _device(primary) != _device(copy):
        return
    _warned.add(pair)
    logger.warning(
        "the copy %s is on the same disk as %s and is lost with it: give fallbacks=['file:/path']"
        " on another disk",
        copy,
        primary,
    )


def _device(address: str) -> int | None:
    """Return the device that holds a file address; None for anything else."""
    scheme, _, rest = address.partition(":")
    if scheme not in ("file", "sqlite"):
        return None
    text = unquote(urlsplit(rest).path)
    path = Path(text[1:] if scheme == "sqlite" and text.startswith("/") else text).absolute()
    for place in (path, *path.parents):
        if place.exists():
            return os.stat(place).st_dev
    return None
