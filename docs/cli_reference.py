"""A hook of mkdocs: writes the reference of the command from the command's own help."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from itertools import groupby
from typing import Any

from surehold.__main__ import main
from surehold.cli.listing import COMMANDS

MARK = "<!-- the help of every command -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the help where a page asks for it."""
    return markdown.replace(MARK, reference()) if MARK in markdown else markdown


def reference() -> str:
    """What `surehold --help` says, and `--help` of each command, by groups."""
    parts = [help_of()]
    for group, entries in groupby(COMMANDS.items(), lambda item: item[1].group):
        parts.append(f"## {group}")
        parts += [f"### surehold {name}\n\n{help_of(name)}" for name, _ in entries]
    return "\n\n".join(parts)


def help_of(*command: str) -> str:
    """What the command prints when it is asked for help, as it is printed."""
    with redirect_stdout(StringIO()) as printed:
        if main([*command, "--help"]) != 0:
            raise SystemExit(f"surehold {' '.join(command)} --help failed")
    return f"```text\n{printed.getvalue().strip()}\n```"
