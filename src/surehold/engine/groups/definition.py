"""`surehold.group`: several runs that are checkpointed as one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import msgspec

from surehold.core.closing import Closing
from surehold.core.records import Header, Lease, check_run_id, new_id
from surehold.core.state import AgentState, State
from surehold.engine.commit import mark_note, save_together
from surehold.engine.groups.values import (
    GroupCheckpoint,
    GroupMember,
    MemberStatus,
    read_checkpoint,
    run_id_of,
)
from surehold.engine.journal import CheckpointDraft, Note, Request, Saveable, draft_of
from surehold.engine.managers import CheckpointManager, Manager, manager_for
from surehold.errors import ConflictError, LeaseHeldError, NotFoundError, UsageError
from surehold.storage.base import (
    Atomic,
    Leasing,
    RecordQuery,
    Storage,
    is_live,
    newest_lease,
    this_process,
)

_NAME = "group"
"""The name of the runs that keep the checkpoints of groups."""
_INTENT = "group_intent"
_LEASE = 60.0
"""Seconds within which a checkpoint of a group must be stored."""
_PATIENCE = 10.0
"""Seconds to wait while another process takes a checkpoint of the group."""
_PAUSE = 0.02
_TRIES = 20
Target: TypeAlias = Manager | Storage | str | None


def group(name: str, members: Iterable[object] = (), *, storage: Target = None) -> Group:
    """Several runs of one storage that are checkpointed, restored and forked as one.

    *members* are run ids, names (of which the newest run counts), or agents and fleets. Left out,
    they are those of the group's newest checkpoint. They may be executed by any processes.

    >>> from surehold import CheckpointManager, State
    >>> manager = CheckpointManager("memory://")
    >>> for run_id in ("planner", "coder"):
    ...     _ = manager.save_checkpoint(State.new({"n": 1}, run_id=run_id))
    >>> crew = group("crew", ["planner", "coder"], storage=manager)
    >>> taken = crew.checkpoint()
    >>> sorted(crew.restore(taken.id))
    ['coder', 'planner']
    """
    return Group(name, members, storage=storage)


class Group(Closing):
    """Runs that are checkpointed as one; made by `surehold.group`.

    A checkpoint of the group pins the checkpoints of its members, so that retention keeps them
    for as long as it is there.
    """

    def __init__(
        self, name: str, members: Iterable[object] = (), *, storage: Target = None
    ) -> None:
        self.name = check_run_id(name, "name")
        given = [members] if isinstance(members, str) else [*members]
        self.members = tuple(dict.fromkeys(map(_member_name, given)))
        chosen = _common_manager(given, storage)
        self._owns = not isinstance(chosen, Manager)
        if isinstance(chosen, Manager) and not isinstance(chosen, CheckpointManager):
            chosen = CheckpointManager.of(chosen.face)
        self.manager = manager_for(chosen)
        self._run_id = run_id_of(self.name)
        self._settle()

    def checkpoint(
        self, states: Iterable[Saveable] = (), *, at_step: int | None = None
    ) -> GroupCheckpoint:
        """Take one checkpoint of all members; if one member fails, no checkpoint exists.

        A member whose state is among *states* is saved with it; of the others the newest
        checkpoint is taken. One without a checkpoint is a `NotFoundError`, and one that has not
        reached *at_step* a `ConflictError`; both name the members.
        """
        given = {_run_of(state): state for state in states}
        with self._alone() as epoch:  # first: it may take back what is the newest of a member
            members = self._resolved(given)
            for _ in range(_TRIES):
                try:
                    return self._take(self._parts(members, given, at_step), given, epoch)
                except ConflictError as error:
                    # Only what others have saved since is taken again.
                    if given or "members" in error.facts:
                        raise
        raise ConflictError(
            f"group {self.name!r}: its members changed during every attempt to save it"
        )

    def checkpoints(self) -> list[GroupCheckpoint]:
        """The group's checkpoints, newest first."""
        return list(self._checkpoints())

    def latest(self) -> GroupCheckpoint | None:
        """The group's newest checkpoint."""
        return next(self._checkpoints(limit=1), None)

    def status(self) -> list[MemberStatus]:
        """Compare every member with the group's newest checkpoint."""
        latest = self.latest()
        taken = {one.run_id: one for one in latest.members} if latest else {}
        found = []
        for member in self.members or [*taken]:
            run_id = self._run(member) or member
            found.append(member_status(self.manager, run_id, taken.get(run_id)))
        return found

    def restore(self, checkpoint_id: str | None = None) -> dict[str, Saveable]:
        """Load the states of all members at a checkpoint, by default the newest.

        What is saved next continues from them. If a member's checkpoint cannot be loaded, none
        is: the error names it.
        """
        chosen = self._chosen(checkpoint_id)
        self._check_whole(chosen)
        return {
            one.run_id: self.manager.load_checkpoint(one.checkpoint_id) for one in chosen.members
        }

    def rewind(self, checkpoint_id: str | None = None) -> GroupCheckpoint:
        """Make an earlier checkpoint of the group the newest of all members.

        It is one commit, and nothing is dropped: what came in between stays in the journals. A
        member that a loop or nothing executes may be rewound; any other would repeat its calls.
        """
        chosen = self._chosen(checkpoint_id)
        self._check_whole(chosen)
        executed = [one.run_id for one in chosen.members if self._is_executed(one)]
        if executed:
            raise UsageError(
                f"group {self.name!r}: {', '.join(map(repr, executed))} would repeat calls",
                hint=f"fork the group, and resume the forks: surehold group fork {self.name} NAME",
                members=executed,
            )
        states = self.restore(chosen.id).values()
        return self.checkpoint(
            state.at(kind="recovery") if isinstance(state, State) else state for state in states
        )

    def fork(self, name: str, checkpoint_id: str | None = None) -> Group:
        """Begin a new group, every member of it a fork called ``{member}-{name}``.

        After an interruption, call it again: the group exists only once all forks exist.
        """
        chosen = self._chosen(checkpoint_id)
        self._check_whole(chosen)
        made = {one.run_id: f"{one.run_id}-{name}" for one in chosen.members}
        other = Group(name, made.values(), storage=self.manager)
        if other.latest() is not None:
            raise UsageError(f"there is a group {name!r} already", hint="fork to another name")
        for one in chosen.members:
            if not self._is_fork(made[one.run_id], one):
                self.manager.fork_from_checkpoint(one.checkpoint_id, made[one.run_id])
        other.checkpoint()
        return other

    def pin(self, checkpoint_id: str) -> None:
        """Pin a checkpoint of the group, so that `prune` keeps it under any rules."""
        self.manager.pin(self._chosen(checkpoint_id).id)

    def unpin(self, checkpoint_id: str) -> None:
        """Let `prune` decide about a checkpoint of the group again."""
        self.manager.unpin(self._chosen(checkpoint_id).id)

    def prune(self, keep: int) -> list[GroupCheckpoint]:
        """Drop all but the newest *keep* checkpoints of the group, and those pinned.

        The members' checkpoints in them are given back to the members' own retention rules.
        Returns what was dropped.
        """
        if keep < 1:
            raise UsageError(f"keep is {keep}", hint="the newest checkpoint always stays")
        gone = [one for one in self.checkpoints()[keep:] if not one.pinned]
        for one in gone:
            self.delete(one.id)
        return gone

    def delete(self, checkpoint_id: str) -> None:
        """Drop one checkpoint of the group; its members' checkpoints stay."""
        chosen = self._chosen(checkpoint_id)
        self.manager.delete_checkpoint(chosen.id)
        self._unpin(chosen.members)

    def export(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the group and all runs in its newest checkpoint to one file."""
        from surehold.engine.groups.archive import export_group

        chosen = self._chosen(None)
        self._check_whole(chosen)
        runs = [*(one.run_id for one in chosen.members), self._run_id]
        export_group(self.manager, self.name, runs, path, overwrite=overwrite)

    def close(self) -> None:
        """Close the storage, if the group opened it."""
        if self._owns:
            self.manager.close()

    def __repr__(self) -> str:
        return f"<Group {self.name} of {', '.join(self.members)}>"

    # Taking one

    def _parts(
        self, members: Iterable[str], given: Mapping[str, Saveable], at_step: int | None
    ) -> dict[str, Header | CheckpointDraft]:
        """Each member's newest checkpoint, or the draft of its state."""
        found = {
            run_id: self._draft(given[run_id]) if run_id in given else self._newest(run_id)
            for run_id in members
        }
        parts = {run_id: part for run_id, part in found.items() if part is not None}
        if missing := [run_id for run_id in found if run_id not in parts]:
            raise NotFoundError(
                f"group {self.name!r}: no checkpoint of {', '.join(map(repr, missing))}",
                hint="save it first, or give its state",
                members=missing,
            )
        if behind := [one for one, part in parts.items() if _step_of(part) < (at_step or 0)]:
            raise ConflictError(
                f"group {self.name!r}: {', '.join(map(repr, behind))} did not reach step {at_step}",
                hint="wait for it, or take the checkpoint without at_step",
                members=behind,
            )
        return parts

    def _draft(self, state: Saveable) -> CheckpointDraft:
        if isinstance(state, AgentState):
            self.manager.face.agent_runs.join(state)
        draft = draft_of(state)
        return msgspec.structs.replace(draft, id=draft.id or _new_id())

    def _take(
        self,
        parts: Mapping[str, Header | CheckpointDraft],
        given: Mapping[str, Saveable],
        epoch: int | None,
    ) -> GroupCheckpoint:
        content = {
            run_id: {"checkpoint_id": part.id, "step": _step_of(part)}
            for run_id, part in parts.items()
        }
        record = self.manager.resume_from_latest(self._run_id)
        record = record or State.new({}, run_id=self._run_id, name=_NAME)
        record = record.set("members", content).at(
            step=record.step + 1,
            kind=_NAME,
            status="completed",
            metadata={"group": self.name, "members": len(content)},
        )
        draft = msgspec.structs.replace(draft_of(record), id=_new_id())
        saves = {run_id: parts[run_id].id for run_id in given}
        intent = Note(
            kind=_INTENT, content={}, name=_NAME, metadata={"id": draft.id, "saves": saves}
        )
        requests = [(self._request(one, part), given.get(one)) for one, part in parts.items()]
        made = self.manager.perform(
            save_together(self.manager.face, requests, draft, intent, epoch)
        )
        return read_checkpoint(made, content, group=self.name, pinned=False)

    def _request(self, run_id: str, part: Header | CheckpointDraft) -> Request:
        if isinstance(part, Header):
            return Request(run_id=run_id, notes=(self._pinned(part),))
        pin = lambda header: (self._pinned(header),)  # noqa: E731
        return Request(run_id=run_id, draft=part, force=True, notes_for=pin)

    def _pinned(self, header: Header, *, on: bool = True) -> Note:
        return mark_note(header, "pin", content={"on": on, "group": self.name})

    @contextmanager
    def _alone(self) -> Iterator[int | None]:
        """Hold the group's run where a crash could leave a checkpoint half taken.

        Gives the epoch of its lease.
        """
        storage = self.manager.storage
        if isinstance(storage, Atomic) or not isinstance(storage, Leasing):
            yield None
            return
        lease = self._wait_for_lease(storage)
        try:
            self._take_back()
            yield lease.epoch
        finally:
            storage.release_lease(lease)

    def _wait_for_lease(self, storage: Leasing) -> Lease:
        give_up = time.monotonic() + _PATIENCE
        while True:
            try:
                return storage.take_lease(self._run_id, this_process(), now=time.time(), ttl=_LEASE)
            except LeaseHeldError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(_PAUSE)

    def _settle(self) -> None:
        """Take back what a process that died had saved of a checkpoint of this group."""
        storage = self.manager.storage
        if isinstance(storage, Atomic) or not any(self._half_taken()):
            return
        held = newest_lease(storage, self._run_id)
        if not is_live(held, time.time()):  # else its holder is taking one just now
            with self._alone():
                pass

    def _take_back(self) -> None:
        for run_id, header in self._half_taken():
            self.manager.storage.delete(run_id, hide=[header.seq])
            self.manager.face.journal.invalidate(run_id)
            self.manager.retention.forget(run_id, header.name)

    def _half_taken(self) -> Iterator[tuple[str, Header]]:
        """The members' checkpoints saved for a group checkpoint that does not exist."""
        storage = self.manager.storage
        taken = {one.id for one in self._checkpoints()}
        query = RecordQuery(run_id=self._run_id, kind=_INTENT, notes=True)
        for intent in storage.headers(query):
            if intent.metadata["id"] in taken:
                break
            for run_id, checkpoint_id in intent.metadata["saves"].items():
                for header in storage.find(checkpoint_id):
                    if (header.run_id, header.id) == (run_id, checkpoint_id):
                        yield run_id, header

    # Looking

    def _checkpoints(self, limit: int | None = None) -> Iterator[GroupCheckpoint]:
        storage, reader = self.manager.storage, self.manager.reader
        pinned = self.manager.retention.marks(self._run_id).pinned
        for header in storage.headers(RecordQuery(run_id=self._run_id, kind=_NAME, limit=limit)):
            state = reader.load_visible(header).graph_state()
            yield read_checkpoint(
                header, state["members"], group=self.name, pinned=header.seq in pinned
            )

    def _chosen(self, checkpoint_id: str | None) -> GroupCheckpoint:
        every = self._checkpoints(limit=1 if checkpoint_id is None else None)
        found = [one for one in every if one.id.startswith(checkpoint_id or "")]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{checkpoint_id!r} begins the ids of {len(found)} checkpoints")
        what = f"checkpoint {checkpoint_id!r}" if checkpoint_id else "checkpoint"
        raise NotFoundError(
            f"group {self.name!r} has no {what}",
            hint=f"take one with: surehold group checkpoint {self.name} RUN ...",
        )

    def _check_whole(self, chosen: GroupCheckpoint) -> None:
        lost = [one.run_id for one in chosen.members if not self.manager.exists(one.checkpoint_id)]
        if lost:
            raise NotFoundError(
                f"group {self.name!r}: the checkpoints of {', '.join(map(repr, lost))} are missing",
                hint="restore an older checkpoint of the group, or bring the runs back from a copy",
                members=lost,
            )

    def _is_executed(self, member: GroupMember) -> bool:
        """True if the member continues by what it has recorded, not by its state alone."""
        header = self.manager.reader.resolve(member.checkpoint_id)
        return self.manager.reader.door(header).kind not in ("loop", "manager")

    def _resolved(self, given: dict[str, Saveable]) -> list[str]:
        """The run ids of all members; those of given states among them."""
        latest = None if self.members else self.latest()
        names = self.members or (one.run_id for one in latest.members) if latest else self.members
        found = dict.fromkeys(self._run(name) or name for name in names)
        found |= dict.fromkeys(given)
        if not found:
            raise UsageError(
                f"group {self.name!r} has no members", hint='group("crew", ["run-1", "run-2"])'
            )
        return [*found]

    def _run(self, member: str) -> str | None:
        """The id of a member's run, or of the newest run of that name."""
        return next((run.run_id for run in self.manager.reader.runs_of(member)), None)

    def _newest(self, run_id: str) -> Header | None:
        return _newest_of(self.manager, run_id)

    def _is_fork(self, run_id: str, source: GroupMember) -> bool:
        """True if an interrupted fork of the group made that run."""
        newest = self._newest(run_id)
        return (
            newest is not None and newest.kind == "fork" and newest.parent == source.checkpoint_id
        )

    def _unpin(self, members: Iterable[GroupMember]) -> None:
        """Release checkpoints that no other checkpoint of the group, and no user, pins."""
        kept = {part.checkpoint_id for one in self._checkpoints() for part in one.members}
        for part in members:
            for header in self.manager.storage.find(part.checkpoint_id):
                if part.checkpoint_id not in kept:
                    # A release ends all pins of a checkpoint: those of others are set again.
                    notes = [self._pinned(header, on=False)]
                    for other in self._other_pins(header):
                        content = {"on": True} if other is None else {"on": True, "group": other}
                        notes.append(mark_note(header, "pin", content=content))
                    self.manager.append_notes(header.run_id, notes)

    def _other_pins(self, header: Header) -> list[str | None]:
        """The other groups that pin a checkpoint; None for a user."""
        query = RecordQuery(run_id=header.run_id, kind="pin", notes=True)
        pins: dict[str | None, bool] = {}
        for note in self.manager.storage.headers(query):  # newest first
            if note.frame == "note" and note.metadata.get("target") == header.seq:
                pins.setdefault(note.metadata.get("group"), bool(note.metadata["on"]))
        pins.pop(self.name, None)
        return [other for other, on in pins.items() if on]


def member_status(
    manager: CheckpointManager, run_id: str, taken: GroupMember | None
) -> MemberStatus:
    """Compare a run with its part of a group's checkpoint; only reads."""
    newest = _newest_of(manager, run_id)
    group_step = taken.step if taken else None
    if newest is None:
        return MemberStatus(run_id=run_id, status="missing", group_step=group_step)
    status: Any = "ahead"
    if taken is not None and newest.id == taken.checkpoint_id:
        status = "current"
    elif taken is not None:
        found = manager.storage.find(taken.checkpoint_id)
        then = next((one.seq for one in found if one.run_id == run_id), newest.seq + 1)
        status = "ahead" if newest.seq > then else "behind"
    return MemberStatus(run_id=run_id, status=status, step=newest.step, group_step=group_step)


def _newest_of(manager: CheckpointManager, run_id: str) -> Header | None:
    found = manager.reader.head_and_newest(run_id)
    return found[1] if found is not None else None


def _new_id() -> str:
    return new_id(time.time_ns(), os.urandom(8))


def _step_of(part: Header | CheckpointDraft) -> int:
    return part.step if isinstance(part, Header) else part.place.step


def _run_of(state: Saveable) -> str:
    if not state.run_id:
        raise UsageError("a state has no run_id", hint="save it once, or give it a run_id")
    return state.run_id


def _member_name(member: object) -> str:
    """The run id or name that a member is known by."""
    if isinstance(member, str):
        return check_run_id(member, "a member")
    for attribute in ("run_id", "agent_id", "name"):
        found = getattr(member, attribute, None)
        if isinstance(found, str) and found:
            return found
    raise UsageError(
        f"a {type(member).__name__} is not a member of a group",
        hint="give run ids, names, agents or fleets",
    )


def _common_manager(members: Sequence[object], storage: Target) -> Target:
    """The manager of all members; a `UsageError` if agents have several storages."""
    found: list[Manager] = []
    for member in members:
        for holder in (member, getattr(member, "graph", None)):
            for attribute in ("state_manager", "manager", "_manager"):
                held = getattr(holder, attribute, None)
                if isinstance(held, Manager):
                    found.append(held)
    named = storage.storage if isinstance(storage, Manager) else storage
    media = [one.storage for one in found] + ([named] if isinstance(named, Storage) else [])
    places = {_place(one) for one in media}
    if len(places) > 1:
        raise UsageError(
            f"the members are in {len(places)} storages: one checkpoint of all cannot be atomic",
            hint="give all agents the same storage=",
        )
    return found[0] if storage is None and found else storage


def _place(storage: Storage) -> object:
    """By what two storages are known to be on one medium."""
    return getattr(storage, "path", None) or getattr(storage, "_path", None) or id(storage)
