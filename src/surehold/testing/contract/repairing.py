"""Promises of `Repairable`: inspect a run, rewrite it as its whole records."""

from __future__ import annotations

import pytest

from surehold.errors import ConflictError, UsageError
from surehold.storage.base import Leasing, RunQuery, Storage, this_process
from surehold.testing.contract.medium import Medium, infos, seqs, stored
from surehold.testing.journal import JournalWriter


class RepairPromises(Medium):
    def test_a_sound_medium_has_no_problems(self, storage: Storage) -> None:
        JournalWriter("run").save(storage)
        assert self.repairable(storage).check_medium(repair=False) == []
        assert self.repairable(storage).check_medium(repair=True) == []

    def test_every_run_is_known(self, storage: Storage) -> None:
        storage.append([JournalWriter(run_id).batch() for run_id in ("b", "a")])
        storage.delete("b")
        assert self.repairable(storage).known_runs() == ["a"]

    def test_an_inspection_holds_all_records_and_says_which_are_hidden(
        self, storage: Storage
    ) -> None:
        writer = JournalWriter()
        records = [writer.save(storage) for _ in range(5)]
        storage.delete("run", hide=[2], erase=[3])
        for view in self.views(storage):
            found = self.repairable(view).inspect("run")
            assert found is not None
            assert found.records == (*records[:2], *records[3:])
            assert (set(found.hidden), list(found.problems), found.head) == ({2}, [], 5)
            assert self.repairable(view).inspect("no run") is None

    def test_a_run_is_rewritten_as_the_records_given(self, storage: Storage) -> None:
        writer = JournalWriter("run", name="agent")
        records = [writer.save(storage, step=n, status="failed") for n in range(1, 6)]
        JournalWriter("other").save(storage)
        (before,) = storage.runs(RunQuery(run_id="run"))
        kept = [records[0], *records[2:4]]
        assert self.repairable(storage).rewrite("run", kept, {4}, head=5)
        for view in self.views(storage):
            assert stored(view) == kept
            assert seqs(view) == [3, 1]
            (info,) = view.runs(RunQuery(run_id="run"))
            assert (info.ordinal, info.started_at) == (before.ordinal, before.started_at)
            assert (info.seq, info.digest) == (4, records[3].header.digest)
            assert (info.step, info.status, info.checkpoints) == (3, "failed", 2)
            assert info.stored == sum(len(record.body) for record in kept)
            assert view.find(records[4].header.id) == []
            assert view.find(records[0].header.id) == [records[0].header]
            found = self.repairable(view).inspect("run")
            assert found is not None
            assert found.problems == ()

    def test_a_rewritten_run_can_be_appended_to(self, storage: Storage) -> None:
        writer = JournalWriter()
        records = [writer.save(storage) for _ in range(3)]
        self.repairable(storage).rewrite("run", records[:2], (), head=3)
        again = JournalWriter.after(storage, "run").save(storage)
        assert stored(storage) == [*records[:2], again]

    def test_a_run_rewritten_as_nothing_is_gone_and_its_lease_stays(self, storage: Storage) -> None:
        JournalWriter().save(storage)
        if isinstance(storage, Leasing):
            storage.take_lease("run", this_process(), now=0.0, ttl=10.0)
        self.repairable(storage).rewrite("run", (), (), head=1)
        for view in self.views(storage):
            assert infos(view) == []
            if isinstance(view, Leasing):
                lease = view.lease_of("run")
                assert lease is not None
                assert lease.epoch == 1

    def test_a_run_that_has_grown_since_is_not_rewritten(self, storage: Storage) -> None:
        writer = JournalWriter()
        records = [writer.save(storage) for _ in range(2)]
        with pytest.raises(ConflictError):
            self.repairable(storage).rewrite("run", records[:1], (), head=1)
        for view in self.views(storage):
            assert stored(view) == records

    def test_only_records_of_the_run_in_order_are_taken(self, storage: Storage) -> None:
        writer = JournalWriter()
        records = [writer.save(storage) for _ in range(2)]
        other = JournalWriter("other").record()
        for wrong in (records[::-1], [other], [records[0], records[0]]):
            with pytest.raises(UsageError):
                self.repairable(storage).rewrite("run", wrong, (), head=2)
        with pytest.raises(UsageError):
            self.repairable(storage).rewrite("no run", records, (), head=2)
        assert stored(storage) == records
