"""Runs as plain files: a line per record, a directory per run."""

from __future__ import annotations

from importlib.util import find_spec

from surehold.errors import UsageError

if find_spec("fcntl") is None:
    raise UsageError(
        "plain files need the file locks of POSIX (fcntl), which this system does not have",
        hint="sqlite:///runs.db needs none",
    )

from surehold.storage.files.storage import FilesystemStorage as FilesystemStorage
