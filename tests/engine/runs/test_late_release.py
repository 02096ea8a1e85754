"""A lease that could not be released is taken again by its own process as soon as that works."""

from __future__ import annotations

import time

import pytest

import surehold
from surehold import MemoryStorage
from surehold.core.records import Lease
from surehold.errors import LeaseHeldError, StorageUnavailableError


class Server(MemoryStorage):
    """A server whose clock tells another end of a lease than its holder knows."""

    down = False

    def release_lease(self, lease: Lease) -> None:
        if self.down:
            # A renewal arrived whose answer did not.
            super().renew_lease(lease, now=time.time() + 9, ttl=30)
            raise StorageUnavailableError("the server is down")
        super().release_lease(lease)


def test_a_run_is_resumed_at_once_after_an_outage() -> None:
    storage = Server()
    with surehold.run("r", storage=storage) as run:
        run.checkpoint(done=1)
        storage.down = True
    storage.down = False
    with surehold.run("r", storage=storage) as run:
        assert run.state["done"] == 1


def test_a_run_that_is_open_in_this_process_stays_so() -> None:
    storage = Server()
    storage.down = True
    with surehold.run("r", storage=storage) as run:
        run.checkpoint(done=1)
    storage.down = False
    with surehold.run("r", storage=storage), pytest.raises(LeaseHeldError, match="already"):
        surehold.run("r", storage=storage).__enter__()


def test_a_run_of_the_same_id_in_another_storage_stays_open() -> None:
    away, used = Server(), Server()
    with surehold.run("r", storage=used) as run:
        run.checkpoint(done=1)
        away.down = True
        with surehold.run("r", storage=away) as other:
            other.checkpoint(done=1)
        with pytest.raises(LeaseHeldError, match="already"):
            surehold.run("r", storage=used).__enter__()
        run.checkpoint(done=2)
