"""Runs as plain files: a line per record, a directory per run."""

from __future__ import annotations

from surehold.storage.files.storage import FilesystemStorage as FilesystemStorage
