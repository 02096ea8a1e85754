"""Appends whose outcome is unknown, because the storage failed during the call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from surehold.core.values import remember
from surehold.errors import ConflictError
from surehold.storage.base import Batch, Storage

_RUNS = 64
"""The number of runs whose failed appends are remembered."""


class UnconfirmedAppends:
    """Appends batches, and finds out later what became of an append that failed.

    A save that is retried after a `StorageError` must neither be stored twice nor be mistaken for
    another writer's if the first attempt was stored after all.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._sent: OrderedDict[str, list[Batch]] = OrderedDict()
        self._stored: OrderedDict[str, dict[str, str | None]] = OrderedDict()

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        """Append, and remember what was sent if that fails."""
        try:
            return self._storage.append(batches)
        except BaseException:
            self.remember(batches)
            raise

    def remember(self, batches: Sequence[Batch]) -> None:
        """Remember batches that were sent, or perhaps not."""
        for run_id in {batch.run_id for batch in batches}:
            its = [batch for batch in batches if batch.run_id == run_id and batch.records]
            if its:
                remember(self._sent, run_id, its, most=_RUNS)

    def has_sent(self, run_id: str) -> bool:
        """Return True if batches were sent to the run that it may or may not have."""
        return run_id in self._sent

    def resolve(self, run_id: str, seq: int) -> None:
        """Find out which batches sent to the run, now at *seq*, were stored.

        Those that are there are appended again, which changes nothing and makes sure they last.
        """
        sent = self._sent.get(run_id)
        if sent is None:
            return
        there = [batch for batch in sent if batch.records[-1].header.seq <= seq]
        stored: dict[str, str | None] = {}
        if there:
            for batch, refused in zip(there, self._storage.append(there), strict=True):
                if refused is None:
                    stored |= {r.header.id: r.header.parent for r in batch.records}
        remember(self._stored, run_id, stored, most=_RUNS)
        del self._sent[run_id]

    def led_to(self, run_id: str, parent: str | None, checkpoint_id: str) -> bool:
        """Return True if a failed append of this process stored that checkpoint.

        A state saved from *parent* then continues from it.
        """
        stored = self._stored.get(run_id, {})
        return checkpoint_id in stored and stored[checkpoint_id] == parent
