"""Where a run of a fleet stands at a checkpoint, and how it is gone on with from there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from itertools import islice
from typing import Any, cast

import msgspec

from holdfast.checkpoint.effects import open_notes, read_line
from holdfast.checkpoint.inspect import CheckpointMetadata
from holdfast.checkpoint.journal import Reader
from holdfast.checkpoint.transfer import fleet_status
from holdfast.core.records import Header
from holdfast.core.state import State
from holdfast.errors import NotFoundError, ShapeError, UsageError
from holdfast.runtime.fleet.nodes import first_state
from holdfast.storage.base import RecordQuery, Storage

__all__ = [
    "CheckpointStatus",
    "check_team",
    "find_checkpoint",
    "listed",
    "nearest_ids",
    "other_task",
    "outdated",
]

_LOOKED_THROUGH = 500
"""Among so many of the newest ids the nearest are looked for."""


class CheckpointStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint of a fleet, and how its run is doing."""

    header: Header
    state: State
    base: State
    """The state that a text would change: this one or, if it ends the run, the one before."""
    newest: bool
    """Whether the run has come no further than this."""
    completed: bool
    """Whether the run is completed."""
    stalled: bool
    open: bool
    """Whether something of the round that follows is recorded."""
    before: Header | None
    """If it ends the run: the last checkpoint at which there was something left to do."""

    @property
    def run_id(self) -> str:
        """Its run."""
        return self.header.run_id

    @property
    def over(self) -> bool:
        """Whether the answer is written, so that a text would no longer be heard."""
        return self.completed or (self.open and self.state["decision"] == "answer")

    def fork_from(self) -> Header:
        """The checkpoint that a fork begins with."""
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
        """What *text* changes for the run itself; nothing, if there is none."""
        if not text or not self.state["task"]:
            return self.edited(text, team)
        if self.stalled:
            hearings = self.state["hearings"] + 1
            return {**self.edited(text, team), "stall_count": 0, "hearings": hearings}
        if self.open:  # what is recorded was said without this text, and is not asked again
            return {"inbox": [*self.state["inbox"], text]}
        return self.edited(text, team)

    def edited(self, text: str, team: Mapping[str, str]) -> dict[str, Any]:
        """What *text* changes where nothing after this checkpoint is to be kept."""
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
    state = reader.load_visible(header).state()
    if not isinstance(state, State) or "current_round" not in state or header.scope:
        raise UsageError(
            f"checkpoint {header.id} is none of a fleet", hint="resume it with what saved it"
        )
    run = reader.run(header.run_id)
    newest = reader.newest(run) if run is not None else None
    if run is None or newest is None:
        raise NotFoundError(f"run {header.run_id!r} is gone", run_id=header.run_id)
    stands = newest.step == header.step and read_line(reader, header, run.seq).end == run.seq
    completed = newest.status == "completed"
    before, base = None, state
    if header.status == "completed":
        earlier = reader.storage.headers(RecordQuery(run_id=run.run_id, scope=""))
        before = next((one for one in earlier if one.status != "completed"), None)
        if before is not None:
            base = cast(State, reader.load(before).state())
    return CheckpointStatus(
        header=header,
        state=state,
        base=base,
        newest=stands,
        completed=completed,
        stalled=stands and newest.status == "stalled",
        open=stands and not completed and bool(open_notes(reader, run).effects()),
        before=before,
    )


def listed(one: CheckpointMetadata) -> dict[str, Any]:
    """A checkpoint as a listing shows it, in the words that fleets know."""
    status = fleet_status(one.status)
    return {
        "checkpoint_id": one.checkpoint_id,
        "workflow_id": one.run_id,
        "timestamp": one.timestamp.isoformat(),
        "current_round": one.metadata.get("round", 0),
        "status": status,
        "metadata": {**one.metadata, "status": status},
    }


def outdated(
    storage: Storage, names: Iterable[str], oldest: datetime
) -> tuple[list[str], list[str]]:
    """Runs of these names that were completed before *oldest*; and those with checkpoints from
    before it that are not their newest."""
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


def nearest_ids(reader: Reader, wanted: str, name: str) -> list[str]:
    """Ids of checkpoints that look like *wanted*; if none does, the newest."""
    found = reader.storage.headers(RecordQuery(name=name, scope=""))
    ids = [header.id for header in islice(found, _LOOKED_THROUGH)]
    starts = [one for one in ids if one.startswith(wanted[:4])]
    return get_close_matches(wanted, ids, n=3, cutoff=0.6) or starts[:3] or ids[:3]


def check_team(state: State, team: Mapping[str, str]) -> None:
    """Raise a `ShapeError` if the participants are others than they were."""
    then = [*state["context"]["available_agents"]]
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


def other_task(run_id: str, task: str) -> UsageError:
    """The error of one who gives a run that is there another task."""
    return UsageError(
        f"run {run_id!r} is there already, with another task: {task[:60]!r}",
        hint="give the same task to go on with it, another workflow id to begin a new run, or"
        " resume_from_checkpoint= to add a text to it",
        run_id=run_id,
    )
