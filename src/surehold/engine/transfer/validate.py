"""Validation of a run file, record by record, before any of it reaches a storage."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import msgspec

from surehold.core.records import (
    Chain,
    Gap,
    Header,
    Record,
    check_run_id,
    decompress,
    decrypt_body,
    is_encrypted,
    open_record,
    read_key_note,
    read_prune_note,
)
from surehold.core.values import Rebuilt, operations
from surehold.engine.crypto import CLEAR_NOTES, Keyring
from surehold.engine.journal import read_body
from surehold.engine.repair import state_text
from surehold.engine.transfer.run_file import ExportedRun
from surehold.errors import CorruptError, DataError, SureholdError, UsageError, WrongKeyError
from surehold.storage.sqlite import UntrustedRecord

_LARGEST = 1 << 53
_LAST_SEQ = 1 << 32
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LEVELS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_UNFIT = (
    *(msgspec.MsgspecError, LookupError, ValueError, TypeError, AttributeError, RecursionError),
    SureholdError,
)


class Staged(msgspec.Struct):
    """A run from a file, validated and not yet imported."""

    run_id: str
    name: str
    records: list[Record]
    hidden: set[int]
    gaps: list[Gap]
    """Ranges of seqs that were pruned."""
    data_key: bytes | None

    def text_of(self, record: Record) -> bytes:
        """Return the text of a record's body."""
        return _opened(record, self.data_key)


_MARKS = ("tag", "pin", "release")


class _Mark(msgspec.Struct, frozen=True):
    target: int
    on: bool = False
    tags: tuple[str, ...] = ()


def stage(
    file: ExportedRun, keys: Keyring | None, *, rename: bool = False, own: bool = False
) -> Staged:
    """Validate the run in *file* and return it; *keys* open it if it is encrypted.

    The first pass checks, a record at a time, that the file is within its limits; only the second
    keeps what it reads. With *rename* the id in the file is not used. Ids and names that are paths
    are taken only from a file of our *own*.
    """
    run_id = file.run.run_id
    if not (rename or own):
        _check_name(file, run_id, "run_id")
    key_note = _newest_key_note(file)
    data_key = None
    if key_note is not None:
        if keys is None:
            raise WrongKeyError(
                f"{file.path} is encrypted",
                hint="give its encryption_key, or set SUREHOLD_ENCRYPTION_KEY",
                path=str(file.path),
            )
        data_key = keys.open(key_note, run_id)
    walk = _Walk(file, data_key, own)
    for parts in file.records():
        walk.visit(parts)
    walk.end()
    return walk.staged


def _check_name(file: ExportedRun, name: str, what: str) -> None:
    paths = PurePosixPath(name), PureWindowsPath(name)
    if any(path.is_absolute() or ".." in path.parts for path in paths):
        hint = "such names are not taken from files"
        if what == "run_id":
            hint = "give the run another run_id"
        raise file.refused(f"has a path for a {what}: {name[:80]!r}", hint)


def _newest_key_note(file: ExportedRun) -> dict[str, Any] | None:
    found = None
    for parts in file.records():
        if b'"kind":"key"' in parts.text:
            header = open_record(parts.text, parts.digest, parts.body).header
            if (header.frame, header.kind) == ("note", "key"):
                found = parts
    if found is None:
        return None
    try:
        note = msgspec.json.decode(found.body, type=dict[str, Any])
        read_key_note(note, run_id=file.run.run_id)
    except _UNFIT:
        raise file.refused("has a key note that cannot be read") from None
    return note


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

    def __init__(self, file: ExportedRun, data_key: bytes | None, own: bool) -> None:
        self._own = own
        self._file = file
        self._limits = file.limits
        self._states: dict[str, tuple[int, Rebuilt]] = {}
        self._checkpoints: dict[int, Record] = {}
        self._announced: dict[int, str] = {}
        self._chain = Chain()
        self._packed = self._unpacked = self._work = 0
        self.staged = Staged(file.run.run_id, "", [], set(), [], data_key)

    def visit(self, parts: UntrustedRecord) -> None:
        """Validate a record and keep it."""
        self._check_depth(parts.text, 0)
        record = open_record(parts.text, parts.digest, parts.body)
        header = record.header
        self._check_header(header, parts)
        if wrong := self._chain.add(header):
            raise self._unfit(header, wrong)
        if parts.hidden:
            self.staged.hidden.add(header.seq)
        text = self._text(record)
        if header.frame == "note":
            self._note(header, text)
        else:
            self._checkpoint(record, text)
        self.staged.records.append(record)

    def end(self) -> None:
        """Validate the run as a whole."""
        said, records = self._file.run, self.staged.records
        newest = records[-1].header if records else None
        if newest is None or (newest.seq, newest.digest) != (said.seq, said.digest):
            raise self._file.refused("does not hold the newest record that it tells of")
        self.staged.name = newest.name
        for seq, made in self._states.values():
            header = self._checkpoints[seq].header
            if header.size != len(state_text(made.texts())):
                raise self._unfit(header, "does not have the size it says")
        for gap in self._chain.unexplained(self._announced):
            what = f"lacks records {gap.first} to {gap.last}, and no prune explains it"
            raise self._file.refused(what)
        self.staged.gaps = self._chain.gaps
        seen = [r.header for r in records if r.header.seq not in self.staged.hidden]
        if sum(header.frame != "note" for header in seen) != said.checkpoints:
            raise self._file.refused("does not hold as many checkpoints as it says")

    def _check_header(self, header: Header, parts: UntrustedRecord) -> None:
        if header.run_id != self.staged.run_id:
            raise self._unfit(header, f"is of another run, {header.run_id[:80]!r}")
        if not self._own:
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
            raise self._unfit(header, "has a number out of range")
        if (
            header.saved_at.tzinfo is None
            or header.stored != len(parts.body)
            or b"\n" in parts.text
        ):
            raise self._unfit(header, "was not sealed by a writer")

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
                gaps = read_prune_note(text)
                self._announced.update({gap.last: gap.digest for gap in gaps})
            elif header.kind == "key":
                if self.staged.data_key is None:
                    raise ValueError("a key note that was not found where it was looked for")
                read_key_note(msgspec.json.decode(text), run_id=header.run_id)
            elif header.kind in _MARKS:
                msgspec.convert(header.metadata, _Mark)
            elif header.kind not in CLEAR_NOTES:
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
        """Rebuild a delta's base, if it is not the checkpoint before it."""
        path: list[Record] = []
        seq = header.base_seq
        while not path or path[-1].header.frame != "key":
            record = self._checkpoints.get(seq or 0)
            if record is None or record.header.scope != header.scope:
                raise _Missing(seq)
            path.append(record)
            # Many branches of a long chain are small to write and slow to follow.
            self._work += len(record.body) + 4096
            if self._work > self._limits.total_bytes:
                raise self._file.too_much("takes more work to follow than", "total_bytes")
            seq = record.header.base_seq
        key, *deltas = (
            read_body(_opened(one, self.staged.data_key), one.header) for one in reversed(path)
        )
        made = Rebuilt(bytes(key.state))
        for delta in deltas:
            made.apply(bytes(delta.patch))
        return made

    def _unfit(self, header: Header, what: str) -> CorruptError:
        return self._file.refused(f"holds a record {header.seq} that {what}")


class _Missing(Exception):
    """The file lacks a base."""


def _check_operations(patch: bytes) -> None:
    for step in operations(patch):
        if step.op not in ("add", "replace", "remove") or not (step.value or step.op == "remove"):
            raise ValueError("not an operation")
