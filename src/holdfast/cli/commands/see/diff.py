"""`holdfast diff` and `holdfast blame`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from holdfast.cli.commands.see.documents import Blame, Diff
from holdfast.cli.commands.see.state import parts_of, tree_of, value_at
from holdfast.cli.framework import (
    Address,
    Argument,
    Cell,
    ChangeRow,
    Cli,
    Line,
    Option,
    clock,
    command,
    money,
    raw,
)
from holdfast.errors import NotFoundError

if TYPE_CHECKING:
    from holdfast.checkpoint.inspect import Change
    from holdfast.checkpoint.journal import Loaded
    from holdfast.core.records import Header

__all__ = ["blame", "diff"]


@command
def diff(
    cli: Cli,
    a: Annotated[str, Argument(metavar="A", help="A checkpoint; a run is its newest.")],
    b: Annotated[
        str | None, Argument(metavar="B", help="Another; else A is compared with its parent.")
    ] = None,
    quiet: Annotated[
        bool, Option("--quiet", "-q", help="Print nothing; exit 1 if they differ.")
    ] = False,
) -> int:
    """Show what turns the state of A into that of B: keys, items of lists, cost."""
    from holdfast.checkpoint.inspect import changes_between, spent

    first, second = _both(cli, a, b)
    reader = cli.manager.reader
    before, after = reader.load_visible(first), reader.load_visible(second)
    changes = changes_between(before, after)
    if quiet:
        return 1 if changes else 0
    costs = [spent(cli.storage, header.run_id, header.seq) for header in (first, second)]
    document = Diff(
        a=Address.of(first),
        b=Address.of(second),
        changes=list(_rows(changes, before)),
        keys=list(dict.fromkeys(_key(change.path) for change in changes)),
        appended=_appended(changes),
        tokens=costs[1].tokens - costs[0].tokens,
        dollars=costs[1].dollars - costs[0].dollars,
    )
    cli.give(document, lambda: _text(document))
    return 0


def _both(cli: Cli, a: str, b: str | None) -> tuple[Header, Header]:
    if b is not None:
        return cli.finder.checkpoint(a), cli.finder.checkpoint(b)
    second = cli.finder.checkpoint(a)
    if second.parent is None:
        raise NotFoundError(
            f"{a} is the first checkpoint of its run",
            hint="give two checkpoints",
            run_id=second.run_id,
        )
    return cli.finder.checkpoint(second.parent), second


def _key(path: str) -> str:
    return path[1:].partition("/")[0].replace("~1", "/").replace("~0", "~")


def _appended(changes: tuple[Change, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for change in changes:
        if change.path.endswith("/-"):
            place = change.path.removesuffix("/-")
            counts[place] = counts.get(place, 0) + 1
    return counts


def _rows(changes: tuple[Change, ...], before: Loaded) -> Iterator[ChangeRow]:
    from holdfast.cli.framework import rows

    for change, row in zip(changes, rows(changes), strict=True):
        if change.op != "add":
            row.old = raw(_old(before, change.path))
        yield row


def _old(before: Loaded, path: str) -> Any:
    """The value at a JSON Pointer, as it was."""
    from holdfast.core.values import decode

    keys = [part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/")]
    value: Any = decode(before.texts[keys[0]])
    for key in keys[1:]:
        value = value[int(key)] if isinstance(value, list) else value[key]
    return value


_INLINE = 60
"""An old and a new value of so many characters stand in one line."""
_SIGNS = {"add": Cell("+ ", "green"), "remove": Cell("- ", "red"), "replace": Cell("~ ", "yellow")}


def _text(document: Diff) -> Iterator[object]:
    for sign, address in (("---", document.a), ("+++", document.b)):
        yield Line.of(
            Cell(f"{sign} {address.run_id}@{address.step}", "bold"),
            Cell(f"  {clock(address.saved_at)}  {address.checkpoint_id}", "dim"),
        )
    for row in document.changes:
        place = row.path[1:].removesuffix("/-")
        shown = [_SIGNS[row.op], Cell(place, "blue"), " "]
        old, new = _written(row.old), _written(row.value)
        match row.op:
            case "add":
                yield Line.of(*shown, Cell(_short(new), "green"))
            case "remove":
                yield Line.of(*shown, Cell(_short(old), "red"))
            case _ if len(old) + len(new) <= _INLINE:
                yield Line.of(*shown, Cell(old, "red"), " -> ", Cell(new, "green"))
            case _:
                yield Line.of(*shown)
                yield Line.of(Cell(f"  - {_short(old)}", "red"))
                yield Line.of(Cell(f"  + {_short(new)}", "green"))
    yield Line.of(Cell(_summary(document), "dim"))


def _written(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else ""


def _short(text: str) -> str:
    return text if len(text) <= 200 else text[:199] + "…"


def _summary(document: Diff) -> str:
    if not document.changes:
        return "the states are the same"
    count = len(document.keys)
    parts = [f"{count} {'key differs' if count == 1 else 'keys differ'}"]
    parts += (f"{place[1:]} +{count}" for place, count in document.appended.items())
    if document.dollars or document.tokens:
        sign = "-" if document.dollars < 0 else "+"
        parts.append(f"cost {sign}{money(abs(document.dollars)) or '$0'}")
    return ", ".join(parts)


@command
def blame(
    cli: Cli,
    run: Annotated[str, Argument(metavar="RUN", help="The run.")],
    key: Annotated[str, Argument(metavar="KEY", help="A key, or a path such as plan[0].status.")],
) -> None:
    """Tell which step last wrote a value."""
    from holdfast.checkpoint.inspect import blame as look

    manager = cli.manager
    found = cli.finder.run(run)
    parts = parts_of(key.removeprefix("state."))
    newest = manager.reader.newest(found)
    metadata = None
    if newest is not None:
        state = tree_of(manager.reader.load_visible(newest))
        value = value_at(state, parts, found.run_id)
        metadata = look(manager.reader, found, _pointer(state, parts), "")
    if metadata is None:
        raise NotFoundError(
            f"no step of run {found.run_id!r} wrote {key!r}",
            hint=f"holdfast show {found.run_id} shows what there is",
            run_id=found.run_id,
        )
    header = manager.reader.resolve(metadata.checkpoint_id, run_id=found.run_id)
    document = Blame(key=key, checkpoint=Address.of(header), value=value)
    cli.give(document, lambda: _blamed(document, header, value))


def _pointer(value: Any, parts: list[str | int]) -> str:
    """*parts* as a JSON Pointer; what is counted from the end is counted from the beginning."""
    pointer = ""
    for at, part in enumerate(parts):
        from_start = part + len(value) if isinstance(part, int) and part < 0 else part
        pointer += f"/{str(from_start).replace('~', '~0').replace('/', '~1')}"
        value = value_at(value, parts[at : at + 1], pointer)
    return pointer


def _blamed(document: Blame, header: Header, value: Any) -> Iterator[object]:
    node = f" ({header.node})" if header.node else ""
    yield Line.of(
        Cell(f"{header.run_id}@{header.step}", "bold"),
        node,
        Cell(f"  {clock(header.saved_at)}  ", "dim"),
        Cell(document.key, "blue"),
        f" = {_short(msgspec.json.encode(value).decode())}",
    )
