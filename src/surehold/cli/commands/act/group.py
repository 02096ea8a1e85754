"""`surehold group`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from surehold.cli import framework as ui
from surehold.engine.groups import GroupCheckpoint, MemberStatus, import_group
from surehold.engine.groups import group as open_group
from surehold.errors import NotFoundError, UsageError

_ACTIONS = ("show", "checkpoint", "fork", "export", "import", "pin", "unpin", "prune")


class GroupView(ui.Document, kw_only=True, tag="group"):
    group: str
    members: list[MemberStatus]
    checkpoints: list[GroupCheckpoint]
    """Newest first."""
    dropped: tuple[str, ...] = ()
    """The checkpoints of the group that were pruned."""


@ui.command
def group(
    cli: ui.Cli,
    action: Annotated[str, ui.Argument(help=f"One of {', '.join(_ACTIONS)}.")],
    name: Annotated[str, ui.Argument(metavar="GROUP", help="The group; for import, the file.")],
    words: Annotated[
        list[str] | None,
        ui.Argument(metavar="WORD", help="Runs, a checkpoint, a name or a file: see above."),
    ] = None,
    at: Annotated[
        str | None, ui.Option(metavar="ID", help="The checkpoint to fork from; else the newest.")
    ] = None,
    at_step: Annotated[
        int | None, ui.Option(help="Refuse unless every member has reached step N.")
    ] = None,
    keep: Annotated[int, ui.Option(help="How many checkpoints prune keeps.")] = 1,
) -> None:
    """Checkpoint, compare and fork several runs as one.

    show GROUP; checkpoint GROUP RUN RUN ...; fork GROUP NAME; export GROUP FILE; import FILE;
    pin or unpin GROUP ID; prune GROUP --keep N. A checkpoint holds all members or is not taken.
    """
    if action not in _ACTIONS:
        raise UsageError(f"there is no group {action!r}", hint=f"one of {', '.join(_ACTIONS)}")
    given = [*(words or ())]
    dropped: tuple[str, ...] = ()
    if action in ("show", "import", "prune") and given:
        raise UsageError(f"{action} takes no {given[0]!r}", hint=f"surehold group {action} GROUP")
    if action == "import":
        chosen = import_group(name, storage=cli.open())
    else:
        members = given if action == "checkpoint" else ()
        chosen = open_group(name, members, storage=cli.manager)
    match action:
        case "checkpoint":
            chosen.checkpoint(at_step=at_step)
        case "fork":
            chosen = chosen.fork(_one(given, "fork GROUP NAME"), at)
        case "export":
            chosen.export(_one(given, "export GROUP FILE"))
        case "pin":
            chosen.pin(_one(given, "pin GROUP ID"))
        case "unpin":
            chosen.unpin(_one(given, "unpin GROUP ID"))
        case "prune":
            dropped = tuple(one.id for one in chosen.prune(keep))
    document = GroupView(
        group=chosen.name,
        members=chosen.status(),
        checkpoints=chosen.checkpoints(),
        dropped=dropped,
    )
    if not document.checkpoints:
        raise NotFoundError(
            f"there is no group {name!r}", hint=f"surehold group checkpoint {name} RUN RUN ..."
        )
    cli.give(document, lambda: _text(document))


def _one(words: list[str], usage: str) -> str:
    if len(words) != 1:
        raise UsageError(f"{len(words)} words are given, not one", hint=f"surehold group {usage}")
    return words[0]


def _text(document: GroupView) -> Iterator[object]:
    yield ui.Line.of(
        ui.Cell(document.group, "bold"), f"  {ui.counted(len(document.checkpoints), 'checkpoint')}"
    )
    yield ui.Table.of(
        document.members,
        ui.Column("member", lambda one: one.run_id, gives=True),
        ui.Column("step", lambda one: _shown(one.step), right=True),
        ui.Column("in the group", lambda one: _shown(one.group_step), right=True),
        ui.Column("status"),
    )
    for taken in document.checkpoints:
        steps = ", ".join(f"{part.run_id}@{part.step}" for part in taken.members)
        marks = "  pinned" if taken.pinned else ""
        yield ui.Line.of(
            ui.Cell(taken.id, "cyan"), f"  {taken.saved_at:%Y-%m-%d %H:%M:%S}  {steps}{marks}"
        )
    for checkpoint_id in document.dropped:
        yield f"dropped {checkpoint_id}"


def _shown(step: int | None) -> object:
    return "-" if step is None else step
