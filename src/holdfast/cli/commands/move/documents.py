"""What the commands that move print with --json."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from holdfast.cli.framework import Document

__all__ = [
    "Copied",
    "CopyRow",
    "Exported",
    "Imported",
    "LangGraphImport",
    "Migrate",
    "MigrateRow",
    "ThreadRow",
]


class Exported(Document, kw_only=True):
    """``export`` to a file"""

    type: Literal["exported"] = "exported"
    run_id: str
    path: str
    form: Literal["holdfast", "html", "json"]
    checkpoints: int
    bytes: int


class Imported(Document, kw_only=True):
    """``import``"""

    type: Literal["imported"] = "imported"
    run_id: str
    path: str
    checkpoints: int


class CopyRow(msgspec.Struct, kw_only=True):
    """What was copied of a run."""

    run_id: str
    records: int
    error: str = ""


class Copied(Document, kw_only=True):
    """``copy``"""

    items: ClassVar[str] = "runs"
    row: ClassVar[str] = "copied"
    type: Literal["copied"] = "copied"
    to: str
    records: int
    runs: list[CopyRow]


class MigrateRow(msgspec.Struct, kw_only=True):
    """The version of a run's state."""

    run_id: str
    name: str
    found: int
    wanted: int
    outcome: Literal["current", "migrated", "would migrate", "stuck", "completed"]
    problem: str = ""


class Migrate(Document, kw_only=True):
    """``migrate``"""

    items: ClassVar[str] = "runs"
    row: ClassVar[str] = "migrated"
    type: Literal["migrate"] = "migrate"
    dry_run: bool
    runs: list[MigrateRow]


class ThreadRow(msgspec.Struct, kw_only=True):
    """A thread that came over, and was found the same on both sides."""

    thread_id: str
    checkpoints: int
    added: int
    """How many were not there yet."""


class LangGraphImport(Document, kw_only=True):
    """``import-langgraph``"""

    items: ClassVar[str] = "threads"
    row: ClassVar[str] = "thread"
    type: Literal["import-langgraph"] = "import-langgraph"
    source: str
    threads: list[ThreadRow]
