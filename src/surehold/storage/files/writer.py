"""Appending to a run's files so that it lasts, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Self

from surehold.core.records import Record
from surehold.storage.base import Batch
from surehold.storage.files.lines import CommitLine, pack
from surehold.storage.files.names import folder_of
from surehold.storage.files.reader import JournalFiles, stat_of
from surehold.storage.files.run_index import JournalIndex, Segment
from surehold.storage.io import Folder, sync, write_at


class RunWriter:
    """Appends to a held run; what was put is durable once its block ends well.

    After an error none of it counts, and the writer undoes as much as the system allows.
    """

    def __init__(self, files: JournalFiles, root: Folder, journal: JournalIndex) -> None:
        self._files = files
        self._root = root
        self._journal = journal
        self._stack = ExitStack()
        self._open: tuple[int, int] | None = None
        """The last segment, if it is not synced, and its length when it was."""
        self._used = False

    def append(self, records: Sequence[Record], batch: Batch, *, commit: int) -> None:
        """Append the records of a batch as one line, in the directory of its first name."""
        folder = folder_of(records[0].header.name)
        gaps = batch.gaps(self._journal.seq)
        self._move_to(folder, commit)
        self.put(folder, self._journal.next_line(records, batch.hide, commit=commit, erased=gaps))

    def show_in(self, names: Iterable[str]) -> None:
        """Let the run be found under *names*: each has a file, if only an empty line."""
        journal = self._journal
        for folder in dict.fromkeys(map(folder_of, names)):
            if folder not in {segment.folder for segment in journal.segments}:
                self._move_to(folder, journal.commit)
                self.put(folder, journal.next_line((), (), commit=journal.commit))

    def _move_to(self, folder: str, commit: int) -> None:
        """Announce in the last file that the run continues in *folder*, if another.

        Processes that watch the run where it is would not look for it elsewhere.
        """
        for segment in self._journal.segments[-1:]:
            if segment.folder != folder:
                self._extend(segment, self._journal.next_line((), (), commit=commit, moved=True))

    def put(self, folder: str, line: CommitLine) -> None:
        """Append *line* to the segment that lies in *folder*, or begin one there."""
        journal, codec = self._journal, self._files.codec
        self._used = True
        for segment in journal.segments[-1:]:
            if (segment.folder, segment.codec) == (folder, codec):
                self._extend(segment, line)
                return
        self._sync()
        self._files.create(self._root, journal, folder, pack(line, codec))

    def confirm(self) -> None:
        """Sync the present content, which an unacknowledged write may have left."""
        segment = self._journal.segments[-1]
        self._used = True
        self._opened(segment)
        with self._root.folder(segment.folder) as folder:
            folder.sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._stack:
            try:
                if error is None:
                    self._sync()
            except BaseException:
                self._take_back()
                raise
            if error is not None:
                self._take_back()
        if error is None and self._used:
            self._files.acknowledge(self._root, self._journal)

    def _extend(self, segment: Segment, line: CommitLine) -> None:
        data = pack(line, segment.codec)
        fd = self._opened(segment)
        write_at(fd, data, segment.end)
        self._journal.read(segment, data, stat_of(fd))

    def _opened(self, segment: Segment) -> int:
        if self._open is None:
            folder = self._stack.enter_context(self._root.folder(segment.folder))
            fd = self._stack.enter_context(folder.open(segment.file, os.O_RDWR))
            self._open = fd, segment.end
        return self._open[0]

    def _sync(self) -> None:
        if self._open is not None:
            sync(self._open[0])
            self._open = None

    def _take_back(self) -> None:
        self._files.forget(self._journal.medium)
        if self._open is not None:
            fd, good = self._open
            try:
                os.ftruncate(fd, good)
            except OSError:
                self._files.suspect.add(self._journal.medium)
