"""Stores with four methods (save, load, delete, list), used as storages."""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from surehold.core.records import Header, Record, gaps_between, open_record
from surehold.core.state import State, find_saver
from surehold.errors import ConflictError, CorruptError, StorageError, SureholdError
from surehold.storage.base import Batch
from surehold.storage.memory.storage import MemoryStorage

logger = logging.getLogger("surehold.storage")
T = TypeVar("T")

_JOURNAL = "surehold_journal"


@runtime_checkable
class StateStore(Protocol):
    """A store of one state for each run, blocking."""

    def save(self, state: State) -> object:
        """Keep *state* in place of an earlier one of its `run_id`."""

    def load(self, run_id: str) -> State:
        """The state of a run that `list` names, with the values that were saved."""

    def delete(self, run_id: str) -> object:
        """Remove the state of a run."""

    def list(self) -> Iterable[str]:
        """The ids of the runs."""


class StateStoreStorage(MemoryStorage):
    """A `StateStore` as a storage: each run is one state in it.

    That state is the newest of the run, with its journal beside the values, as text under
    ``surehold_journal``. Only the journal is read back, so a store may keep other values as it
    likes. Of an encrypted run the store is given no values.

    Every append writes the whole run again, so this is for short runs, and what was acknowledged
    is as durable as `save` of the store makes it. One process uses the store at a time: leases and
    queues are kept in memory.
    """

    def __init__(self, store: StateStore) -> None:
        super().__init__()
        self._states = store
        self._saving = threading.Lock()
        self._unsaved: set[str] = set()
        for run_id in self._ask("list", lambda: [*store.list()]):
            self._load(run_id)

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        with self._saving:
            results = super().append(batches)
            self._unsaved.update(batch.run_id for batch in batches)
            self._save()
            return results

    def delete(
        self, run_id: str, *, hide: Sequence[int] | None = None, erase: Sequence[int] | None = None
    ) -> int:
        with self._saving:
            count = super().delete(run_id, hide=hide, erase=erase)
            if count:
                self._unsaved.add(run_id)
                self._save()
            return count

    def rewrite(
        self, run_id: str, records: Sequence[Record], hidden: Collection[int], *, head: int
    ) -> str:
        with self._saving:
            where = super().rewrite(run_id, records, hidden, head=head)
            self._unsaved.add(run_id)
            self._save()
            return where

    def _save(self) -> None:
        """Write every run that the store lacks; one that fails is tried again."""
        for run_id in [*self._unsaved]:
            kept = self.inspect(run_id)
            if kept is None:
                self._ask("delete", lambda run_id=run_id: self._states.delete(run_id))  # type: ignore[misc]
            else:
                state = self._state_of(kept.records, kept.hidden)
                self._ask("save", lambda state=state: self._states.save(state))  # type: ignore[misc]
            self._unsaved.discard(run_id)

    def _load(self, run_id: str) -> None:
        state = self._ask("load", lambda: self._states.load(run_id))
        told = state.get(_JOURNAL)
        if told is None:
            logger.warning("the store has a state of %r, which is not a run of surehold", run_id)
            return
        records = [_read(run_id, line) for line in told["records"]]
        gaps = gaps_between((record.header.seq for record in records), after=0)
        batch = Batch(
            run_id=run_id,
            records=tuple(records),
            hide=tuple(told["hidden"]),
            erased=frozenset(gaps),
        )
        (conflict,) = super().append([batch])
        if conflict is not None:
            raise conflict

    def _ask(self, method: str, call: Callable[[], T]) -> T:
        try:
            return call()
        except SureholdError:
            raise
        except Exception as error:
            who = type(self._states).__name__
            raise StorageError(f"{method} of {who} failed: {error!r}") from error

    def _state_of(self, records: Sequence[Record], hidden: Collection[int]) -> State:
        lines = [
            [record.text.decode(), record.header.digest, base64.b64encode(record.body).decode()]
            for record in records
        ]
        newest = next((one for one in reversed(records) if one.header.frame != "note"), records[-1])
        header = newest.header
        values = self._values(header) if header.frame != "note" else {}
        values[_JOURNAL] = {"records": lines, "hidden": sorted(hidden)}
        state = State.new(values, run_id=header.run_id, name=header.name)
        return state.at(step=header.step, node=header.node, status=header.status)

    def _values(self, header: Header) -> dict[str, Any]:
        """The values of a checkpoint; none if this process cannot read them."""
        try:
            state = find_saver(self).load_checkpoint(header.id)
        except SureholdError:
            return {}
        values: dict[str, Any] = state.to_dict()
        return values


def _read(run_id: str, line: Any) -> Record:
    try:
        text, digest, body = line
        return open_record(text.encode(), digest, base64.b64decode(body))
    except (TypeError, ValueError) as error:
        raise CorruptError(f"run {run_id!r} has a record that is none", run_id=run_id) from error
