"""Erasing: which hidden records of a run can go for good."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from surehold.core.policy import MESSAGE
from surehold.core.records import OPEN_FROM, Header, Record
from surehold.engine.journal import Note, Request


class Erasure(msgspec.Struct, frozen=True):
    """Records of a run that go for good, and the note that names them beforehand."""

    note: Note
    seqs: tuple[int, ...]
    stored: int
    """Bytes of their bodies."""
    head: int
    """The newest record when this was planned."""

    def request(self, run_id: str, epoch: int | None) -> Request:
        """The request that stores the note, unless the run continued from the erased part."""
        seqs = frozenset(self.seqs)
        return Request(run_id=run_id, notes=(self.note,), head=self.head, erases=seqs, epoch=epoch)


def first_needed(visible: Iterable[Header], head: int) -> int:
    """The oldest record that a visible checkpoint is built on."""
    return min(map(_needs, visible), default=head + 1)


def _needs(header: Header) -> int:
    """The first record that a checkpoint needs: its keyframe, or an open step's notes."""
    first = header.key_seq or header.seq
    open_from: int = header.metadata.get(OPEN_FROM, first)
    return min(first, open_from)


def plan_erasure(visible: Iterable[Header], old: Iterable[Record], head: int) -> Erasure | None:
    """Plan to erase *old*: the records before the first one that is still needed.

    Keys stay, and so do writes to a visible checkpoint and answers to what they ask, which may
    have come before it, and messages that the run has not taken.
    """
    old = [*old]
    taken = _taken_in(old)
    targets = {(header.scope, header.id) for header in visible}
    seqs: list[int] = []
    stored = 0
    edges: dict[int, tuple[int, str]] = {}
    for record in old:
        header = record.header
        if header.frame == "note" and header.kind == "key":
            continue
        if header.kind == MESSAGE and header.seq > taken.get(header.metadata.get("topic"), 0):
            continue
        if header.kind in ("writes", "answer") and (header.scope, header.parent) in targets:
            continue
        if header.frame == "note" and header.kind == "prune":
            for hole in msgspec.json.decode(record.body)["erased"]:
                edges[hole["first"]] = (hole["last"], hole["digest"])
        seqs.append(header.seq)
        stored += header.stored
        edges[header.seq] = (header.seq, header.digest)
    if not seqs:
        return None
    return Erasure(
        Note(kind="prune", content={"erased": _joined(edges)}), tuple(seqs), stored, head
    )


def _taken_in(records: Sequence[Record]) -> dict[Any, int]:
    """The place of the last message that was taken, by topic, as of *records*."""
    for record in reversed(records):
        if record.header.frame == "note" and record.header.kind == "mailbox":
            return dict(record.header.metadata.get("taken", {}))
    return {}


def _joined(edges: Mapping[int, tuple[int, str]]) -> list[dict[str, Any]]:
    """Neighbouring ranges as one, each with the digest of its last record."""
    joined: list[dict[str, Any]] = []
    for first, (last, digest) in sorted(edges.items()):
        if joined and joined[-1]["last"] + 1 >= first:
            if last > joined[-1]["last"]:
                joined[-1].update(last=last, digest=digest)
        else:
            joined.append({"first": first, "last": last, "digest": digest})
    return joined
