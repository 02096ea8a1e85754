"""Encryption of runs that were begun in the clear.

A run is written to an encrypted file, the file is validated, the run is replaced by it, and the
file is removed. Interrupted anywhere, the run or the file is complete, and another call continues.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from surehold.core.records import Header, check_run_id, medium_name, open_record
from surehold.engine.crypto import Keyring, Sealer, is_clear
from surehold.engine.journal import Journal, Reader
from surehold.engine.repair import verify_run
from surehold.engine.transfer.limits import UNLIMITED
from surehold.engine.transfer.run_file import open_file
from surehold.engine.transfer.runs import append_whole, write_encrypted
from surehold.engine.transfer.validate import stage
from surehold.errors import ConflictError, CorruptError, UsageError
from surehold.storage.base import RunQuery, Storage

if TYPE_CHECKING:
    from surehold.engine.commit import Face

_SUFFIX = ".encrypting"


class _Held(Protocol):
    epoch: int | None


class Hold(Protocol):
    """Takes the lease of a run, in a block: `engine.leases.RunLease`."""

    def __call__(self, journal: Journal, run_id: str, /) -> AbstractContextManager[_Held]: ...


def encrypt_runs(face: Face, name_or_run_id: str | None, scratch: Path, hold: Hold) -> list[str]:
    """Encrypt one run, the runs of a name, or all unencrypted ones; return the ids.

    A run that another process holds is refused with a `LeaseHeldError`.
    """
    keys = face.reader.sealer.keys
    if keys is None:
        raise UsageError(
            "there is no key to encrypt with",
            hint="open the manager with encryption_key=, or set SUREHOLD_ENCRYPTION_KEY",
        )
    pending = _clear_runs(face, name_or_run_id, scratch)
    for run_id in pending:
        _encrypt(face, keys, run_id, scratch, hold)
    return pending


def _clear_runs(face: Face, name_or_run_id: str | None, scratch: Path) -> list[str]:
    storage = face.storage
    begun = {path: _run_in(path) for path in scratch.glob(f"*{_SUFFIX}")}
    if name_or_run_id is None:
        runs = [run.run_id for run in storage.runs(RunQuery())]
        runs += (run_id for run_id in begun.values() if run_id not in runs)
    elif name_or_run_id in begun.values():
        runs = [name_or_run_id]
    else:
        check_run_id(name_or_run_id, "name_or_run_id")
        runs = [run.run_id for run in face.reader.known_runs(name_or_run_id)]
    return [run_id for run_id in runs if run_id in begun.values() or is_clear(storage, run_id)]


def _run_in(path: Path) -> str:
    with open_file(path, UNLIMITED) as file:
        return file.run.run_id


def _check_own(storage: Storage, run_id: str, path: Path) -> None:
    """Refuse to replace a file whose newest record is not in this storage.

    An interrupted call for another storage may have left it: nothing else has that run then.
    """
    newest: Header | None = None
    with open_file(path, UNLIMITED) as file:
        for parts in file.records():
            header = open_record(parts.text, parts.digest, parts.body).header
            if (header.frame, header.kind) != ("note", "key"):
                newest = header
    if newest is not None:
        for record in storage.read(run_id, first=newest.seq, last=newest.seq):
            if record.header.id == newest.id:
                return
    raise ConflictError(
        f"{path} is an unfinished encryption of another run {run_id!r}",
        hint="finish it with the storage that it was begun for, or give another scratch directory",
        run_id=run_id,
        path=str(path),
    )


def _encrypt(face: Face, keys: Keyring, run_id: str, scratch: Path, hold: Hold) -> None:
    storage, reader = face.storage, face.reader
    path = scratch / f"{medium_name(run_id)}{_SUFFIX}"
    with hold(face.journal, run_id) as lease:
        run = reader.run(run_id)
        if run is not None and path.exists():
            _check_own(storage, run_id, path)
        if run is not None and is_clear(storage, run_id):
            scratch.mkdir(parents=True, exist_ok=True)
            source = Reader(storage, Sealer(storage))
            write_encrypted(source, run_id, keys, path, epoch=lease.epoch or 0)
        if path.exists():
            with open_file(path, UNLIMITED) as file:
                staged = stage(file, keys, own=True)
            if run is None or is_clear(storage, run_id):
                storage.delete(run_id)
                append_whole(storage, run_id, staged)
        face.journal.invalidate(run_id)
        reader.sealer.forget_key(run_id)
        face.retention.forget_all()
        new = reader.run(run_id)
        verdict = None if new is None else verify_run(reader, new)
        if not verdict:
            raise CorruptError(
                f"run {run_id!r} could not be verified after it was encrypted",
                hint=f"its encrypted records are in {path}",
                run_id=run_id,
            )
        path.unlink(missing_ok=True)
    storage.compact()
