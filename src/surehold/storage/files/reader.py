"""The files of `FilesystemStorage`: reading them as they grow, and changing them.

::

    base_dir/
      .gitignore                                   *
      .deleting/{run}                              a run that is deleted, while its files are
      .heads/{run}                                 the newest commit that was acknowledged
      .leases/{run}.json
      .locks/new, .locks/00 … 3f                   held while a run begins, while a run is changed
      {name}/{timestamp}-{run}.jsonl[.gz|.zst]     a run's first segment; "_" for runs without name
      {name}/{timestamp}-{run}.2.jsonl[.gz|.zst]   the next one

Names are those that `medium_name` gives; the whole ones are in the headers. A run continues in a
new segment when its compression or its name changes. A writer holds the run's lock; a reader holds
none, and reads again under the lock before it reports damage.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress

from surehold.core.records import Record, medium_name, open_header
from surehold.errors import CorruptError
from surehold.storage.files.leases import leases_left_behind
from surehold.storage.files.lines import (
    Codec,
    CommitLine,
    lines_of,
    members,
    pack_chains,
    parse,
    thin,
)
from surehold.storage.files.names import RunFile, RunFiles, file_name, left_behind
from surehold.storage.files.run_index import IndexedRecord, JournalIndex, Segment
from surehold.storage.io import READ_ONLY, Folder, read_at, sync, temporary, write_at
from surehold.storage.shared import about_record

_LOCKS, _HEADS, _DELETING = ".locks", ".heads", ".deleting"
_STRIPES = 64
_HEAD = 4000
"""Bytes of a head up to which it names what the newest commit hid."""


def stat_of(fd: int) -> tuple[int, int, int]:
    """By what a change of an open file is noticed."""
    stat = os.fstat(fd)
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class JournalFiles:
    """The journals under a directory, kept up to date with other processes' writes.

    It is used by one thread at a time. *notice* is called once for each write that was cut short.
    """

    def __init__(self, codec: Codec, notice: Callable[[str], None]) -> None:
        self.codec = codec
        self.written: set[str] = set()
        """The runs that were appended to."""
        self.suspect: set[str] = set()
        """The runs whose last write failed and could not be undone."""
        self._notice = notice
        self._noticed: set[tuple[str, int]] = set()
        self._listing = RunFiles()
        self._journals: dict[str, JournalIndex] = {}

    @contextmanager
    def lock(self, root: Folder, medium: str) -> Iterator[None]:
        """Hold a run alone. Runs share a few locks: never hold two at a time."""
        stripe = f"{zlib.crc32(medium.encode()) % _STRIPES:02x}"
        with root.folder(_LOCKS, create=True) as locks, locks.lock(stripe):
            yield

    @contextmanager
    def lock_beginnings(self, root: Folder) -> Iterator[int]:
        """Hold what belongs to no run yet; it may be taken while a run is held.

        Gives the open file that keeps the newest ordinal.
        """
        with root.folder(_LOCKS, create=True) as locks, locks.lock("new") as fd:
            yield fd

    def journal(self, root: Folder, medium: str, *, locked: bool = False) -> JournalIndex | None:
        """The run's journal as it is now; *locked* tells that its lock is held."""
        known = self._journals.get(medium)
        if known is not None:
            self._listing.refresh(root, {segment.folder for segment in known.segments})
        if known is None or not self._listing.of(medium):
            self._listing.refresh(root)
        journal = self._current(root, medium, locked=locked)
        if journal is not None and journal.moved:
            self._listing.refresh(root)
            journal = self._current(root, medium, locked=locked)
        return journal

    def journals(self, root: Folder, folder: str | None = None) -> list[JournalIndex]:
        """The journals of all runs, or of those that have a file in *folder*."""
        # All directories even so: a run may have continued in another one.
        self._listing.refresh(root)
        found = [self._current(root, medium) for medium in self._listing.mediums(folder)]
        return [journal for journal in found if journal is not None]

    def to_write(self, root: Folder, medium: str) -> JournalIndex | None:
        """The journal of a held run, ready to be appended to unless its end is damaged."""
        self._finish_deletion(root, medium)
        journal = self.journal(root, medium, locked=True)
        if journal is not None and medium in self.suspect:
            self.rewrite(root, journal, journal.segments[-1])
            self.suspect.discard(medium)
            journal = self.journal(root, medium, locked=True)
        if journal is not None and journal.torn and not journal.broken:
            segment = journal.segments[-1]
            with root.folder(segment.folder) as folder, folder.open(segment.file, os.O_RDWR) as fd:
                self._notice(
                    f"the last {segment.stat[1] - segment.end} bytes of {segment.folder}/"
                    f"{segment.file}, a write that was cut short, were removed"
                )
                os.ftruncate(fd, segment.end)
                sync(fd)
                segment.stat = stat_of(fd)
        return journal

    def forget(self, medium: str) -> None:
        """Read the run from its files again when it is next asked for."""
        self._journals.pop(medium, None)

    def sweep(self, root: Folder) -> None:
        """Remove what writers left behind when they died, and finish what they deleted."""
        deleted: list[str] = []
        with suppress(FileNotFoundError), root.folder(_DELETING) as notes:
            deleted = notes.names()
        unfinished: list[tuple[str, str, str]] = []
        for name in deleted:
            medium = name.removeprefix(".").removesuffix(".tmp")
            if name == temporary(medium):
                unfinished.append((_DELETING, name, medium))
                continue
            with self.lock_to_read(root, name) as held:
                if held:
                    self._finish_deletion(root, name)
        for folder, name, medium in [*unfinished, *left_behind(root), *leases_left_behind(root)]:
            with self.lock_to_read(root, medium) as held:
                if held:
                    with suppress(FileNotFoundError), root.folder(folder) as opened:
                        opened.drop(name)

    def records(self, root: Folder, entries: Iterable[IndexedRecord]) -> list[Record]:
        """The records with their bodies, up to the first that is not as it was written.

        If that is the first of all, it is a `CorruptError`.
        """
        read: list[Record] = []
        lines: dict[tuple[int, int], list[bytes]] = {}
        parsed: dict[tuple[int, int, int], CommitLine] = {}
        for entry in entries:
            place = entry.place
            member = id(place.segment), place.start
            try:
                if (*member, place.line) not in parsed:
                    if member not in lines:
                        lines = {member: self._lines(root, place.segment, place.start, place.end)}
                    parsed = {(*member, place.line): parse(lines[member][place.line])}
                record = parsed[*member, place.line].parts[place.part].record()
                if record.header.digest != entry.header.digest:
                    raise CorruptError("another record stands in its place")
            except (CorruptError, IndexError) as error:
                if read:
                    return read
                raise _damaged(entry, error) from error
            read.append(record)
        return read

    def rewrite(
        self, root: Folder, journal: JournalIndex, segment: Segment, erase: Collection[int] = ()
    ) -> None:
        """Write a segment anew, packed, without the records at *erase*. The run is held."""
        journal.check()
        lines = []
        keyframes: set[str] = set()
        for text in self._lines(root, segment, 0, segment.end):
            line = parse(text)
            headers = [open_header(part.text, part.digest) for part in line.parts]
            keyframes.update(header.digest for header in headers if header.frame == "key")
            lines.append((line, tuple(header.seq for header in headers)))
        chains: list[list[CommitLine]] = [[]]
        for line in thin(lines, erase):
            if any(part.digest in keyframes for part in line.parts):
                chains.append([])
            chains[-1].append(line)
        data = pack_chains(chains, segment.codec)
        self.forget(journal.medium)
        with root.folder(segment.folder) as folder:
            folder.put(segment.file, data)

    def remove(self, root: Folder, medium: str) -> None:
        """Delete the files of a run that is held.

        The run is gone once this is noted in `.deleting`, whatever becomes of its files.
        """
        files = self._listing.of(medium)
        self.forget(medium)  # an error may come after the note was stored
        with root.folder(_DELETING, create=True) as notes:
            notes.put(medium, b"%d\n" % max((file.ordinal for file in files), default=0))
        self._finish_removal(root, medium, files)

    def _finish_removal(self, root: Folder, medium: str, files: Iterable[RunFile]) -> None:
        self.forget(medium)
        self.written.discard(medium)
        with suppress(FileNotFoundError), root.folder(_HEADS) as heads:
            heads.drop(medium)
        for file in files:
            with suppress(FileNotFoundError), root.folder(file.folder) as folder:
                folder.drop(file.file)
                folder.sync()
        with self.lock_beginnings(root):
            for name in {file.folder for file in files}:
                root.drop_folder(name)
            root.sync()
        with root.folder(_DELETING) as notes:
            notes.drop(medium)
        self._listing.refresh(root)

    def _finish_deletion(self, root: Folder, medium: str) -> None:
        """Remove the remaining files of a deleted run. The caller holds the run."""
        newest = self._deleted(root, medium)
        if newest:
            self._listing.refresh(root)
            left = [file for file in self._listing.of(medium) if file.ordinal <= newest]
            self._finish_removal(root, medium, left)

    def _deleted(self, root: Folder, medium: str) -> int:
        """The newest ordinal of a run that is being deleted; 0 if it is not."""
        with suppress(FileNotFoundError), root.folder(_DELETING) as notes:
            ordinal = (notes.read(medium) or b"").strip()
            return int(ordinal) if ordinal.isdigit() else 0
        return 0

    def new_ordinal(self, root: Folder) -> int:
        """The next ordinal: later than any that was given, whatever the clock says."""
        with self.lock_beginnings(root) as fd:
            kept = read_at(fd, 0, 32).strip()
            newest = max(int(kept) if kept.isdigit() else 0, self._listing.newest_ordinal())
            ordinal = max(time.time_ns(), newest + 1)
            write_at(fd, b"%-20d\n" % ordinal, 0)
        return ordinal

    def create(self, root: Folder, journal: JournalIndex, folder: str, data: bytes) -> None:
        """Begin a segment, in *folder*, that holds *data*. The run is held."""
        number = len(journal.segments) + 1
        file = file_name(journal.ordinal, journal.medium, number, self.codec)
        # Under this lock the directory is not removed before there is a file in it.
        with self.lock_beginnings(root), root.folder(folder, create=True) as opened:
            if not self._listing.mediums(folder):
                root.sync()
            opened.put(file, data)
            with opened.open(file) as fd:
                stat = stat_of(fd)
        segment = Segment(folder, file, self.codec)
        journal.segments.append(segment)
        journal.read(segment, data, stat)
        self._journals[journal.medium] = journal

    def acknowledge(self, root: Folder, journal: JournalIndex) -> None:
        """Note the newest commit, so that a file that lost its end is found out.

        It is not synced: a lost or old note detects less, but reports no false damage.
        """
        told = b"%020d" % journal.commit
        flags = os.O_WRONLY | os.O_CREAT
        with root.folder(_HEADS, create=True) as heads, heads.open(journal.medium, flags) as fd:
            run_id = journal.run_id.encode("utf-8", "surrogatepass").hex().encode()
            hid = b",".join(b"%d" % seq for seq in journal.hides)
            lines = b"%b %08x\n%b\n" % (told, zlib.crc32(told), run_id)
            if len(hid) < _HEAD:
                lines += b"%08x %b\n" % (zlib.crc32(told + hid), hid)
            else:
                lines += b"-\n"
            write_at(fd, lines, 0)
        self.written.add(journal.medium)

    def _acknowledged(self, root: Folder, medium: str) -> tuple[int, tuple[int, ...] | None]:
        """The newest acknowledged commit, 0 if none is known, and the seqs it hid."""
        with suppress(FileNotFoundError), root.folder(_HEADS) as heads:
            lines = [*(heads.read(medium) or b"").split(b"\n"), b"", b""]
            commit, _, told = lines[0].partition(b" ")
            if commit.isdigit() and told == b"%08x" % zlib.crc32(commit):
                check, _, hid = lines[2].partition(b" ")
                known = check == b"%08x" % zlib.crc32(commit + hid)
                hides = tuple(int(seq) for seq in hid.split(b",") if seq) if known else None
                return int(commit), hides
        return 0, None

    def is_missing(self, root: Folder, medium: str) -> bool:
        """True if a held run was acknowledged and not deleted, but has no file."""
        return (
            self._acknowledged(root, medium)[0] > 0
            and not self._deleted(root, medium)
            and self.journal(root, medium, locked=True) is None
        )

    def journal_or_missing(self, root: Folder, medium: str) -> tuple[JournalIndex | None, bool]:
        """The run's journal, or whether it is missing.

        Only under the lock is it known: a run may begin or be deleted while it is looked for.
        """
        journal = self.journal(root, medium)
        if journal is not None or not self._acknowledged(root, medium)[0]:
            return journal, False
        with self.lock_to_read(root, medium):
            missing = self.is_missing(root, medium)
            return self.journal(root, medium, locked=True), missing

    def missing_runs(self, root: Folder) -> list[str]:
        """The ids of the runs that have no file any more."""
        found: list[str] = []
        names: list[str] = []
        with suppress(FileNotFoundError), root.folder(_HEADS) as heads:
            names = heads.names()
        for medium in sorted(names):
            if not self._listing.of(medium) and self.journal_or_missing(root, medium)[1]:
                found.append(self._run_id(root, medium))
        return found

    def _run_id(self, root: Folder, medium: str) -> str:
        """The id in a run's head; the run's name on the medium if the head is damaged."""
        with suppress(FileNotFoundError, ValueError, IndexError), root.folder(_HEADS) as heads:
            run_id = (heads.read(medium) or b"").split(b"\n")[1]
            told = bytes.fromhex(run_id.decode()).decode("utf-8", "surrogatepass")
            if medium_name(told) == medium:
                return told
        return medium

    def drop_head(self, root: Folder, medium: str) -> None:
        """Forget what was acknowledged of a run that has no file any more."""
        with suppress(FileNotFoundError), root.folder(_HEADS) as heads:
            heads.drop(medium)
            heads.sync()

    def _lines(self, root: Folder, segment: Segment, start: int, end: int) -> list[bytes]:
        with root.folder(segment.folder) as folder, folder.open(segment.file) as fd:
            data = read_at(fd, start, end - start)
        lines: list[bytes] = []
        read = 0
        for _, stop, text in members(data, segment.codec):
            if text is None:
                raise CorruptError("a compressed member cannot be read")
            lines += lines_of(text)
            read = stop
        if read != end - start:
            raise CorruptError("a line ends before it should")
        return lines

    def _current(self, root: Folder, medium: str, *, locked: bool = False) -> JournalIndex | None:
        known = self._journals.get(medium)
        with suppress(FileNotFoundError):
            if known is not None and self._grown(root, known):
                return known
            journal = self._read(root, medium)
            if journal is None or locked or not journal.has_anomaly:
                return self._keep(medium, journal)
        with nullcontext() if locked else self.lock_to_read(root, medium):
            self._listing.forget()
            self._listing.refresh(root)
            return self._keep(medium, self._read(root, medium))

    @contextmanager
    def lock_to_read(self, root: Folder, medium: str) -> Iterator[bool]:
        """Lock a run. Yields False on a read-only medium, where no process can lock."""
        with ExitStack() as stack:
            try:
                stack.enter_context(self.lock(root, medium))
            except OSError as error:
                if error.errno not in READ_ONLY:
                    raise
                yield False
                return
            yield True

    def _keep(self, medium: str, journal: JournalIndex | None) -> JournalIndex | None:
        if journal is None:
            self.forget(medium)
            return None
        self._journals[medium] = journal
        segment = journal.segments[-1]
        cut_short = journal.torn and not journal.broken
        if cut_short and (segment.file, segment.end) not in self._noticed:
            self._noticed.add((segment.file, segment.end))
            self._notice(
                f"{segment.folder}/{segment.file} ends in {segment.stat[1] - segment.end} bytes of "
                "a write that was cut short"
            )
        return journal

    def _grown(self, root: Folder, journal: JournalIndex) -> bool:
        """Take in what was appended; False if more than that changed, or it is damaged."""
        files = self._listing.of(journal.medium)
        segments = journal.segments
        if [(f.folder, f.file) for f in files] != [(s.folder, s.file) for s in segments]:
            return False
        for segment in segments:
            now = root.stat(f"{segment.folder}/{segment.file}")
            if now and (now.st_ino, now.st_size, now.st_mtime_ns) == segment.stat:
                continue
            with root.folder(segment.folder) as folder, folder.open(segment.file) as fd:
                stat = stat_of(fd)
                if segment is not segments[-1] or journal.has_anomaly:
                    return False
                if stat[0] != segment.stat[0] or stat[1] <= segment.end:
                    return False
                journal.read(segment, read_at(fd, segment.end, stat[1] - segment.end), stat)
                return not journal.has_anomaly
        return True

    def _read(self, root: Folder, medium: str) -> JournalIndex | None:
        deleted = self._deleted(root, medium)
        # First the head: what it tells of is in the files by then.
        acknowledged = self._acknowledged(root, medium)
        files = [file for file in self._listing.of(medium) if file.ordinal > deleted]
        if not files:
            return None
        journal = JournalIndex(medium, files[0].ordinal)
        for file in files:
            segment = Segment(file.folder, file.file, file.codec)
            with root.folder(file.folder) as folder, folder.open(file.file) as fd:
                stat = stat_of(fd)
                data = read_at(fd, 0, stat[1])
            journal.segments.append(segment)
            journal.read(segment, data, stat)
            journal.end_of(segment, last=file is files[-1])
        journal.check_head(*acknowledged)
        return journal


def _damaged(entry: IndexedRecord, error: CorruptError | IndexError) -> CorruptError:
    header, place = entry.header, entry.place
    path = f"{place.segment.folder}/{place.segment.file}"
    why = error.message if isinstance(error, CorruptError) else "its line is gone"
    return CorruptError(
        f"{about_record(header.run_id, header.seq, why)}: {path} at byte {place.start}",
        run_id=header.run_id,
        seq=header.seq,
        id=header.id,
        path=path,
        offset=place.start,
    )
