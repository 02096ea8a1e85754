"""Commands that maintain a storage: forget, prune, verify, repair, encrypt, ..."""

from __future__ import annotations

from surehold.cli.commands.keep.verify import Verify as Verify
