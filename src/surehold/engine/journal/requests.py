"""Requests to write to a journal, and their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from surehold.core.records import Header
from surehold.engine.journal.draft import CheckpointDraft
from surehold.errors import SureholdError


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A note: any record but a checkpoint, not sealed yet."""

    kind: str
    content: Any
    scope: str = ""
    step: int = 0
    node: str | None = None
    parent: str | None = None
    name: str = ""
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}


class Request(msgspec.Struct, kw_only=True):
    """Records to write to one run in one atomic batch."""

    run_id: str
    draft: CheckpointDraft | None = None
    force: bool = False
    """Write the checkpoint even if nothing changed."""
    notes: Sequence[Note] = ()
    """Written after the checkpoint."""
    notes_for: Callable[[Header], Sequence[Note]] | None = None
    """Given the checkpoint, returns further notes that are written after it."""
    hide: Callable[[Header], Mapping[str, Sequence[int]]] | None = None
    """Given the checkpoint, returns the seqs, by run, that are hidden in the same commit."""
    head: int | None = None
    """The run's newest record must be this one, else it is a `ConflictError`."""
    epoch: int | None = None
    """The epoch of the lease in whose name it is written: a later lease refuses it. None for
    whoever does not hold the run."""
    new_run: bool = False
    """The run must not exist yet, else it is a `ConflictError`."""
    erases: Collection[int] = ()
    """Seqs that are erased once it is stored: no delta may be built on them."""


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of a request."""

    header: Header | None = None
    """The checkpoint it was saved as, or the earlier one with the same state."""
    written: tuple[Header, ...] = ()
    hidden: Mapping[str, Sequence[int]] = {}
    error: SureholdError | None = None
