"""`surehold export`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from surehold.cli import framework as ui
from surehold.core.policy import make_rules
from surehold.core.records import medium_name
from surehold.engine.transfer import json_lines, whole_file
from surehold.errors import ConflictError, UsageError
from surehold.storage.base import RunInfo

_STYLES = ("agent", "fleet", "graph", "resilient")


class Exported(ui.Document, kw_only=True, tag="exported"):
    """``export`` to a file"""

    run_id: str
    path: str
    form: Literal["surehold", "html", "json"]
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
    redact: Annotated[bool, ui.Option(help="Replace known secrets in a .surehold file.")] = False,
    decrypt: Annotated[bool, ui.Option(help="Write an encrypted run in the clear.")] = False,
    overwrite: Annotated[bool, ui.Option(help="Replace an existing file.")] = False,
) -> None:
    """Write a run to a .surehold file, which `surehold import` reads anywhere.

    With --json it is written as plain JSON for other programs, with --html as one web page that
    needs nothing else; both go to stdout without -o, or with -o -.
    """
    found = cli.finder.run(run)
    to_stdout = output == Path("-")
    if html and cli.json:
        raise UsageError("--html and --json are both given", hint="give one of them")
    if style not in _STYLES:
        raise UsageError(f"there is no style {style!r}", hint=f"one of {', '.join(_STYLES)}")
    if (redact or decrypt) and (html or cli.json):
        raise UsageError("--redact and --decrypt are for .surehold files", hint="leave them out")
    if to_stdout and not (html or cli.json):
        raise UsageError(
            "a .surehold file is not written to stdout",
            hint=f"name a file: -o {_file_name(found)}; --json and --html go to stdout",
        )
    if html or cli.json:
        form: Any = "html" if html else "json"
        texts = _texts(cli, found, html=html, style=style)
        if output is None or to_stdout:
            cli.terminal.stdout.writelines(texts)
            return
        _write(output, texts, overwrite=overwrite)
    else:
        form = "surehold"
        output = output or Path(_file_name(found))
        _check_free(output, overwrite=overwrite)
        cli.manager.export_run(
            found.run_id,
            output,
            redact=make_rules() if redact else None,
            decrypt=decrypt,
            overwrite=overwrite,
        )
    _say(cli, found, output, form)


def _file_name(run: RunInfo) -> str:
    return f"{medium_name(run.run_id).removeprefix('=')}.surehold"


def _say(cli: ui.Cli, run: RunInfo, path: Path, form: Any) -> None:
    if cli.json:
        return  # --json asks for the run itself
    many, bytes = run.checkpoints, path.stat().st_size
    document = Exported(run_id=run.run_id, path=str(path), form=form, checkpoints=many, bytes=bytes)
    about = f"  {ui.counted(many, 'checkpoint')}, {ui.size(bytes)}"
    line = ui.Line.of(ui.Cell(document.path, "bold"), ui.Cell(about, "dim"))
    cli.give(document, lambda: [line])


def _texts(cli: ui.Cli, run: RunInfo, *, html: bool, style: Any) -> Iterable[str]:
    if not html:
        return (f"{line}\n" for line in json_lines(cli.manager.reader, run.run_id, style))
    texts: Iterable[str] = cli.page.run_file(cli.manager, run)
    return texts


def _check_free(path: Path, *, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise ConflictError(f"{path} exists already", hint="--overwrite replaces it")


def _write(path: Path, texts: Iterable[str], *, overwrite: bool) -> None:
    _check_free(path, overwrite=overwrite)
    with (
        whole_file(path, overwrite=overwrite) as temporary,
        temporary.open("w", encoding="utf-8") as file,
    ):
        file.writelines(texts)
