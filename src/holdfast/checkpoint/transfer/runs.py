"""Runs that leave a storage and come into one: as a file, as a copy, as plain JSON.

A ``.holdfast`` file (its format stands in `checkpoint.transfer.container`) is one run with all its
records. By default they are written exactly as they were sealed. Asked to redact, or for another
encryption, the records are sealed anew, and the manifest says so.

>>> import tempfile
>>> from holdfast import CheckpointManager, State
>>> here, there = CheckpointManager("memory://"), CheckpointManager("memory://")
>>> checkpoint_id = here.save_checkpoint(State.new({"done": 3}, run_id="nightly"))
>>> with tempfile.TemporaryDirectory() as directory:
...     told = here.export_run("nightly", f"{directory}/nightly.holdfast")
...     run_id = there.import_run(f"{directory}/nightly.holdfast")
>>> told.checkpoints, run_id, there.resume_from_latest("nightly")["done"]
(1, 'nightly', 3)
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.checkpoint.crypto import Key, Keys, load_keys
from holdfast.checkpoint.journal import Reader
from holdfast.checkpoint.manager import Steps, Work
from holdfast.checkpoint.transfer.container import Manifest, Totals, check_free, write_run
from holdfast.checkpoint.transfer.container_reader import ImportLimits, open_run
from holdfast.checkpoint.transfer.json_form import Style, form_of, write_json
from holdfast.checkpoint.transfer.reseal import Closer, NewIds, Redact, Redaction, resealed
from holdfast.checkpoint.transfer.validate import Staged, stage
from holdfast.core.records import Header, Record, check_run_id, is_encrypted
from holdfast.errors import ConflictError, NotFoundError, UsageError, WrongKeyError
from holdfast.storage.base import (
    Batch,
    RecordQuery,
    RunInfo,
    RunQuery,
    Storage,
    in_batches,
    open_storage,
)

if TYPE_CHECKING:
    from holdfast.checkpoint.operations import Operations

__all__ = ["copy_run", "export_json", "export_run", "import_run"]


# To a file


def export_run(
    operations: Operations,
    run_id: str,
    path: str | os.PathLike[str],
    *,
    redact: Redact | None,
    encryption_key: Key | None,
    decrypt: bool,
    overwrite: bool,
) -> Steps[Manifest]:
    """Write a run to a file of its own; gives what the file says of it."""
    if decrypt and encryption_key is not None:
        raise UsageError("decrypt and encryption_key are both given", hint="give one of them")
    target = Path(path)
    check_free(target, overwrite=overwrite)
    keys = None if encryption_key is None else load_keys(encryption_key, environ={})
    redaction = None if redact is None else Redaction(redact, operations.reader)
    export = _Export(operations.reader, run_id, redaction, keys, decrypt)
    return (yield Work(lambda: export.write(target, overwrite)))  # type: ignore[no-any-return]


class _Export:
    """One run on its way to a file."""

    def __init__(
        self,
        reader: Reader,
        run_id: str,
        redaction: Redaction | None,
        keys: Keys | None,
        decrypt: bool,
    ) -> None:
        self._reader = reader
        self._run_id = run_id
        self._redaction = redaction
        self._keys = keys
        self._decrypt = decrypt

    def write(self, path: Path, overwrite: bool) -> Manifest:
        """Read the run as it is now, and write it."""
        run = _existing(self._reader, self._run_id)
        visible = set[int]()
        encrypted = False
        for header in self._reader.storage.headers(RecordQuery(run_id=run.run_id, notes=True)):
            visible.add(header.seq)
            encrypted = encrypted or _is_key(header)
        source = _Source(self._reader, run, visible, encrypted)
        records: Iterable[Record] = source
        content: Any = "sealed"
        if self._redaction or self._keys or (self._decrypt and encrypted):
            content = "redacted" if self._redaction else "resealed"
            keys = self._keys_for(encrypted)
            encrypted = keys is not None
            records = self._resealed(source, keys)

        def describe(totals: Totals) -> Manifest:
            return Manifest(
                run_id=run.run_id,
                name=run.name,
                checkpoints=source.checkpoints,
                exported_at=datetime.now(UTC),
                content=content,
                encrypted=encrypted,
                hidden=tuple(_ranges(source.hidden)),
                redacted=dict(self._redaction.counts) if self._redaction else {},
                **msgspec.structs.asdict(totals),
            )

        return write_run(path, records, describe, overwrite=overwrite)

    def _keys_for(self, encrypted: bool) -> Keys | None:
        """What the file is encrypted with: what was run under one key stays under it."""
        if self._keys is not None or self._decrypt or not encrypted:
            return self._keys
        return self._reader.sealer.keys

    def _resealed(self, source: _Source, keys: Keys | None) -> Iterator[Record]:
        closer = Closer(self._run_id, keys, "zstd" if keys else None)
        text_of, now = self._reader.sealer.open, datetime.now(UTC)
        redaction = self._redaction
        if redaction is None:
            return resealed(source, closer, text_of, now=now)

        def rewrite(header: Header, text: bytes) -> tuple[Header, bytes]:
            return redaction.rewrite(header, text, hidden=header.seq not in source.visible)

        return resealed(source, closer, text_of, rewrite, now=now)


class _Source:
    """The records of a run, and what was seen of them on the way."""

    def __init__(self, reader: Reader, run: RunInfo, visible: set[int], encrypted: bool) -> None:
        self._reader = reader
        self._run = run
        self.visible = visible
        self._encrypted = encrypted
        self.checkpoints = 0
        self.hidden: list[int] = []

    def __iter__(self) -> Iterator[Record]:
        for record in self._reader.records(self._run.run_id, 1, self._run.seq):
            header = record.header
            if not self._encrypted and is_encrypted(record.body):
                raise WrongKeyError(
                    f"the key of run {header.run_id!r} was erased: there is nothing to export",
                    run_id=header.run_id,
                )
            if header.seq not in self.visible:
                self.hidden.append(header.seq)
            elif header.frame != "note":
                self.checkpoints += 1
            yield record


def _is_key(header: Header) -> bool:
    return header.frame == "note" and header.kind == "key"


def _ranges(seqs: Iterable[int]) -> Iterator[tuple[int, int]]:
    first = last = 0
    for seq in seqs:
        if seq == last + 1 and first:
            last = seq
            continue
        if first:
            yield first, last
        first = last = seq
    if first:
        yield first, last


def _existing(reader: Reader, run_id: str) -> RunInfo:
    run = reader.run(check_run_id(run_id))
    if run is None:
        raise NotFoundError(f"no run {run_id!r}", hint="check the spelling", run_id=run_id)
    return run


# From a file


def import_run(
    operations: Operations,
    path: str | os.PathLike[str],
    run_id: str | None,
    *,
    encryption_key: Key | None,
    limits: ImportLimits,
) -> Steps[str]:
    """Take the run in a file into the storage; gives its id.

    All that is in the file is checked first. Then it is appended in one batch, so that the run is
    there whole or not at all.
    """
    if run_id is not None:
        check_run_id(run_id)
    ours = operations.reader.sealer.keys
    theirs = ours if encryption_key is None else load_keys(encryption_key, environ={})

    def work() -> str:
        with open_run(Path(path), limits) as file:
            new_id = file.manifest.run_id if run_id is None else run_id
            _check_new(operations.reader, new_id)
            staged = stage(file, theirs, rename=run_id is not None)
        fits = (staged.data_key is not None) == (ours is not None) and theirs is ours
        if new_id != staged.run_id or not fits:
            closer = Closer(new_id, ours, operations.storage.body_compression)
            ids = (NewIds().rewrite,) if new_id != staged.run_id else ()
            records = resealed(staged.records, closer, staged.text_of, *ids, now=datetime.now(UTC))
            staged.records = list(records)
        _append_whole(operations.storage, new_id, staged)
        operations.journal.invalidate(new_id)
        operations.retention.forget(new_id, staged.name)
        return new_id

    return (yield Work(work))  # type: ignore[no-any-return]


def _check_new(reader: Reader, run_id: str) -> None:
    if reader.run(run_id) is not None:
        raise _taken(run_id)


def _taken(run_id: str) -> ConflictError:
    return ConflictError(
        f"there is a run {run_id!r} already",
        hint="give the imported run another run_id",
        run_id=run_id,
    )


def _append_whole(storage: Storage, run_id: str, staged: Staged) -> None:
    """Append a run in one commit: one batch, or as many as it has had names."""
    erased = frozenset((first, last) for first, last, _ in staged.gaps)
    batches = [
        Batch(
            run_id=run_id,
            records=tuple(records),
            hide=tuple(r.header.seq for r in records if r.header.seq in staged.hidden),
            erased=erased,
        )
        for _, group in groupby(staged.records, key=lambda record: record.header.name)
        if (records := list(group))
    ]
    if any(storage.append(batches)):
        raise _taken(run_id)


# From storage to storage


def copy_run(operations: Operations, run_id: str, to: Storage | str) -> Steps[int]:
    """Append to *to* what it does not have of a run yet; gives how many records that were."""
    return (yield Work(lambda: _copy_to(operations.reader, run_id, to)))  # type: ignore[no-any-return]


def _copy_to(reader: Reader, run_id: str, to: Storage | str) -> int:
    run = _existing(reader, run_id)
    if isinstance(to, Storage):
        return _copy(reader, run, to)
    with open_storage(to) as storage:
        return _copy(reader, run, storage)


def _copy(reader: Reader, run: RunInfo, to: Storage) -> int:
    there = next(iter(to.runs(RunQuery(run_id=run.run_id, limit=1))), None)
    seq = 0 if there is None else _common(reader, run, to, there)
    if seq >= run.seq:
        return 0
    query = RecordQuery(run_id=run.run_id, notes=True)
    visible = {header.seq for header in reader.storage.headers(query)}
    copied = 0
    for records in in_batches(reader.records(run.run_id, seq + 1, run.seq)):
        seqs = [record.header.seq for record in records]
        batch = Batch(
            run_id=run.run_id,
            records=tuple(records),
            hide=tuple(one for one in seqs if one not in visible),
            erased=frozenset(_gaps(seq, seqs)),
        )
        conflict = to.append([batch])[0]
        if conflict is not None:
            raise conflict
        seq = seqs[-1]
        copied += len(records)
    return copied


def _common(reader: Reader, run: RunInfo, to: Storage, there: RunInfo) -> int:
    """The newest seq of the target, if one of the two journals goes on from the other's end."""
    if there.seq <= run.seq:
        fits = _goes_on(reader.storage, run.run_id, there.seq, there.digest)
    else:
        fits = _goes_on(to, run.run_id, run.seq, run.digest)
    if not fits:
        raise _diverged(run.run_id, _first_difference(reader.storage, to, run.run_id))
    return there.seq


def _goes_on(storage: Storage, run_id: str, seq: int, digest: str) -> bool:
    """Whether the record with *digest* stands, or stood, at *seq*."""
    for record in storage.read(run_id, first=seq, last=seq + 1):
        header = record.header
        return digest == (header.digest if header.seq == seq else header.prev)
    return False


def _first_difference(here: Storage, there: Storage, run_id: str) -> int | None:
    """The first seq at which both have a record, and not the same; None if there is none."""
    theirs = there.read(run_id)
    other = next(theirs, None)
    for record in here.read(run_id):
        while other is not None and other.header.seq < record.header.seq:
            other = next(theirs, None)
        if other is None:
            break
        same_place = other.header.seq == record.header.seq
        if same_place and other.header.digest != record.header.digest:
            return record.header.seq
    return None


def _diverged(run_id: str, seq: int | None) -> ConflictError:
    if seq is None:
        return ConflictError(
            f"of run {run_id!r} the records are erased that would show whether its copy is one",
            hint="delete the copy, then copy the run again",
            run_id=run_id,
            seq=None,
        )
    return ConflictError(
        f"the copy of run {run_id!r} has gone its own way since seq {seq}",
        hint="delete the copy, or copy to another storage",
        run_id=run_id,
        seq=seq,
    )


def _gaps(seq: int, seqs: Iterable[int]) -> Iterator[tuple[int, int]]:
    for following in seqs:
        if following > seq + 1:
            yield seq + 1, following - 1
        seq = following


# As JSON


def export_json(operations: Operations, run_or_checkpoint_id: str, style: Style) -> Steps[str]:
    """A checkpoint as a JSON object, or a run as an array of its checkpoints, oldest first."""

    def work() -> str:
        reader = operations.reader
        if reader.run(run_or_checkpoint_id) is None:
            header = reader.resolve(run_or_checkpoint_id)
            return write_json(form_of(reader.load(header), style))
        query = RecordQuery(run_id=run_or_checkpoint_id)
        headers = reversed(list(reader.storage.headers(query)))
        return write_json([form_of(reader.load(header), style) for header in headers])

    return (yield Work(work))  # type: ignore[no-any-return]
