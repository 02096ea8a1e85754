"""The ``.holdfast`` file: one run, whole and by itself.

::

    holdfast-run 1                     a line: what it is, and the version of the format
    {"run_id":"nightly", ...}          a line: the manifest
    section, section, ...              the records, some in each section
    end of sections
    sha256 3a7f...                     a line: SHA-256 of all that stands before it

So ``head -n 2`` shows what is in it. A section is a byte that tells how it is packed (0: plain,
1: one zstd frame), the bytes it takes in the file and the bytes it unpacks to (both 32 bits, big
endian), and then its data. Byte 255 with two zeros ends them. Unpacked it is a row of records: the
digest of the header (16 bytes), the lengths of header and body (32 bits each), the header's text
and the sealed body, both as the storage had them. So digests and encryption survive the journey,
and a run that is encrypted travels encrypted, its wrapped key with it.

The manifest counts the records, the checkpoints among them and the bytes they unpack to, names the
first and the last seq and the digest of the last record, and tells which seqs are hidden. Its
`content` is ``sealed`` for records as they were, ``resealed`` if they were given another key or
none, ``redacted`` if secrets were taken out as well. Nothing in it is believed: it is compared.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Literal

import msgspec

from holdfast.core.record import Record
from holdfast.errors import (
    CorruptError,
    DataError,
    NotFoundError,
    StorageError,
    StorageFullError,
    UsageError,
)

__all__ = [
    "LIMITS",
    "ImportLimits",
    "Manifest",
    "Parts",
    "RunFile",
    "Totals",
    "check_free",
    "open_run",
    "write_run",
]

_MAGIC = b"holdfast-run "
_FORMAT = 1
_FIRST_LINE = b"%b%d\n" % (_MAGIC, _FORMAT)
_TRAILER = b"sha256 %b\n"
_TRAILER_BYTES = len(_TRAILER % (b"0" * 64))
_SECTION = struct.Struct(">BII")
_RECORD = struct.Struct(">16sII")
_PLAIN, _ZSTD, _END = 0, 1, 255
_SECTION_BYTES = 1 << 20
_MANIFEST_BYTES = 2 << 20
_PIECE = 1 << 20
_TIGHTEST = 100
"""A section that would pack better than this is left plain: to who opens it, it is no bomb."""


class ImportLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a file is believed. What goes beyond is refused before it is unpacked."""

    total_bytes: int = 1 << 30
    """Of the file, of all its records, and of all their bodies when they are unpacked."""
    record_bytes: int = 64 << 20
    """Of one record, its body unpacked."""
    records: int = 250_000
    ratio: int = 200
    """How many times its size something may unpack to, beyond the first MiB."""
    depth: int = 800
    """How deep JSON may be nested. A value has up to 200 levels, and a level up to three of JSON
    and a tag."""


LIMITS = ImportLimits()


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a file says of the run in it."""

    run_id: str
    name: str
    records: int
    checkpoints: int
    """Visible ones."""
    bytes: int
    """Of all sections, unpacked."""
    first: int
    last: int
    """The seqs of the oldest and the newest record."""
    head: str
    """The digest of the newest record."""
    exported_at: datetime
    content: Literal["sealed", "resealed", "redacted"] = "sealed"
    encrypted: bool = False
    hidden: tuple[tuple[int, int], ...] = ()
    """Ranges of seqs, first and last, that are kept as bases only."""
    redacted: dict[str, int] = {}
    """How many secrets of each kind were taken out."""


class Parts(msgspec.Struct, frozen=True):
    """A record as it stands in a file."""

    digest: str
    text: bytes
    body: bytes


_read_manifest = msgspec.json.Decoder(Manifest).decode


# Writing


class _Pack:
    """Packs records into sections, in a file that has no name yet."""

    def __init__(self, spool: IO[bytes]) -> None:
        self._spool = spool
        self._waiting: list[bytes] = []
        self._size = 0
        self.bytes = 0

    def add(self, record: Record) -> None:
        digest = bytes.fromhex(record.header.digest)
        head = _RECORD.pack(digest, len(record.text), len(record.body))
        self._waiting += (head, record.text, record.body)
        self._size += len(head) + len(record.text) + len(record.body)
        if self._size >= _SECTION_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._spool.write(_SECTION.pack(_END, 0, 0))

    def _flush(self) -> None:
        import zstandard

        plain = b"".join(self._waiting)
        if not plain:
            return
        packed = zstandard.ZstdCompressor(level=3).compress(plain)
        if len(plain) // _TIGHTEST < len(packed) < len(plain):
            self._spool.write(_SECTION.pack(_ZSTD, len(packed), len(plain)) + packed)
        else:
            self._spool.write(_SECTION.pack(_PLAIN, len(plain), len(plain)) + plain)
        self.bytes += len(plain)
        self._waiting, self._size = [], 0


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise unless a file may be written at *path*."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="give the name of a file", path=str(path))
    if not overwrite and os.path.lexists(path):
        raise _is_there(path)


class Totals(msgspec.Struct, frozen=True):
    """What was written, as a manifest counts it."""

    records: int
    bytes: int
    first: int
    last: int
    head: str


def write_run(
    path: Path,
    records: Iterable[Record],
    describe: Callable[[Totals], Manifest],
    *,
    overwrite: bool,
) -> Manifest:
    """Write *records* to a file, which is there whole or not at all, and lasts when this returns.

    *describe* is asked for the manifest once they are all written.
    """
    with _os_errors(path), tempfile.TemporaryFile(dir=path.parent) as spool:
        pack = _Pack(spool)
        count, first, newest = 0, 0, None
        for record in records:
            pack.add(record)
            count += 1
            first, newest = first or record.header.seq, record.header
        pack.close()
        if newest is None:
            raise UsageError("a run without records cannot be written to a file")
        manifest = describe(Totals(count, pack.bytes, first, newest.seq, newest.digest))
        spool.seek(0)
        _publish(path, _FIRST_LINE + msgspec.json.encode(manifest) + b"\n", spool, overwrite)
    return manifest


def _publish(path: Path, lines: bytes, sections: IO[bytes], overwrite: bool) -> None:
    fd, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            summed = hashlib.sha256(lines)
            file.write(lines)
            while piece := sections.read(_PIECE):
                summed.update(piece)
                file.write(piece)
            file.write(_TRAILER % summed.hexdigest().encode())
            file.flush()
            os.fsync(file.fileno())
        _name(name, path, overwrite)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(name)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _name(temporary: str, path: Path, overwrite: bool) -> None:
    """Give a complete file its name; without *overwrite* only if nobody took it meanwhile."""
    if overwrite:
        os.replace(temporary, path)
        return
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise _is_there(path) from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # Memory sticks and some network shares have no links.
        check_free(path, overwrite=False)
        os.replace(temporary, path)


def _is_there(path: Path) -> UsageError:
    hint = "give another name, or overwrite=True"
    return UsageError(f"{path} is there already", hint=hint, path=str(path))


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        kind = StorageFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
        raise kind(
            f"{path} cannot be written: {error.strerror or error}", path=str(path)
        ) from error


# Reading


@contextmanager
def open_run(path: Path, limits: ImportLimits) -> Iterator[RunFile]:
    """The run file at *path*; anything that is not one, and whole, is refused."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags)
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}", path=str(path)) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _refused(path, "is a symbolic link", "give the file itself") from None
        raise StorageError(
            f"{path} cannot be read: {error.strerror or error}", path=str(path)
        ) from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        os.close(fd)
        raise _refused(path, "is not a regular file", "give a file that export_run wrote")
    with os.fdopen(fd, "rb", buffering=_PIECE) as file:
        yield RunFile(path, file, found.st_size, limits)


class RunFile:
    """A file that is read as if its writer meant harm."""

    def __init__(self, path: Path, file: IO[bytes], size: int, limits: ImportLimits) -> None:
        self.path = path
        self.limits = limits
        self._file = file
        self._end = size - _TRAILER_BYTES
        """Where the trailer begins."""
        if not file.read(len(_MAGIC)) == _MAGIC:
            raise _refused(path, "is not a holdfast file")
        version = file.readline(16).strip()
        if version != b"%d" % _FORMAT:
            known = version.isdigit() and int(version) > _FORMAT
            what = f"has format {version.decode('latin-1')!r}; this version reads {_FORMAT}"
            raise _refused(path, what, "update holdfast" if known else "")
        if size > limits.total_bytes:
            raise self.too_much(f"is {size:,} bytes long, more than", "total_bytes")
        self._sum = self._trailer()
        self.manifest = self._manifest()

    def _trailer(self) -> str:
        if self._end > 0:
            self._file.seek(self._end)
            line = self._file.read(_TRAILER_BYTES)
            digest = line[len(b"sha256 ") : -1]
            if line == _TRAILER % digest and len(digest) == 64:
                return digest.decode("latin-1")
        raise _refused(self.path, "is cut short, or its end was altered", "copy it again")

    def _manifest(self) -> Manifest:
        self._file.seek(len(_FIRST_LINE))
        line = self._file.readline(_MANIFEST_BYTES)
        try:
            manifest = _read_manifest(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise _refused(self.path, "has a manifest that cannot be read") from None
        if not line.endswith(b"\n"):
            raise _refused(self.path, "has a manifest that is too long")
        if manifest.records > self.limits.records:
            raise self.too_much(f"holds {manifest.records:,} records, more than", "records")
        if manifest.bytes > self.limits.total_bytes:
            raise self.too_much(f"unpacks to {manifest.bytes:,} bytes, more than", "total_bytes")
        self._begin = len(_FIRST_LINE) + len(line)
        return manifest

    def records(self) -> Iterator[Parts]:
        """The records, as they stand in the file. It holds one section at a time.

        Only when the last was given it is certain that the file is whole.
        """
        count, size = 0, 0
        for section in self._sections():
            size += len(section)
            at = 0
            while at < len(section):
                count += 1
                if count > self.manifest.records:
                    raise self.refused("holds more records than its manifest says")
                parts, at = self._record(section, at)
                yield parts
        if (count, size) != (self.manifest.records, self.manifest.bytes):
            raise self.refused("holds less than its manifest says")

    def _record(self, section: bytes, at: int) -> tuple[Parts, int]:
        start = at + _RECORD.size
        if start > len(section):
            raise self.refused("has a section that is not made of records")
        digest, text, body = _RECORD.unpack_from(section, at)
        if text + body > self.limits.record_bytes:
            raise self.too_much(f"has a record of {text + body:,} bytes, more than", "record_bytes")
        middle, end = start + text, start + text + body
        if end > len(section):
            raise self.refused("has a section that is not made of records")
        return Parts(digest.hex(), section[start:middle], section[middle:end]), end

    def _sections(self) -> Iterator[bytes]:
        self._file.seek(0)
        self._summed = hashlib.sha256()
        self._take(self._begin)
        packed = unpacked = 0
        while True:
            method, stored, plain = _SECTION.unpack(self._take(_SECTION.size))
            if method == _END:
                break
            packed += stored
            unpacked += plain
            self.check_ratio(packed, unpacked)
            if plain > self.limits.record_bytes + _SECTION_BYTES:
                raise self.too_much(f"has a section of {plain:,} bytes, more than", "record_bytes")
            if unpacked > self.manifest.bytes or plain == 0:
                raise self.refused("has sections of other sizes than its manifest says")
            yield self._unpacked(method, self._take(stored), plain)
        if self._file.tell() != self._end or self._summed.hexdigest() != self._sum:
            raise self.refused("does not match its checksum", "copy it again")

    def _take(self, size: int) -> bytes:
        if size > self._end - self._file.tell():
            raise self.refused("has a section that goes beyond its end")
        data = self._file.read(size)
        self._summed.update(data)
        return data

    def _unpacked(self, method: int, data: bytes, size: int) -> bytes:
        import zstandard

        if method == _PLAIN and len(data) == size:
            return data
        try:
            said = zstandard.get_frame_parameters(data).content_size
            if method == _ZSTD and said == size:
                return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
        except zstandard.ZstdError:
            pass
        raise self.refused("has a section that cannot be unpacked")

    def check_ratio(self, packed: int, unpacked: int) -> None:
        """Raise if so much from so little is more than the limits allow."""
        if unpacked > max(1 << 20, packed * self.limits.ratio):
            times = unpacked // max(packed, 1)
            raise self.too_much(f"unpacks to {times:,} times its size, more than", "ratio")

    def refused(self, what: str, hint: str = "") -> CorruptError:
        """The error for something in the file that is not as `write_run` writes it."""
        return _refused(self.path, what, hint)

    def too_much(self, what: str, limit: str) -> DataError:
        """The error for something beyond a limit."""
        allowed = getattr(self.limits, limit)
        return DataError(
            f"{self.path} {what} the {allowed:,} allowed",
            hint=f"if you trust it, give limits=ImportLimits({limit}=...)",
            path=str(self.path),
            limit=limit,
        )


def _refused(path: Path, what: str, hint: str = "") -> CorruptError:
    hint = hint or "get the file again from where it came from"
    return CorruptError(f"{path} {what}", hint=hint, path=str(path))
