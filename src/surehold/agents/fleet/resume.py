"""A fleet's checkpoint and its run, and how the run continues from there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from itertools import islice
from typing import Any, cast

import msgspec

from surehold.agents.fleet.nodes import OWN_ROUND, ROUND, first_state
from surehold.core.records import Header
from surehold.core.state import State
from surehold.engine.journal import (
    CheckpointMetadata,
    Loaded,
    Note,
    Reader,
    Tail,
    line_in,
    read_line,
)
from surehold.engine.runs import ledger_of
from surehold.engine.transfer import fleet_status
from surehold.errors import NotFoundError, ShapeError, UsageError
from surehold.storage.base import RecordQuery, RunInfo, Storage


class CheckpointStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a fleet, and the status of its run."""

    run: RunInfo
    header: Header
    state: State
    base: State
    """The state that a text changes: this one or, if it ends the run, the one before."""
    newest: bool
    """True if the run has come no further than this."""
    completed: bool
    """True if the run is completed."""
    stalled: bool
    open: bool
    """True if the next round has recorded something."""
    before: Header | None
    """If it ends the run: the last checkpoint before the end."""
    waiting: tuple[Note, ...]
    """What the run waits for."""

    @property
    def run_id(self) -> str:
        """The id of its run."""
        return self.header.run_id

    @property
    def over(self) -> bool:
        """True if the answer is written, and a text would come too late."""
        return self.completed or (self.open and self.state["decision"] == "answer")

    def fork_from(self) -> Header:
        """The checkpoint that a fork starts from."""
        if self.header.status != "completed":
            return self.header
        if self.before is None:
            raise UsageError(
                f"run {self.run_id!r} is completed, and its rounds are no longer kept",
                hint="begin a new run",
                run_id=self.run_id,
            )
        return self.before

    def heard(self, text: str, team: Mapping[str, str]) -> dict[str, Any]:
        """The changes that *text* makes to the run itself; none without a text."""
        if not text or not self.state["task"]:
            return self.edited(text, team)
        if self.stalled:
            hearings = self.state["hearings"] + 1
            return {**self.edited(text, team), "stall_count": 0, "hearings": hearings}
        if self.open:  # what is recorded was said without this text, and stays
            return {"inbox": [*self.state["inbox"], text]}
        return self.edited(text, team)

    def edited(self, text: str, team: Mapping[str, str]) -> dict[str, Any]:
        """The changes that *text* makes where nothing after this checkpoint is kept."""
        if not text:
            return {}
        if not self.base["task"]:
            begun = first_state(text, team)
            return {"task": text, "context": begun["context"]}
        said = {"speaker": "user", "content": text}
        return {"history": [*self.base["history"], said], "decision": "round"}


def find_checkpoint(reader: Reader, checkpoint_id: str, name: str) -> CheckpointStatus:
    """The fleet's checkpoint with that id, or a unique prefix of it."""
    try:
        header = reader.resolve(checkpoint_id)
    except NotFoundError as error:
        near = nearest_ids(reader, checkpoint_id, name)
        hint = f"the nearest: {', '.join(near)}" if near else "there are no checkpoints"
        raise NotFoundError(
            error.message, hint=hint, checkpoint_id=checkpoint_id, nearest=tuple(near)
        ) from None
    loaded = reader.load_visible(header)
    if header.scope:
        raise UsageError(
            f"checkpoint {header.id} is of the nested scope {header.scope!r}",
            hint="resume from a checkpoint of the fleet itself",
        )
    tail = reader.tail_of(header.run_id)
    if tail is None:
        raise NotFoundError(f"run {header.run_id!r} is gone", run_id=header.run_id)
    end = read_line(reader, header, tail.run.seq).end
    return _status(reader, loaded, tail, is_newest=end == tail.run.seq)


def find_newest(reader: Reader, run_id: str) -> CheckpointStatus | None:
    """The newest checkpoint of a fleet's run; None if there is no such run."""
    tail = reader.tail_of(run_id)
    if tail is None:
        return None
    line = line_in(reader.sealer, tail.notes, tail.loaded.header, tail.run.seq)
    return _status(reader, tail.loaded, tail, is_newest=line.end == tail.run.seq)


def _status(reader: Reader, loaded: Loaded, tail: Tail, *, is_newest: bool) -> CheckpointStatus:
    header, run, newest = loaded.header, tail.run, tail.loaded.header
    loaded.door.check("fleet", header.run_id, header.name)
    state = loaded.graph_state()
    current = newest.step == header.step and is_newest
    completed = newest.status == "completed"
    before, base = None, state
    if header.status == "completed":
        earlier = reader.storage.headers(RecordQuery(run_id=run.run_id, scope=""))
        before = next((one for one in earlier if one.status != "completed"), None)
        if before is not None:
            base = cast(State, reader.load(before).state())
    ledger = ledger_of(line_in(reader.sealer, tail.notes, newest, run.seq).notes)
    return CheckpointStatus(
        run=run,
        header=header,
        state=state,
        base=base,
        newest=current,
        completed=completed,
        stalled=current and newest.status == "stalled",
        open=current and not completed and bool(ledger.effects()),
        before=before,
        waiting=tuple(ledger.waiting()),
    )


def listed(one: CheckpointMetadata) -> dict[str, Any]:
    """A checkpoint as a listing shows it, with the status words of fleets."""
    status = fleet_status(one.status)
    shown = {key: value for key, value in one.metadata.items() if key != OWN_ROUND}
    return {
        "checkpoint_id": one.checkpoint_id,
        "workflow_id": one.run_id,
        "timestamp": one.timestamp.isoformat(),
        "current_round": one.metadata.get(OWN_ROUND, one.metadata.get(ROUND, 0)),
        "status": status,
        "metadata": {"status": status, **shown},
    }


def outdated(
    storage: Storage, names: Iterable[str], oldest: datetime
) -> tuple[list[str], list[str]]:
    """Runs of these names completed before *oldest*, and runs to thin out."""
    gone: list[str] = []
    thinned: list[str] = []
    for name in names:
        headers = storage.headers(RecordQuery(name=name, scope="", until=oldest))
        for run_id, count in Counter(header.run_id for header in headers).items():
            for newest in storage.headers(RecordQuery(run_id=run_id, scope="", limit=1)):
                dormant = newest.saved_at <= oldest
                if dormant and newest.status == "completed":
                    gone.append(run_id)
                elif count > dormant:
                    thinned.append(run_id)
    return gone, thinned


_LOOKED_THROUGH = 500
"""Number of the newest ids that are searched for near ones."""


def nearest_ids(reader: Reader, wanted: str, name: str) -> list[str]:
    """Checkpoint ids similar to *wanted*; if there are none, the newest."""
    found = reader.storage.headers(RecordQuery(name=name, scope=""))
    ids = [header.id for header in islice(found, _LOOKED_THROUGH)]
    starts = [one for one in ids if one.startswith(wanted[:4])]
    return get_close_matches(wanted, ids, n=3, cutoff=0.6) or starts[:3] or ids[:3]


def check_team(state: State, team: Mapping[str, str]) -> None:
    """Raise a `ShapeError` if the participants have changed; an import may name none."""
    then = [*(state["context"].get("available_agents") or team)]
    gone = [name for name in then if name not in team]
    new = [name for name in team if name not in then]
    if gone or new:
        said = [
            f"{word} {', '.join(names)}"
            for word, names in (("without", gone), ("with", new))
            if names
        ]
        raise ShapeError(
            f"run {state.run_id!r} was begun with other participants: now {' and '.join(said)}",
            hint=f"resume it with {', '.join(then)}, or begin a new run",
            run_id=state.run_id,
            removed=tuple(gone),
            added=tuple(new),
        )
