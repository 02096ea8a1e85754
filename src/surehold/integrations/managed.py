"""The manager of an integration, blocking and awaited."""

from __future__ import annotations

from typing import Self

from surehold.core.closing import Closing
from surehold.engine.managers import AsyncCheckpointManager, CheckpointManager, manager_for
from surehold.storage.base import Storage


class Managed(Closing):
    """Opens a manager, unless one is given, and closes what it opened."""

    def _manage(self, storage: CheckpointManager | Storage | str | None) -> None:
        self.manager = manager_for(storage)
        self._awaited = AsyncCheckpointManager.of(self.manager.face)
        self._closes = not isinstance(storage, CheckpointManager)

    def close(self) -> None:
        """Close the storage, if it was opened by this object."""
        self._awaited.finish()
        if self._closes:
            self.manager.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.close()
