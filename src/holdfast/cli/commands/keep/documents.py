"""What the commands that keep print with --json."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Literal

import msgspec

from holdfast.checkpoint.repair import RunRepair
from holdfast.cli.framework import Document

__all__ = [
    "DecisionRow",
    "Forget",
    "Policy",
    "Prune",
    "PruneRow",
    "Repair",
    "Rotated",
    "VerdictRow",
    "Verify",
]


class DecisionRow(msgspec.Struct, kw_only=True):
    """What becomes of a checkpoint, and why."""

    run_id: str
    checkpoint_id: str
    scope: str
    step: int
    kind: str
    saved_at: datetime
    stored_bytes: int
    keep: bool
    reasons: tuple[str, ...]


class Forget(Document, kw_only=True):
    """``forget``"""

    items: ClassVar[str] = "decisions"
    row: ClassVar[str] = "decision"
    type: Literal["forget"] = "forget"
    dry_run: bool
    rules: dict[str, Any]
    origin: str
    kept: int
    forgotten: int
    deleted_runs: list[str]
    decisions: list[DecisionRow]


class PruneRow(msgspec.Struct, kw_only=True):
    """What is freed of a run."""

    run_id: str
    records: int
    bytes: int


class Prune(Document, kw_only=True):
    """``prune``"""

    items: ClassVar[str] = "runs"
    row: ClassVar[str] = "pruned"
    type: Literal["prune"] = "prune"
    dry_run: bool
    records: int
    bytes: int
    runs: list[PruneRow]


class VerdictRow(msgspec.Struct, kw_only=True):
    """What verifying a run found."""

    run_id: str
    records: int
    sound: bool
    problems: tuple[str, ...]


class Verify(Document, kw_only=True):
    """``verify``"""

    items: ClassVar[str] = "runs"
    row: ClassVar[str] = "verdict"
    type: Literal["verify"] = "verify"
    read_data: bool
    sound: bool
    runs: list[VerdictRow]


class Repair(Document, kw_only=True):
    """``repair``"""

    type: Literal["repair"] = "repair"
    dry_run: bool
    clean: bool
    medium: tuple[str, ...]
    runs: tuple[RunRepair, ...]


class Policy(Document, kw_only=True):
    """``policy``"""

    type: Literal["policy"] = "policy"
    origin: str
    rules: dict[str, Any]
    keeps_all: bool


class Rotated(Document, kw_only=True):
    """``rotate-key``"""

    type: Literal["rotated"] = "rotated"
    runs: int
