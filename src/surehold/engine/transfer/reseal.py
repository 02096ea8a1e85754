"""Records sealed anew in place: under another run id or key, or redacted.

The seqs stay, and with them what is hidden, what is missing and what is built on what. Digests and
nonces are new.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from surehold.core.policy import RedactionRules, Redactor
from surehold.core.records import NONCE_BYTES, Header, Record, compress, encrypt_body, new_id, seal
from surehold.core.values import Base, Lazy, Nature, changes, decode, encode, whole
from surehold.engine.crypto import CLEAR_NOTES, Keyring
from surehold.engine.journal import Reader, checkpoint_body, read_body
from surehold.errors import CorruptError, UsageError

BLANK = "blank"
"""The kind of a note that stands where there was something that is of no use any more."""

Redact: TypeAlias = RedactionRules | Callable[[Any], Any]
"""Rules, or a function from the values of a state or the content of a note to their replacement."""

_Rewrite: TypeAlias = Callable[[Header, bytes], tuple[Header, bytes]]


class Closer:
    """Closes the bodies of one run, with a data key of its own if there are *keys*.

    A new key is kept with *epoch*, the epoch of the caller's lease; 0 without a lease.
    """

    def __init__(
        self, run_id: str, keys: Keyring | None, compression: str | None, *, epoch: int = 0
    ) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self.key_note: bytes | None = None
        self._compression = compression
        self._data_key: bytes | None = None
        if keys is not None:
            self._data_key, note = keys.new_run_key(run_id)
            self.key_note = msgspec.json.encode(note)

    def seal(self, header: Header, text: bytes, prev: str) -> Record:
        """The record of this text, under the run's id, after the digest *prev*."""
        if header.frame == "note" and header.kind == "key":
            text = self.key_note or b"{}"
            header = msgspec.structs.replace(header, kind="key" if self.key_note else BLANK)
        header = msgspec.structs.replace(header, run_id=self.run_id, prev=prev)
        return seal(header, self._closed(header, text), prev=prev)

    def _closed(self, header: Header, text: bytes) -> bytes:
        if header.frame == "note" and header.kind in CLEAR_NOTES:
            return text
        packed = compress(text, self._compression)
        if self._data_key is None:
            return packed
        return encrypt_body(self._data_key, os.urandom(NONCE_BYTES), packed, header)


def resealed(
    records: Iterable[Record],
    closer: Closer,
    text_of: Callable[[Record], bytes],
    rewrite: _Rewrite = lambda header, text: (header, text),
    *,
    now: datetime,
) -> Iterator[Record]:
    """The records as *closer* seals them, their texts as *rewrite* leaves them.

    If the run gets a key and had none, the note with the key follows the last record, so every
    record keeps its place.
    """
    before: Record | None = None
    has_key = False
    for record in records:
        header, text = rewrite(record.header, text_of(record))
        follows = before is not None and before.header.seq + 1 == header.seq
        prev = before.header.digest if before is not None and follows else header.prev
        before = closer.seal(header, text, prev)
        has_key = has_key or (before.header.frame, before.header.kind) == ("note", "key")
        yield before
    if before is not None and closer.key_note is not None and not has_key:
        note = Header(
            run_id=closer.run_id,
            seq=before.header.seq + 1,
            id=new_id(time.time_ns(), os.urandom(8)),
            frame="note",
            saved_at=now,
            name=before.header.name,
            kind="key",
            epoch=closer.epoch,
        )
        yield closer.seal(note, b"", before.header.digest)


class NewIds:
    """Gives copied records ids of their own, so that the originals can stay."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def rewrite(self, header: Header, text: bytes) -> tuple[Header, bytes]:
        """A record under its new id, below the new id of its parent."""
        if header.id not in self._ids:
            moment = int(header.saved_at.timestamp() * 1e9)
            self._ids[header.id] = new_id(moment, os.urandom(8))
        parent = header.parent and self._ids.get(header.parent, header.parent)
        return msgspec.structs.replace(header, id=self._ids[header.id], parent=parent), text


class Redaction:
    """Takes secrets out of states, notes, metadata and tags as their records go by.

    Every state is made whole, redacted, and told apart again from the redacted state that its
    record was built on, so that no change can bring back what was taken out.
    """

    def __init__(self, redact: Redact, reader: Reader) -> None:
        self.counts: Counter[str] = Counter()
        self._rules = isinstance(redact, RedactionRules)
        if isinstance(redact, RedactionRules):
            self._redact: Callable[[Any], Any] = self._by(Redactor(redact))
        elif callable(redact):
            self._redact = redact
        else:
            raise UsageError(
                f"redact is a {type(redact).__name__}",
                hint="give make_rules() of surehold.core.policy, or a function",
            )
        self._reader = reader
        self._newest: dict[str, tuple[int, dict[str, bytes]]] = {}

    def _by(self, redactor: Redactor) -> Callable[[Any], Any]:
        def redact(value: Any) -> Any:
            made, counts = redactor.redact(value)
            self.counts += counts
            return made

        return redact

    def rewrite(self, header: Header, text: bytes, *, hidden: bool) -> tuple[Header, bytes]:
        """A record's header and text without secrets.

        A hidden checkpoint may be built on what was erased meanwhile; nothing is left of it.
        """
        if header.frame == "note":
            clear = header.kind in CLEAR_NOTES
            return self._header(header), text if clear else encode(self._redact(decode(text)))
        try:
            return self._checkpoint(header, text)
        except CorruptError:
            if not hidden:
                raise
        return _blank(header), b"{}"

    def _checkpoint(self, header: Header, text: bytes) -> tuple[Header, bytes]:
        body = read_body(text, header)
        texts = self._texts(header)
        values = {key: Lazy(text) for key, text in texts.items()}
        natures = dict.fromkeys(values, Nature.TAGGED)
        state, made = whole(values, natures)
        before = self._before(header)
        patch: bytes | None = None
        if before is not None:
            base = Base({key: Lazy(text) for key, text in before.items()}, {}, 0)
            patch, _ = changes(base, values, natures)
        extra = encode(self._redact(decode(bytes(body.extra)))) if body.extra else None
        is_key = header.frame == "key"
        self._newest[header.scope] = (header.seq, texts)
        header = msgspec.structs.replace(self._header(header), size=made.size)
        return header, checkpoint_body(body.form, state if is_key else None, patch, extra)

    def _before(self, header: Header) -> dict[str, bytes] | None:
        """The redacted state that a record changes; None for the first of its scope."""
        newest, texts = self._newest.get(header.scope, (0, None))
        if header.base_seq in (None, newest):
            return texts
        for record in self._reader.storage.read(
            header.run_id, first=header.base_seq, last=header.base_seq
        ):
            return self._texts(record.header)
        return None

    def _texts(self, header: Header) -> dict[str, bytes]:
        loaded = self._reader.load(header).texts
        values = self._redact({key: decode(text) for key, text in loaded.items()})
        if not isinstance(values, Mapping):
            raise UsageError(
                f"redact returned a {type(values).__name__} for a state", hint="return a dict"
            )
        return {key: encode(value) for key, value in values.items()}

    def _header(self, header: Header) -> Header:
        """Redact metadata and tags by rules; a function sees only states and notes."""
        if not self._rules:
            return header
        return msgspec.structs.replace(
            header, metadata=self._redact(header.metadata), tags=tuple(self._redact(header.tags))
        )


def _blank(header: Header) -> Header:
    return Header(
        run_id=header.run_id,
        seq=header.seq,
        id=header.id,
        frame="note",
        saved_at=header.saved_at,
        name=header.name,
        scope=header.scope,
        kind=BLANK,
        prev=header.prev,
    )
