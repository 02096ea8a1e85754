"""Runs that leave a storage and come into one: as a file, as a copy, as plain JSON.

A ``.holdfast`` file (its format stands in `holdfast.checkpoint.run_file`) is one run with all its
records. By default they are written exactly as they were sealed. Asked to redact, or for another
encryption, the records are sealed anew, and the manifest says so.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.checkpoint.json_forms import Style, form_of, write_json
from holdfast.checkpoint.keys import Key, load_keys
from holdfast.checkpoint.reading import Reader
from holdfast.checkpoint.resealing import Closer, Redact, Redaction, resealed
from holdfast.checkpoint.run_file import ImportLimits, Manifest, check_free, open_run, write_run
from holdfast.checkpoint.sealing import Keys
from holdfast.checkpoint.staging import Staged, stage
from holdfast.checkpoint.steps import Steps, Work
from holdfast.core.frame import is_encrypted
from holdfast.core.ids import check_run_id
from holdfast.core.record import Record
from holdfast.errors import ConflictError, CorruptError, NotFoundError, UsageError, WrongKeyError
from holdfast.storage.base import Batch, RecordQuery, RunInfo, Storage, open_storage

if TYPE_CHECKING:
    from holdfast.checkpoint.operations import Operations

__all__ = ["ImportLimits", "Manifest", "copy_run", "export_json", "export_run", "import_run"]

_BATCH_BYTES = 8 << 20
_BATCH_RECORDS = 1000


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
    new_keys = None
    if encryption_key is not None:
        new_keys = load_keys(encryption_key, environ={})
    export = _Export(operations, run_id, redact, new_keys, decrypt)
    return (yield Work(lambda: export.write(target, overwrite)))  # type: ignore[no-any-return]


class _Export:
    """One run on its way to a file."""

    def __init__(
        self,
        operations: Operations,
        run_id: str,
        redact: Redact | None,
        new_keys: Keys | None,
        decrypt: bool,
    ) -> None:
        self._storage = operations.storage
        self._reader = operations.reader
        self._run_id = run_id
        self._redaction = Redaction(redact, operations.reader) if redact is not None else None
        self._new_keys = new_keys
        self._decrypt = decrypt

    def write(self, path: Path, overwrite: bool) -> Manifest:
        run = _existing(self._reader, self._run_id)
        query = RecordQuery(run_id=run.run_id, notes=True)
        visible = {header.seq: header for header in self._storage.headers(query)}
        encrypted = any(h.frame == "note" and h.kind == "key" for h in visible.values())
        keys = self._keys(encrypted)
        anew = keys is not None or (self._decrypt and encrypted) or self._redaction is not None
        source = _Source(self._reader, run, encrypted)
        records: Iterable[Record] = source
        if anew:
            rewrite = (self._redaction.rewrite,) if self._redaction else ()
            closer = Closer(run.run_id, keys, "zstd" if keys else None)
            now = datetime.now(UTC)
            records = resealed(source, closer, self._reader.sealer.open, *rewrite, now=now)
        manifest = Manifest(
            run_id=run.run_id,
            name=run.name,
            records=0,
            checkpoints=sum(header.frame != "note" for header in visible.values()),
            bytes=0,
            first=0,
            last=0,
            head="",
            exported_at=datetime.now(UTC),
            content="redacted" if self._redaction else "resealed" if anew else "sealed",
            encrypted=keys is not None if anew else encrypted,
        )
        return write_run(path, records, lambda: self._filled(manifest, source, visible), overwrite=overwrite)

    def _keys(self, encrypted: bool) -> Keys | None:
        """What the file is to be encrypted with anew, if it is."""
        if self._new_keys is not None or not (encrypted and self._redaction):
            return self._new_keys
        return None if self._decrypt else self._reader.sealer.keys
