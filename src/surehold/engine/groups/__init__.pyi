from surehold.engine.groups.archive import import_group as import_group
from surehold.engine.groups.awaited import AsyncGroup as AsyncGroup
from surehold.engine.groups.definition import Group as Group
from surehold.engine.groups.definition import group as group
from surehold.engine.groups.values import GroupCheckpoint as GroupCheckpoint
from surehold.engine.groups.values import MemberStatus as MemberStatus
