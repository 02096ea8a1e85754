"""Bodies between text and bytes: compressed, then encrypted.

What a body is shows in its first bytes, so plain, compressed and encrypted ones can stand in one
journal: ``{`` is JSON text, ``1f 8b`` gzip, ``28 b5 2f fd`` zstd, ``SHE1`` encrypted.

An encrypted body is ``SHE1``, the nonce, its *place* and the AES-256-GCM ciphertext. The place
says which record of which run the body was written for: a mark of the run, the seq, and a SHA-256
of the header's text without the fields that are computed from the body (`body`, `stored`,
`digest`). It is the associated data, so it cannot be changed without the key, and because it
stands in the body, a body that was moved can be told from one that was altered.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from surehold.core.records.record import Header
from surehold.errors import CorruptError, DataError, EncodeError, UsageError, WrongKeyError
from surehold.lazy import extra

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

METHODS = ("gzip", "zstd")
BODY_LIMIT = 1 << 30
"""The largest body there is, in bytes of text: more is neither written nor read."""
KEY_BYTES = 32
NONCE_BYTES = 12

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_MAGIC = b"SHE1"
_GZIP_LEVEL = 4
_GZIP_RATIO = 1032
_ZSTD_LEVEL = 3
_SHORT = 4096
"""Bodies shorter than this are compressed at zstd's level 1: a third faster, 1 % larger."""
_WORTH_IT = 256
_TAG_BYTES = 16
_PLACE = struct.Struct(">8sQ32s")
_PREFIX_BYTES = len(_MAGIC) + NONCE_BYTES + _PLACE.size
WRAP = "A256GCM"
SERVICE = "service"
"""The ways to wrap a data key: by a key of ours, or by a key service."""


def compress(data: bytes, method: str | None) -> bytes:
    """Compress *data*, a JSON object's text, by *method* if that makes it smaller.

    Less than 256 bytes stay as they are: a record costs more than they can save. The same data
    always gives the same bytes.

    >>> text = b'{"word":"' + b"again " * 100 + b'"}'
    >>> len(compress(text, "zstd")) < 60, compress(b"{}", "gzip")
    (True, b'{}')
    """
    if method is not None and method not in METHODS:
        raise UsageError(
            f"unknown compression {method!r}", hint=f"one of {', '.join(METHODS)}, or None"
        )
    if data and not data.startswith(b"{"):
        raise EncodeError("a body is the text of a JSON object, and this starts with another byte")
    if len(data) > BODY_LIMIT:
        raise EncodeError(
            f"{len(data):,} bytes are more than the {BODY_LIMIT:,} that a body can hold",
            hint="keep large values in files of their own, and their names in the state",
        )
    if method is None or len(data) < _WORTH_IT:
        return data
    if method == "gzip":
        packed = zlib.compress(data, _GZIP_LEVEL, wbits=31)
    else:
        contexts = _short_compressors if len(data) < _SHORT else _compressors
        try:
            context = contexts.pop()
        except IndexError:
            context = _new_compressor(1 if len(data) < _SHORT else _ZSTD_LEVEL)
        packed = context.compress(data)
        contexts.append(context)
    return packed if len(packed) < len(data) else data


def decompress(data: bytes, *, limit: int = BODY_LIMIT) -> bytes:
    """The text that `compress` was given, whichever way it went.

    *limit* is how many bytes may come out. More is a `DataError`, found before or while unpacking,
    so that a hostile body never takes more than about twice that much memory; bytes that no
    `compress` has written are a `CorruptError`.
    """
    if data.startswith(b"{"):
        _within(limit, len(data))
        return data
    if data.startswith(_GZIP):
        return _gunzip(data, limit)
    if data.startswith(_ZSTD):
        return _unzstd(data, limit)
    if is_encrypted(data):
        raise WrongKeyError(
            "the body is encrypted",
            hint="give its key, or set SUREHOLD_ENCRYPTION_KEY",
        )
    if data:
        raise CorruptError("a body is neither JSON text nor compressed nor encrypted")
    return data


def _within(limit: int, size: int) -> None:
    if size > limit:
        raise DataError(
            f"a body of {size:,} bytes is larger than the {limit:,} allowed here",
            size=size,
            limit=limit,
        )


_short_compressors: list[Any] = []
_compressors: list[Any] = []
_decompressors: list[Any] = []
"""Contexts that no thread uses just now: one serves one thread at a time, and is slow to make."""


def _new_compressor(level: int) -> Any:
    import zstandard

    return zstandard.ZstdCompressor(level=level)


def _unzstd(data: bytes, limit: int) -> bytes:
    import zstandard

    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size in (0, zstandard.CONTENTSIZE_UNKNOWN):
            raise CorruptError("a zstd body does not say how large its content is")
        _within(limit, size)
        try:
            context = _decompressors.pop()
        except IndexError:
            context = zstandard.ZstdDecompressor()
        # It fails by itself where the content is not of the size that was said.
        text: bytes = context.decompress(data, allow_extra_data=False)
        _decompressors.append(context)
        return text
    except zstandard.ZstdError as error:
        raise CorruptError(f"a zstd body cannot be unpacked: {error}") from error


def _gunzip(data: bytes, limit: int) -> bytes:
    # The last four bytes of the format say how large the content is.
    size = int.from_bytes(data[-4:], "little")
    if size > _GZIP_RATIO * len(data):
        raise CorruptError("a gzip body says that it holds more than it can")
    _within(limit, size)
    unpack = zlib.decompressobj(wbits=31)
    try:
        text = unpack.decompress(data, size + 1)
    except zlib.error as error:
        raise CorruptError(f"a gzip body cannot be unpacked: {error}") from error
    if len(text) > size:
        raise CorruptError("a gzip body holds more than it says")
    if not unpack.eof or unpack.unused_data:
        raise CorruptError("a gzip body is cut short, or something follows it")
    return text


def is_encrypted(body: bytes) -> bool:
    """True if `encrypt_body` made *body*."""
    return body.startswith(_MAGIC)


def encrypt_body(data_key: bytes, nonce: bytes, plaintext: bytes, header: Header) -> bytes:
    """*plaintext*, readable only with *data_key* and only as the body of *header*.

    *header* is as it will be sealed, `prev` included; sealing it on another `prev` needs another
    call. *nonce* is 12 random bytes, used for this call only: with them a data key is good for
    2**32 bodies.
    """
    if len(nonce) != NONCE_BYTES:
        raise UsageError(f"a nonce is {NONCE_BYTES} bytes, not {len(nonce)}")
    place = _place(header)
    sealed = _gcm(data_key).encrypt(nonce, plaintext, _MAGIC + place)
    return b"".join((_MAGIC, nonce, place, sealed))


def decrypt_body(data_key: bytes, body: bytes, header: Header) -> bytes:
    """Decrypt what `encrypt_body` made for this very header, else a `CorruptError`.

    Its `.reason` tells them apart: ``"plain"`` (a body that is not encrypted stands where one is
    expected), ``"truncated"``, ``"moved"`` (written for another record or run), ``"replayed"``
    (written for this record, under another header) or ``"altered"``.
    """
    if len(body) < header.stored or _MAGIC.startswith(body):
        raise _refused(header, "truncated", "is cut short")
    if body.startswith((b"{", _GZIP, _ZSTD)):
        raise _refused(header, "plain", "is not encrypted, in a run that is")
    if not is_encrypted(body):
        raise _refused(header, "altered", "was altered")
    if len(body) < _PREFIX_BYTES + _TAG_BYTES:
        raise _refused(header, "truncated", "is cut short")
    nonce_end = len(_MAGIC) + NONCE_BYTES
    place, expected = body[nonce_end:_PREFIX_BYTES], _place(header)
    gcm = _gcm(data_key)
    from cryptography.exceptions import InvalidTag

    try:
        plaintext = gcm.decrypt(body[len(_MAGIC) : nonce_end], body[_PREFIX_BYTES:], _MAGIC + place)
    except InvalidTag:
        if place[:8] != expected[:8]:
            what = "has the mark of another run: it was moved here, or altered"
            raise _refused(header, "moved", what) from None
        raise _refused(header, "altered", "was altered, or written with another data key") from None
    if place == expected:
        return plaintext
    seq = _PLACE.unpack(place)[1]
    if seq != header.seq:
        raise _refused(header, "moved", f"is whole, but was written as that of record {seq}")
    raise _refused(header, "replayed", "is whole, but its header is not the one it was written for")


def _place(header: Header) -> bytes:
    bare = msgspec.structs.replace(header, body="", stored=0, digest="")
    # Through text once, so that it is the same before a header was ever written and after.
    text = _encode(_decode_header(_encode(bare)))
    run = hashlib.sha256(header.run_id.encode()).digest()[:8]
    return _PLACE.pack(run, header.seq, hashlib.sha256(text).digest())


def _refused(header: Header, reason: str, what: str) -> CorruptError:
    return CorruptError(
        f"the body of record {header.seq} of run {header.run_id!r} {what}",
        run_id=header.run_id,
        seq=header.seq,
        id=header.id,
        reason=reason,
    )


class Kdf(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of scrypt, which turns a passphrase into a key.

    They come from a note, so they are bounded: at most 64 MiB and about a second of work.
    """

    n: Annotated[int, Meta(ge=2, le=1 << 16)]
    r: Annotated[int, Meta(ge=1, le=8)]
    p: Annotated[int, Meta(ge=1, le=4)]
    salt: Annotated[str, Meta(min_length=8, max_length=64)]
    """Base64."""

    def __post_init__(self) -> None:
        if self.n & (self.n - 1):
            raise ValueError("n is not a power of two")
        base64.b64decode(self.salt, validate=True)


class KeyNote(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run's data key as its journal keeps it: wrapped."""

    v: int
    alg: str
    """``A256GCM``, or ``service`` where a key service did the wrapping."""
    key: str
    """The id of the key that wrapped it."""
    wrapped: str
    """Base64; for A256GCM the nonce and then the ciphertext."""
    check: str
    """The value that `data_key_check` gives for the data key."""
    kdf: Kdf | None = None


_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(Header).decode


def key_id(key: bytes) -> str:
    """A name for *key* that says nothing of it: eight hex digits.

    >>> key_id(bytes(32))
    '6b6c90cf'
    """
    return hmac.digest(_sized(key), b"surehold key id", "sha256").hex()[:8]


def data_key_check(data_key: bytes, run_id: str) -> str:
    """A check value that confirms the data key of a run."""
    text = b"surehold data key check\0" + run_id.encode()
    return hmac.digest(_sized(data_key), text, "sha256").hex()[:32]


def wrap_key(data_key: bytes, key: bytes, *, run_id: str, nonce: bytes) -> dict[str, Any]:
    """The note from which `unwrap_key` gets *data_key* with *key*, for that run only."""
    if len(nonce) != NONCE_BYTES:
        raise UsageError(f"a nonce is {NONCE_BYTES} bytes, not {len(nonce)}")
    wrapped = _gcm(key).encrypt(nonce, _sized(data_key), _wrap_context(key, run_id))
    return {
        "v": 1,
        "alg": WRAP,
        "key": key_id(key),
        "wrapped": base64.b64encode(nonce + wrapped).decode(),
        "check": data_key_check(data_key, run_id),
    }


def unwrap_key(note: Mapping[str, Any], keys: Iterable[bytes], *, run_id: str) -> bytes:
    """The data key in *note*, by the one of *keys* that wrapped it.

    None of them: `WrongKeyError` with `.wanted` and `.at_hand`, which are ids. The right key and
    still no data key: the note was altered or is another run's, a `CorruptError`.

    >>> note = wrap_key(bytes(32), b"k" * 32, run_id="r", nonce=bytes(12))
    >>> unwrap_key(note, [b"k" * 32], run_id="r") == bytes(32)
    True
    """
    parsed = read_key_note(note, run_id=run_id)
    by_id = {key_id(key): key for key in keys}
    key = by_id.get(parsed.key)
    if key is None:
        raise wrong_key(parsed.key, list(by_id), run_id=run_id)
    if parsed.alg != WRAP:
        raise bad_key_note(run_id, f"was made by {parsed.alg!r}, which a key does not open")
    gcm = _gcm(key)
    from cryptography.exceptions import InvalidTag

    try:
        wrapped = base64.b64decode(parsed.wrapped, validate=True)
        data_key = gcm.decrypt(
            wrapped[:NONCE_BYTES], wrapped[NONCE_BYTES:], _wrap_context(key, run_id)
        )
    except (InvalidTag, ValueError):
        raise bad_key_note(run_id, "was altered, or is another run's") from None
    if not hmac.compare_digest(data_key_check(data_key, run_id), parsed.check):
        raise bad_key_note(run_id, "was altered: its check does not fit")
    return data_key


def read_key_note(note: Mapping[str, Any], *, run_id: str) -> KeyNote:
    """*note* as a value, or a `CorruptError`: it may come from anywhere."""
    try:
        parsed = msgspec.convert(note, KeyNote)
    except msgspec.ValidationError as error:
        raise bad_key_note(run_id, f"cannot be read: {error}") from error
    if parsed.v != 1:
        raise bad_key_note(run_id, f"has version {parsed.v}; this code knows 1", "update surehold")
    if not parsed.check.isascii():
        raise bad_key_note(run_id, "was altered: its check does not fit")
    return parsed


def wrong_key(wanted: str, at_hand: Iterable[str], *, run_id: str) -> WrongKeyError:
    """The error for a run whose key is not among those at hand; all are ids."""
    ids = list(at_hand)
    return WrongKeyError(
        f"run {run_id!r} was saved with key {wanted}; at hand: {', '.join(ids) or 'none'}",
        hint="give that key, as old_keys=[...] if it was replaced",
        run_id=run_id,
        wanted=wanted,
        at_hand=ids,
    )


def bad_key_note(run_id: str, what: str, hint: str = "") -> CorruptError:
    """The error for a key note that does not give its data key, whoever opens it."""
    hint = hint or "restore it from a copy of the storage: without it the run cannot be read"
    return CorruptError(f"the key note of run {run_id!r} {what}", hint=hint, run_id=run_id)


def need_crypto() -> None:
    """Raise `MissingExtraError` unless the package that encrypts is installed."""
    with extra("crypto", "encryption needs the package 'cryptography'"):
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401


def _gcm(key: bytes) -> AESGCM:
    need_crypto()
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(_sized(key))


def _sized(key: bytes) -> bytes:
    if len(key) != KEY_BYTES:
        raise UsageError(f"a key is {KEY_BYTES} bytes, not {len(key)}")
    return key


def _wrap_context(key: bytes, run_id: str) -> bytes:
    return _encode(["surehold data key", 1, WRAP, key_id(key), run_id])
