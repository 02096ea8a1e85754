"""Journals in plain files, a file a run, readable with `cat`, `zcat` and `jq`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from weakref import WeakSet

from surehold.core.records import Header, Record, medium_name
from surehold.errors import (
    ConflictError,
    CorruptError,
    StorageError,
    StorageUnavailableError,
    UsageError,
)
from surehold.forks import register_at_fork
from surehold.storage import shared
from surehold.storage.abilities import Inspection
from surehold.storage.base import Batch, Lease, RecordQuery, RunInfo, RunQuery, Storage, logger
from surehold.storage.files.leases import read_lease, write_lease
from surehold.storage.files.names import folder_of
from surehold.storage.files.queries import copy_of, find, heads, key_before, newest_first, notes_of
from surehold.storage.files.reader import JournalFiles
from surehold.storage.files.repair import cut_torn, inspect_run, rebuild
from surehold.storage.files.run_index import JournalIndex, Key
from surehold.storage.files.writer import RunWriter
from surehold.storage.io import Folder, open_root, os_errors, write_at
from surehold.storage.process import is_live

_PAGE = 100
_PAGE_BYTES = 1 << 20


class FilesystemStorage(shared.LeaseSlots, Storage):
    """Journals under *base_dir*, which the first record makes; it can lease runs.

    *compress* is False, True or ``"gzip"``, or ``"zstd"``; it may change from one opening to the
    next, and a directory with files of all kinds is read as one. `notices` tells of writes that
    were cut short by a crash: they were never acknowledged, and the next save removes them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with FilesystemStorage(directory, compress="zstd") as storage:
    ...         list(storage.runs(RunQuery()))
    []
    """

    def __init__(
        self,
        base_dir: str | os.PathLike[str] = ".surehold/checkpoints",
        compress: bool | str = False,
    ) -> None:
        self.notices: list[str] = []
        self._told: frozenset[str] = frozenset()
        self._path = Path(os.path.abspath(base_dir))
        self._files = JournalFiles(shared.read_compression(compress, on="gzip") or "", self._notice)
        self._commit = 0
        self._closed = False
        self._mutex = threading.RLock()
        _storages.add(self)
        with self._reading() as root:
            if root is not None:
                self._files.sweep(root)

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        groups: dict[str, list[_Numbered]] = {}
        for index, batch in enumerate(batches):
            if records := _checked(batch):
                groups.setdefault(batch.run_id, []).append((index, batch, records))
        results: list[ConflictError | None] = [None] * len(batches)
        with self._writing() as root:
            # The batches of a call are listed in its order, whichever run they are of.
            floor = max(self._commit + 1, time.time_ns())
            for run_id, group in groups.items():
                with self._files.lock(root, medium_name(run_id)):
                    self._append(root, run_id, group, results, floor)
        for batch in batches:
            if not batch.records and batch.hide:
                self.delete(batch.run_id, hide=batch.hide)
        return results

    def read(
        self, run_id: str, *, first: int | None = None, last: int | None = None
    ) -> Iterator[Record]:
        with self._reading() as root:
            journals = self._journals(root, run_id)
        return self._read(run_id, first or 1, last, journals[0].seq) if journals else iter(())

    def headers(self, query: RecordQuery) -> Iterator[Header]:
        with self._reading() as root:
            journals = self._journals(root, query.run_id, query.name)
            newest = max((journal.commit for journal in journals), default=0)
            below = (newest + 1, 0, 0) if query.before is None else key_before(journals, query)
        return self._headers(query, below)

    def find(self, id_prefix: str) -> list[Header]:
        with self._reading() as root:
            return [copy_of(header) for header in find(self._journals(root), id_prefix)]

    def runs(self, query: RunQuery) -> Iterator[RunInfo]:
        with self._reading() as root:
            journals = self._journals(root, query.run_id, query.name)
            found = list(islice(heads(journals, query), query.limit))
            if query.name is not None and not found and root is not None:
                self._tell_of_lost(root, query.name)
            return _raised(found)

    def head_and_newest(self, run_id: str, scope: str = "") -> tuple[RunInfo, Header | None] | None:
        with self._reading() as root:
            for journal in self._journals(root, run_id):
                journal.check_newest(scope)
                newest = journal.newest(scope)
                return journal.info(), newest and copy_of(newest)
        return None

    def has_run(self, run_id: str) -> bool:
        with self._reading() as root:
            return bool(self._journals(root, run_id))

    def notes(
        self, run_ids: Sequence[str], kinds: Collection[str], *, strict: bool
    ) -> list[Header]:
        with self._reading() as root:
            journals = [journal for run_id in run_ids for journal in self._journals(root, run_id)]
            return list(notes_of(journals, kinds))

    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        with self._reading() as root:
            if root is None or not self._journals(root, run_id):
                return 0
            medium = medium_name(run_id)
            with self._files.lock(root, medium):
                journal = self._files.to_write(root, medium)
                if journal is None:
                    return 0
                if hide is None and erase is None:
                    self._files.remove(root, medium)
                    return len(journal.entries)
                return self._delete(root, journal, set(hide or ()), set(erase or ()))

    def compact(self) -> None:
        """Pack the lines of every run that no live process holds; plain files stay plain."""
        with self._reading() as root:
            for journal in self._journals(root):
                lease = None if root is None else read_lease(root, journal.run_id)
                if root is not None and not is_live(lease, time.time()):
                    self._repack(root, journal, last=True)

    def close(self) -> None:
        with self._mutex:
            if self._closed:
                return
            try:
                self._pack_completed()
            except (StorageError, CorruptError) as error:
                # What was saved is safe either way, it only takes more room.
                self._notice(f"lines could not be packed together: {error}")
            self._closed = True
            self._files = JournalFiles("", self._notice)

    def change_lease(
        self, run_id: str, change: Callable[[Lease | None], Lease | None]
    ) -> Lease | None:
        with self._writing() as root, self._files.lock(root, medium_name(run_id)):
            lease = change(read_lease(root, run_id))
            if lease is not None:
                write_lease(root, lease)
            return lease

    def lease_of(self, run_id: str) -> Lease | None:
        with self._reading() as root:
            return None if root is None else read_lease(root, run_id)

    def check_medium(self, *, repair: bool) -> list[str]:
        told = []
        with self._reading() as root:
            for journal in self._journals(root):
                if root is None or not journal.torn or journal.broken:
                    continue
                if not repair:
                    told.append(f"run {journal.run_id!r} ends in a write that was cut short")
                    continue
                with self._files.lock(root, journal.medium):
                    told.append(cut_torn(self._files, root, journal))
        return told

    def known_runs(self) -> list[str]:
        with self._reading() as root:
            known = [journal.run_id for journal in self._journals(root)]
        return known + self.lost_runs()

    def lost_runs(self) -> list[str]:
        with self._reading() as root:
            return [] if root is None else self._files.missing_runs(root)

    def inspect(self, run_id: str) -> Inspection | None:
        with self._reading() as root:
            if root is None:
                return None
            medium = medium_name(run_id)
            with self._files.lock_to_read(root, medium):
                self._files.forget(medium)
                journal = self._files.journal(root, medium, locked=True)
                if journal is not None:
                    return inspect_run(self._files, root, journal)
                if self._files.is_missing(root, medium):
                    return shared.inspect_missing(run_id, _missing(run_id).message)
                return None

    def rewrite(
        self, run_id: str, records: Sequence[Record], hidden: Collection[int], *, head: int
    ) -> str:
        opened = shared.checked_run(run_id, records)
        with self._writing() as root, self._files.lock(root, medium_name(run_id)):
            medium = medium_name(run_id)
            journal = self._files.journal(root, medium, locked=True)
            if journal is None and self._files.is_missing(root, medium):
                shared.check_head(run_id, head, 0)
                if not opened:
                    self._files.drop_head(root, medium)
                    return "nowhere: there was nothing left of it"
                journal = JournalIndex(medium, self._files.new_ordinal(root))
            if journal is None:
                raise UsageError(f"there is no run {run_id!r} to rewrite", run_id=run_id)
            shared.check_head(run_id, head, journal.seq + journal.broken)
            kept = rebuild(self._files, root, journal, opened, hidden)
        return str(self._path / kept)

    @contextmanager
    def _reading(self, *, create: bool = False) -> Iterator[Folder | None]:
        """One operation at a time; None if there is no directory yet."""
        with self._mutex:
            if self._closed:
                raise UsageError("this FilesystemStorage is closed", hint="open a new one")
            with os_errors(self._path), open_root(self._path, create=create) as root:
                yield root

    @contextmanager
    def _writing(self) -> Iterator[Folder]:
        """The same, with a directory that is made if it is missing."""
        with self._reading(create=True) as root:
            if root is None:
                raise StorageUnavailableError(f"{self._path} was removed", path=str(self._path))
            if root.is_empty():
                with root.open(".gitignore", os.O_WRONLY | os.O_CREAT) as fd:
                    write_at(fd, b"*\n", 0)
            yield root

    def _tell_of_lost(self, root: Folder, name: str) -> None:
        """Log once that no run of a name is there, and that some runs are missing."""
        lost = frozenset(self._files.missing_runs(root)) - self._told
        if lost:
            self._told |= lost
            names = ", ".join(sorted(lost))
            self._notice(f"no run of {name!r} is there, and these are missing: {names}")

    def _notice(self, text: str) -> None:
        self.notices.append(text)
        logger.warning("%s: %s", self._path, text)

    def _journals(
        self, root: Folder | None, run_id: str | None = None, name: str | None = None
    ) -> list[JournalIndex]:
        """The journals of a run, of a name (perhaps with others), or of all."""
        if root is None:
            return []
        if run_id is None:
            return self._files.journals(root, None if name is None else folder_of(name))
        journal, missing = self._files.journal_or_missing(root, medium_name(run_id))
        if missing:
            raise _missing(run_id)
        return [] if journal is None else [journal]

    def _append(
        self,
        root: Folder,
        run_id: str,
        group: Sequence[_Numbered],
        results: list[ConflictError | None],
        floor: int,
    ) -> None:
        medium = medium_name(run_id)
        journal = self._files.to_write(root, medium) or JournalIndex(medium, 0)
        if not journal.segments and self._files.is_missing(root, medium):
            lost = _missing(run_id)
            for index, _, records in group:
                seq = records[0].header.seq
                results[index] = ConflictError(lost.message, run_id=run_id, seq=seq, head=0)
            return
        leased = any(batch.epoch is not None for _, batch, _ in group)
        lease = read_lease(root, run_id) if leased else None
        with RunWriter(self._files, root, journal) as writer:
            for index, batch, records in group:
                decision = journal.decide(batch, records, lease.epoch if lease else 0)
                if isinstance(decision, ConflictError):
                    results[index] = decision
                    continue
                if decision == "stored":
                    writer.confirm()
                else:
                    if not journal.segments:
                        journal.ordinal = self._files.new_ordinal(root)
                    writer.append(records, batch, commit=floor + index)
                writer.show_in([record.header.name for record in records])
        self._commit = max(self._commit, journal.commit)

    def _read(self, run_id: str, first: int, last: int | None, end: int) -> Iterator[Record]:
        def page(first: int, size: int) -> tuple[list[Record], int | None]:
            with self._reading() as root:
                found = self._page(root, run_id, first, last, end)
            return found, found[-1].header.seq + 1 if found else None

        return shared.paged(page, first)

    def _page(
        self, root: Folder | None, run_id: str, first: int, last: int | None, end: int
    ) -> list[Record]:
        """Some records from *first* on, none if there are no more."""
        if root is None:
            return []
        medium = medium_name(run_id)
        journal = self._files.journal(root, medium)
        with suppress(CorruptError, FileNotFoundError):
            return self._records(root, journal, first, last, end)
        # Another process may have written the file anew since it was looked at.
        with self._files.lock_to_read(root, medium):
            self._files.forget(medium)
            journal = self._files.journal(root, medium, locked=True)
            return self._records(root, journal, first, last, end)

    def _records(
        self, root: Folder, journal: JournalIndex | None, first: int, last: int | None, end: int
    ) -> list[Record]:
        if journal is None:
            return []
        lost = journal.lost(first, last)
        stop = end if last is None else min(last, end)
        if lost is not None:
            stop = min(stop, lost - 1)
        entries = journal.between(first, stop, most=_PAGE, most_bytes=_PAGE_BYTES)
        if not entries and lost is not None:
            raise journal.loss(lost)
        return self._files.records(root, entries)

    def _headers(self, query: RecordQuery, below: Key) -> Iterator[Header]:
        def page(below: Key, size: int) -> tuple[list[tuple[Key, Header]], Key | None]:
            with self._reading() as root:
                journals = self._journals(root, query.run_id, query.name)
                found = list(islice(newest_first(journals, query, below), size))
            # In a journal whose lines were exchanged, keys may rise: that ends the listing.
            last = found[-1][0] if found else below
            return found, last if last < below else None

        found = shared.paged(page, below, limit=query.limit)
        return islice((copy_of(header) for _, header in found), query.limit)

    def _delete(self, root: Folder, journal: JournalIndex, hide: set[int], erase: set[int]) -> int:
        if erase or not journal.is_certain:
            journal.check()
        erase &= journal.entries.keys()
        if journal.seq in erase:
            raise shared.cannot_erase(journal.run_id, journal.seq)
        line = journal.next_line((), hide - erase, commit=time.time_ns())
        if line.fields.hide:
            with RunWriter(self._files, root, journal) as writer:
                writer.put(journal.segments[-1].folder, line)
        touched = {id(journal.entries[seq].place.segment) for seq in erase}
        for segment in journal.segments:
            if id(segment) in touched:
                self._files.rewrite(root, journal, segment, erase)
        return len(line.fields.hide) + len(erase)

    def _pack_completed(self) -> None:
        with self._reading() as root:
            for medium in sorted(self._files.written):
                journal = root and self._files.journal(root, medium)
                if root and journal and not journal.damages:
                    completed = journal.info().status == "completed"
                    self._repack(root, journal, last=completed)

    def _repack(self, root: Folder, journal: JournalIndex, *, last: bool) -> None:
        if journal.damages or not journal.loose(last=last):
            return
        with self._files.lock(root, journal.medium):
            now = self._files.to_write(root, journal.medium)
            if now is not None:
                for segment in now.loose(last=last):
                    self._files.rewrite(root, now, segment)


_Numbered = tuple[int, Batch, list[Record]]


def _checked(batch: Batch) -> list[Record]:
    """The batch's records, if they can be one line of a file."""
    records = batch.opened()
    if any(b"\n" in record.text for record in records):
        raise UsageError(f"a header in a batch of run {batch.run_id!r} is more than one line")
    return records


def _raised(found: list[RunInfo | CorruptError]) -> Iterator[RunInfo]:
    """The runs up to the first damaged one, whose error is raised in its turn."""
    for one in found:
        if isinstance(one, CorruptError):
            raise one
        yield one


def _missing(run_id: str) -> CorruptError:
    head = f".heads/{medium_name(run_id)}"
    return CorruptError(
        f"the files of run {run_id!r} are missing, although records of it were acknowledged",
        hint=f"bring them back from a copy; if they were deleted on purpose, remove {head}",
        run_id=run_id,
    )


_storages: WeakSet[FilesystemStorage] = WeakSet()
_forking = threading.local()


def _hold_all() -> None:
    """Before a fork: spare the child half an operation and locks of other threads."""
    _forking.held = list(_storages)
    for storage in _forking.held:
        storage._mutex.acquire()


def _let_go() -> None:
    for storage in _forking.held:
        storage._mutex.release()
    _forking.held = []


register_at_fork(before=_hold_all, after_in_parent=_let_go, after_in_child=_let_go)
