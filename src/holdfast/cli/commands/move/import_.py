"""`holdfast import`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from holdfast.cli.framework import (
    Argument,
    Cell,
    Cli,
    Document,
    Line,
    Option,
    command,
    counted,
    plain,
)
from holdfast.errors import ConflictError, UsageError

__all__ = ["Imported", "import_"]


class Imported(Document, kw_only=True):
    """``import``"""

    type: Literal["imported"] = "imported"
    run_id: str
    path: str
    checkpoints: int


@command
def import_(
    cli: Cli,
    files: Annotated[list[Path], Argument(metavar="FILE", help="Written by export.")],
    run_id: Annotated[
        str | None, Option("--as", metavar="RUN", help="Another id for the run.")
    ] = None,
    key_file: Annotated[
        Path | None, Option(metavar="FILE", help="The key that the file is encrypted with.")
    ] = None,
    skip: Annotated[bool, Option("--skip-existing", help="Skip runs that exist already.")] = False,
    trust: Annotated[
        bool, Option("--trust", help="Lift the limits on size; for files you trust.")
    ] = False,
) -> None:
    """Import runs that were exported. Files are not trusted: each is checked before it is stored.

    A run is imported whole or not at all. If interrupted, call it again with --skip-existing.
    """
    if run_id is not None and len(files) > 1:
        raise UsageError("--as names one run, and several files are given")
    from holdfast.checkpoint.transfer import LIMITS, UNLIMITED

    manager = cli.open()
    limits = UNLIMITED if trust else LIMITS
    with cli.progress("importing", len(files)) as advance:
        for path in files:
            try:
                new = manager.import_run(path, run_id, encryption_key=key_file, limits=limits)
            except ConflictError as error:
                if not skip:
                    raise ConflictError(
                        error.message,
                        hint="--as RUN gives it another id, --skip-existing skips it",
                        **error.facts,
                    ) from error
                cli.say(Cell(f"{error.message}: {plain(path)} is skipped", "dim"))
                continue
            finally:
                advance()
            info = manager.reader.run(new)
            assert info is not None
            document = Imported(run_id=new, path=str(path), checkpoints=info.checkpoints)
            line = Line.of(
                Cell(new, "bold"),
                Cell(f"  {counted(info.checkpoints, 'checkpoint')} from {path}", "dim"),
            )
            cli.stream(document, partial(list, [line]))
