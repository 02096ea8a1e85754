"""The two managers, blocking and awaited.

States are saved and loaded here; `engine.runs` holds a run that is executed. What an operation
does belongs to `engine.commit`.
"""

from __future__ import annotations

from surehold.engine.managers.awaited import AsyncCheckpointManager as AsyncCheckpointManager
from surehold.engine.managers.blocking import CheckpointManager as CheckpointManager
from surehold.engine.managers.blocking import Target as Target
from surehold.engine.managers.blocking import manager_for as manager_for
from surehold.engine.managers.blocking import opened as opened
from surehold.engine.managers.setup import Manager as Manager
