from surehold.engine.managers.awaited import AsyncCheckpointManager as AsyncCheckpointManager
from surehold.engine.managers.blocking import CheckpointManager as CheckpointManager
from surehold.engine.managers.blocking import manager_for as manager_for
from surehold.engine.managers.blocking import opened as opened
from surehold.engine.managers.migrate import Migrated as Migrated
from surehold.engine.managers.migrate import migrate_run as migrate_run
from surehold.engine.managers.setup import Manager as Manager
