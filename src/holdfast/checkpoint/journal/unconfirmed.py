"""Appends of which it is not known whether they happened, because the storage failed under them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

from holdfast.errors import ConflictError
from holdfast.storage.base import Batch, Storage

__all__ = ["UnconfirmedAppends"]

_T = TypeVar("_T")
_RUNS = 64
"""Of so many runs it is remembered what was sent when the storage failed."""


class UnconfirmedAppends:
    """Appends, and finds out later what became of an append that failed.

    A save that is tried again after a `StorageError` must neither be stored twice nor be taken
    for that of someone else, where the first attempt was stored after all.
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
            for run_id in {batch.run_id for batch in batches}:
                its = [batch for batch in batches if batch.run_id == run_id and batch.records]
                if its:
                    _remember(self._sent, run_id, its)
            raise

    def resolve(self, run_id: str, seq: int) -> None:
        """Find out what became of what was sent to the run, of which *seq* is now the newest.

        What is there is appended again: that changes nothing, and makes sure that it lasts.
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
        _remember(self._stored, run_id, stored)
        del self._sent[run_id]

    def led_to(self, run_id: str, parent: str | None, checkpoint_id: str) -> bool:
        """Whether that checkpoint is of this process, saved from *parent* by an append that failed.

        What is saved from *parent* now goes on from it.
        """
        stored = self._stored.get(run_id, {})
        return checkpoint_id in stored and stored[checkpoint_id] == parent


def _remember(known: OrderedDict[str, _T], run_id: str, value: _T) -> None:
    known[run_id] = value
    if len(known) > _RUNS:
        known.popitem(last=False)
