from surehold.checkpoint.agent.manager import (
    ResilientCheckpointManager as ResilientCheckpointManager,
)
