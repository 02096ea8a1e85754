"""The input that a caller gives for a run that is there already."""

from __future__ import annotations

from collections.abc import Collection

from surehold.core.records import Header
from surehold.core.state import State
from surehold.core.values import encode
from surehold.engine.hooks import HookManager, redacted
from surehold.engine.journal import Reader
from surehold.errors import CorruptError, UsageError


def check_begun_by(reader: Reader, state: State) -> None:
    """Raise a `UsageError` if the run of *state* is there and began with another name."""
    first = _first_checkpoint(reader, state.run_id)
    if first is not None and first.name != state.name:
        raise UsageError(
            f"run {state.run_id!r} is of {first.name!r}, not of {state.name!r}",
            hint="choose another run id",
            run_id=state.run_id,
        )


def check_input(
    reader: Reader,
    hooks: HookManager | None,
    given: State,
    version: int,
    inputs: Collection[str] | None = None,
) -> None:
    """Raise a `UsageError` if the run of *given* is there and began with other values.

    *inputs* are the keys to compare, all unless given. Nothing is compared where the journal no
    longer says what the run began with: the first checkpoint was pruned or is damaged, is a fork
    of a later step, or is of another *version* of the graph. A state that was saved is the run's
    own, and no input.
    """
    first = _first_checkpoint(reader, given.run_id)
    if first is None or first.step or first.schema != version or given.checkpoint_id is not None:
        return
    try:
        kept = reader.load(first).graph_state().to_dict()
    except CorruptError:
        return  # the run continues from a later checkpoint, which this one must not prevent
    now = given.to_dict()
    stored = redacted(now, hooks)

    def differs(name: str) -> bool:
        return encode(kept.get(name)) not in (encode(now.get(name)), encode(stored.get(name)))

    if any(differs(name) for name in (inputs or kept.keys() | now.keys())):
        raise UsageError(
            f"run {given.run_id!r} was begun with another input",
            hint=f"resume({given.run_id!r}) continues it; a new run needs another id, or another"
            " idempotency_key",
            run_id=given.run_id,
        )


def _first_checkpoint(reader: Reader, run_id: str) -> Header | None:
    first = next(reader.storage.read(run_id, first=1, last=1), None)
    return None if first is None or first.header.frame == "note" else first.header
