"""What the commands that are there to start with print with --json."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from holdfast.cli.framework import Document

__all__ = [
    "Demo",
    "Doctor",
    "Init",
    "Medium",
    "Package",
    "PromiseRow",
    "SelfTest",
    "Setting",
]


class Demo(Document, kw_only=True):
    """``demo``"""

    type: Literal["demo"] = "demo"
    storage: str
    killed_after: int
    resumed_at: int
    pages_read: int
    read_twice: int
    sound: bool
    runs: list[str]


class Init(Document, kw_only=True):
    """``init``"""

    type: Literal["init"] = "init"
    storage: str
    file: str
    made: list[str]


class Setting(msgspec.Struct, kw_only=True):
    """A setting, and where it came from."""

    name: str
    value: Any
    origin: str


class Package(msgspec.Struct, kw_only=True):
    """A package that Holdfast can use."""

    name: str
    version: str | None
    extra: str
    """The extra that brings it; empty if it always comes along."""


class Medium(msgspec.Struct, kw_only=True):
    """A kind of storage, and what it guarantees."""

    scheme: str
    available: bool
    guarantees: str


class Doctor(Document, kw_only=True):
    """``doctor``"""

    type: Literal["doctor"] = "doctor"
    versions: dict[str, str]
    settings: list[Setting]
    packages: list[Package]
    storages: list[Medium]
    storage: str
    reachable: bool
    problem: str


class PromiseRow(msgspec.Struct, kw_only=True):
    """A promise, and whether it was kept."""

    verdict: Literal["PASS", "FAIL", "SKIP"]
    promise: str
    detail: str


class SelfTest(Document, kw_only=True):
    """``selftest``"""

    items: ClassVar[str] = "promises"
    row: ClassVar[str] = "promise"
    type: Literal["selftest"] = "selftest"
    storage: str
    passed: bool
    promises: list[PromiseRow]
