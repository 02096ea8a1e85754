"""Objects of a run as bytes: entries of its log, and packs of older records.

An object is a short preamble, its facts and the texts of its headers, then all bodies. So facts
and headers can be read without the bodies, and a damaged body costs its own record only.

A pack of many records is a directory and then blocks, each of which is such an object. So a page
is read from the block that has it, however large the pack.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from surehold.core.records import Header, Range, Record, open_header
from surehold.errors import CorruptError
from surehold.storage import rows as sql
from surehold.storage.objects.zones import Zone
from surehold.storage.shared import Head

_MAGIC = b"SHO1"
_DIRECTORY = b"SHO2"
_PREAMBLE = struct.Struct(">4sI16s")


class LogRow(msgspec.Struct, frozen=True, array_like=True):
    """A record without its body."""

    seq: int
    pos: int
    """The position in the log at which it was appended."""
    at: int
    """The time of its commit, in nanoseconds; higher than that of any earlier commit."""
    id: str
    note: bool
    digest: bytes
    text: bytes
    size: int
    """Bytes of its body."""


class PackRef(msgspec.Struct, frozen=True, array_like=True):
    """An object, or a block of one, that holds records from before a base of the log."""

    key: str
    first: int
    last: int
    """The seqs of its first and last record."""
    size: int
    index: int
    """Bytes up to its first body, or up to its first block."""
    level: int
    start: int = 0
    """Of a block: the bytes of the object before it."""
    blocks: int = 0
    """The number of blocks; 0 for an object that is not part of several."""
    zone: Zone | None = None
    """None if the zone of the records is not known."""


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """The facts of an object: a change of the run, and its state after the change."""

    run_id: str
    pos: int
    """Its position in the log, from 1 on; 0 for a pack that is not part of the log."""
    at: int
    nonce: bytes
    """Random: tells the writer's own entry from an equal one of another."""
    epoch: int
    base: int
    """The newest position, its own maybe, that holds the whole state and not only a change."""
    head: Head | None
    """None if there is no run: not begun, or deleted."""
    newest: LogRow | None
    """The newest visible checkpoint of the run itself."""
    rows: list[LogRow]
    hidden: list[Range]
    """Seqs that the change hides; in a base all that are hidden."""
    erased: list[Range]
    packs: list[PackRef] = []
    """In a base, the objects that hold all older records, oldest first."""
    bases: list[int] = []
    """In a base, the positions of those before it."""


class DecodedObject(msgspec.Struct, frozen=True):
    """An object read back: its entry, and the bodies that were read with it."""

    entry: LogEntry
    index: int
    """Bytes up to its first body."""
    bodies: dict[int, bytes]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogEntry)
_directory_decoder = msgspec.msgpack.Decoder(list[PackRef])


def encode(entry: LogEntry, bodies: Mapping[int, bytes]) -> tuple[bytes, int]:
    """The bytes of an object, and how many of them come before its first body."""
    facts = _encoder.encode(entry)
    preamble = _PREAMBLE.pack(_MAGIC, len(facts), hashlib.sha256(facts).digest()[:16])
    data = b"".join((preamble, facts, *(bodies[row.seq] for row in entry.rows)))
    return data, len(preamble) + len(facts)


def encode_pack(blocks: Sequence[tuple[PackRef, bytes]]) -> tuple[bytes, int]:
    """The bytes of a pack of these blocks, and how many of them come before the first."""
    refs, start = [], 0
    for ref, data in blocks:
        refs.append(msgspec.structs.replace(ref, key="", start=start, size=len(data)))
        start += len(data)
    facts = _encoder.encode(refs)
    preamble = _PREAMBLE.pack(_DIRECTORY, len(facts), hashlib.sha256(facts).digest()[:16])
    return b"".join((preamble, facts, *(data for _, data in blocks))), len(preamble) + len(facts)


def decode_directory(data: bytes, key: str) -> list[PackRef]:
    """The blocks of the pack that begins with *data*; a `CorruptError` if damaged."""
    index = index_size(data, _DIRECTORY)
    facts = data[_PREAMBLE.size : index]
    if hashlib.sha256(facts).digest()[:16] != _PREAMBLE.unpack_from(data)[2]:
        raise CorruptError("the directory of a pack does not match its digest")
    refs = _directory_decoder.decode(facts)
    return [msgspec.structs.replace(ref, key=key, start=index + ref.start) for ref in refs]


def find_blocks(data: bytes, key: str) -> list[PackRef]:
    """The blocks of a pack whose directory is damaged, as far as they can be found."""
    found: list[PackRef] = []
    start = data.find(_MAGIC)
    while start >= 0:
        end = start + 1
        try:
            block = decode(data[start:], lenient=True)
        except CorruptError:
            block = None
        if block is not None and (rows := block.entry.rows):
            size = block.index + sum(row.size for row in rows)
            found.append(PackRef(key, rows[0].seq, rows[-1].seq, size, block.index, 0, start))
            end = start + size
        start = data.find(_MAGIC, end)
    return found


def objects_in(data: bytes, *, lenient: bool = False) -> Iterator[tuple[DecodedObject, PackRef]]:
    """The blocks of a pack, or the object itself, each with its place in *data*."""
    if data[:4] == _MAGIC or not (lenient or data[:4] == _DIRECTORY):
        one = decode(data, lenient=lenient)
        yield one, PackRef("", 0, 0, len(data), one.index, 0)
        return
    try:
        refs = decode_directory(data, "")
    except CorruptError:
        if not lenient:
            raise
        refs = find_blocks(data, "")
    for ref in refs:
        try:
            yield decode(data[ref.start : ref.start + ref.size], lenient=lenient), ref
        except CorruptError:
            if not lenient:
                raise


def decode_all(data: bytes, *, lenient: bool = False) -> DecodedObject:
    """The object with the records of all its blocks; with *lenient*, of those left."""
    parts = [part for part, _ in objects_in(data, lenient=lenient)]
    if len(parts) == 1:
        return parts[0]
    if not parts:
        raise CorruptError("no block of a pack can be read")
    rows = [row for part in parts for row in part.entry.rows]
    bodies = {seq: body for part in parts for seq, body in part.bodies.items()}
    entry = msgspec.structs.replace(parts[0].entry, rows=rows)
    return DecodedObject(entry, parts[0].index, bodies)


def index_size(data: bytes, magic: bytes = _MAGIC) -> int:
    """The bytes up to the first body of an object that begins with *data*."""
    if len(data) < _PREAMBLE.size or data[:4] != magic:
        raise CorruptError("an object does not begin like one of Surehold's")
    return _PREAMBLE.size + int(_PREAMBLE.unpack_from(data)[1])


def decode(data: bytes, *, lenient: bool = False) -> DecodedObject:
    """The object whose bytes, or first bytes, these are; else a `CorruptError`.

    With *lenient* an object whose facts do not fit their digest is read as far as possible: each
    of its records still has to be proved by its own digest, and says what it is itself.
    """
    index = index_size(data)
    facts = data[_PREAMBLE.size : index]
    whole = hashlib.sha256(facts).digest()[:16] == _PREAMBLE.unpack_from(data)[2]
    if not whole and not lenient:
        raise CorruptError("the facts of an object do not match their digest")
    try:
        entry = _decoder.decode(facts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError("the facts of an object cannot be read") from error
    if not whole:
        entry = msgspec.structs.replace(entry, rows=[_proved(row) for row in entry.rows])
    bodies: dict[int, bytes] = {}
    place = index
    for row in entry.rows:
        if place + row.size > len(data):
            break
        bodies[row.seq] = data[place : place + row.size]
        place += row.size
    return DecodedObject(entry, index, bodies)


def _proved(row: LogRow) -> LogRow:
    """The row as its header says; a row with a damaged header unchanged."""
    try:
        header = open_header(row.text, row.digest.hex())
    except CorruptError:
        return row
    note = header.frame == "note"
    return msgspec.structs.replace(row, seq=header.seq, id=header.id, note=note)


def body_places(rows: Iterable[LogRow], index: int) -> dict[int, int]:
    """The start of each record's body in an object, by seq."""
    places = {}
    for row in rows:
        places[row.seq] = index
        index += row.size
    return places


def row_of(record: Record, pos: int, at: int) -> LogRow:
    """The row of a record that is appended at this position and time."""
    header = record.header
    digest = bytes.fromhex(header.digest)
    note = header.frame == "note"
    return LogRow(header.seq, pos, at, header.id, note, digest, record.text, len(record.body))


def header_of(run_id: str, row: LogRow) -> Header:
    """The header of the record that a row claims to be."""
    return sql.open_row(run_id, row.seq, row.digest, row.text)


def record_of(run_id: str, row: LogRow, body: bytes | None) -> Record:
    """The record that a row and a body claim to be."""
    return sql.record_of(run_id, row.seq, row.digest, row.text, body)
