"""Runs in one SQLite database."""

from __future__ import annotations

from surehold.storage.sqlite.storage import SQLiteStorage as SQLiteStorage
from surehold.storage.sqlite.untrusted import UntrustedRecord as UntrustedRecord
from surehold.storage.sqlite.untrusted import UntrustedRun as UntrustedRun
from surehold.storage.sqlite.untrusted import open_untrusted as open_untrusted
