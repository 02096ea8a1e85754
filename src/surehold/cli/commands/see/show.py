"""`surehold show`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from surehold.cli import framework as ui
from surehold.core.values import Usage
from surehold.engine.runs import NoteView
from surehold.views.values import ChatTurn, Show, read_checkpoint


class RecordedLine(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a recording, and the messages that the calls before it had not."""

    number: int
    name: str
    usage: Usage
    turns: list[ChatTurn]


class RecordedFile(ui.Document, kw_only=True, tag="recording"):
    """``show FILE``"""

    file: str
    calls: Annotated[list[RecordedLine], ui.Rows("call")]


_LINES = 200
_INDENT = 12


@ui.command
def show(
    cli: ui.Cli,
    checkpoint: Annotated[
        str,
        ui.Argument(
            metavar="RUN[@N]",
            help="A checkpoint; a run stands for its newest one. Or the file of a recording.",
        ),
    ] = "latest",
    full: Annotated[bool, ui.Option(help="The whole state, however long.")] = False,
) -> None:
    """Show a checkpoint with its state, or the calls in the file of a recording."""
    if checkpoint.endswith((".jsonl", ".json", ".surehold")) and Path(checkpoint).exists():
        recording = _recording(checkpoint)
        cli.give(recording, lambda: _calls(recording))
        return
    document = read_checkpoint(cli.manager, cli.finder.checkpoint(checkpoint))
    cli.give(document, lambda: _text(document, None if full else _LINES))


def _recording(file: str) -> RecordedFile:
    from surehold.integrations.recorder import calls_in
    from surehold.views.run import turns_of_calls

    calls = calls_in(file)
    notes = [
        NoteView(
            seq=one.number, kind="effect", scope="", step=one.number, node="", value=one.tree()
        )
        for one in calls
    ]
    turns: dict[int, list[ChatTurn]] = {}
    for turn, note in turns_of_calls(notes):
        turns.setdefault(note.seq, []).append(turn)
    lines = [
        RecordedLine(
            number=one.number, name=one.label, usage=one.usage, turns=turns.get(one.number, [])
        )
        for one in calls
    ]
    return RecordedFile(file=file, calls=lines)


def _calls(document: RecordedFile) -> Iterator[object]:
    for one in document.calls:
        used = f"  {one.usage.tokens} tokens" if one.usage.tokens else ""
        yield ui.Line.of(ui.Cell(f"{one.number} ", "bold"), one.name, ui.Cell(used, "dim"))
        for turn in one.turns:
            text = " ".join([turn.text, *turn.calls]).strip()
            indented = text.replace("\n", "\n" + " " * _INDENT)
            yield f"{turn.role:<{_INDENT - 1}} {indented}"
    if not document.calls:
        yield "no recorded call"


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
