"""The chain of a run: each record names the digest of the one before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from surehold.core.records.record import Header, Record


class Gap(msgspec.Struct, frozen=True):
    """A range of seqs that is missing, and the digest of its last record.

    A prune note says the same of what it erases, in this form.
    """

    first: int
    last: int
    digest: str


class _PruneNote(msgspec.Struct):
    erased: list[Gap]


def read_prune_note(body: bytes) -> list[Gap]:
    """The gaps that the body of a prune note announces."""
    return msgspec.json.decode(body, type=_PruneNote).erased


class Chain:
    """Follows the records of a run in order, from the one at *seq* with *digest*.

    >>> from datetime import UTC, datetime
    >>> from surehold.core.records.record import seal
    >>> header = Header(run_id="r", seq=1, id="a", frame="key", saved_at=datetime.now(UTC))
    >>> chain = Chain()
    >>> chain.add(seal(header, b"{}", prev="").header), chain.seq
    ('', 1)
    >>> chain.add(seal(msgspec.structs.replace(header, seq=2), b"{}", prev="other").header)
    'does not follow the record before it'
    """

    def __init__(self, seq: int = 0, digest: str = "") -> None:
        self.seq = seq
        self.digest = digest
        self.gaps: list[Gap] = []

    def add(self, header: Header) -> str:
        """Move on to *header*; returns what is wrong with its place, or "".

        A gap is not wrong by itself: it is kept in `gaps`, and the record after it is believed.
        A header out of order is refused and does not move the position.
        """
        if header.seq <= self.seq:
            return "is out of order"
        follows = header.seq > self.seq + 1 or header.prev == self.digest
        if header.seq > self.seq + 1:
            self.gaps.append(Gap(self.seq + 1, header.seq - 1, header.prev))
        self.seq, self.digest = header.seq, header.digest
        return "" if follows else "does not follow the record before it"

    def unexplained(self, announced: Mapping[int, str]) -> list[Gap]:
        """The gaps that no prune announced, by the last seq of each and its digest."""
        return [gap for gap in self.gaps if announced.get(gap.last) != gap.digest]


def chained(records: Iterable[Record]) -> list[Record]:
    """The records, in order, without any that does not follow the one kept before it."""
    kept: list[Record] = []
    for record in records:
        header, before = record.header, kept[-1].header if kept else None
        if (
            before is None
            or header.seq > before.seq + 1
            or (header.seq == before.seq + 1 and header.prev == before.digest)
        ):
            kept.append(record)
    return kept
