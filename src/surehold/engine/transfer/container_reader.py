"""Reading ``.surehold`` files from untrusted sources.

Every size in the file is compared with a limit before it is used, nothing is unpacked beyond the
limits, and one section is held at a time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from surehold.core.records import check_run_id
from surehold.engine.transfer.container import (
    END,
    FIRST_LINE,
    FORMAT,
    MAGIC,
    PIECE,
    PLAIN,
    RECORD,
    SECTION,
    SECTION_BYTES,
    TRAILER,
    ZSTD,
    Manifest,
)
from surehold.engine.transfer.limits import ImportLimits
from surehold.errors import CorruptError, DataError, NotFoundError, StorageError, UsageError

_DATABASE = b"SQLite format 3\0"
_TRAILER_BYTES = len(TRAILER % (b"0" * 64))
_MANIFEST_BYTES = 2 << 20
_FREE_BYTES = 1 << 20
"""Bytes that may be unpacked whatever the ratio."""


class Excess:
    """Finds the limits that would refuse a file while it is written.

    >>> excess = Excess(ImportLimits(records=1))
    >>> excess.add(100, 100, 50), excess.add(100, 2 << 20, 50)
    (None, None)
    >>> sorted(excess.limits)
    ['ratio', 'records']
    """

    def __init__(self, limits: ImportLimits) -> None:
        self._allowed = limits
        self._records = self._size = self._stored = self._texts = 0
        self.limits: set[str] = set()

    def add(self, text: int, size: int, stored: int) -> None:
        """Count a record: bytes of its header, of its body, of that as stored."""
        allowed = self._allowed
        self._records += 1
        self._size += size
        self._stored += stored
        self._texts += text
        if text + max(size, stored) > allowed.record_bytes:
            self.limits.add("record_bytes")
        if self._records > allowed.records:
            self.limits.add("records")
        if max(self._size, self._texts + self._stored) > allowed.total_bytes:
            self.limits.add("total_bytes")
        for unpacked, packed in ((size, stored), (self._size, self._stored)):
            if unpacked > max(_FREE_BYTES, packed * allowed.ratio):
                self.limits.add("ratio")


class RecordParts(msgspec.Struct, frozen=True):
    """A record as the file holds it."""

    digest: str
    text: bytes
    body: bytes


_read_manifest = msgspec.json.Decoder(Manifest).decode


@contextmanager
def open_run(path: Path, limits: ImportLimits) -> Iterator[ExportedRun]:
    """Open the run file at *path*; refuse anything that is not a complete one."""
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
    with os.fdopen(fd, "rb", buffering=PIECE) as file:
        yield ExportedRun(path, file, found.st_size, limits)


class ExportedRun:
    """An exported run, read with limits."""

    def __init__(self, path: Path, file: IO[bytes], size: int, limits: ImportLimits) -> None:
        self.path = path
        self.limits = limits
        self._file = file
        self._end = size - _TRAILER_BYTES
        """Offset of the trailer."""
        begins = file.read(len(_DATABASE))
        if begins == _DATABASE:
            hint = f"surehold -s sqlite:///{path} copy --to URL copies the runs of a storage"
            raise _refused(path, "is a SQLite database, not an exported run", hint)
        if not begins.startswith(MAGIC):
            raise _refused(path, "is not a surehold file")
        file.seek(len(MAGIC))
        version = file.readline(16).strip()
        if version != b"%d" % FORMAT:
            newer = version.isdigit() and int(version) > FORMAT
            what = f"has format {version.decode('latin-1')!r}; this version reads {FORMAT}"
            raise _refused(path, what, "update surehold" if newer else "")
        if size > limits.total_bytes:
            raise self.too_much(f"is {size:,} bytes long, more than", "total_bytes")
        self._sum = self._trailer()
        self.manifest = self._manifest()

    def _trailer(self) -> str:
        if self._end > 0:
            self._file.seek(self._end)
            line = self._file.read(_TRAILER_BYTES)
            digest = line[len(b"sha256 ") : -1]
            if line == TRAILER % digest and len(digest) == 64:
                return digest.decode("latin-1")
        raise _refused(self.path, "is cut short, or its end was altered", "copy it again")

    def _manifest(self) -> Manifest:
        self._file.seek(len(FIRST_LINE))
        line = self._file.readline(_MANIFEST_BYTES)
        try:
            manifest = _read_manifest(line)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise _refused(self.path, "has a manifest that cannot be read") from None
        if not line.endswith(b"\n"):
            raise _refused(self.path, "has a manifest that is too long")
        try:
            check_run_id(manifest.run_id)
        except UsageError as error:
            raise _refused(self.path, f"holds a run with a wrong id: {error.message}") from None
        if manifest.records > self.limits.records:
            raise self.too_much(f"holds {manifest.records:,} records, more than", "records")
        if manifest.bytes > self.limits.total_bytes:
            raise self.too_much(f"unpacks to {manifest.bytes:,} bytes, more than", "total_bytes")
        self._begin = len(FIRST_LINE) + len(line)
        return manifest

    def records(self) -> Iterator[RecordParts]:
        """Yield the records, holding one section at a time.

        The file is known to be complete only after the last of them.
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

    def _record(self, section: bytes, at: int) -> tuple[RecordParts, int]:
        start = at + RECORD.size
        if start > len(section):
            raise self.refused("has a section that is not made of records")
        digest, text, body = RECORD.unpack_from(section, at)
        if text + body > self.limits.record_bytes:
            raise self.too_much(f"has a record of {text + body:,} bytes, more than", "record_bytes")
        middle, end = start + text, start + text + body
        if end > len(section):
            raise self.refused("has a section that is not made of records")
        return RecordParts(digest.hex(), section[start:middle], section[middle:end]), end

    def _sections(self) -> Iterator[bytes]:
        self._file.seek(0)
        self._summed = hashlib.sha256()
        self._take(self._begin)
        packed = unpacked = 0
        while True:
            method, stored, plain = SECTION.unpack(self._take(SECTION.size))
            if method == END:
                break
            packed += stored
            unpacked += plain
            self.check_ratio(packed, unpacked)
            if plain > self.limits.record_bytes + SECTION_BYTES:
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

        if method == PLAIN and len(data) == size:
            return data
        try:
            said = zstandard.get_frame_parameters(data).content_size
            if method == ZSTD and said == size:
                return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
        except zstandard.ZstdError:
            pass
        raise self.refused("has a section that cannot be unpacked")

    def check_ratio(self, packed: int, unpacked: int) -> None:
        """Raise if *packed* bytes grow more than the limits allow."""
        if unpacked > max(_FREE_BYTES, packed * self.limits.ratio):
            times = unpacked // max(packed, 1)
            raise self.too_much(f"unpacks to {times:,} times its size, more than", "ratio")

    def refused(self, what: str, hint: str = "") -> CorruptError:
        """Return the error for something that `write_run` does not write."""
        return _refused(self.path, what, hint)

    def too_much(self, what: str, limit: str) -> DataError:
        """Return the error for something beyond a limit."""
        allowed = getattr(self.limits, limit)
        return DataError(
            f"{self.path} {what} the {allowed:,} allowed",
            hint=f"if you trust it, give limits=ImportLimits({limit}=...), or: surehold import"
            f" --trust {self.path.name}",
            path=str(self.path),
            limit=limit,
        )


def _refused(path: Path, what: str, hint: str = "") -> CorruptError:
    hint = hint or "get the file again from where it came from"
    return CorruptError(f"{path} {what}", hint=hint, path=str(path))
