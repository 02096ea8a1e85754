"""The record: a header, a sealed body, and the digests that chain a journal.

A header names the digest of its own body and of the record before it (`prev`), and its own digest
is taken over its exact text. So a header proves itself without its body, a body is proved by its
header, and a journal is proved by following `prev`. No key is needed for any of it.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec

from surehold.core.records.doors import Door
from surehold.errors import CorruptError, EncodeError

FORMAT = 1
"""The version of the record format; a header that says a newer one is refused."""

Frame = Literal["key", "delta", "note"]

_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]

KINDS = ("routine", "pre_operation", "recovery", "interrupt", "final", "manual", "fork")
"""The reasons for a checkpoint. Other words are allowed."""

STATUSES = (
    "running",
    "waiting",
    "completed",
    "failed",
    "cancelled",
    "interrupted",
    "stalled",
    "max_rounds_reached",
    "max_cycles_reached",
    "budget_exhausted",
)

OPEN_FROM = "open_from"
"""Metadata of a checkpoint whose step is open: the record after which the step's notes begin."""

OVER = ("completed", "cancelled")
"""The statuses of runs that have ended for good: nothing continues them."""

_ALIASES = {"in_progress": "running", "error": "failed"}


def read_status(status: str) -> str:
    """*status* in our words: other systems' spellings are taken as well.

    >>> read_status("in_progress"), read_status("completed")
    ('running', 'completed')
    """
    return _ALIASES.get(status, status)


class Header(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The facts about a record that are known without opening its body."""

    run_id: str
    seq: int
    """Its place in the run's journal, counted from 1 without gaps. This is the order."""
    id: str
    frame: Frame
    saved_at: datetime
    """UTC wall-clock time, for people. Nothing is ordered by it."""
    name: str = ""
    scope: str = ""
    parent: str | None = None
    """The id of the checkpoint this state came from."""
    base_seq: int | None = None
    """A delta's base: the seq of the record it changes."""
    key_seq: int | None = None
    """A delta's keyframe: the seq of the record where its chain of bases begins."""
    step: _Count = 0
    node: str | None = None
    kind: str = "routine"
    """The reason for a checkpoint; for a note, its kind (effect, tag, prune, ...)."""
    status: str = "running"
    metadata: dict[str, Any] = {}
    tags: tuple[str, ...] = ()
    door: Door | None = None
    """What executes the run; on every checkpoint of scope ""."""
    fingerprint: str | None = None
    schema: _Count = 0
    size: int = 0
    """Bytes of the whole state as JSON text."""
    stored: int = 0
    """Bytes of the sealed body."""
    epoch: int = 0
    """The lease under which it was written; 0 for none."""
    format: int = 1
    prev: str = ""
    """Digest of the record before it in the journal; empty for the first."""
    body: str = ""
    """Digest of the sealed body."""
    digest: str = ""
    """Digest of this header's text, itself left out."""


class Record(msgspec.Struct, frozen=True, eq=False):
    """A sealed record: its header, the header's exact text, and the sealed body.

    `seal` and `open_record` remember that they computed its digests; a record made in another
    way, or with a part replaced, has to be opened before it can be trusted.
    """

    header: Header
    text: bytes
    body: bytes
    _proof: tuple[int, int, int] = (0, 0, 0)
    """The identities of the parts whose digests this process computed."""

    def verified(self) -> Record:
        """Return this record with its digests checked once, or raise a `CorruptError`."""
        if self._proof == (id(self.header), id(self.text), id(self.body)):
            return self
        return open_record(self.text, self.header.digest, self.body)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        ours = (self.header, self.text, self.body)
        return ours == (other.header, other.text, other.body)

    __hash__ = None  # type: ignore[assignment]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Header).decode


def digest_of(data: bytes) -> str:
    """The first 128 bits of SHA-256, in hex."""
    return hashlib.sha256(data).hexdigest()[:32]


def new_id(unix_ns: int, entropy: bytes) -> str:
    """A UUIDv7: sortable by *unix_ns*, made unique by eight bytes of *entropy*.

    >>> new_id(1_700_000_000_000_000_000, bytes(8))
    '018bcfe5-6800-7000-8000-000000000000'
    """
    milliseconds, rest = divmod(unix_ns, 1_000_000)
    time = milliseconds % (1 << 48) << 16 | 0x7000 | (rest << 12) // 1_000_000
    text, variant = (time.to_bytes(8) + entropy[:8]).hex(), "89ab"[entropy[0] >> 4 & 3]
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{variant}{text[17:20]}-{text[20:]}"


def seal(header: Header, body: bytes, *, prev: str) -> Record:
    """Seal *body* under *header* as the record after the one with digest *prev*.

    A header that could not be read again is an `EncodeError`: it is never written.

    >>> from datetime import datetime, timezone
    >>> header = Header(run_id="r", seq=1, id="a", frame="key", saved_at=datetime.now(timezone.utc))
    >>> record = seal(header, b'{"state":{}}', prev="")
    >>> open_record(record.text, record.header.digest, record.body) == record
    True
    """
    return seal_new(msgspec.structs.replace(header, prev=prev, digest=""), body)


def seal_new(header: Header, body: bytes) -> Record:
    """Seal *body* under a new *header*, which has its `prev` and is completed here."""
    fill = msgspec.structs.force_setattr
    fill(header, "body", digest_of(body))
    fill(header, "stored", len(body))
    try:
        text = _encode(header)
        # Decoded again, it shares nothing with what the caller may still change.
        header = _decode(text)
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise EncodeError(
            f"record {header.seq!r} of run {header.run_id!r} has a header that cannot be stored:"
            f" {error}",
            run_id=header.run_id,
            seq=header.seq,
        ) from error
    fill(header, "digest", digest_of(text))
    return Record(header, text, body, (id(header), id(text), id(body)))


def open_header(text: bytes, digest: str) -> Header:
    """The header whose text this is, or a `CorruptError`."""
    if digest_of(text) != digest:
        raise CorruptError("a record's header does not match its digest", digest=digest)
    try:
        header = _decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptError("a record's header cannot be read", digest=digest) from error
    if header.format > FORMAT:
        raise CorruptError(
            f"record {header.id} has format {header.format}; this version reads up to {FORMAT}",
            hint="update surehold",
            run_id=header.run_id,
            seq=header.seq,
        )
    msgspec.structs.force_setattr(header, "digest", digest)  # it was just made here
    return header


def open_record(text: bytes, digest: str, body: bytes) -> Record:
    """The record made of these parts, or a `CorruptError` that names it."""
    return with_body(open_header(text, digest), text, body)


def with_body(header: Header, text: bytes, body: bytes) -> Record:
    """The record of a header that `open_header` made from *text*, or a `CorruptError`."""
    check_body(header, body)
    return Record(header, text, body, (id(header), id(text), id(body)))


def check_body(header: Header, body: bytes) -> None:
    """Raise a `CorruptError` unless *body* is the one that *header* names."""
    if digest_of(body) != header.body:
        raise CorruptError(
            f"the body of record {header.seq} of run {header.run_id!r} does not match its digest",
            run_id=header.run_id,
            seq=header.seq,
            id=header.id,
        )
