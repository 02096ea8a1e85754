"""`python -m surehold` is the `surehold` command."""

from __future__ import annotations

import sys

from surehold.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
