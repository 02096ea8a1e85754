"""Promises of `RunWatch` and `Watching`: a change is noticed, whoever made it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from surehold.storage.base import Storage, Watching
from surehold.storage.shared import RunWatch
from surehold.testing.contract.medium import Medium
from surehold.testing.journal import JournalWriter

_SOON = 0.01
_WAIT = 30.0
_NEVER = 3600.0


class WatchPromises(Medium):
    def test_a_watch_notices_an_append_to_its_run_and_no_other(self, storage: Storage) -> None:
        writer, other = JournalWriter("run"), JournalWriter("other")
        with (
            RunWatch(storage, "run", every=_SOON) as watch,
            RunWatch(storage, every=_SOON) as any_run,
        ):
            assert not watch.wait(0)
            for _ in range(2):
                writer.save(storage)
                assert watch.wait(_WAIT)
                assert any_run.wait(_WAIT)
                assert not watch.wait(0)
            other.save(storage)
            assert not watch.wait(0)
            assert any_run.wait(_WAIT)

    def test_a_watch_notices_that_its_run_was_deleted(self, storage: Storage) -> None:
        JournalWriter("run").save(storage)
        with RunWatch(storage, "run", every=_SOON) as watch:
            storage.delete("run")
            assert watch.wait(_WAIT)

    def test_subscribers_are_called_with_the_run_that_another_storage_appends_to(
        self, storage: Storage, directory: Path
    ) -> None:
        """No polling helps here: only the notification wakes the reader."""
        if not isinstance(storage, Watching) or not self.notifies:
            pytest.skip("this medium does not notify")
        self.must_survive()
        heard: list[str | None] = []
        connected, told = threading.Event(), threading.Event()

        def notify(run_id: str | None) -> None:
            heard.append(run_id)
            (connected if run_id is None else told).set()

        subscription = storage.subscribe(notify)
        assert connected.wait(_WAIT)
        with self.open(directory) as beside, RunWatch(storage, "run ü", every=_NEVER) as watch:
            JournalWriter("run ü").save(beside)
            assert told.wait(_WAIT)
            assert heard[-1] == "run ü"
            assert watch.wait(_WAIT)
            subscription.close()
            subscription.close()
            assert not subscription.is_live or watch.is_live
