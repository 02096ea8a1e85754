"""The ``.surehold`` file: one complete run.

::

    surehold-run 1                     a line: the type and the version of the format
    {"run_id":"nightly", ...}          a line: the manifest
    section, section, ...              the records, some in each section
    end of sections
    sha256 3a7f...                     a line: SHA-256 of everything before it

``head -n 2`` shows what the file holds. A section starts with a byte for its packing (0: plain,
1: one zstd frame), its size in the file and its size unpacked (both 32 bits, big endian); its data
follows. Byte 255 with two zeros ends the sections. Unpacked, a section is a sequence of records:
the digest of the header (16 bytes), the lengths of header and body (32 bits each), the header's
text and the sealed body, both as the storage had them. So digests and encryption are kept: an
encrypted run stays encrypted, with its wrapped key.

The manifest counts records, checkpoints and unpacked bytes, names the first and the last seq and
the digest of the last record, and lists the hidden seqs. Its `content` is ``sealed`` for records as
they were, ``resealed`` with another key or none, ``redacted`` if secrets were taken out as well. An
import trusts nothing in it: it compares.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO, Literal

import msgspec

from surehold.core.records import Record
from surehold.errors import StorageError, StorageFullError, UsageError

MAGIC = b"surehold-run "
FORMAT = 1
FIRST_LINE = b"%b%d\n" % (MAGIC, FORMAT)
TRAILER = b"sha256 %b\n"
SECTION = struct.Struct(">BII")
RECORD = struct.Struct(">16sII")
PLAIN, ZSTD, END = 0, 1, 255
SECTION_BYTES = 1 << 20
"""A section ends with the record that makes it this large."""
PIECE = 1 << 20
_TIGHTEST = 100
"""A section that would pack better than this stays plain, so that readers can limit the ratio."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about the run in a file."""

    run_id: str
    name: str
    records: int
    checkpoints: int
    """Visible ones."""
    bytes: int
    """Bytes of all sections, unpacked."""
    first: int
    last: int
    """The seqs of the oldest and the newest record."""
    head: str
    """The digest of the newest record."""
    exported_at: datetime
    content: Literal["sealed", "resealed", "redacted"] = "sealed"
    encrypted: bool = False
    hidden: tuple[tuple[int, int], ...] = ()
    """Ranges of seqs that are kept as bases only."""
    redacted: dict[str, int] = {}
    """Number of secrets of each kind that were taken out."""


class _Pack:
    """Packs records into sections of a temporary file."""

    def __init__(self, spool: IO[bytes]) -> None:
        self._spool = spool
        self._waiting: list[bytes] = []
        self._size = 0
        self.bytes = 0

    def add(self, record: Record) -> None:
        digest = bytes.fromhex(record.header.digest)
        head = RECORD.pack(digest, len(record.text), len(record.body))
        self._waiting += (head, record.text, record.body)
        self._size += len(head) + len(record.text) + len(record.body)
        if self._size >= SECTION_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._spool.write(SECTION.pack(END, 0, 0))

    def _flush(self) -> None:
        import zstandard

        plain = b"".join(self._waiting)
        if not plain:
            return
        packed = zstandard.ZstdCompressor(level=3).compress(plain)
        if len(plain) // _TIGHTEST < len(packed) < len(plain):
            self._spool.write(SECTION.pack(ZSTD, len(packed), len(plain)) + packed)
        else:
            self._spool.write(SECTION.pack(PLAIN, len(plain), len(plain)) + plain)
        self.bytes += len(plain)
        self._waiting, self._size = [], 0


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise unless a file may be written at *path*."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory", hint="give the name of a file", path=str(path))
    if not overwrite and os.path.lexists(path):
        raise _is_there(path)


def write_run(
    path: Path, records: Iterable[Record], describe: Callable[..., Manifest], *, overwrite: bool
) -> Manifest:
    """Write *records* to a file: complete and durable when this returns, or not there.

    *describe* makes the manifest of its counts once all of them are written.
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
        manifest = describe(
            records=count, bytes=pack.bytes, first=first, last=newest.seq, head=newest.digest
        )
        spool.seek(0)
        _publish(path, FIRST_LINE + msgspec.json.encode(manifest) + b"\n", spool, overwrite)
    return manifest


def _publish(path: Path, lines: bytes, sections: IO[bytes], overwrite: bool) -> None:
    fd, name = tempfile.mkstemp(prefix=f".{path.name[:100]}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            summed = hashlib.sha256(lines)
            file.write(lines)
            while piece := sections.read(PIECE):
                summed.update(piece)
                file.write(piece)
            file.write(TRAILER % summed.hexdigest().encode())
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
    """Give a complete file its name; without *overwrite* only if no other file has it."""
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
        # Some file systems have no links.
        check_free(path, overwrite=False)
        os.replace(temporary, path)


def _is_there(path: Path) -> UsageError:
    hint = "give another name, or overwrite=True"
    return UsageError(f"{path} exists already", hint=hint, path=str(path))


@contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> StorageError:
    """The error for a file that could not be written."""
    message = f"{path} cannot be written: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFullError(message, path=str(path))
    hint = "check the path, and the rights of this user"
    if error.errno == errno.ENOENT:
        hint = f"make its directory first: mkdir -p {path.parent}"
    return StorageError(message, hint=hint, path=str(path))
