"""The index of one run's files, built from their lines, which are checked."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal

import msgspec

from surehold.core.records import (
    Header,
    Record,
    gaps_between,
    medium_name,
    open_header,
    subtract_ranges,
)
from surehold.errors import ConflictError, CorruptError
from surehold.storage.base import Batch, RunInfo
from surehold.storage.files.lines import (
    CHAIN,
    PACK,
    Codec,
    CommitLine,
    Fields,
    Part,
    lines_of,
    members,
    parse,
)
from surehold.storage.shared import Head, decide_append, run_info


class Segment(msgspec.Struct, eq=False):
    """A file of a run, and how far it has been read."""

    folder: str
    file: str
    codec: Codec
    stat: tuple[int, int, int] = (0, 0, 0)
    """Its inode, size and time of change when it was read."""
    end: int = 0
    """The end of its last complete member."""
    members: int = 0
    lines: int = 0
    text: int = 0
    """Bytes of its lines, unpacked."""


class BodyPlace(msgspec.Struct, frozen=True):
    """The place of a record: a member of a segment, a line of it, a part of the line."""

    segment: Segment
    start: int
    end: int
    line: int
    part: int


class IndexedRecord(msgspec.Struct):
    """A record of the journal without its body."""

    header: Header
    commit: int
    place: BodyPlace
    hidden: bool = False


class Damage(msgspec.Struct, frozen=True):
    """A damaged place in a file."""

    why: str
    file: str
    offset: int
    seq: int
    """The first seq that may have been stored there."""
    hint: str = ""
    contained: bool = False
    """True if only records are lost: every seq that the place may have held is known."""


Span = tuple[int, int]
Key = tuple[int, int, int]
"""The order of records between runs: commit, ordinal of the run, seq."""


class JournalIndex:
    """The records of one run, in order, and whatever is wrong with its files."""

    def __init__(self, medium: str, ordinal: int) -> None:
        self.medium = medium
        """The run's name in file names."""
        self.run_id = medium
        self.ordinal = ordinal
        self.segments: list[Segment] = []
        self.entries: dict[int, IndexedRecord] = {}
        self.seqs: list[int] = []
        self.ids: dict[str, list[int]] = {}
        self.tags: dict[str, list[int]] = {}
        self.erased: list[tuple[int, int]] = []
        self.seq = 0
        self.digest = ""
        """The newest record's."""
        self.commit = 0
        self.checkpoints = 0
        self.stored = 0
        self.started: datetime | None = None
        self.damages: list[Damage] = []
        self.moved = False
        """True if the last line says that the run continues in another directory."""
        self.broken = False
        """True if the end cannot be read, so that the newest record is not known."""
        self.hides: list[int] = []
        """The seqs that the lines of the last member hide."""

    @property
    def torn(self) -> bool:
        """True if the last file ends in a write that was cut short."""
        return bool(self.segments) and self.segments[-1].stat[1] > self.segments[-1].end

    @property
    def has_anomaly(self) -> bool:
        """True if anything in the files is not as a finished write leaves it."""
        return self.torn or bool(self.damages)

    def read(self, segment: Segment, data: bytes, stat: tuple[int, int, int]) -> None:
        """Take in what follows the known part of *segment*, up to the size in *stat*."""
        base = segment.end
        for start, end, text in members(data, segment.codec):
            if base + end == stat[1] and text is not None and self._is_repeated(text):
                break  # the last write once more, which the next save removes like a torn one
            segment.members += 1
            segment.end = base + end
            if text is None:
                self._damaged("a compressed member cannot be read", segment, base + start)
                continue
            self.hides = []
            segment.text += len(text)
            lines = lines_of(text)
            segment.lines += len(lines)
            for number, line in enumerate(lines):
                place = BodyPlace(segment, base + start, base + end, number, 0)
                before = self.seq
                try:
                    wrong = self.add(parse(line), place)
                except CorruptError as error:
                    self._damaged(error.message, segment, base + start)
                else:
                    if wrong:
                        self._note(wrong, segment, base + start, before + 1)
        segment.stat = stat

    def end_of(self, segment: Segment, *, last: bool) -> None:
        """The end of a file, which holds a line at once and is whole when another follows."""
        if segment.end == 0 or (segment.stat[1] > segment.end and not last):
            self._damaged("a file ends before its last line does", segment, segment.end)

    def check_head(self, commit: int, hid: tuple[int, ...] | None) -> None:
        """Compare with the newest commit that was acknowledged, and what it hid."""
        if self.commit < commit and self.broken:
            self._contain(hid, self.damages[-1].file)
        elif self.commit < commit:
            newest = self.segments[-1]
            # A copy that was made while the run was being saved looks like this as well.
            hint = f"bring the file back; if this is a copy, .heads/{self.medium} can be removed"
            self._damaged("records that were acknowledged are missing", newest, newest.end, hint)

    def add(self, line: CommitLine, place: BodyPlace) -> str:
        """Take in a line; return what is wrong with its place in the journal, if anything.

        A line that is itself damaged is a `CorruptError`, and nothing of it is taken in.
        """
        fields = line.fields
        headers = [self._header(part) for part in line.parts]
        spans = sorted([*fields.erased, *((h.seq, h.seq) for h in headers)])
        # After something that cannot be read, what a line must follow is not known.
        wrong = "" if self.broken else self._misplaced(line, headers, spans)
        if self.broken:
            self._contain(fields.hid, f"{place.segment.folder}/{place.segment.file}")
        self.broken = self.broken and not spans  # a line without records tells of no seq
        self.commit = max(self.commit, fields.commit)
        self.ordinal = fields.began or self.ordinal
        self.started = fields.started or self.started
        self.erased += fields.erased
        self.moved = fields.moved
        for number, header in enumerate(headers):
            self._enter(header, fields.commit, msgspec.structs.replace(place, part=number))
        if spans and spans[-1][1] > self.seq:
            self.seq = spans[-1][1]
            self.digest = self.entries[self.seq].header.digest if self.seq in self.entries else ""
        self._hide(fields.hide)
        self.hides += fields.hide
        return wrong

    def corrupt(self, damage: Damage) -> CorruptError:
        """The error that tells of *damage*."""
        return CorruptError(
            f"{damage.why}: run {self.run_id!r}, seq {damage.seq}, "
            f"{damage.file} at byte {damage.offset}",
            hint=damage.hint,
            run_id=self.run_id,
            seq=damage.seq,
            path=damage.file,
            offset=damage.offset,
        )

    def check(self) -> None:
        """Raise the `CorruptError` that keeps the run from being listed, if there is one."""
        if self.damages:
            raise self.corrupt(self.damages[0])

    def check_newest(self, scope: str) -> None:
        """Raise a `CorruptError` unless the newest checkpoint of a scope is surely known."""
        for damage in self.damages:
            if not damage.contained:
                raise self.corrupt(damage)
        newest = self.newest(scope) if self.damages else None
        lost = self.lost(newest.seq + 1 if newest else 1, None) if self.damages else None
        if lost is not None:
            raise self.loss(lost)

    @property
    def is_certain(self) -> bool:
        """True if all that is not lost is known, and whether it is visible."""
        return all(damage.contained for damage in self.damages)

    def lost(self, first: int, last: int | None) -> int | None:
        """The first seq from *first* to *last*, or to the end, that damage has taken."""
        if not self.damages:
            return None
        start = max(first, 1)
        end = self.seq if last is None else min(last, self.seq)
        known = self.seqs[bisect_left(self.seqs, start) : bisect_right(self.seqs, end)]
        gaps = gaps_between(known, after=start - 1, until=end) if start <= end else []
        for seq, _ in subtract_ranges(gaps, self.erased):
            return seq
        beyond = last is None or last > self.seq
        return max(first, self.seq + 1) if self.broken and beyond else None

    def loss(self, seq: int) -> CorruptError:
        """The error that tells where *seq* was lost."""
        near = [damage for damage in self.damages if damage.seq <= seq]
        damage = near[-1] if near else self.damages[0]
        return self.corrupt(msgspec.structs.replace(damage, seq=seq))

    def between(self, first: int, last: int, *, most: int, most_bytes: int) -> list[IndexedRecord]:
        """The first entries from *first* to *last*, limited in number and body bytes."""
        start = bisect_left(self.seqs, first)
        found: list[IndexedRecord] = []
        for seq in self.seqs[start : start + most]:
            if seq > last or most_bytes <= 0:
                break
            found.append(self.entries[seq])
            most_bytes -= found[-1].header.stored
        return found

    def decide(
        self, batch: Batch, records: Sequence[Record], epoch: int
    ) -> Literal["store", "stored"] | ConflictError:
        """Decide about *records*, *epoch* being that of the run's newest lease."""
        there = (self.entries.get(record.header.seq) for record in records)
        stored = [(entry.header.seq, entry.header.digest) for entry in there if entry]
        decision = decide_append(
            batch, records, seq=self.seq, digest=self.digest, epoch=epoch, stored=stored
        )
        if self.broken and decision != "stored":
            # Raised, it would fail the batches of all other runs as well.
            return ConflictError(
                f"run {batch.run_id!r}: its newest record is not known: {self.loss(self.seq + 1)}",
                run_id=batch.run_id,
                seq=records[0].header.seq,
                head=self.seq,
            )
        return decision

    def newest_first(self, below: Key, tag: str | None = None) -> Iterator[tuple[Key, Header]]:
        """Visible headers in descending order of their keys, from the first below *below*.

        With *tag*, only those sealed with it.
        """
        seqs = self.seqs if tag is None else self.tags.get(tag, [])
        end = bisect_left(seqs, below, key=lambda seq: self.key_of(self.entries[seq]))
        for index in range(end - 1, -1, -1):
            entry = self.entries[seqs[index]]
            if not entry.hidden:
                yield self.key_of(entry), entry.header

    def next_line(
        self,
        records: Sequence[Record],
        hide: Iterable[int],
        *,
        commit: int,
        erased: Iterable[Span] = (),
        moved: bool = False,
    ) -> CommitLine:
        """The line that appends *records* and hides what is visible of *hide*.

        *erased* are the ranges of seqs that the records pass over; *moved* says that the run
        continues in another directory.
        """
        own = {record.header.seq for record in records}
        hidden = {
            seq
            for seq in hide
            if seq in own or (seq in self.entries and not self.entries[seq].hidden)
        }
        begins = not self.segments
        fields = Fields(
            commit=max(commit, self.commit + 1),
            after=self.commit,
            began=self.ordinal if begins else 0,
            started=records[0].header.saved_at if begins else None,
            hide=tuple(sorted(hidden)),
            hid=None if begins else tuple(sorted(set(self.hides))),
            erased=tuple(erased),
            moved=moved,
        )
        return CommitLine(fields, tuple(map(Part.of, records)))

    def loose(self, *, last: bool) -> list[Segment]:
        """The closed segments, and the *last* if told, that would be smaller if packed."""
        return [
            segment
            for segment in (self.segments if last else self.segments[:-1])
            if segment.codec
            and segment.members > 2 * (segment.text // PACK + segment.lines // CHAIN) + 1
        ]

    def key_of(self, entry: IndexedRecord) -> Key:
        return entry.commit, self.ordinal, entry.header.seq

    def newest(self, scope: str) -> Header | None:
        """The newest visible checkpoint of a scope."""
        for _, header in self.newest_first((self.commit + 1, 0, 0)):
            if header.frame != "note" and header.scope == scope:
                return header
        return None

    def info(self) -> RunInfo:
        """The run's head entry, with step, kind and status of the newest checkpoint."""
        newest = self.newest("")
        last = self.entries[self.seqs[-1]].header if self.seqs else None
        saved_at = last.saved_at if last else datetime.fromtimestamp(self.ordinal / 1e9, UTC)
        head = Head(
            self.run_id,
            self.ordinal,
            self.started or saved_at,
            saved_at,
            self.seq,
            self.digest,
            getattr(newest or last, "name", ""),
            newest.status if newest else "running",
            newest.seq if newest else None,
            self.checkpoints,
            self.stored,
        )
        return run_info(head, newest)

    def _header(self, part: Part) -> Header:
        header = open_header(part.text, part.digest)
        if medium_name(header.run_id) != self.medium:
            raise CorruptError(f"a record of another run, {header.run_id!r}, stands in the file")
        self.run_id = header.run_id
        return header

    def _is_repeated(self, text: bytes) -> bool:
        """True if a member is of one line, and that the last that was read, once more."""
        with suppress(CorruptError):
            line = parse(text)
            if not 0 < line.fields.commit == self.commit:
                return False
            known = {entry.header.digest for entry in self.entries.values()}
            return all(part.digest in known for part in line.parts)
        return False

    def _misplaced(self, line: CommitLine, headers: Sequence[Header], spans: Sequence[Span]) -> str:
        if line.fields.after != self.commit or line.fields.commit <= self.commit:
            return "a line is missing, doubled or out of place"
        seq, digest = self.seq, self.digest
        for first, last in spans:
            if first != seq + 1:
                return f"seq {first} stands where {seq + 1} belongs"
            seq = last
        seq = self.seq
        for header in headers:
            if header.seq == seq + 1 and digest and header.prev != digest:
                return f"seq {header.seq} does not follow the record before it"
            seq, digest = header.seq, header.digest
        return ""

    def _enter(self, header: Header, commit: int, place: BodyPlace) -> None:
        if header.seq in self.entries:
            return
        self.entries[header.seq] = IndexedRecord(header, commit, place)
        insort(self.seqs, header.seq)
        self.ids.setdefault(header.id, []).append(header.seq)
        for tag in header.tags:
            insort(self.tags.setdefault(tag, []), header.seq)
        self.stored += header.stored
        self.checkpoints += header.frame != "note"

    def _hide(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            entry = self.entries.get(seq)
            if entry is not None and not entry.hidden:
                entry.hidden = True
                self.checkpoints -= entry.header.frame != "note"

    def _damaged(self, why: str, segment: Segment, offset: int, hint: str = "") -> None:
        """Note something at the end of what is known that cannot be read."""
        self._note(why, segment, offset, self.seq + 1, hint)
        self.broken = True

    def _contain(self, hid: tuple[int, ...] | None, file: str) -> None:
        """Take in what the damaged line before hid, as it is told beside it."""
        damage = self.damages[-1] if self.damages else None
        if hid is not None and damage is not None and damage.file == file:
            self._hide(hid)
            self.damages[-1] = msgspec.structs.replace(damage, contained=True)

    def _note(self, why: str, segment: Segment, offset: int, seq: int, hint: str = "") -> None:
        file = f"{segment.folder}/{segment.file}"
        self.damages.append(Damage(why, file, offset, seq, hint))
