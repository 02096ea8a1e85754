from holdfast.integrations.agent_framework.storage import (
    HoldfastCheckpointStorage as HoldfastCheckpointStorage,
)
