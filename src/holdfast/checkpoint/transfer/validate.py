"""A run file looked through, record by record, before any of it is let into a storage."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from holdfast.checkpoint.crypto import CLEAR_NOTES, Keys, read_body
from holdfast.checkpoint.inspect import state_text
from holdfast.checkpoint.transfer.container_reader import Parts, RunFile
from holdfast.core.records import (
    Header,
    Record,
    check_run_id,
    decompress,
    decrypt_body,
    is_encrypted,
    open_record,
    read_key_note,
)
from holdfast.core.values import Rebuilt, operations
from holdfast.errors import CorruptError, DataError, HoldfastError, UsageError, WrongKeyError

__all__ = ["Staged", "stage"]

_LARGEST = 1 << 53
_LAST_SEQ = 1 << 32
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LEVELS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_UNFIT = (
    *(msgspec.MsgspecError, LookupError, ValueError, TypeError, AttributeError, RecursionError),
    HoldfastError,
)


class Staged(msgspec.Struct):
    """A run that was found sound, and is still nowhere but here."""

    run_id: str
    name: str
    records: list[Record]
    hidden: frozenset[int]
    gaps: list[tuple[int, int, str]]
    """First and last of seqs that were erased, and the digest of the last."""
    data_key: bytes | None

    def text_of(self, record: Record) -> bytes:
        """The text of a record's body."""
        return _opened(record, self.data_key)


class _Edge(msgspec.Struct, frozen=True):
    first: int
    last: int
    digest: str


class _Erased(msgspec.Struct, frozen=True):
    erased: tuple[_Edge, ...]


class _Mark(msgspec.Struct, frozen=True):
    target: int
    on: bool = False
    tags: tuple[str, ...] = ()


def stage(file: RunFile, keys: Keys | None, *, rename: bool) -> Staged:
    """The run in *file*, all of it checked; *keys* open it if it is encrypted.

    The first pass finds out, a section at a time, whether the file is whole and within its
    limits; only the second keeps what it reads. *rename* tells that its id is not used.
    """
    run_id = file.manifest.run_id
    if not rename:
        _check_name(file, run_id, "run_id")
    _check_name(file, file.manifest.name, "name")
    key_note = _newest_key_note(file)
    if file.manifest.encrypted != (key_note is not None):
        raise file.refused("is encrypted where its manifest says that it is not, or the other way")
    data_key = None
    if key_note is not None:
        if keys is None:
            raise WrongKeyError(
                f"{file.path} is encrypted",
                hint="give its encryption_key, or set HOLDFAST_ENCRYPTION_KEY",
                path=str(file.path),
            )
        data_key = keys.open(key_note, run_id)
    walk = _Walk(file, data_key)
    for parts in file.records():
        walk.visit(parts)
    walk.end()
    return walk.staged


def _check_name(file: RunFile, name: str, what: str) -> None:
    paths = PurePosixPath(name), PureWindowsPath(name)
    if any(path.is_absolute() or ".." in path.parts for path in paths):
        hint = "such names are not taken from files"
        if what == "run_id":
            hint = "give the run another run_id"
        raise file.refused(f"has a path for a {what}: {name[:80]!r}", hint)


def _newest_key_note(file: RunFile) -> dict[str, Any] | None:
    found = None
    for parts in file.records():
        if b'"kind":"key"' in parts.text:
            header = open_record(parts.text, parts.digest, parts.body).header
            if (header.frame, header.kind) == ("note", "key"):
                found = parts
    if found is None:
        return None
    try:
        return msgspec.json.decode(found.body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise file.refused("has a key note that cannot be read") from None


def _opened(record: Record, data_key: bytes | None, limit: int | None = None) -> bytes:
    header, body = record.header, record.body
    if header.frame == "note" and header.kind in CLEAR_NOTES:
        return body
    if data_key is not None:
        body = decrypt_body(data_key, body, header)
    elif is_encrypted(body):
        raise CorruptError(f"record {header.seq} is encrypted, and there is no key to it")
    return decompress(body) if limit is None else decompress(body, limit=limit)


class _Walk:
    """One pass over the records: each is checked against those before it."""

    def __init__(self, file: RunFile, data_key: bytes | None) -> None:
        said = file.manifest
        self._file = file
        self._limits = file.limits
        self._states: dict[str, tuple[int, Rebuilt]] = {}
        self._checkpoints: dict[int, Record] = {}
        self._edges: dict[int, str] = {}
        self._before = (0, "")
        self._packed = self._unpacked = self._work = 0
        hidden = frozenset(_spread(file, said.hidden))
        self.staged = Staged(said.run_id, said.name, [], hidden, [], data_key)

    def visit(self, parts: Parts) -> None:
        """Check a record and keep it."""
        self._check_depth(parts.text, 0)
        record = open_record(parts.text, parts.digest, parts.body)
        header = record.header
        self._check_header(header, parts)
        self._check_chain(header)
        text = self._text(record)
        if header.frame == "note":
            self._note(header, text)
        else:
            self._checkpoint(record, text)
        self.staged.records.append(record)

    def end(self) -> None:
        """Check what can be told only now that all was seen."""
        said, records = self._file.manifest, self.staged.records
        found = [(r.header.seq, r.header.digest) for r in records]
        if not found or (found[0][0], *found[-1]) != (said.first, said.last, said.head):
            raise self._file.refused("does not hold the records that its manifest names")
        for seq, made in self._states.values():
            header = self._checkpoints[seq].header
            if header.size != len(state_text(made.texts())):
                raise self._unfit(header, "does not have the size it says")
        for first, last, digest in self.staged.gaps:
            if self._edges.get(last) != digest:
                raise self._file.refused(f"lacks records {first} to {last}, and no prune says so")
        seen = [r.header for r in records if r.header.seq not in self.staged.hidden]
        if sum(header.frame != "note" for header in seen) != said.checkpoints:
            raise self._file.refused("does not hold as many checkpoints as its manifest says")

    def _check_header(self, header: Header, parts: Parts) -> None:
        if header.run_id != self.staged.run_id:
            raise self._unfit(header, f"is of another run, {header.run_id[:80]!r}")
        _check_name(self._file, header.name, "name")
        try:
            check_run_id(header.id, "id")
            for text, what in ((header.parent, "parent"), (header.name, "name")):
                if text:
                    check_run_id(text, what)
        except UsageError as error:
            raise self._unfit(header, f"cannot be: {error.message}") from None
        numbers = (header.step, header.schema, header.size, header.epoch)
        if min(numbers) < 0 or max(numbers) >= _LARGEST or not 0 < header.seq < _LAST_SEQ:
            raise self._unfit(header, "has a number that no record has")
        if (
            header.saved_at.tzinfo is None
            or header.stored != len(parts.body)
            or b"\n" in parts.text
        ):
            raise self._unfit(header, "is not as a writer seals it")

    def _check_chain(self, header: Header) -> None:
        seq, digest = self._before
        if header.seq <= seq:
            raise self._unfit(header, "is out of order")
        if header.seq > seq + 1:
            self.staged.gaps.append((seq + 1, header.seq - 1, header.prev))
        elif header.prev != digest:
            raise self._unfit(header, "does not follow the one before it")
        self._before = (header.seq, header.digest)

    def _text(self, record: Record) -> bytes:
        limits = self._limits
        room = max(1 << 20, len(record.body) * limits.ratio)
        try:
            text = _opened(record, self.staged.data_key, min(room, limits.record_bytes))
        except DataError as error:
            if "limit" not in error.facts:
                raise
            if room >= limits.record_bytes:
                what = f"has a body that unpacks to {error.size:,} bytes, more than"
                raise self._file.too_much(what, "record_bytes") from None
            what = f"has a body that unpacks to {error.size // len(record.body):,} times its size"
            raise self._file.too_much(f"{what}, more than", "ratio") from None
        self._packed += len(record.body)
        self._unpacked += len(text)
        self._file.check_ratio(self._packed, self._unpacked)
        if self._unpacked > limits.total_bytes:
            raise self._file.too_much("holds bodies that unpack to more than", "total_bytes")
        self._check_depth(text, record.header.seq)
        return text

    def _check_depth(self, text: bytes, seq: int) -> None:
        brackets = _STRING.sub(b"", text).translate(None, _NOT_BRACKETS)
        limit = self._limits.depth
        levels = accumulate(map(_LEVELS.__getitem__, brackets))
        if len(brackets) > limit and any(level > limit for level in levels):
            where = f"record {seq}" if seq else "a header"
            raise self._file.too_much(f"is nested deeper, in {where}, than", "depth")

    def _note(self, header: Header, text: bytes) -> None:
        try:
            if header.kind == "prune":
                told = msgspec.json.decode(text, type=_Erased)
                self._edges.update({edge.last: edge.digest for edge in told.erased})
            elif header.kind == "key":
                if self.staged.data_key is None:
                    raise ValueError("a key note that was not found where it was looked for")
                read_key_note(msgspec.json.decode(text), run_id=header.run_id)
            elif header.kind in CLEAR_NOTES:
                msgspec.convert(header.metadata, _Mark)
            else:
                msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        except _UNFIT as error:
            raise self._unfit(header, "is a note that cannot be read") from error

    def _checkpoint(self, record: Record, text: bytes) -> None:
        header = record.header
        self._checkpoints[header.seq] = record
        if header.frame == "delta":
            base, key = header.base_seq or 0, header.key_seq or 0
            if not 0 < key <= base < header.seq:
                raise self._unfit(header, "is a delta without a base")
        try:
            self._states[header.scope] = (header.seq, self._rebuilt(header, text))
        except _Missing as error:
            self._states.pop(header.scope, None)
            if header.seq not in self.staged.hidden:
                raise self._unfit(header, f"needs record {error}, which is not there") from None
        except DataError as error:
            if "limit" in error.facts:
                raise
            raise self._unfit(header, "cannot be rebuilt") from error
        except _UNFIT as error:
            raise self._unfit(header, "cannot be rebuilt") from error

    def _rebuilt(self, header: Header, text: bytes) -> Rebuilt:
        body = read_body(text, header)
        if header.frame == "key":
            _check_operations(bytes(body.patch))
            return Rebuilt(bytes(body.state))
        seq, made = self._states.get(header.scope, (0, None))
        if made is None or seq != header.base_seq:
            made = self._base_of(header)
        _check_operations(bytes(body.patch))
        made.apply(bytes(body.patch))
        return made

    def _base_of(self, header: Header) -> Rebuilt:
        """The state of a delta's base, where that is not the checkpoint before it."""
        way: list[Record] = []
        seq = header.base_seq
        while not way or way[-1].header.frame != "key":
            record = self._checkpoints.get(seq or 0)
            if record is None or record.header.scope != header.scope:
                raise _Missing(seq)
            way.append(record)
            # Many branches of a long chain are little to write and endless to follow.
            self._work += len(record.body) + 4096
            if self._work > self._limits.total_bytes:
                raise self._file.too_much("takes more work to follow than", "total_bytes")
            seq = record.header.base_seq
        key, *deltas = (
            read_body(_opened(one, self.staged.data_key), one.header) for one in reversed(way)
        )
        made = Rebuilt(bytes(key.state))
        for delta in deltas:
            made.apply(bytes(delta.patch))
        return made

    def _unfit(self, header: Header, what: str) -> CorruptError:
        return self._file.refused(f"holds a record {header.seq} that {what}")


class _Missing(Exception):
    """A base that is not in the file."""


def _check_operations(patch: bytes) -> None:
    for step in operations(patch):
        if step.op not in ("add", "replace", "remove") or not (step.value or step.op == "remove"):
            raise ValueError("not an operation")


def _spread(file: RunFile, ranges: tuple[tuple[int, int], ...]) -> set[int]:
    spread: set[int] = set()
    for first, last in ranges:
        if not 0 < first <= last or len(spread) + last - first >= file.manifest.records:
            raise file.refused("hides records that it does not hold")
        spread.update(range(first, last + 1))
    return spread
