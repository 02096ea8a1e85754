"""The words that call this program again."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from shlex import quote


def program() -> str:
    """The shell words that call this `surehold` again, as short as they can be."""
    called, found = Path(sys.argv[0]), shutil.which("surehold")
    if called.name != "surehold" or not called.is_file():
        return "surehold" if found else f"{_short(sys.executable)} -m surehold"
    return "surehold" if found and os.path.samefile(found, called) else _short(str(called))


def _short(path: str) -> str:
    """*path* as it is typed here: relative if it is below the working directory."""
    relative = os.path.relpath(path)
    return quote(os.path.abspath(path) if relative.startswith("..") else relative)
