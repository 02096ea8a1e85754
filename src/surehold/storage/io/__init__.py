"""File primitives: atomic replace, locks, reads and writes that retry.

Nothing here knows of records.
"""

from __future__ import annotations

from surehold.storage.io import resilient_io as resilient_io
from surehold.storage.io.dirfd import READ_ONLY as READ_ONLY
from surehold.storage.io.dirfd import Folder as Folder
from surehold.storage.io.dirfd import open_root as open_root
from surehold.storage.io.dirfd import os_errors as os_errors
from surehold.storage.io.dirfd import read_at as read_at
from surehold.storage.io.dirfd import sync as sync
from surehold.storage.io.dirfd import temporary as temporary
from surehold.storage.io.dirfd import write_at as write_at
from surehold.storage.io.resilient_io import Retry as Retry
from surehold.storage.io.resilient_io import write_file as write_file
