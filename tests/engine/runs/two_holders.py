"""Two holders of one run that write through one manager, the first without its lease."""

from __future__ import annotations

import contextvars
import time

import pytest

import surehold
from surehold import CheckpointManager, Storage
from surehold.core.records import Lease
from surehold.engine.journal import Note, Request
from surehold.engine.leases import GrantedLease
from surehold.errors import ConflictError
from surehold.storage.base import Leasing, RecordQuery, this_process

HOUR = 3600.0


def refuse_the_first_of_two_holders(storage: Storage) -> None:
    """Take a run over on the same manager: its first holder can write nothing any more."""
    manager = CheckpointManager(storage)
    first = surehold.run("r", storage=manager)
    second = surehold.run("r", storage=manager)
    apart = contextvars.Context()
    with pytest.raises(ConflictError), first:
        assert first.call(str.upper, "a") == "A"
        first.checkpoint(step=1)
        lease = _taken_over(storage)
        apart.run(GrantedLease(lease).used().__enter__)
        apart.run(second.__enter__)
        assert second.attempt == lease.epoch == 2
        apart.run(second.call, str.upper, "b")
        with pytest.raises(ConflictError):
            first.call(str.upper, "stale note")
        apart.run(second.call, str.upper, "c")
        with pytest.raises(ConflictError):
            first.checkpoint(step=2)
        apart.run(second.checkpoint, step=3)
        first.call(str.upper, "stale again")
    apart.run(second.__exit__, None, None, None)
    newest = manager.latest("r")
    assert newest is not None and newest.status == "completed"
    written = list(storage.headers(RecordQuery(run_id="r", notes=True)))[::-1]
    assert [one.seq for one in written] == [*range(1, len(written) + 1)]
    epochs = [one.epoch for one in written]
    assert epochs == sorted(epochs), "nothing of the first after the second began"


def refuse_one_of_a_commit(storage: Storage) -> None:
    """Commit notes of both holders together: the stale one alone is refused, in any order."""
    manager = CheckpointManager(storage)
    with surehold.run("r", storage=manager) as run:
        run.checkpoint(step=1)
    assert _taken_over(storage).epoch == 2
    journal = manager.face.journal
    for order in ([1, 2], [2, 1], [2, 1, 2], [1, 2, 1]):
        notes = (Note(kind="effect", content={}),)
        requests = [Request(run_id="r", notes=notes, epoch=epoch) for epoch in order]
        outcomes = journal.commit(requests)
        assert [outcome.error is None for outcome in outcomes] == [one == 2 for one in order]


def _taken_over(storage: Storage) -> Lease:
    assert isinstance(storage, Leasing)
    return storage.take_lease("r", this_process(), now=time.time() + HOUR, ttl=HOUR)
