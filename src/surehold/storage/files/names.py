"""The mapping of files to runs, by their names alone."""

from __future__ import annotations

import re
import time
from calendar import timegm
from collections import defaultdict
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import UTC, datetime

import msgspec

from surehold.core.records import medium_name
from surehold.storage.files.lines import Codec
from surehold.storage.io import Folder, temporary

_SUFFIXES: dict[Codec, str] = {"": "", "gzip": ".gz", "zstd": ".zst"}
_CODECS = {suffix: codec for codec, suffix in _SUFFIXES.items()}
_MEDIUM = r"=[0-9a-f]{40}|[a-z0-9][a-z0-9_-]{0,99}"
_FOLDER = re.compile(rf"_|{_MEDIUM}")
_FILE = re.compile(rf"(\d{{8}}T\d{{6}})\.(\d{{9}})Z-({_MEDIUM})(?:\.(\d+))?\.jsonl(\.gz|\.zst)?")


class RunFile(msgspec.Struct, frozen=True, order=True):
    """One file of a run. Sorting gives the order in which they were written."""

    ordinal: int
    number: int
    folder: str
    file: str
    medium: str
    """The run's name in file names."""
    codec: Codec


def folder_of(name: str) -> str:
    """The directory of a name's runs; those without a name share ``_``."""
    return medium_name(name) if name else "_"


def file_name(ordinal: int, medium: str, number: int, codec: Codec) -> str:
    """The file of a run's segment, named by when the run began.

    >>> file_name(1_718_102_400_000_000_007, "nightly", 2, "gzip")
    '20240611T104000.000000007Z-nightly.2.jsonl.gz'
    """
    began = datetime.fromtimestamp(ordinal // 10**9, UTC).strftime("%Y%m%dT%H%M%S")
    segment = f".{number}" if number > 1 else ""
    return f"{began}.{ordinal % 10**9:09d}Z-{medium}{segment}.jsonl{_SUFFIXES[codec]}"


def _run_file(folder: str, file: str) -> RunFile | None:
    found = _FILE.fullmatch(file)
    if found is None:
        return None
    began, fraction, medium, number, suffix = found.groups()
    seconds = timegm(datetime.strptime(began, "%Y%m%dT%H%M%S").timetuple())
    ordinal = seconds * 10**9 + int(fraction)
    return RunFile(ordinal, int(number or 1), folder, file, medium, _CODECS[suffix or ""])


def left_behind(root: Folder) -> Iterator[tuple[str, str, str]]:
    """Directory, name and run of every file left incomplete by a dead writer.

    It may be one that is being written; only under the run's lock it is known not to be.
    """
    for folder in _folders(root):
        names: list[str] = []
        with suppress(FileNotFoundError), root.folder(folder) as opened:
            names = opened.names()  # unless another process removed it meanwhile
        for name in names:
            found = _FILE.search(name)
            if found is not None and name == temporary(found.group()):
                yield folder, name, found.group(3)


def _folders(root: Folder) -> list[str]:
    return [name for name in root.names(directories=True) if _FOLDER.fullmatch(name)]


_COARSE = 100_000_000
"""File systems stamp changes with a clock that ticks: two within this many ns may look alike."""


class RunFiles:
    """The run files under a directory, as of the last `refresh`."""

    def __init__(self) -> None:
        self._folders: dict[str, tuple[int | None, dict[str, RunFile]]] = {}
        self._runs: dict[str, list[RunFile]] = {}

    def of(self, medium: str) -> list[RunFile]:
        """The files of a run, in order."""
        return self._runs.get(medium, [])

    def mediums(self, folder: str | None = None) -> list[str]:
        """The runs that have a file in *folder*, or in any."""
        if folder is None:
            return sorted(self._runs)
        _, files = self._folders.get(folder, (None, {}))
        return sorted({file.medium for file in files.values()})

    def newest_ordinal(self) -> int:
        return max((files[-1].ordinal for files in self._runs.values()), default=0)

    def refresh(self, root: Folder, only: Collection[str] | None = None) -> None:
        """Look again at these directories, or at all; an unchanged one costs one call."""
        names = _folders(root) if only is None else only
        changed = False
        if only is None:
            for gone in self._folders.keys() - set(names):
                del self._folders[gone]
                changed = True
        for name in names:
            changed = self._look(root, name) or changed
        if changed:
            runs = defaultdict(list)
            for _, files in self._folders.values():
                for file in files.values():
                    runs[file.medium].append(file)
            self._runs = {medium: sorted(files) for medium, files in runs.items()}

    def forget(self) -> None:
        """Trust nothing that was seen before."""
        self._folders.clear()

    def _look(self, root: Folder, name: str) -> bool:
        """True if the files of a directory have changed."""
        seen_at, before = self._folders.get(name, (None, {}))
        stat = root.stat(name)
        if stat is not None and stat.st_mtime_ns == seen_at:
            return False
        files: dict[str, RunFile] = {}
        if stat is not None:
            with suppress(FileNotFoundError), root.folder(name) as folder:
                for file in folder.names():
                    found = before.get(file) or _run_file(name, file)
                    if found is not None:
                        files[file] = found
        settled = stat is not None and time.time_ns() - stat.st_mtime_ns > _COARSE
        self._folders[name] = (stat.st_mtime_ns if stat and settled else None, files)
        return files != before
