"""Groups of runs: checkpoints of all members, restored, forked, pruned together.

The runs themselves, and what executes them, belong elsewhere.
"""

from __future__ import annotations

from surehold.engine.groups.archive import import_group as import_group
from surehold.engine.groups.definition import Group as Group
from surehold.engine.groups.definition import group as group
from surehold.engine.groups.definition import member_status as member_status
from surehold.engine.groups.values import GroupCheckpoint as GroupCheckpoint
from surehold.engine.groups.values import GroupMember as GroupMember
from surehold.engine.groups.values import MemberStatus as MemberStatus
