from surehold.agents.resilient.manager import (
    ResilientCheckpointManager as ResilientCheckpointManager,
)
