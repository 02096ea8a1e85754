from surehold.checkpoint.manager.awaited import AsyncCheckpointManager as AsyncCheckpointManager
from surehold.checkpoint.manager.awaited import StateManager as StateManager
from surehold.checkpoint.manager.blocking import CheckpointManager as CheckpointManager
from surehold.checkpoint.manager.blocking import manager_for as manager_for
from surehold.checkpoint.manager.blocking import opened as opened
from surehold.checkpoint.manager.setup import Manager as Manager
from surehold.checkpoint.manager.writer_thread import await_uncancelled as await_uncancelled
from surehold.checkpoint.manager.writer_thread import in_event_loop as in_event_loop
