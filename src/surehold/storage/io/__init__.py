"""File primitives: atomic replace, locks, reads and writes that retry.

Nothing here knows of records.
"""

from __future__ import annotations

from surehold.storage.io import resilient_io as resilient_io
from surehold.storage.io.resilient_io import Retry as Retry
from surehold.storage.io.resilient_io import write_file as write_file
