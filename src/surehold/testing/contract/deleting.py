"""Promises of `Storage.delete`, and of runs being kept apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from surehold.errors import ConflictError, SureholdError, UsageError
from surehold.storage.base import Owner, RecordQuery, RunQuery, Storage
from surehold.testing.contract.medium import Medium, infos, seqs, stored
from surehold.testing.journal import FakeClock, JournalWriter

_OWNER = Owner("elsewhere", "boot", 1, "0")

HOSTILE = (
    *("../x", "..", ".", ".x", "a/b", "a\\b", "/etc/x"),  # like paths
    *("agent-1", "agent-10", "0", "00"),  # like numbers, or the beginning of another
    *("x" * 4096, "x" * 4097, "case", "CASE", "Case"),
    *("é", "e\u0301", "日本\N{SNOWMAN}😀"),  # the first two composed and decomposed
    *("CON", "con", "=abc"),  # devices, and like a hashed name
    *(" ", " x", "x ", "x.", "x", "x\n", "x\ty"),
    *("x*", "x%", "x'\"`", "--x", "$HOME", "file:///x?y=z#w"),
)


class DeletePromises(Medium):
    def test_hidden_records_leave_the_listings_but_can_be_read(self, storage: Storage) -> None:
        writer = JournalWriter(name="x")
        sealed = [writer.save(storage, b"12345") for _ in range(5)]
        assert storage.delete("run", hide=[2, 4]) == 2
        for view in self.views(storage):
            assert seqs(view) == [5, 3, 1]
            assert [h.seq for h in view.headers(RecordQuery(name="x"))] == [5, 3, 1]
            assert view.find(sealed[1].header.id) == []
            assert (infos(view)[0].checkpoints, infos(view)[0].stored) == (3, 25)
            assert stored(view) == sealed

    def test_hiding_a_note_changes_no_count_of_checkpoints(self, storage: Storage) -> None:
        writer = JournalWriter()
        writer.save(storage)
        writer.save(storage, frame="note")
        writer.save(storage)
        assert storage.delete("run", hide=[2]) == 1
        assert (seqs(storage), infos(storage)[0].checkpoints) == ([3, 1], 2)

    def test_the_newest_record_may_be_hidden(self, storage: Storage) -> None:
        writer = JournalWriter()
        sealed = [writer.save(storage) for _ in range(2)]
        assert storage.delete("run", hide=[2]) == 1
        sealed.append(writer.save(storage))
        for view in self.views(storage):
            assert (seqs(view), stored(view)) == ([3, 1], sealed)

    def test_erased_records_are_gone_and_the_rest_can_be_read(self, storage: Storage) -> None:
        writer = JournalWriter()
        sealed = [writer.save(storage, b"12345") for _ in range(6)]
        head = infos(storage)[0]
        assert storage.delete("run", erase=[1, 3, 4]) == 3
        for view in self.views(storage):
            assert stored(view) == [sealed[1], sealed[4], sealed[5]]
            assert list(view.read("run", first=3, last=5)) == [sealed[4]]
            assert seqs(view) == [6, 5, 2]
            assert all(view.find(sealed[n].header.id) == [] for n in (0, 2, 3))
            info = infos(view)[0]
            assert (info.checkpoints, info.stored) == (3, 15)
            assert (info.seq, info.digest) == (head.seq, head.digest)

    def test_a_journal_goes_on_after_records_were_erased(self, storage: Storage) -> None:
        writer = JournalWriter()
        sealed = [writer.save(storage) for _ in range(4)]
        storage.delete("run", erase=[1, 2])
        sealed.append(writer.save(storage))
        for view in self.views(storage):
            assert stored(view) == sealed[2:]

    def test_what_was_hidden_can_be_erased(self, storage: Storage) -> None:
        writer = JournalWriter()
        sealed = [writer.save(storage, b"12345") for _ in range(4)]
        assert storage.delete("run", hide=[1, 2]) == 2
        assert storage.delete("run", erase=[2, 3]) == 2
        for view in self.views(storage):
            assert stored(view) == [sealed[0], sealed[3]]
            assert (infos(view)[0].checkpoints, infos(view)[0].stored) == (1, 10)

    def test_one_call_may_hide_and_erase(self, storage: Storage) -> None:
        assert storage.append([JournalWriter().batch(6)]) == [None]
        assert storage.delete("run", hide=[1, 2, 4], erase=[3, 4]) == 4
        for view in self.views(storage):
            assert seqs(view) == [6, 5]
            assert infos(view)[0].checkpoints == 2
            assert [record.header.seq for record in view.read("run")] == [1, 2, 5, 6]

    def test_a_part_of_a_batch_can_be_erased(self, storage: Storage) -> None:
        writer = JournalWriter()
        batches = [writer.batch(3), writer.batch(3)]
        assert storage.append(batches) == [None, None]
        assert storage.delete("run", erase=[2, 4, 5]) == 3
        left = [r for batch in batches for r in batch.records if r.header.seq in (1, 3, 6)]
        for view in self.views(storage):
            assert stored(view) == left

    def test_what_is_already_so_is_passed_over(self, storage: Storage) -> None:
        assert storage.append([JournalWriter().batch(5)]) == [None]
        assert storage.delete("run", hide=[1, 1, 2, 77, 0, -1]) == 2
        assert storage.delete("run", hide=[1, 2]) == 0
        assert storage.delete("run", hide=[2, 3]) == 1
        assert storage.delete("run", erase=[4, 4, 77]) == 1
        assert storage.delete("run", erase=[4]) == 0
        assert storage.delete("run", hide=[4]) == 0
        assert storage.delete("none", hide=[1]) == 0
        assert storage.delete("none", erase=[1]) == 0

    def test_to_hide_or_erase_no_record_is_not_to_delete_the_run(self, storage: Storage) -> None:
        assert storage.append([JournalWriter().batch(3)]) == [None]
        assert storage.delete("run", hide=[]) == 0
        assert storage.delete("run", erase=[]) == 0
        assert storage.delete("run", hide=(), erase=()) == 0
        assert (seqs(storage), len(stored(storage))) == ([3, 2, 1], 3)

    def test_the_newest_record_cannot_be_erased(self, storage: Storage) -> None:
        assert storage.append([JournalWriter().batch(3)]) == [None]
        with pytest.raises(UsageError):
            storage.delete("run", hide=[1], erase=[2, 3])
        storage.delete("run", hide=[3])
        with pytest.raises(UsageError):
            storage.delete("run", erase=[3])
        for view in self.views(storage):
            assert (seqs(view), len(stored(view))) == ([2, 1], 3)

    def test_an_erased_seq_is_not_free_again(self, storage: Storage) -> None:
        writer = JournalWriter()
        sealed = [writer.save(storage) for _ in range(3)]
        storage.delete("run", erase=[1, 2])
        for view in self.views(storage):
            for record in sealed[:2]:
                conflict = view.append([writer.batch([record])])[0]
                assert isinstance(conflict, ConflictError)
                assert conflict.head == 3
            assert stored(view) == sealed[2:]

    def test_a_deleted_run_is_gone_and_the_others_are_not(self, storage: Storage) -> None:
        for run_id in ("a", "b"):
            assert storage.append([JournalWriter(run_id, name="x").batch(4)]) == [None]
        kept = stored(storage, "b")
        gone = stored(storage, "a")
        storage.delete("a", hide=[1], erase=[2])
        assert storage.delete("a") == 3
        assert storage.delete("a") == 0
        for view in self.views(storage):
            assert (stored(view, "a"), seqs(view, "a")) == ([], [])
            assert [info.run_id for info in infos(view)] == ["b"]
            assert list(view.runs(RunQuery(run_id="a"))) == []
            assert view.find(gone[3].header.id) == []
            assert {h.run_id for h in view.headers(RecordQuery(name="x"))} == {"b"}
            assert stored(view, "b") == kept

    def test_a_deleted_run_begins_again_at_one_with_a_higher_ordinal(
        self, storage: Storage
    ) -> None:
        for run_id in ("a", "b"):
            assert storage.append([JournalWriter(run_id).batch(3)]) == [None]
        highest = infos(storage)[0].ordinal
        storage.delete("b")
        again = JournalWriter("b", clock=FakeClock(tick=60)).batch(2)
        assert storage.append([again]) == [None]
        for view in self.views(storage):
            assert tuple(view.read("b")) == again.records
            assert seqs(view, "b") == [2, 1]
            newest = infos(view)[0]
            assert (newest.run_id, newest.seq, newest.checkpoints) == ("b", 2, 2)
            assert newest.ordinal > highest

    def test_no_ordinal_is_used_again(self, storage: Storage) -> None:
        JournalWriter("a").save(storage)
        highest = infos(storage)[0].ordinal
        for n, view in enumerate(self.views(storage)):
            for info in infos(view):
                view.delete(info.run_id)
            JournalWriter(f"next-{n}").save(view)
            (info,) = infos(view)
            assert info.ordinal > highest
            highest = info.ordinal

    def test_compacting_changes_nothing_that_is_read(self, storage: Storage) -> None:
        assert storage.append([JournalWriter("a").batch(40), JournalWriter("b").batch(2)])
        storage.delete("a", hide=[1, 2], erase=list(range(3, 39)))
        storage.delete("b")
        before = (infos(storage), stored(storage, "a"), seqs(storage, "a"))
        storage.compact()
        for view in self.views(storage):
            assert (infos(view), stored(view, "a"), seqs(view, "a")) == before


class IsolationPromises(Medium):
    def test_runs_and_names_of_any_spelling_are_kept_apart(
        self, storage: Storage, directory: Path
    ) -> None:
        sealed = {}
        for run_id in HOSTILE:
            batch = JournalWriter(run_id, name=run_id).batch(2)
            assert storage.append([batch]) == [None]
            sealed[run_id] = batch.records
        for view in self.views(storage):
            assert [info.run_id for info in infos(view)] == [*HOSTILE[::-1]]
            for run_id, records in sealed.items():
                headers = [record.header for record in reversed(records)]
                assert tuple(view.read(run_id)) == records
                assert list(view.headers(RecordQuery(run_id=run_id))) == headers
                assert list(view.headers(RecordQuery(name=run_id))) == headers
                assert [i.run_id for i in view.runs(RunQuery(run_id=run_id))] == [run_id]
                assert [i.run_id for i in view.runs(RunQuery(name=run_id))] == [run_id]
        assert [path.name for path in directory.parent.iterdir()] == [directory.name]

    def test_deleting_a_run_touches_no_other_of_like_name(self, storage: Storage) -> None:
        left = list(HOSTILE)
        storage.append([JournalWriter(run_id, name=run_id).batch() for run_id in left])
        for run_id in HOSTILE[::2]:
            assert storage.delete(run_id) == 1
            left.remove(run_id)
            assert [info.run_id for info in infos(storage)] == left[::-1]
        for view in self.views(storage):
            assert [info.run_id for info in infos(view)] == left[::-1]
            assert [len(stored(view, run_id)) for run_id in left] == [1] * len(left)

    def test_leases_of_any_spelling_are_kept_apart(self, storage: Storage) -> None:
        leasing = self.leasing(storage)
        for n, run_id in enumerate(HOSTILE):
            for _ in range(n % 3 + 1):
                lease = leasing.take_lease(run_id, _OWNER, now=0, ttl=10)
                leasing.release_lease(lease)
        for n, run_id in enumerate(HOSTILE):
            lease_now = leasing.lease_of(run_id)
            assert lease_now is not None
            assert (lease_now.run_id, lease_now.epoch) == (run_id, n % 3 + 1)

    @pytest.mark.parametrize("run_id", ["", "a\0b"], ids=["empty", "NUL"])
    def test_an_id_that_names_no_run_is_refused_or_kept_apart(
        self, storage: Storage, run_id: str
    ) -> None:
        kept = JournalWriter("a").save(storage)
        batch = JournalWriter(run_id).batch()
        try:
            taken = storage.append([batch])[0] is None
        except SureholdError:
            taken = False
        for view in self.views(storage):
            assert stored(view, "a") == [kept]
            assert len(infos(view)) == 1 + taken
            if taken:
                assert tuple(view.read(run_id)) == batch.records
