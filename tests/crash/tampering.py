"""Stored records as loose parts: what a medium holds, taken out and put back in other places.

What is put back is consistent as far as the medium goes (its checksums are made anew), so that
only what ties the records together is left to notice.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import apsw
import msgspec

from surehold import MemoryStorage
from surehold.core.records.record import Record, open_header
from surehold.storage.files.lines import Codec, CommitLine, Part, lines_of, members, pack, parse
from surehold.storage.sqlite.page_checksums import checked_pages

__all__ = ["Files", "InMemory", "Medium", "Parts", "Tables"]


class Parts(msgspec.Struct, frozen=True):
    """What a record is made of."""

    digest: str
    text: bytes
    body: bytes


class Medium(Protocol):
    """Something whose records can be exchanged."""

    def take(self) -> list[Parts]:
        """All records, those of a run in their order."""

    def put(self, records: Sequence[Parts | None]) -> None:
        """Put others in the places of those that `take` gave; None takes one away."""


class Tables:
    """The records of a SQLite file, exchanged with SQL."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sound = path.read_bytes()

    def _open(self) -> apsw.Connection:
        return apsw.Connection(str(self._path), vfs=checked_pages())

    def take(self) -> list[Parts]:
        self._path.write_bytes(self._sound)
        db = self._open()
        rows = db.execute(
            "SELECT r.ord, r.digest, CAST(r.header AS BLOB), b.body"
            " FROM records r JOIN bodies b USING(ord) ORDER BY r.run, r.seq"
        ).fetchall()
        db.close()
        self._places = [row[0] for row in rows]
        return [Parts(digest.hex(), text, body) for _, digest, text, body in rows]

    def put(self, records: Sequence[Parts | None]) -> None:
        self._path.write_bytes(self._sound)
        db = self._open()
        db.execute("BEGIN")
        for place, parts in zip(self._places, records, strict=True):
            if parts is None:
                db.execute("DELETE FROM records WHERE ord = ?", (place,))
                db.execute("DELETE FROM bodies WHERE ord = ?", (place,))
                continue
            db.execute(
                "UPDATE records SET digest = ?, header = ? WHERE ord = ?",
                (bytes.fromhex(parts.digest), parts.text.decode(), place),
            )
            db.execute("UPDATE bodies SET body = ? WHERE ord = ?", (parts.body, place))
        db.execute("COMMIT")
        db.close()


class Files:
    """The records of a directory of run files, exchanged by writing the lines anew."""

    def __init__(self, directory: Path, codec: Codec) -> None:
        self._directory = directory
        self._codec = codec
        self._sound = directory.with_name("sound")
        shutil.copytree(directory, self._sound)

    def take(self) -> list[Parts]:
        self._lines: dict[Path, list[CommitLine]] = {}
        for path in sorted(self._sound.glob("[!.]*/*")):
            texts = [text for _, _, text in members(path.read_bytes(), self._codec)]
            lines = [parse(line) for text in texts for line in lines_of(text or b"")]
            self._lines[path] = lines
        taken = []
        for lines in self._lines.values():
            for line in lines:
                for part in line.parts:
                    taken.append(Parts(part.digest, part.text, part.record().body))
        return taken

    def put(self, records: Sequence[Parts | None]) -> None:
        shutil.rmtree(self._directory)
        shutil.copytree(self._sound, self._directory)
        left = list(records)
        for path, lines in self._lines.items():
            data = b""
            for line in lines:
                its, left = left[: len(line.parts)], left[len(line.parts) :]
                parts = tuple(_part(one) for one in its if one is not None)
                data += pack(CommitLine(line.fields, parts), self._codec)
            (self._directory / path.relative_to(self._sound)).write_bytes(data)


def _part(parts: Parts) -> Part:
    return Part.of(Record(open_header(parts.text, parts.digest), parts.text, parts.body))


class InMemory:
    """The records of a `MemoryStorage`, exchanged where they lie."""

    def __init__(self, storage: MemoryStorage) -> None:
        runs = sorted(storage._runs.values(), key=lambda run: run.head.ordinal)
        self._entries = [run.entries[seq] for run in runs for seq in run.seqs]
        self._sound = self.take()

    def take(self) -> list[Parts]:
        return [Parts(e.header.digest, e.text, e.body) for e in self._entries]

    def put(self, records: Sequence[Parts | None]) -> None:
        for entry, parts in zip(self._entries, records, strict=True):
            assert parts is not None
            entry.header = msgspec.structs.replace(entry.header, digest=parts.digest)
            entry.text, entry.body = parts.text, parts.body

    def restore(self) -> None:
        """As it was."""
        self.put(self._sound)
