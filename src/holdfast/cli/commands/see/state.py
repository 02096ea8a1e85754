"""`holdfast show` and `holdfast cat`: one checkpoint, and one value of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from holdfast.cli.commands.see.documents import Show, ValueAt
from holdfast.cli.framework import (
    Address,
    Argument,
    Cell,
    Cli,
    Line,
    Option,
    clock,
    command,
    size,
    status_cell,
)
from holdfast.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from holdfast.checkpoint.journal import Loaded
    from holdfast.core.records import Header

__all__ = ["cat", "parts_of", "show", "tree_of", "value_at"]

_PART = re.compile(r"\.?(?P<key>[^.\[\]]+)|\[(?P<index>-?[0-9]{1,18})\]|\[\"(?P<quoted>[^\"]*)\"\]")
_LINES = 200
_BELOW = "\n" + " " * 12
"""A new line under the values that are shown."""


def _load(cli: Cli, header: Header) -> Loaded:
    return cli.manager.reader.load_visible(header)


@command
def show(
    cli: Cli,
    checkpoint: Annotated[
        str, Argument(metavar="RUN[@N]", help="A checkpoint; a run is its newest one.")
    ] = "latest",
    full: Annotated[bool, Option("--full", help="The whole state, however long.")] = False,
) -> None:
    """Show a checkpoint: where it stands in its run, and the state."""
    from holdfast.checkpoint.effects import failure_in
    from holdfast.checkpoint.inspect import failed_node, state_text

    header = cli.finder.checkpoint(checkpoint)
    loaded = _load(cli, header)
    document = Show(
        checkpoint=Address.of(header),
        state=msgspec.Raw(state_text(loaded.texts)),
        error=failure_in(header, loaded.extras[-1]),
        failed_in=failed_node(header, loaded.extras[-1]),
    )
    cli.give(document, lambda: _text(cli, header, loaded, document, full))


def _text(cli: Cli, header: Header, loaded: Loaded, told: Show, full: bool) -> Iterator[object]:
    pinned = header.seq in cli.manager.retention.marks(header.run_id).pinned
    name = f" of {header.name}" if header.name else ""
    yield Line.of(Cell("run         ", "dim"), Cell(header.run_id, "bold"), name)
    node = f" after {header.node}" if header.node else ""
    yield Line.of(Cell("step        ", "dim"), header.step, node)
    scope = f" in {header.scope}" if header.scope else ""
    yield Line.of(Cell("checkpoint  ", "dim"), header.id, f" ({header.kind}){scope}")
    yield Line.of(Cell("status      ", "dim"), status_cell(header.status))
    if told.failed_in:
        yield Line.of(Cell("failed in   ", "dim"), told.failed_in)
    if told.error:
        yield Cell(f"error       {told.error.replace(chr(10), _BELOW)}", "red")
    yield Line.of(Cell("saved       ", "dim"), clock(header.saved_at))
    yield Line.of(
        Cell("size        ", "dim"), f"{size(header.size)}, stored as {size(header.stored)}"
    )
    if header.parent:
        yield Line.of(Cell("parent      ", "dim"), header.parent)
    marks = [*(f"#{tag}" for tag in header.tags), *(["pinned"] if pinned else [])]
    if marks:
        yield Line.of(Cell("marks       ", "dim"), Cell(" ".join(marks), "cyan"))
    for key, value in header.metadata.items():
        if key == "error" and told.error:
            continue  # its class
        text = msgspec.json.encode(value).decode()
        yield Line.of(Cell(f"{key:<11} ", "dim"), text)
    yield ""
    yield from _state_lines(loaded, None if full else _LINES)


def _state_lines(loaded: Loaded, most: int | None) -> Iterator[object]:
    """The state as indented JSON."""
    from holdfast.checkpoint.inspect import state_text

    text = msgspec.json.format(state_text(loaded.texts), indent=2).decode()
    lines = text.splitlines()
    for line in lines[:most]:
        yield Line.of(*_colored(line))
    if most is not None and len(lines) > most:
        yield Cell(f"... {len(lines) - most} more lines: --full", "dim")


def _colored(line: str) -> list[object]:
    found = re.fullmatch(r'(\s*)("(?:[^"\\]|\\.)*")(: .*)', line)
    return [found[1], Cell(found[2], "blue"), found[3]] if found else [line]


@command
def cat(
    cli: Cli,
    what: Annotated[
        str, Argument(metavar="RUN[@N][:PATH]", help="The value; else the whole state.")
    ],
) -> None:
    """Print one value of a checkpoint, as in RUN@12:state.messages[-1].content.

    PATH begins with state or metadata, and leads through what `holdfast show` prints. Text is
    printed as it is, anything else as JSON.
    """
    from holdfast.cli.addresses import split_path

    address, path = split_path(what)
    header = cli.finder.checkpoint(address)
    parts = parts_of(path)
    if parts[0] == "metadata":
        root: Any = {"metadata": header.metadata}
    else:
        root = {"state": tree_of(_load(cli, header))}
    value = value_at(root, parts, address)
    document = ValueAt(
        run_id=header.run_id,
        checkpoint_id=header.id,
        step=header.step,
        path=path,
        value=value,
    )
    cli.give(document, lambda: [_readable(value)])


def tree_of(loaded: Loaded) -> dict[str, Any]:
    """The state as the journal writes it: what JSON cannot say is an object with ``$t``."""
    return {key: msgspec.json.decode(text) for key, text in loaded.texts.items()}


def _readable(value: Any) -> str:
    if isinstance(value, str):
        return value
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def parts_of(path: str) -> list[str | int]:
    """
    >>> parts_of('state.messages[-1]["content"]')
    ['state', 'messages', -1, 'content']
    """
    parts: list[str | int] = []
    at = 0
    while at < len(path):
        found = _PART.match(path, at)
        if found is None:
            raise UsageError(
                f"{path!r} is no path: {path[at:]!r} cannot be read",
                hint='write it as in state.plan[0].status or state["a key"]',
            )
        index = found["index"]
        key = found["key"] if found["quoted"] is None else found["quoted"]
        parts.append(int(index) if index is not None else key)
        at = found.end()
    return parts


def _kind(value: Any) -> str:
    return f"{len(value)} items" if isinstance(value, list) else "a single value"


def value_at(root: Any, parts: list[str | int], address: str) -> Any:
    """The value that *parts* lead to, or a `NotFoundError` that says how far they lead."""
    value, way = root, ""
    for part in parts:
        try:
            value = value[part]
        except (LookupError, TypeError):
            there = ", ".join(value) if isinstance(value, dict) else _kind(value)
            raise NotFoundError(
                f"{address} has no {part!r} in {way or 'it'}",
                hint=f"there is: {there[:200] or 'nothing'}",
                run_id=address,
            ) from None
        way += f"[{part}]" if isinstance(part, int) else f".{part}" if way else part
    return value
