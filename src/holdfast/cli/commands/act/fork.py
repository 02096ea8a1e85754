"""`holdfast fork`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from holdfast.checkpoint.inspect import Origin
from holdfast.cli.commands.act.documents import Fork
from holdfast.cli.framework import Argument, Cell, Cli, Line, Option, command
from holdfast.errors import UsageError

if TYPE_CHECKING:
    from holdfast.checkpoint.journal import CheckpointDraft, Loaded

__all__ = ["assignments", "fork", "read_value"]


@command
def fork(
    cli: Cli,
    checkpoint: Annotated[str, Argument(metavar="RUN[@N]", help="Where to begin.")],
    set: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="Begin with another value; JSON or text."),
    ] = None,
    run_id: Annotated[str | None, Option("--as", metavar="RUN", help="Its run id.")] = None,
) -> None:
    """Begin a new run with the state of a checkpoint. The source is left as it is.

    The fork inherits no effects: whatever it does, it does anew.
    """
    header = cli.finder.checkpoint(checkpoint)
    edit = assignments(set or [])
    made = cli.manager.fork_from_checkpoint(header.id, run_id, change=_change(edit))
    new = cli.manager.latest(str(made.run_id))
    assert new is not None
    document = Fork(
        run_id=new.run_id,
        checkpoint_id=new.checkpoint_id,
        step=new.step,
        forked_from=Origin(header.run_id, header.id, header.step),
        changed=[*edit],
    )

    def text() -> Iterator[object]:
        with_ = f" with another {', '.join(edit)}" if edit else ""
        yield Line.of(Cell(new.run_id, "bold"), f" begins at {header.run_id}@{header.step}{with_}")

    cli.give(document, text)


def _change(edit: dict[str, Any]) -> Callable[[Loaded, CheckpointDraft], CheckpointDraft]:
    from holdfast.core.values import Nature
    from holdfast.runtime.resume import edited

    graph_change = edited(edit)

    def change(loaded: Loaded, draft: CheckpointDraft) -> CheckpointDraft:
        if "now" in loaded.extra:  # a graph's: what comes next is decided anew
            return graph_change(loaded, draft)
        values = {**draft.values, **edit}
        natures = {**draft.natures, **dict.fromkeys(edit, Nature.LIVE)}
        return msgspec.structs.replace(draft, values=values, natures=natures)

    return change


def assignments(texts: list[str]) -> dict[str, Any]:
    """
    >>> assignments(["topic=kelp", "pages=[1, 2]"])
    {'topic': 'kelp', 'pages': [1, 2]}
    """
    made: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise UsageError(f"--set {text!r} is not of the form KEY=VALUE")
        made[key] = read_value(value)
    return made


def read_value(text: str) -> Any:
    """JSON if it is that, else the text itself."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
