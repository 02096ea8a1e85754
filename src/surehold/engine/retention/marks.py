"""Pins, releases and tags: what notes say about a run's checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from typing import Any

import msgspec

from surehold.core import policy
from surehold.core.records import Header

MARKING = ("pin", "release", "tag")
"""The kinds of the notes that mark a checkpoint."""


class Marks(msgspec.Struct):
    """The marks of a run's checkpoints, by seq."""

    ordinal: int = 0
    seq: int = 0
    """The run it is of, and the record up to which it was read."""
    pinned: set[int] = msgspec.field(default_factory=set)
    released: set[int] = msgspec.field(default_factory=set)
    tags: dict[int, tuple[tuple[str, ...], frozenset[str]]] = msgspec.field(default_factory=dict)
    """The tags that were added and those that were removed."""

    def copy(self) -> Marks:
        return Marks(self.ordinal, self.seq, set(self.pinned), set(self.released), dict(self.tags))

    def tagged(self, header: Header) -> Header:
        """The header with the tags that it has now."""
        if header.seq not in self.tags:
            return header
        added, removed = self.tags[header.seq]
        tags = dict.fromkeys((*header.tags, *added))
        return msgspec.structs.replace(header, tags=tuple(t for t in tags if t not in removed))

    def add(self, note: Header) -> None:
        """Take in a note that marks a checkpoint."""
        fact: dict[str, Any] = note.metadata
        target = fact["target"]
        if note.kind == "tag":
            added, removed = self.tags.get(target, ((), frozenset()))
            new = tuple(dict.fromkeys((*added, *fact["add"])))
            old = removed.difference(fact["add"]).union(fact["remove"])
            self.tags[target] = tuple(tag for tag in new if tag not in old), old
        else:
            place = self.pinned if note.kind == "pin" else self.released
            (place.add if fact["on"] else place.discard)(target)


def is_of_group(header: Header) -> bool:
    """Return whether this is a checkpoint of a group, which `Group.prune` alone drops.

    It pins the checkpoints of its members, and nothing else would release them.
    """
    return header.kind == "group" and header.run_id == f"group-{header.metadata.get('group')}"


def marks_in(notes: Iterable[Header]) -> dict[str, Marks]:
    """The marks, by run, that *notes* make, which come oldest first within a run."""
    marks: dict[str, Marks] = {}
    for note in notes:
        marks.setdefault(note.run_id, Marks()).add(note)
    return marks


def plan_marked(
    headers: Iterable[Header],
    marks: Mapping[str, Marks],
    rules: policy.Rules,
    now: datetime,
    tz: tzinfo = UTC,
) -> list[policy.Decision]:
    """`plan_prune` of these checkpoints with the *marks* of their runs."""
    return policy.plan_prune(
        [marks[header.run_id].tagged(header) for header in headers],
        rules,
        now,
        pinned={(run, seq) for run, mark in marks.items() for seq in mark.pinned},
        released={(run, seq) for run, mark in marks.items() for seq in mark.released},
        tz=tz,
    )
