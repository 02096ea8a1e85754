"""Runs as plain files: a line per record, a directory per run."""

from __future__ import annotations

from surehold.storage.files.dirfd import os_errors as os_errors
from surehold.storage.files.dirfd import read_at as read_at
from surehold.storage.files.dirfd import sync as sync
from surehold.storage.files.dirfd import write_at as write_at
from surehold.storage.files.storage import FilesystemStorage as FilesystemStorage
