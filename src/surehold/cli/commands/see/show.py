"""`surehold show`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from surehold.cli import framework as ui
from surehold.views.values import Show, read_checkpoint

_LINES = 200
_INDENT = 12


@ui.command
def show(
    cli: ui.Cli,
    checkpoint: Annotated[
        str, ui.Argument(metavar="RUN[@N]", help="A checkpoint; a run stands for its newest one.")
    ] = "latest",
    full: Annotated[bool, ui.Option(help="The whole state, however long.")] = False,
) -> None:
    """Show a checkpoint: its place in the run, and its state."""
    document = read_checkpoint(cli.manager, cli.finder.checkpoint(checkpoint))
    cli.give(document, lambda: _text(document, None if full else _LINES))


def _text(document: Show, most: int | None) -> Iterator[object]:
    for name, value in _facts(document):
        cell = value if isinstance(value, ui.Cell) else ui.Cell(value)
        text = str(cell.text).replace("\n", "\n" + " " * _INDENT)
        if "\n" in text or name == "error":  # shown whole, however wide
            yield ui.Cell(f"{name:<{_INDENT}}{text}", cell.style)
        else:
            yield ui.Line.of(ui.Cell(f"{name:<{_INDENT - 1}} ", "dim"), ui.Cell(text, cell.style))
    yield ""
    lines = msgspec.json.format(bytes(document.state), indent=2).decode().splitlines()
    for line in lines[:most]:
        yield ui.Line.of(*_colored(line))
    if most is not None and len(lines) > most:
        yield ui.Cell(f"... {len(lines) - most} more lines: --full", "dim")


def _facts(document: Show) -> Iterator[tuple[str, object]]:
    info = document.checkpoint
    yield "run", f"{info.run_id} of {info.name}" if info.name else ui.Cell(info.run_id, "bold")
    yield "step", f"{info.step} after {info.node}" if info.node else info.step
    scope = f" in {info.scope}" if info.scope else ""
    yield "checkpoint", f"{info.checkpoint_id} ({info.kind}){scope}"
    yield "status", ui.status_cell(document.run_status or info.status)
    for key, value in document.published.items():
        yield key, ui.value_text(value)
    if document.failed_in:
        yield "failed in", document.failed_in
    if document.error:
        yield "error", ui.Cell(document.error, "red")
    if document.traceback:
        yield "raised in", ui.Cell(document.traceback.strip(), "dim")
    yield "saved", ui.clock(info.saved_at)
    yield "size", f"{ui.size(info.size_bytes)}, stored as {ui.size(info.stored_bytes)}"
    if info.parent_checkpoint_id:
        yield "parent", info.parent_checkpoint_id
    marks = [*(f"#{tag}" for tag in info.tags), *(["pinned"] if document.pinned else [])]
    if marks:
        yield "marks", ui.Cell(" ".join(marks), "cyan")
    for key, value in info.metadata.items():
        if key != "error" or not document.error:
            yield key, msgspec.json.encode(value).decode()


def _colored(line: str) -> list[object]:
    found = re.fullmatch(r'(\s*)("(?:[^"\\]|\\.)*")(: .*)', line)
    return [found[1], ui.Cell(found[2], "blue"), found[3]] if found else [line]
