from surehold.checkpoint.groups.archive import import_group as import_group
from surehold.checkpoint.groups.awaited import AsyncGroup as AsyncGroup
from surehold.checkpoint.groups.definition import Group as Group
from surehold.checkpoint.groups.definition import group as group
from surehold.checkpoint.groups.values import GroupCheckpoint as GroupCheckpoint
from surehold.checkpoint.groups.values import MemberStatus as MemberStatus
