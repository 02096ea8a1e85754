"""`surehold import`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from surehold.cli import framework as ui
from surehold.core.records import check_run_id
from surehold.engine.transfer import LIMITS, UNLIMITED
from surehold.errors import ConflictError, NotFoundError, UsageError


class Imported(ui.Document, kw_only=True, tag="imported"):
    """``import``"""

    run_id: str
    path: str
    checkpoints: int


@ui.command
def import_(
    cli: ui.Cli,
    files: Annotated[
        list[Path],
        ui.Argument(
            metavar="FILE",
            help="Written by export; or a directory of Kaizen's or AgenticFleet's files.",
        ),
    ],
    run_id: Annotated[
        str | None, ui.Option("--as", metavar="RUN", help="Another id for the run.")
    ] = None,
    key_file: Annotated[
        Path | None, ui.Option(help="The key that the file is encrypted with.")
    ] = None,
    skip: Annotated[
        bool, ui.Option("--skip-existing", help="Skip runs that exist already.")
    ] = False,
    trust: Annotated[bool, ui.Option(help="Lift the limits on size; for files you trust.")] = False,
) -> None:
    """Import exported runs. Files are not trusted: each is checked before storing.

    A run is imported whole or not at all. If interrupted, call it again with --skip-existing. A
    directory is one of Kaizen (.jsonl, .jsonl.gz) or AgenticFleet (.json): each agent or workflow
    in it becomes a run.
    """
    if run_id is not None:
        check_run_id(run_id, "--as")
        if len(files) > 1:
            raise UsageError("--as names one run, and several files are given")
    for path in files:
        if not path.exists():
            raise NotFoundError(f"there is no file {path}", hint="check the path", path=str(path))
    manager = cli.open()
    limits = UNLIMITED if trust else LIMITS
    for path in cli.progress("importing", files, len(files)):
        if path.is_dir():
            _import_directory(cli, path, run_id)
            continue
        try:
            new = manager.import_run(path, run_id, encryption_key=key_file, limits=limits)
        except ConflictError as error:
            if not skip:
                raise ConflictError(
                    error.message,
                    hint="--as RUN gives it another id, --skip-existing skips it",
                    **error.facts,
                ) from error
            cli.say(ui.Cell(f"{error.message}: {ui.plain(path)} is skipped", "dim"))
            continue
        info = manager.reader.run(new)
        assert info is not None
        _say(cli, new, info.checkpoints, path)


def _import_directory(cli: ui.Cli, path: Path, run_id: str | None) -> None:
    from surehold.integrations.checkpoint_files import import_checkpoint_files

    if run_id is not None:
        raise UsageError("--as names one run, and a directory is given")
    for run in import_checkpoint_files(path, cli.open()):
        _say(cli, run.run_id, run.checkpoints, path)


def _say(cli: ui.Cli, run_id: str, checkpoints: int, path: Path) -> None:
    document = Imported(run_id=run_id, path=str(path), checkpoints=checkpoints)
    line = ui.Line.of(
        ui.Cell(run_id, "bold"),
        ui.Cell(f"  {ui.counted(checkpoints, 'checkpoint')} from {path}", "dim"),
    )
    cli.stream(document, partial(list, [line]))
