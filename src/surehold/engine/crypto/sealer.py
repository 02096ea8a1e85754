"""Compresses and encrypts record bodies, and opens them again."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from surehold.core.policy import ANSWERED, CANCEL, DEAD, QUEUED
from surehold.core.records import (
    BODY_LIMIT,
    NONCE_BYTES,
    Header,
    Record,
    bad_key_note,
    compress,
    data_key_check,
    decompress,
    decrypt_body,
    encrypt_body,
    is_encrypted,
    read_key_note,
)
from surehold.core.values import remember
from surehold.engine.crypto.keys import Keyring
from surehold.errors import CorruptError, DataError, WrongKeyError
from surehold.storage.base import RecordQuery, Storage

CLEAR_NOTES = frozenset(["key", "prune", "tag", "pin", "release", QUEUED, CANCEL, DEAD, ANSWERED])
"""Notes that are never encrypted: verifying and pruning a journal, and steering its queue, need no
key."""
SHREDDED = {"shredded": True}
"""The metadata of the prune note that says that a run's key was erased."""


_KEYS_REMEMBERED = 1024


class Sealer:
    """Compresses and encrypts bodies as the storage and the user want it."""

    def __init__(self, storage: Storage, keys: Keyring | None = None) -> None:
        self._storage = storage
        self.keys = keys
        self._data_keys: OrderedDict[str, bytes] = OrderedDict()

    def new_key(self, run_id: str) -> bytes | None:
        """The text of the key note that a run must begin with; None if it has a key."""
        if self.keys is None or self._data_key(run_id) is not None:
            return None
        if (erased := self._erased(run_id)) is not None:
            raise erased
        key, note = self.keys.new_run_key(run_id)
        self._remember(run_id, key)
        return msgspec.json.encode(note)

    def _remember(self, run_id: str, key: bytes) -> None:
        remember(self._data_keys, run_id, key, most=_KEYS_REMEMBERED)

    def forget_key(self, run_id: str) -> None:
        """Look the run's key up again next time."""
        self._data_keys.pop(run_id, None)

    def recheck_key(self, run_id: str) -> None:
        """Forget a run's key, unless the journal keeps the same one under any wrapping."""
        key = self._data_keys.pop(run_id, None)
        note = None if key is None else next(key_notes(self._storage, run_id), None)
        if key is None or note is None:
            return
        # Whoever opens a damaged note says so; here it is only not the same.
        with suppress(CorruptError):
            kept = read_key_note(read_note(note.body, run_id), run_id=run_id)
            if kept.check == data_key_check(key, run_id):
                self._data_keys[run_id] = key

    def close(self, header: Header, text: bytes) -> bytes:
        """The bytes to store for a body's text."""
        if header.frame == "note" and header.kind in CLEAR_NOTES:
            return text
        # What is encrypted cannot be compressed afterwards, by a medium that compresses itself.
        method = self._storage.body_compression or (None if self.keys is None else "zstd")
        plain = method is None and text[:1] == b"{" and len(text) <= BODY_LIMIT
        packed = text if plain else compress(text, method)
        if self.keys is None:
            return packed
        key = self._data_key(header.run_id)
        if key is None:
            raise WrongKeyError(
                f"run {header.run_id!r} has no key",
                hint="it was begun without encryption, or its key was erased",
                run_id=header.run_id,
            )
        return encrypt_body(key, os.urandom(NONCE_BYTES), packed, header)

    def open(self, record: Record) -> bytes:
        """The text of a record's body."""
        header = record.header
        if header.frame == "note" and header.kind in CLEAR_NOTES:
            return record.body
        body = record.body
        if self.keys is not None:
            key = self._data_key(header.run_id)
            if key is None:
                raise self._erased(header.run_id) or self._keyless(record)
            try:
                body = decrypt_body(key, body, header)
            except CorruptError:
                # The run may have been deleted and begun anew elsewhere, with another key.
                self.recheck_key(header.run_id)
                new = self._data_key(header.run_id)
                if new is None or new == key:
                    raise
                body = decrypt_body(new, body, header)
        elif is_encrypted(body):
            raise self._erased(header.run_id) or WrongKeyError(
                f"run {header.run_id!r} is encrypted, and no key is given",
                hint="give its encryption_key, or set SUREHOLD_ENCRYPTION_KEY",
                run_id=header.run_id,
            )
        return decompress(body)

    def _erased(self, run_id: str) -> WrongKeyError | None:
        """The error for a run that was made unreadable on purpose."""
        for header in shredding(self._storage, run_id):
            return WrongKeyError(
                f"the key of run {run_id!r} was erased on {header.saved_at:%Y-%m-%d at %H:%M} UTC:"
                " its states cannot be read any more",
                hint="delete_run removes what is left of it",
                run_id=run_id,
                erased_at=header.saved_at,
            )
        return None

    def _keyless(self, record: Record) -> DataError:
        """Return the error for a run without a key note."""
        run_id = record.header.run_id
        if is_encrypted(record.body):
            return CorruptError(
                f"run {run_id!r} is encrypted and its key is lost",
                hint="surehold verify shows what is damaged",
                run_id=run_id,
            )
        return WrongKeyError(
            f"run {run_id!r} is not encrypted, and a key is given",
            hint=f"encrypt it with: surehold encrypt {run_id}, or open it without a key",
            run_id=run_id,
        )

    def _data_key(self, run_id: str) -> bytes | None:
        key = self._data_keys.get(run_id)
        if key is None and self.keys is not None:
            note = next(key_notes(self._storage, run_id), None)
            if note is not None:
                key = self.keys.open(read_note(note.body, run_id), run_id)
                self._remember(run_id, key)
        return key


def is_clear(storage: Storage, run_id: str) -> bool:
    """Return whether a run has no key and never had one."""
    return not any(key_notes(storage, run_id)) and not any(shredding(storage, run_id))


def shredding(storage: Storage, run_id: str) -> Iterator[Header]:
    """The note that says that a run's key was erased, if it was."""
    query = RecordQuery(run_id=run_id, kind="prune", metadata=SHREDDED, notes=True, limit=1)
    return storage.headers(query)


def key_notes(storage: Storage, run_id: str) -> Iterator[Record]:
    """The notes that keep a run's key, the one that counts first."""
    for header in storage.headers(RecordQuery(run_id=run_id, kind="key", notes=True)):
        # A checkpoint may be of that kind as well: any word is allowed.
        if header.frame == "note":
            yield from storage.read(run_id, first=header.seq, last=header.seq)


def read_note(body: bytes, run_id: str) -> dict[str, Any]:
    """Read a key note. Its content is not verified here; the caller must check it."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise bad_key_note(run_id, f"cannot be read: {error}") from error
