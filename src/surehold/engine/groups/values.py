"""A checkpoint of a group, and the standing of its members, as values."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

import msgspec

from surehold.core.records import Header


class GroupMember(msgspec.Struct, frozen=True):
    """A member's part of a group's checkpoint."""

    run_id: str
    checkpoint_id: str
    step: int


class GroupCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint of all members of a group."""

    id: str
    group: str
    number: int
    """Counts the group's checkpoints from 1."""
    saved_at: datetime
    members: tuple[GroupMember, ...]
    pinned: bool = False


class MemberStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A member compared with the group's newest checkpoint."""

    run_id: str
    status: Literal["current", "ahead", "behind", "missing"]
    """``ahead``: it has saved since. ``behind``: its newest checkpoint is older than the group's.
    ``missing``: it has no checkpoint."""
    step: int | None = None
    group_step: int | None = None
    """The step at which the group's newest checkpoint has it."""


def run_id_of(group: str) -> str:
    """The run that keeps the checkpoints of a group."""
    return f"group-{group}"


def read_checkpoint(
    header: Header, members: dict[str, Any], *, group: str, pinned: bool
) -> GroupCheckpoint:
    """The group's checkpoint that a record of its run keeps."""
    return GroupCheckpoint(
        id=header.id,
        group=group,
        number=header.step,
        saved_at=header.saved_at,
        members=tuple(
            GroupMember(run_id, one["checkpoint_id"], one["step"])
            for run_id, one in members.items()
        ),
        pinned=pinned,
    )
