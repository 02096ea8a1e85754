from holdfast.checkpoint.agent.manager import (
    ResilientCheckpointManager as ResilientCheckpointManager,
)
