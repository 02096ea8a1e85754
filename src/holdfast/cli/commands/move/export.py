"""`holdfast export`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from holdfast.cli import framework as ui
from holdfast.errors import ConflictError, StorageError, UsageError

if TYPE_CHECKING:
    from holdfast.storage.base import RunInfo

_STYLES = ("agent", "fleet", "graph", "resilient")


class Exported(ui.Document, kw_only=True, tag="exported"):
    """``export`` to a file"""

    run_id: str
    path: str
    form: Literal["holdfast", "html", "json"]
    checkpoints: int
    bytes: int


@ui.command
def export(
    cli: ui.Cli,
    run: Annotated[str, ui.Argument(help="The run.")],
    output: Annotated[Path | None, ui.Option("--output", "-o", help="Where to.")] = None,
    html: Annotated[bool, ui.Option(help="A web page with timeline, states and diffs.")] = False,
    style: Annotated[
        str, ui.Option(help=f"With --json, the form: {', '.join(_STYLES)}.")
    ] = "agent",
    redact: Annotated[bool, ui.Option(help="Replace known secrets in a .holdfast file.")] = False,
    decrypt: Annotated[bool, ui.Option(help="Write an encrypted run in the clear.")] = False,
    overwrite: Annotated[bool, ui.Option(help="Replace an existing file.")] = False,
) -> None:
    """Write a run to a .holdfast file, which `holdfast import` reads anywhere.

    With --json it is written as plain JSON for other programs, with --html as one web page that
    needs nothing else; both go to stdout without -o.
    """
    found = cli.finder.run(run)
    if html and cli.json:
        raise UsageError("--html and --json are both given", hint="give one of them")
    if style not in _STYLES:
        raise UsageError(f"there is no style {style!r}", hint=f"one of {', '.join(_STYLES)}")
    if (redact or decrypt) and (html or cli.json):
        raise UsageError("--redact and --decrypt are for .holdfast files", hint="leave them out")
    if html or cli.json:
        form: Any = "html" if html else "json"
        texts = _page(cli, found) if html else _json(cli, found, style)
        if output is None:
            for text in texts:
                cli.terminal.stdout.write(text)
            return
        _write(output, texts, overwrite=overwrite)
    else:
        form = "holdfast"
        output = output or Path(f"{_safe(found.run_id)}.holdfast")
        _check_free(output, overwrite=overwrite)
        cli.manager.export_run(
            found.run_id,
            output,
            redact=_rules() if redact else None,
            decrypt=decrypt,
            overwrite=overwrite,
        )
    _say(cli, found, output, form)


def _say(cli: ui.Cli, run: RunInfo, path: Path, form: Any) -> None:
    document = Exported(
        run_id=run.run_id,
        path=str(path),
        form=form,
        checkpoints=run.checkpoints,
        bytes=path.stat().st_size,
    )
    if cli.json:
        return  # --json asks for the run itself

    def text() -> Iterator[object]:
        yield ui.Line.of(
            ui.Cell(document.path, "bold"),
            ui.Cell(
                f"  {ui.counted(run.checkpoints, 'checkpoint')}, {ui.size(document.bytes)}", "dim"
            ),
        )

    cli.give(document, text)


def _rules() -> Any:
    from holdfast.core.policy import make_rules

    return make_rules()


def _safe(run_id: str) -> str:
    from holdfast.core.records import medium_name

    return medium_name(run_id).removeprefix("=")


def _json(cli: ui.Cli, run: RunInfo, style: Any) -> Iterator[str]:
    from holdfast.checkpoint.transfer import json_lines

    for line in json_lines(cli.manager.reader, run.run_id, style):
        yield f"{line}\n"


def _page(cli: ui.Cli, run: RunInfo) -> Iterator[str]:
    from holdfast.web import run_file

    return run_file(cli.manager, run)


def _check_free(path: Path, *, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise ConflictError(f"{path} exists already", hint="--overwrite replaces it")


def _write(path: Path, texts: Iterable[str], *, overwrite: bool) -> None:
    """Write a whole file or none, readable by its owner only."""
    _check_free(path, overwrite=overwrite)
    try:
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.writelines(texts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError):
            raise StorageError(f"{path} cannot be written: {error.strerror}") from error
        raise
