"""`holdfast export` and `holdfast import`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.cli.commands.move.documents import Exported, Imported
from holdfast.cli.framework import Argument, Cell, Cli, Line, Option, command, plain, size
from holdfast.errors import ConflictError, StorageError, UsageError

if TYPE_CHECKING:
    from holdfast.storage.base import RunInfo

__all__ = ["export", "import_"]

_STYLES = ("agent", "fleet", "graph", "resilient")


@command
def export(
    cli: Cli,
    run: Annotated[str, Argument(metavar="RUN", help="The run.")],
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Where to.")
    ] = None,
    html: Annotated[
        bool, Option("--html", help="A web page with timeline, states and diffs.")
    ] = False,
    style: Annotated[str, Option(help=f"With --json, the form: {', '.join(_STYLES)}.")] = "agent",
    redact: Annotated[
        bool, Option("--redact", help="Take known secrets out of a .holdfast file.")
    ] = False,
    decrypt: Annotated[
        bool, Option("--decrypt", help="Write an encrypted run in the clear.")
    ] = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace a file that is there.")] = False,
) -> None:
    """Write a run to a .holdfast file, which `holdfast import` takes in anywhere.

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
        text = _page(cli, found) if html else _json(cli, found, style)
        if output is None:
            cli.terminal.stdout.write(text)
            return
        _write(output, text, overwrite=overwrite)
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
    _told(cli, found, output, form)


def _told(cli: Cli, run: RunInfo, path: Path, form: Any) -> None:
    document = Exported(
        run_id=run.run_id,
        path=str(path),
        form=form,
        checkpoints=run.checkpoints,
        bytes=path.stat().st_size,
    )
    if cli.json:
        return  # what --json asks for is the run itself

    def text() -> Iterator[object]:
        yield Line.of(
            Cell(document.path, "bold"),
            Cell(f"  {run.checkpoints} checkpoints, {size(document.bytes)}", "dim"),
        )

    cli.give(document, text)


def _rules() -> Any:
    from holdfast.core.policy import make_rules

    return make_rules()


def _safe(run_id: str) -> str:
    from holdfast.core.records import medium_name

    return medium_name(run_id).removeprefix("=")


def _json(cli: Cli, run: RunInfo, style: Any) -> str:
    return cli.manager.export_json(run.run_id, style) + "\n"


def _page(cli: Cli, run: RunInfo) -> str:
    from holdfast.checkpoint.inspect import standing, state_text, timeline
    from holdfast.cli.commands.move.html_page import Page, states_within, write_page

    manager = cli.manager
    moments, after = timeline(manager.reader, manager.retention, run)
    moments.reverse()
    newest_first = reversed(range(len(moments)))
    texts = ((at, state_text(manager.reader.load(moments[at].header).texts)) for at in newest_first)
    page = Page(
        run_id=run.run_id,
        name=run.name,
        status=standing(cli.storage, run),
        moments=moments,
        states=states_within(texts, len(moments)),
        after=after,
        made=f"{datetime.now().astimezone():%Y-%m-%d %H:%M %Z}",
    )
    return write_page(page)


def _check_free(path: Path, *, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise ConflictError(f"{path} is there already", hint="--overwrite replaces it")


def _write(path: Path, text: str, *, overwrite: bool) -> None:
    """Write a file whole or not at all, for its owner only."""
    _check_free(path, overwrite=overwrite)
    try:
        fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.")
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror}") from error
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException as error:
        os.unlink(name)
        if isinstance(error, OSError):
            raise StorageError(f"{path} cannot be written: {error.strerror}") from error
        raise


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
    skip: Annotated[
        bool, Option("--skip-existing", help="Pass over runs that are there already.")
    ] = False,
) -> None:
    """Take in runs that were exported. Files are not trusted: all is checked before any is kept.

    A run is there whole or not at all. Interrupted, call it again with --skip-existing.
    """
    if run_id is not None and len(files) > 1:
        raise UsageError("--as names one run, and several files are given")
    manager = cli.open()
    with cli.progress("importing", len(files)) as advance:
        for path in files:
            try:
                new = manager.import_run(path, run_id, encryption_key=key_file)
            except ConflictError as error:
                if not skip:
                    raise ConflictError(
                        error.message,
                        hint="--as RUN gives it another id, --skip-existing passes over it",
                        **error.facts,
                    ) from error
                cli.say(Cell(f"{error.message}: {plain(path)} is passed over", "dim"))
                continue
            finally:
                advance()
            info = manager.reader.run(new)
            assert info is not None
            document = Imported(run_id=new, path=str(path), checkpoints=info.checkpoints)
            line = Line.of(
                Cell(new, "bold"), Cell(f"  {info.checkpoints} checkpoints from {path}", "dim")
            )
            cli.stream(document, partial(list, [line]))
