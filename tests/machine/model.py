"""What the runs in a storage should be, kept as plainly as can be: a list of all checkpoints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from surehold import Rules, plan_prune
from surehold.core.records.record import Header

__all__ = ["Checkpoint", "Model"]


@dataclass
class Checkpoint:
    """A checkpoint that was saved."""

    id: str
    run_id: str
    name: str
    scope: str
    place: int
    """Counts all checkpoints in the order in which they were saved."""
    state: Any
    step: int
    kind: str
    status: str
    parent: str | None
    saved_at: datetime
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)
    visible: bool = True
    pinned: bool = False
    released: bool = False

    def header(self) -> Header:
        """As retention sees it."""
        return Header(
            run_id=self.run_id,
            seq=self.place,
            id=self.id,
            frame="key",
            saved_at=self.saved_at,
            name=self.name,
            scope=self.scope,
            step=self.step,
            kind=self.kind,
            status=self.status,
            tags=self.tags,
            metadata=self.metadata,
        )


class Model:
    """All checkpoints that were ever saved, and which of them are there."""

    def __init__(self) -> None:
        self.saved: list[Checkpoint] = []
        self.runs: list[str] = []
        """In the order in which they began."""

    def add(self, checkpoint: Checkpoint) -> None:
        self.saved.append(checkpoint)
        if checkpoint.run_id not in self.runs:
            self.runs.append(checkpoint.run_id)

    def visible(self, run_id: str | None = None, scope: str | None = None) -> list[Checkpoint]:
        """Those that are there, newest first."""
        return [
            one
            for one in reversed(self.saved)
            if one.visible and run_id in (None, one.run_id) and scope in (None, one.scope)
        ]

    def of_name(self, name: str) -> list[Checkpoint]:
        return [one for one in self.visible() if one.name == name]

    def newest(self, run_id: str, scope: str = "") -> Checkpoint | None:
        return next(iter(self.visible(run_id, scope)), None)

    def to_resume(self, name: str) -> Checkpoint | None:
        """The newest checkpoint of the newest run of a name that is not completed."""
        for run_id in reversed(self.runs):
            newest = self.newest(run_id)
            named = any(one.name == name for one in self.visible(run_id))
            if named and (newest is None or newest.status != "completed"):
                return newest
        return None

    def get(self, checkpoint_id: str) -> Checkpoint:
        return next(one for one in reversed(self.saved) if one.id == checkpoint_id)

    def hide(self, gone: Iterable[Checkpoint]) -> int:
        count = 0
        for one in gone:
            one.visible = False
            count += 1
        return count

    def prune_as_saved(self, new: Checkpoint, rules: Rules, now: datetime) -> int:
        """What a save under *rules* drops: of its run, of its name, or of all."""
        if rules.group_by == "all":
            group = self.visible()
        elif rules.group_by == "name" and new.name:
            group = self.of_name(new.name)
        else:
            group = self.visible(new.run_id)
        return self.hide(self._dropped(group, rules, now))

    def prune_runs(self, runs: Iterable[str], rules: Rules, now: datetime) -> int:
        """What cleaning these runs up drops; counted over all, where all are counted together."""
        chosen = set(runs)
        every = [one for one in self.visible() if rules.group_by == "all" or one.run_id in chosen]
        return self.hide(self._dropped(every, rules, now))

    def _dropped(self, group: list[Checkpoint], rules: Rules, now: datetime) -> list[Checkpoint]:
        pinned = {(one.run_id, one.place) for one in group if one.pinned}
        released = {(one.run_id, one.place) for one in group if one.released}
        headers = [one.header() for one in group]
        plan = plan_prune(headers, rules, now, pinned=pinned, released=released)
        gone = [one for one, decision in zip(group, plan, strict=True) if not decision.keep]
        self._check_promises(group, gone, rules)
        return gone

    def _check_promises(
        self, group: list[Checkpoint], gone: list[Checkpoint], rules: Rules
    ) -> None:
        """What holds whatever the plan says."""
        assert not any(one.pinned for one in gone)
        first_seen: dict[tuple[str, str], Checkpoint] = {}
        for one in group:
            owner = one.name if rules.group_by == "name" and one.name else f"run {one.run_id}"
            first_seen.setdefault((owner, one.scope), one)
        assert not any(one in gone for one in first_seen.values()), "the newest went"
