"""The file format of `FilesystemStorage`: lines of text, packed into members.

A line is one commit of one run, JSON that `cat` and `jq` can show::

    {"commit":1718102400000000002,"after":1718102400000000001,"sizes":[[412,57]],"sum":"5f3a09c1",
     "records":[{"digest":"…","header":{…},"body":{…}}]}

It is written and read by its exact layout: `sizes` says how long each header and body is, so their
bytes are cut out as they were put in and never parsed on the way. `after` names the commit before
it in the run, so that a line that is missing, doubled or out of place shows. `sum` covers the
line's own fields and the digests of its records; the digests cover the rest.

A plain file is its lines. In a compressed one every line, or many that were packed together, is a
gzip member or a zstd frame of its own which says how long it is: `zcat` and `zstdcat` read the
whole file, and a damaged member hides no other.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Literal

import msgspec
import zstandard

from surehold.core.records import Record, merge_ranges, open_record
from surehold.errors import CorruptError

Codec = Literal["", "gzip", "zstd"]

PACK = 1 << 20
"""Lines are packed together up to about this many bytes, the most that one read has to unpack."""
CHAIN = 128
"""The most lines of several chains of deltas that are packed together."""


class Part(msgspec.Struct, frozen=True):
    """A record as it stands in a line."""

    digest: str
    text: bytes
    """The header's."""
    body: bytes
    """The body as written: JSON itself, or base64 of any other body."""
    encoded: bool

    @classmethod
    def of(cls, record: Record) -> Part:
        body = record.body
        readable = body.startswith(b"{") and body.endswith(b"}") and b"\n" not in body
        stored = body if readable else base64.b64encode(body)
        return cls(record.header.digest, record.text, stored, not readable)

    def record(self) -> Record:
        """The record, its digests checked."""
        try:
            body = base64.b64decode(self.body, validate=True) if self.encoded else self.body
        except binascii.Error:
            body = self.body
        return open_record(self.text, self.digest, body)


class Fields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The fields of a line, in the order in which they are written."""

    commit: int
    """Grows with every line of a run, and from run to run as well as clocks allow."""
    after: int
    """The commit of the line before it in the run; 0 for the first."""
    began: int = 0
    """The run's ordinal, on its first line."""
    started: datetime | None = None
    """The time of the run's first record, on its first line."""
    hide: tuple[int, ...] = ()
    """Seqs that are no longer visible."""
    hid: tuple[int, ...] | None = None
    """The same of the line before it, should that be damaged; None where it is not known."""
    erased: tuple[tuple[int, int], ...] = ()
    """First and last of the seqs that stood among this line's, or on lines that are gone."""
    moved: bool = False
    """True if the run continues in another directory."""
    sizes: tuple[tuple[int, int], ...] = ()
    """Bytes of each header and each body, as they are written."""


class CommitLine(msgspec.Struct, frozen=True):
    """One commit of a run."""

    fields: Fields
    parts: tuple[Part, ...] = ()

    def text(self) -> bytes:
        sizes = tuple((len(part.text), len(part.body)) for part in self.parts)
        head = _encode(msgspec.structs.replace(self.fields, sizes=sizes))[:-1]
        records = b",".join(map(_part_text, self.parts))
        return b'%b,"sum":"%b","records":[%b]}\n' % (head, _sum(head, self.parts), records)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Fields).decode


def _part_text(part: Part) -> bytes:
    body = b'"base64":"%b"' if part.encoded else b'"body":%b'
    head = b'{"digest":"%b","header":%b,' % (part.digest.encode(), part.text)
    return head + body % part.body + b"}"


def _sum(head: bytes, parts: Iterable[Part]) -> bytes:
    return b"%08x" % zlib.crc32("".join(part.digest for part in parts).encode(), zlib.crc32(head))


class _Cursor:
    """Reads a line from left to right; raises `CorruptError` on any deviation."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def skip(self, literal: bytes) -> bool:
        if not self._data.startswith(literal, self._at):
            return False
        self._at += len(literal)
        return True

    def expect(self, literal: bytes) -> None:
        if not self.skip(literal):
            raise CorruptError(f"byte {self._at} of a line is not as it was written")

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def until(self, literal: bytes) -> bytes:
        end = self._data.find(literal, self._at)
        return self.take(max(end - self._at, 0))


def parse(text: bytes) -> CommitLine:
    """The line whose text this is, newline included, or a `CorruptError`.

    Its own fields are proved by this; its records prove themselves when they are opened.
    """
    cursor = _Cursor(text)
    head = cursor.until(b',"sum":"')
    cursor.expect(b',"sum":"')
    told = cursor.take(8)
    cursor.expect(b'","records":[')
    try:
        fields = _decode(head + b"}")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptError("the fields of a line cannot be read") from error
    parts = []
    for number, (header, body) in enumerate(fields.sizes):
        cursor.expect(b',{"digest":"' if number else b'{"digest":"')
        digest = cursor.take(32).decode("latin-1")
        cursor.expect(b'","header":')
        header_text = cursor.take(header)
        encoded = not cursor.skip(b',"body":')
        if encoded:
            cursor.expect(b',"base64":"')
        parts.append(Part(digest, header_text, cursor.take(body), encoded))
        cursor.expect(b'"}' if encoded else b"}")
    cursor.expect(b"]}\n")
    if cursor.take(1) or told != _sum(head, parts):
        raise CorruptError("a line does not match its checksum")
    return CommitLine(fields, tuple(parts))


_MARKS: dict[Codec, bytes] = {
    # A gzip header with an extra field SH of eight bytes; a skippable zstd frame of twelve.
    "gzip": bytes.fromhex("1f8b 0804 00000000 00ff 0c00") + b"SH\x08\x00",
    "zstd": bytes.fromhex("502a4d18 0c000000") + b"SHJ1",
}
_LENGTH = 8


def pack(line: CommitLine, codec: Codec) -> bytes:
    """A line as it is written to a file of this codec."""
    return _member(line.text(), codec)


def pack_chains(chains: Iterable[Sequence[CommitLine]], codec: Codec) -> bytes:
    """Lines packed together in chains, each from one keyframe line to the next.

    A damaged member costs all that is in it, so one holds no more than a chain of deltas, or
    several short ones. The first line of the next member tells what it hid.
    """
    packed: list[list[CommitLine]] = [[]]
    size = 0
    for chain in chains:
        fits = len(packed[-1]) + len(chain) <= CHAIN
        for line in chain:
            weight = len(line.text())
            if packed[-1] and (not codec or size + weight > PACK or not fits):
                hid = sorted({seq for one in packed[-1] for seq in one.fields.hide})
                fields = msgspec.structs.replace(line.fields, hid=tuple(hid))
                packed.append([])
                size = 0
                line = CommitLine(fields, line.parts)  # noqa: PLW2901
            fits = True
            packed[-1].append(line)
            size += weight
    return b"".join(_member(b"".join(one.text() for one in group), codec) for group in packed)


def _member(text: bytes, codec: Codec) -> bytes:
    if not codec:
        return text
    if codec == "gzip":
        deflate = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)
        body = deflate.compress(text) + deflate.flush()
        body += zlib.crc32(text).to_bytes(4, "little")
        body += (len(text) & 0xFFFFFFFF).to_bytes(4, "little")
    else:
        body = zstandard.ZstdCompressor(write_checksum=True).compress(text)
    return _MARKS[codec] + len(body).to_bytes(_LENGTH, "little") + body


def members(data: bytes, codec: Codec) -> Iterator[tuple[int, int, bytes | None]]:
    """Start, end and text of every complete member of *data*; no text if damaged.

    What follows the last of them is a write that was cut short.
    """
    at = 0
    while at < len(data):
        end = _end(data, at, codec)
        if end is None:
            return
        text = data[at:end] if not codec else _unpack(data[at:end], codec)
        yield at, end, text
        at = end


def lines_of(text: bytes) -> list[bytes]:
    """The lines of a member, each with its newline."""
    return [line + b"\n" for line in text[:-1].split(b"\n")]


def _end(data: bytes, at: int, codec: Codec) -> int | None:
    """The end of the member at *at*; None if the data ends before."""
    if not codec:
        return data.find(b"\n", at) + 1 or None
    mark = _MARKS[codec]
    start = at + len(mark) + _LENGTH
    cut_short = mark.startswith(data[at : at + len(mark)])
    if cut_short and start <= len(data):
        end = start + int.from_bytes(data[start - _LENGTH : start], "little")
        if end <= len(data):
            return end
    following = data.find(mark, at + 1)
    if following >= 0:
        return following
    # A file that had grown but was not written when the power went ends in zeros.
    return None if cut_short or not data[at:].strip(b"\0") else len(data)


def _unpack(member: bytes, codec: Codec) -> bytes | None:
    start = len(_MARKS[codec]) + _LENGTH
    try:
        if codec == "gzip":
            inflate = zlib.decompressobj(zlib.MAX_WBITS | 16)
            text, whole = inflate.decompress(member), inflate.eof and not inflate.unused_data
        else:
            frame = zstandard.ZstdDecompressor().decompressobj()
            text, whole = frame.decompress(member[start:]), frame.eof and not frame.unused_data
    except (zlib.error, zstandard.ZstdError, MemoryError):
        return None
    return text if whole and member.startswith(_MARKS[codec]) and text.endswith(b"\n") else None


def thin(
    lines: Iterable[tuple[CommitLine, tuple[int, ...]]], erase: Collection[int]
) -> list[CommitLine]:
    """The lines, each with its parts' seqs, without the parts at *erase*.

    Lines that are left empty are folded into the next one; only the last stays, because the
    segment that follows counts on its commit.
    """
    source = list(lines)
    first = source[0][0].fields
    after = first.after
    kept: list[CommitLine] = []
    erased: list[tuple[int, int]] = []
    hide: list[int] = []
    for number, (line, seqs) in enumerate(source, 1):
        parts = tuple(p for p, seq in zip(line.parts, seqs, strict=True) if seq not in erase)
        erased += line.fields.erased
        erased += ((seq, seq) for seq in seqs if seq in erase)
        hide += (seq for seq in line.fields.hide if seq not in erase)
        if not parts and number < len(source):
            continue
        fields = Fields(
            commit=line.fields.commit,
            after=after,
            began=0 if kept else first.began,
            started=None if kept else first.started,
            hide=tuple(hide),
            hid=None if kept else first.hid,
            erased=tuple(merge_ranges(erased)),
            moved=line.fields.moved,
        )
        kept.append(CommitLine(fields, parts))
        after, erased, hide = line.fields.commit, [], []
    return kept
