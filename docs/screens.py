"""Screens for the documentation: ``python docs/screens.py docs/images``.

Each is the output of a command on the runs of `surehold demo`, as an SVG. Times and ids differ
from one call to the next.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path

from surehold.__main__ import main
from surehold.cli.framework import Terminal

__all__ = ["SCREENS", "make_screens"]

_WIDTH = 100
SCREENS = {
    "demo": "demo",
    "runs": "runs",
    "log": "log report-mon",
    "graph": "log report-mon --graph",
    "show": "show report-wed",
    "diff": "diff report-mon report-mon-kids",
    "status": "status",
    "stats": "stats",
    "forget": "forget report-mon --keep-last 2 --dry-run",
    "pending": "pending",
    "resume": "resume report-wed --dry-run",
}


def make_screens(directory: Path) -> list[Path]:
    """Write all screens; give their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory.absolute()
    made = []
    with _elsewhere():
        for name, words in SCREENS.items():
            path = target / f"{name}.svg"
            path.write_text(_svg(words, _printed(words)), "utf-8")
            made.append(path)
    return made


@contextmanager
def _elsewhere() -> Iterator[None]:
    """Work in an empty directory, with the command on PATH."""
    before = Path.cwd()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as made:
        os.chdir(made)
        try:
            yield
        finally:
            os.chdir(before)


def _printed(words: str) -> str:
    """The output of a command at a terminal, with its colours."""
    out = StringIO()
    storage = "" if words == "demo" else "sqlite:///.surehold/demo.db"
    environ = {"SUREHOLD_STORAGE": storage}
    main(words.split(), terminal=Terminal(out, out, environ=environ, color=True, width=_WIDTH))
    return out.getvalue()


def _svg(words: str, printed: str) -> str:
    from rich.console import Console
    from rich.text import Text

    console = Console(record=True, file=StringIO(), width=_WIDTH, force_terminal=True)
    console.print(Text.assemble(("$ ", "bold green"), f"surehold {words}"))
    console.print(Text.from_ansi(printed.rstrip("\n")))
    console.print()  # a clip path cuts the last line
    made = console.export_svg(title="surehold", unique_id=f"surehold-{words.partition(' ')[0]}")
    return re.sub(r"@font-face \{.*?\}\s*", "", made, flags=re.S)  # nothing is fetched


if __name__ == "__main__":
    for path in make_screens(Path(sys.argv[1])):
        print(path)
