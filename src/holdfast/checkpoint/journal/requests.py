"""What is to be written to a journal, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.checkpoint.journal.draft import CheckpointDraft
from holdfast.core.records import Header
from holdfast.errors import HoldfastError

__all__ = ["Note", "Outcome", "Request"]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A record that is no checkpoint, before it is sealed."""

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
    """What is to be written to one run in one atomic batch."""

    run_id: str
    draft: CheckpointDraft | None = None
    force: bool = False
    """Write the checkpoint even if nothing changed."""
    notes: Sequence[Note] = ()
    """Written after the checkpoint."""
    hide: Callable[[Header], Mapping[str, Sequence[int]]] | None = None
    """Told the checkpoint, says which seqs of which runs stop being visible in the same commit."""
    head: int | None = None
    """Carried out only if this is the run's newest record, else a `ConflictError`."""
    erases: Collection[int] = ()
    """Records that go once it is stored: nothing is built on them any more."""


class Outcome(msgspec.Struct, kw_only=True):
    """What became of a request."""

    header: Header | None = None
    """The checkpoint it was saved as, or the earlier one that says the same."""
    written: tuple[Header, ...] = ()
    hidden: Mapping[str, Sequence[int]] = {}
    supersedes: bool = True
    """Whether there may be an earlier checkpoint with an id that was given."""
    error: HoldfastError | None = None
