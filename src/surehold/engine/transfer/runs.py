"""Export, import and copy of runs: as a file, to another storage, as plain JSON.

A ``.surehold`` file (see `engine.transfer.run_file`) is a storage of one run with all its records,
by default exactly as they were sealed. For redaction or another encryption the records are sealed
again, and the manifest says so.

>>> import tempfile
>>> from surehold import CheckpointManager, State
>>> here, there = CheckpointManager("memory://"), CheckpointManager("memory://")
>>> checkpoint_id = here.save_checkpoint(State.new({"done": 3}, run_id="nightly"))
>>> with tempfile.TemporaryDirectory() as directory:
...     manifest = here.export_run("nightly", f"{directory}/nightly.surehold")
...     run_id = there.import_run(f"{directory}/nightly.surehold")
>>> manifest.checkpoints, run_id, there.resume_from_latest("nightly")["done"]
(1, 'nightly', 3)
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from surehold.core.records import Header, Record, check_run_id, is_encrypted, ranges_of
from surehold.engine.crypto import Key, Keyring, load_keys
from surehold.engine.journal import Reader, changes_in
from surehold.engine.transfer.json_form import Style, form_of, form_of_change
from surehold.engine.transfer.limits import LIMITS, Excess, ImportLimits
from surehold.engine.transfer.reseal import Closer, NewIds, Redact, Redaction, resealed
from surehold.engine.transfer.run_file import Manifest, check_free, new_file, open_file
from surehold.engine.transfer.source import Source
from surehold.engine.transfer.validate import Staged, stage
from surehold.errors import ConflictError, NotFoundError, UsageError, WrongKeyError
from surehold.storage.base import (
    Batch,
    RecordQuery,
    RunInfo,
    RunQuery,
    Storage,
    has_record,
    restless,
    run_of,
)
from surehold.storage.registry import open_storage

if TYPE_CHECKING:
    from surehold.engine.commit import Face

logger = logging.getLogger("surehold.checkpoint")

_TRIES = 20


# To a file


def export_run(
    face: Face,
    run_id: str,
    path: str | os.PathLike[str],
    *,
    redact: Redact | None,
    encryption_key: Key | None,
    decrypt: bool,
    overwrite: bool,
) -> Manifest:
    """Write a run to a file, and return its manifest."""
    if decrypt and encryption_key is not None:
        raise UsageError("decrypt and encryption_key are both given", hint="give one of them")
    target = Path(path)
    check_free(target, overwrite=overwrite)
    keys = None if encryption_key is None else load_keys(encryption_key, environ={})
    redaction = None if redact is None else Redaction(redact, face.reader)
    return _Export(face.reader, run_id, redaction, keys, decrypt).write(target, overwrite)


def write_encrypted(
    reader: Reader, run_id: str, keys: Keyring, path: Path, *, epoch: int
) -> Manifest:
    """Write a run to a file that *keys* encrypt; *reader* reads the run as it is now.

    *epoch* is the epoch of the caller's lease.
    """
    return _Export(reader, run_id, None, keys, False, epoch).write(path, overwrite=True)


class _Export(msgspec.Struct, frozen=True):
    """The export of one run."""

    reader: Reader
    run_id: str
    redaction: Redaction | None
    keys: Keyring | None
    decrypt: bool
    epoch: int = 0

    def write(self, path: Path, overwrite: bool) -> Manifest:
        """Read the run up to its head, and write it."""
        run = self.reader.known(check_run_id(self.run_id))
        source = Source(self.reader, run)
        encrypted = source.encrypted
        records: Iterable[Record] = _with_key(source)
        content: Any = "sealed"
        if self.redaction or self.keys or (self.decrypt and encrypted):
            content = "redacted" if self.redaction else "resealed"
            keys = self._keys_for(encrypted)
            encrypted = keys is not None
            records = self._resealed(records, source, keys)

        excess = Excess(LIMITS)
        with new_file(path, overwrite=overwrite) as storage:
            source.copy_to(storage, excess.counted(records))
            written = next(storage.runs(RunQuery()))
        if excess.limits:
            logger.warning(
                "%s is larger than imports allow by default (%s): import it with"
                " limits=ImportLimits(...), or with: surehold import --trust %s",
                path,
                ", ".join(sorted(excess.limits)),
                path.name,
            )
        return Manifest(
            run_id=run.run_id,
            name=run.name,
            records=excess.records,
            checkpoints=source.checkpoints,
            bytes=excess.bytes,
            first=source.first,
            last=written.seq,
            head=written.digest,
            exported_at=datetime.now(UTC),
            content=content,
            encrypted=encrypted,
            hidden=tuple(ranges_of(source.hidden)),
            redacted=dict(self.redaction.counts) if self.redaction else {},
        )

    def _keys_for(self, encrypted: bool) -> Keyring | None:
        """Return the keys of the file; an encrypted run stays encrypted."""
        if self.keys is not None or self.decrypt or not encrypted:
            return self.keys
        return self.reader.sealer.keys

    def _resealed(
        self, records: Iterable[Record], source: Source, keys: Keyring | None
    ) -> Iterator[Record]:
        closer = Closer(self.run_id, keys, "zstd" if keys else None, epoch=self.epoch)
        text_of, now = self.reader.sealer.open, datetime.now(UTC)
        redaction = self.redaction
        if redaction is None:
            return resealed(records, closer, text_of, now=now)

        def rewrite(header: Header, text: bytes) -> tuple[Header, bytes]:
            return redaction.rewrite(header, text, hidden=header.seq not in source.visible)

        return resealed(records, closer, text_of, rewrite, now=now)


def _with_key(source: Source) -> Iterator[Record]:
    for record in source:
        if not source.encrypted and is_encrypted(record.body):
            run_id = record.header.run_id
            raise WrongKeyError(
                f"the key of run {run_id!r} was erased: there is nothing to export", run_id=run_id
            )
        yield record


# From a file


def import_run(
    face: Face,
    path: str | os.PathLike[str],
    run_id: str | None,
    *,
    encryption_key: Key | None,
    limits: ImportLimits,
) -> str:
    """Import the run in a file, and return its id.

    The whole file is validated first. Then it is appended in one commit: all of it or nothing.
    """
    if run_id is not None:
        check_run_id(run_id)
    ours = face.reader.sealer.keys
    theirs = ours if encryption_key is None else load_keys(encryption_key, environ={})
    with open_file(Path(path), limits) as file:
        new_id = file.run.run_id if run_id is None else run_id
        if face.reader.run(new_id) is not None:
            raise _taken(new_id)
        staged = stage(file, theirs, rename=run_id is not None)
    fits = (staged.data_key is not None) == (ours is not None) and theirs is ours
    if new_id != staged.run_id or not fits:
        closer = Closer(new_id, ours, face.storage.body_compression)
        ids = (NewIds().rewrite,) if new_id != staged.run_id else ()
        records = resealed(staged.records, closer, staged.text_of, *ids, now=datetime.now(UTC))
        staged.records = list(records)
    append_whole(face.storage, new_id, staged)
    face.journal.invalidate(new_id)
    face.retention.forget(new_id, staged.name)
    return new_id


def _taken(run_id: str) -> ConflictError:
    return ConflictError(
        f"there is a run {run_id!r} already",
        hint="give the imported run another run_id",
        run_id=run_id,
    )


def append_whole(storage: Storage, run_id: str, staged: Staged) -> None:
    """Append a run in one commit, with a batch for each name it has had."""
    erased = frozenset((gap.first, gap.last) for gap in staged.gaps)
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


def copy_run(face: Face, run_id: str, to: Storage | str) -> int:
    """Append the missing records of a run to *to*, and return their number."""
    run = face.reader.known(check_run_id(run_id))
    if isinstance(to, Storage):
        return _copy(face.reader, run, to)
    with open_storage(to) as storage:
        return _copy(face.reader, run, storage)


def _copy(reader: Reader, run: RunInfo, to: Storage) -> int:
    there = run_of(to, run.run_id)
    seq = 0 if there is None else _common(reader, run, to, there)
    if seq >= run.seq:
        return 0
    return Source(reader, run, after=seq).copy_to(to)


def _common(reader: Reader, run: RunInfo, to: Storage, there: RunInfo) -> int:
    """Return the newest seq of the target, if one journal continues the other."""
    if there.seq <= run.seq:
        fits = has_record(reader.storage, run.run_id, there.seq, there.digest)
    else:
        fits = has_record(to, run.run_id, run.seq, run.digest)
    if not fits:
        raise _diverged(run.run_id, _first_difference(reader.storage, to, run.run_id))
    return there.seq


def _first_difference(here: Storage, there: Storage, run_id: str) -> int | None:
    """Return the first seq at which both have a record and they differ, if any."""
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
            f"cannot compare the copy of run {run_id!r}: the needed records were pruned",
            hint="delete the copy, then copy the run again",
            run_id=run_id,
            seq=None,
        )
    return ConflictError(
        f"the copy of run {run_id!r} differs from seq {seq} on",
        hint="delete the copy, or copy to another storage",
        run_id=run_id,
        seq=seq,
    )


# As JSON


def export_json(face: Face, run_or_checkpoint_id: str, style: Style) -> str:
    """Return a checkpoint as a JSON object, or a run as `json_lines` gives it."""
    reader = face.reader
    if reader.run(run_or_checkpoint_id) is not None:
        return "\n".join(json_lines(reader, run_or_checkpoint_id, style))
    loaded = reader.load(reader.resolve(run_or_checkpoint_id))
    return json.dumps(form_of(loaded, style), indent=2)


def json_lines(reader: Reader, run_id: str, style: Style) -> Iterator[str]:
    """Yield a run as a JSON array of its checkpoints, oldest first, a line for each.

    Each has its changes, and the newest its whole state too: so the text is as long as the state
    and what was written to it, however many checkpoints there are.
    """
    reader.known(check_run_id(run_id))
    visible, last = _newest_line(reader, run_id, style)
    yield "["
    for record in reader.records(run_id, 1, max(visible, default=0) - 1):
        header = record.header
        if header.seq in visible:
            form = form_of_change(header, changes_in(reader, record), None, style)
            yield json.dumps(form, separators=(",", ":")) + ","
    yield from last
    yield "]"


def _newest_line(reader: Reader, run_id: str, style: Style) -> tuple[set[int], list[str]]:
    """The seqs of a run's checkpoints, and the line of the newest, if there is one.

    It is made before the others are read, because a prune may drop it meanwhile.
    """
    for _ in range(_TRIES):
        headers = list(reader.storage.headers(RecordQuery(run_id=run_id)))
        visible = {header.seq for header in headers}
        if not headers:
            run = reader.run(run_id)
            if run is None or not run.checkpoints:
                return visible, []
            continue
        newest = headers[0]
        del headers
        for record in reader.records(run_id, newest.seq, newest.seq):
            with suppress(NotFoundError):
                loaded = reader.load_visible(newest)
                form = form_of_change(newest, changes_in(reader, record), loaded, style)
                return visible, [json.dumps(form, separators=(",", ":"))]
    raise restless(run_id, _TRIES)
