"""A child process of the self-test, which kills it: for `killed_after` only."""

from __future__ import annotations

import sys
from pathlib import Path

from surehold.storage.registry import default_address
from surehold.testing.selftest.children import CHILDREN

CHILDREN[sys.argv[1]](default_address(), sys.argv[2], Path(sys.argv[3]))
