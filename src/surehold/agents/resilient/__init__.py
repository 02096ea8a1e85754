"""Checkpoints of agents: routine, before operations, on drift; and their restore.

Holds the managers that think in agents and the providers of their state. The journal and its
records belong to `engine.journal`.
"""

from __future__ import annotations

from surehold.agents.resilient.manager import (
    ResilientCheckpointManager as ResilientCheckpointManager,
)
