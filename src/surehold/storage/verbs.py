"""The four verbs of a store of states, for every storage."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from surehold.core.state import State, find_saver
from surehold.errors import NotFoundError


class StateVerbs(ABC):
    """`save`, `load` and `list`, which with `delete` make a storage a store of states."""

    @abstractmethod
    def _newest_id(self, run_id: str) -> str | None:
        """The id of a run's newest checkpoint."""

    @abstractmethod
    def _run_ids(self) -> Iterable[str]:
        """The ids of all runs."""

    def save(self, state: State) -> str:
        """Save a state as the newest of its run; return the checkpoint's id."""
        return find_saver(self).save_checkpoint(state)

    def load(self, run_id: str) -> Any:
        """Load the newest state of a run, or raise a `NotFoundError`."""
        newest = self._newest_id(run_id)
        if newest is None:
            raise NotFoundError(f"there is no run {run_id!r}", hint="list() names the runs")
        return find_saver(self).load_checkpoint(newest)

    def list(self) -> Iterable[str]:
        """List the ids of all runs, the one that began last first."""
        return [*self._run_ids()]
