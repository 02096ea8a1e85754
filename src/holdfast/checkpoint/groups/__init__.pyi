from holdfast.checkpoint.groups.archive import import_group as import_group
from holdfast.checkpoint.groups.awaited import AsyncGroup as AsyncGroup
from holdfast.checkpoint.groups.definition import Group as Group
from holdfast.checkpoint.groups.definition import group as group
from holdfast.checkpoint.groups.values import GroupCheckpoint as GroupCheckpoint
from holdfast.checkpoint.groups.values import MemberStatus as MemberStatus
