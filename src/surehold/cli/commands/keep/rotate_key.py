"""`surehold rotate-key`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from surehold.cli import framework as ui
from surehold.errors import UsageError

_VARIABLES = ("SUREHOLD_ENCRYPTION_KEY", "SUREHOLD_ENCRYPTION_KEY_FILE")


class Rotated(ui.Document, kw_only=True, tag="rotated"):
    """``rotate-key``"""

    runs: int


@ui.command
def rotate_key(
    cli: ui.Cli,
    runs: ui.Runs = None,
    old_key_file: Annotated[
        list[Path] | None, ui.Option(help="A file with a key that encrypts runs now.")
    ] = None,
) -> None:
    """Encrypt the keys of runs with the key of SUREHOLD_ENCRYPTION_KEY or .._KEY_FILE.

    No state is rewritten. It may be interrupted and called again.
    """
    chosen = cli.finder.runs(runs)
    if not any(cli.terminal.environ.get(name, "").strip() for name in _VARIABLES):
        raise UsageError(
            "there is no key to rotate to",
            hint=f"set {_VARIABLES[0]} or {_VARIABLES[1]} to the new one, and name the files of"
            " the old ones with --old-key-file",
        )
    manager = cli.open(old_keys=tuple(old_key_file or ()))
    found = cli.progress("rotating", chosen, len(chosen))
    changed = sum(manager.rotate_keys(run.run_id) for run in found)
    text = f"{changed} of {ui.counted(len(chosen), 'run')} changed keys"
    cli.give(Rotated(runs=changed), lambda: [ui.Line.of(text)])
