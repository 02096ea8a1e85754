"""The `surehold` program: the command line, and the page that some commands start.

It stands above both: `cli` and `web` do not import each other.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

from surehold.cli import app
from surehold.cli.framework import Terminal


def main(argv: Sequence[str] | None = None, *, terminal: Terminal | None = None) -> int:
    """Run the command line *argv*; gives the exit code."""
    return app.main(argv, page=_page, terminal=terminal)


def _page() -> ModuleType:
    from surehold import web

    return web


if __name__ == "__main__":
    sys.exit(main())
