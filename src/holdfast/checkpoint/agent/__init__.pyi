from holdfast.checkpoint.agent.resilient import (
    ResilientCheckpointManager as ResilientCheckpointManager,
)
