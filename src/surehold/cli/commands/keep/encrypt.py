"""`surehold encrypt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from surehold.cli import framework as ui


class Encrypted(ui.Document, kw_only=True, tag="encrypted"):
    """``encrypt``"""

    runs: list[str]


@ui.command
def encrypt(
    cli: ui.Cli,
    runs: ui.Runs = None,
    scratch: Annotated[
        Path, ui.Option(metavar="DIR", help="Directory for the encrypted files under way.")
    ] = Path(".surehold/encrypting"),
) -> None:
    """Encrypt runs in the clear with SUREHOLD_ENCRYPTION_KEY or .._KEY_FILE.

    Each is replaced by its encrypted copy and verified. It may be interrupted and called again.
    """
    chosen = cli.finder.runs(runs)
    manager = cli.open()
    changed: list[str] = []
    for run in cli.progress("encrypting", chosen, len(chosen)):
        changed += manager.encrypt_runs(run.run_id, scratch=scratch)
    if runs is None:
        changed += manager.encrypt_runs(scratch=scratch)  # those an interrupted call left behind
    text = f"{len(changed)} of {ui.counted(len(chosen), 'run')} encrypted"
    cli.give(Encrypted(runs=changed), lambda: [ui.Line.of(text)])
