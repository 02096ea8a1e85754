from surehold.integrations.agent_framework.storage import (
    SureholdCheckpointStorage as SureholdCheckpointStorage,
)
