"""What the commands that look print with --json."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from holdfast.checkpoint.inspect import Origin, RunSummary
from holdfast.cli.framework import Address, ChangeRow, Checkpoint, Document, NoteRow

__all__ = [
    "Blame",
    "Diff",
    "KindStats",
    "Latency",
    "Log",
    "Problem",
    "ResumeStats",
    "Runs",
    "Show",
    "Stats",
    "Status",
    "Tree",
    "TreeRun",
    "ValueAt",
    "Watch",
]


class Runs(Document, kw_only=True):
    """``runs``"""

    items: ClassVar[str] = "runs"
    row: ClassVar[str] = "run"
    type: Literal["runs"] = "runs"
    runs: list[RunSummary]
    more: bool
    """Whether there are more than were asked for."""


class Log(Document, kw_only=True):
    """``log``"""

    items: ClassVar[str] = "checkpoints"
    row: ClassVar[str] = "checkpoint"
    type: Literal["log"] = "log"
    run_id: str
    status: str
    checkpoints: list[Checkpoint]
    open: list[NoteRow]
    """Notes after the newest checkpoint."""
    more: bool


class Show(Document, kw_only=True):
    """``show``"""

    type: Literal["show"] = "show"
    checkpoint: Address
    state: msgspec.Raw
    error: str = ""
    """What its run failed with: the error's class and text."""
    failed_in: str = ""
    """The node that its run failed in."""


class ValueAt(Document, kw_only=True):
    """``cat``"""

    type: Literal["value"] = "value"
    run_id: str
    checkpoint_id: str
    step: int
    path: str
    value: Any


class Diff(Document, kw_only=True):
    """``diff``"""

    items: ClassVar[str] = "changes"
    row: ClassVar[str] = "change"
    type: Literal["diff"] = "diff"
    a: Address
    b: Address
    changes: list[ChangeRow]
    keys: list[str]
    """The keys of the state that differ."""
    appended: dict[str, int]
    """By how many items lists of the state grew."""
    tokens: int
    dollars: float
    """What the effects between the two cost; less than 0 if *a* cost more."""


class Blame(Document, kw_only=True):
    """``blame``"""

    type: Literal["blame"] = "blame"
    key: str
    checkpoint: Address
    value: Any


class Problem(msgspec.Struct, kw_only=True):
    """Something that is not as it should be."""

    kind: str
    run_id: str
    message: str
    help: str


class Status(Document, kw_only=True):
    """``status``"""

    type: Literal["status"] = "status"
    healthy: bool
    storage: str
    runs: dict[str, int]
    """How many, by status."""
    pending: int
    free_bytes: int | None
    problems: list[Problem]


class KindStats(msgspec.Struct, kw_only=True):
    """What the checkpoints of a kind, or of a run, take."""

    name: str
    checkpoints: int
    logical_bytes: int
    stored_bytes: int


class ResumeStats(msgspec.Struct, kw_only=True):
    """What became of the resumes with one cause."""

    cause: str
    tried: int
    succeeded: int
    failed: int


class Latency(msgspec.Struct, kw_only=True):
    """How long something took, in seconds."""

    name: str
    count: int
    median: float
    p95: float
    max: float


class Stats(Document, kw_only=True):
    """``stats``"""

    type: Literal["stats"] = "stats"
    storage: str
    runs: int
    checkpoints: int
    logical_bytes: int
    stored_bytes: int
    file_bytes: int | None
    by_kind: list[KindStats]
    by_run: list[KindStats]
    resumes: list[ResumeStats]
    latency: list[Latency]


class Watch(Document, kw_only=True):
    """``watch``: one for each checkpoint, as it comes."""

    type: Literal["checkpoint"] = "checkpoint"
    checkpoint: Checkpoint


class TreeRun(msgspec.Struct, kw_only=True):
    """A run in its place among the forks."""

    run_id: str
    name: str
    status: str
    step: int
    depth: int
    forked_from: Origin | None


class Tree(Document, kw_only=True):
    """``tree``"""

    items: ClassVar[str] = "runs"
    row: ClassVar[str] = "run"
    type: Literal["tree"] = "tree"
    runs: list[TreeRun]
