"""Sessions of Strands agents, graphs and swarms in Surehold's journals.

```python
agent = Agent(session_manager=SureholdSessionManager("customer-7", "sqlite:///agents.db"))
```
"""

from __future__ import annotations

from strands.session import SnapshotSessionManager
from strands.session.snapshot_session_manager import (
    BidiAgentSaveLatestStrategy,
    MultiAgentSaveLatestStrategy,
    SaveLatestStrategy,
    SnapshotTrigger,
)

from surehold.core.closing import Closing
from surehold.engine.managers import CheckpointManager
from surehold.integrations.strands.storage import SureholdStorage
from surehold.storage.base import Storage


class SureholdSessionManager(SnapshotSessionManager, Closing):
    """A `SnapshotSessionManager` on any Surehold storage.

    *storage* is a `SureholdStorage` or what that takes. Every message is saved, because a save
    stores what changed: a killed process loses at most the call in progress. Call the agent
    without a prompt, and it continues: the tools that the last message asks for are called.
    The other settings are those of `SnapshotSessionManager`.
    """

    def __init__(
        self,
        session_id: str = "default-session",
        storage: SureholdStorage | CheckpointManager | Storage | str | None = None,
        *,
        save_latest_on: SaveLatestStrategy = "message",
        bidi_agent_save_latest_on: BidiAgentSaveLatestStrategy = "message",
        multi_agent_save_latest_on: MultiAgentSaveLatestStrategy = "node",
        snapshot_trigger: SnapshotTrigger | None = None,
    ) -> None:
        self._closes = not isinstance(storage, SureholdStorage)
        self.storage = storage if isinstance(storage, SureholdStorage) else SureholdStorage(storage)
        super().__init__(
            session_id,
            storage=self.storage,
            save_latest_on=save_latest_on,
            bidi_agent_save_latest_on=bidi_agent_save_latest_on,
            multi_agent_save_latest_on=multi_agent_save_latest_on,
            snapshot_trigger=snapshot_trigger,
        )

    def close(self) -> None:
        """Close the storage, if it was opened by this object."""
        if self._closes:
            self.storage.close()
