from holdfast.checkpoint.manager.awaited import AsyncCheckpointManager as AsyncCheckpointManager
from holdfast.checkpoint.manager.awaited import StateManager as StateManager
from holdfast.checkpoint.manager.blocking import CheckpointManager as CheckpointManager
from holdfast.checkpoint.manager.blocking import manager_for as manager_for
from holdfast.checkpoint.manager.blocking import opened as opened
from holdfast.checkpoint.manager.setup import Manager as Manager
from holdfast.checkpoint.manager.writer_thread import await_uncancelled as await_uncancelled
from holdfast.checkpoint.manager.writer_thread import in_event_loop as in_event_loop
