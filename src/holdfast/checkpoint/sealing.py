"""Bodies: what stands in them, and how they are closed and opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from holdfast.core.frame import (
    NONCE_BYTES,
    bad_key_note,
    compress,
    decompress,
    decrypt_body,
    encrypt_body,
)
from holdfast.core.record import Header, Record
from holdfast.errors import CorruptError, DecodeError, WrongKeyError
from holdfast.storage.base import RecordQuery, Storage

__all__ = ["CLEAR_NOTES", "Body", "Keys", "Sealer", "checkpoint_body", "read_body"]

CLEAR_NOTES = frozenset(["key", "prune", "tag", "pin", "release"])
"""Notes that are never encrypted: verifying and pruning a journal needs no key."""


class Body(msgspec.Struct, frozen=True):
    """A checkpoint's body: the whole state (in a keyframe), and what changed."""

    state: msgspec.Raw = msgspec.Raw()
    patch: msgspec.Raw = msgspec.Raw()
    form: str = ""
    extra: msgspec.Raw = msgspec.Raw()
    """What a runtime keeps beside the state: whole in a keyframe, else what was added."""


_read_body = msgspec.json.Decoder(Body).decode


def checkpoint_body(
    form: str, state: bytes | None, patch: bytes | None, extra: bytes | None = None
) -> bytes:
    """The text of a checkpoint's body."""
    parts = []
    if form:
        parts.append(b'"form":"%b"' % form.encode())
    if state is not None:
        parts.append(b'"state":%b' % state)
    parts.append(b'"patch":%b' % (patch or b"[]"))
    if extra is not None:
        parts.append(b'"extra":%b' % extra)
    return b"{%b}" % b",".join(parts)


def read_body(text: bytes, header: Header) -> Body:
    """What stands in a checkpoint's body."""
    try:
        return _read_body(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DecodeError(
            f"the body of record {header.seq} of run {header.run_id!r} cannot be read",
            run_id=header.run_id,
            seq=header.seq,
        ) from error


class Keys(Protocol):
    """Where the data keys of runs come from (`holdfast.checkpoint.keys.Keyring`)."""

    def new_run_key(self, run_id: str) -> tuple[bytes, dict[str, Any]]: ...

    def open(self, note: dict[str, Any], run_id: str) -> bytes: ...


class Sealer:
    """Compresses and encrypts bodies as the storage and the user want it."""

    def __init__(
        self,
        storage: Storage,
        keys: Keys | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._storage = storage
        self._keys = keys
        self._entropy = entropy
        self._data_keys: dict[str, bytes] = {}

    def new_key(self, run_id: str) -> bytes | None:
        """The text of the key note that a run without a key must begin with; None if it has one."""
        if self._keys is None or self._data_key(run_id) is not None:
            return None
        self._data_keys[run_id], note = self._keys.new_run_key(run_id)
        return msgspec.json.encode(note)

    def forget_key(self, run_id: str) -> None:
        """Look the run's key up again next time."""
        self._data_keys.pop(run_id, None)

    def close(self, header: Header, text: bytes) -> bytes:
        """The bytes to store for a body's text."""
        if header.frame == "note" and header.kind in CLEAR_NOTES:
            return text
        packed = compress(text, self._storage.body_compression)
        if self._keys is None:
            return packed
        key = self._data_key(header.run_id)
        if key is None:
            raise WrongKeyError(
                f"run {header.run_id!r} has no key",
                hint="it was begun without encryption, or its key was erased",
            )
        return encrypt_body(key, self._entropy(NONCE_BYTES), packed, header)

    def open(self, record: Record) -> bytes:
        """The text of a record's body."""
        header = record.header
        if header.frame == "note" and header.kind in CLEAR_NOTES:
            return record.body
        body = record.body
        if self._keys is not None:
            key = self._data_key(header.run_id)
            if key is None:
                raise CorruptError(
                    f"run {header.run_id!r} has no key, so it cannot be read",
                    hint="its key was erased, or it was never encrypted: open it without a key",
                    run_id=header.run_id,
                )
            body = decrypt_body(key, body, header)
        return decompress(body)

    def _data_key(self, run_id: str) -> bytes | None:
        key = self._data_keys.get(run_id)
        if key is None and self._keys is not None:
            query = RecordQuery(run_id=run_id, kind="key", notes=True, limit=1)
            for header in self._storage.headers(query):
                for record in self._storage.read(run_id, first=header.seq, last=header.seq):
                    key = self._keys.open(_read_note(record.body, run_id), run_id)
                    self._data_keys[run_id] = key
        return key


def _read_note(body: bytes, run_id: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError) as error:
        raise bad_key_note(run_id, f"cannot be read: {error}") from error
