"""Promises of `Storage.append` and `Storage.read`."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

from surehold.core.records import Record, seal
from surehold.errors import ConflictError, SureholdError, UsageError
from surehold.storage.base import Batch, RecordQuery, RunQuery, Storage, this_process
from surehold.testing.contract.medium import Medium, infos, seqs, stored
from surehold.testing.journal import JournalWriter, make_records

BODIES = {
    "empty": b"",
    "text": '{"greeting":"grüß dich, 世界"}'.encode(),
    "line ends": b'{"a":1}\n{"b":2}\r\n\n',
    "every byte": bytes(range(256)),
    "like gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03",
    "like zstd": b"\x28\xb5\x2f\xfd\x20\x00",
    "one MiB that does not compress": b"".join(
        hashlib.sha256(n.to_bytes(4)).digest() for n in range(1 << 15)
    ),
}


class AppendPromises(Medium):
    def test_append_stores_in_order_and_byte_for_byte(self, storage: Storage) -> None:
        writer = JournalWriter("run", name="agent")
        sealed: list[Record] = []
        for size in (1, 2, 1, 70, 1, 200, 3):
            batch = writer.batch(size)
            assert storage.append([batch]) == [None]
            sealed += batch.records
        for view in self.views(storage):
            assert stored(view) == sealed

    @pytest.mark.parametrize("what", BODIES)
    def test_a_body_of_any_bytes_comes_back(self, storage: Storage, what: str) -> None:
        writer = JournalWriter()
        sealed = [writer.save(storage, BODIES[what]), writer.save(storage), writer.save(storage)]
        for view in self.views(storage):
            assert stored(view) == sealed

    def test_every_field_of_a_header_comes_back(self, storage: Storage) -> None:
        record = JournalWriter("run").save(
            storage,
            id='x "%_*[\\\n é',
            frame="delta",
            saved_at=datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=UTC),
            name="an agent / of mine\n",
            scope="outer/inner",
            parent="another",
            base_seq=1,
            step=2**40,
            node="ask 'the' user",
            kind="of my own",
            status="like \N{SNOWMAN} this",
            metadata={"a.b": [1, None, {"$c": 2.5}], "": "", "'": True, "big": 2**63 - 1},
            tags=("one", "two, three", ""),
            fingerprint="f00",
            schema=7,
            size=123,
            epoch=9,
        )
        for view in self.views(storage):
            assert stored(view) == [record]
            assert view.find(record.header.id) == [record.header]

    def test_a_large_batch_is_one_batch(self, storage: Storage) -> None:
        batch = JournalWriter().batch(2_000)
        assert storage.append([batch]) == [None]
        for view in self.views(storage):
            assert tuple(view.read("run")) == batch.records

    def test_a_batch_may_hold_records_of_several_names(self, storage: Storage) -> None:
        writer = JournalWriter()
        records = [writer.record(name=name) for name in ("one", "two", "", "one", "two")]
        batch = writer.batch(records)
        assert storage.append([batch]) == [None]
        assert storage.append([batch]) == [None]
        later = writer.save(storage, name="two")
        for view in self.views(storage):
            assert stored(view) == [*records, later]
            assert infos(view)[0].name == "two"
            for name, wanted in (("one", [4, 1]), ("two", [6, 5, 2])):
                assert [h.seq for h in view.headers(RecordQuery(name=name))] == wanted

    def test_nothing_to_append_is_nothing(self, storage: Storage) -> None:
        assert storage.append([]) == []
        assert infos(storage) == []

    def test_a_batch_without_records_begins_no_run(self, storage: Storage) -> None:
        with suppress(UsageError):
            assert storage.append([Batch(run_id="run", records=())]) == [None]
        assert infos(storage) == []

    def test_a_batch_is_stored_whole_or_not_at_all(self, storage: Storage) -> None:
        held = JournalWriter().save(storage, b"mine")
        late = JournalWriter().batch(5)
        assert isinstance(storage.append([late])[0], ConflictError)
        for view in self.views(storage):
            assert stored(view) == [held]
            assert infos(view)[0].seq == 1
            assert all(view.find(record.header.id) == [] for record in late.records[1:])

    def test_a_copy_has_the_gaps_that_its_batch_names(self, storage: Storage) -> None:
        sealed = make_records(9)
        first, second = (*sealed[2:4], sealed[5]), (sealed[8],)
        gaps = frozenset([(1, 2), (5, 5)])
        assert storage.append([Batch(run_id="run", records=first, erased=gaps)]) == [None]
        assert storage.append([Batch(run_id="run", records=first, erased=gaps)]) == [None]
        gap = frozenset([(7, 8)])
        assert storage.append([Batch(run_id="run", records=second, erased=gap)]) == [None]
        following = JournalWriter(seq=9, digest=sealed[-1].header.digest).batch(1)
        assert storage.append([following]) == [None]
        for view in self.views(storage):
            assert tuple(stored(view)) == (*first, *second, *following.records)
            assert infos(view)[0].seq == 10

    def test_a_gap_that_the_batch_does_not_name_is_refused(self, storage: Storage) -> None:
        sealed = make_records(5)
        begun = Batch(run_id="run", records=tuple(sealed[2:]))
        assert isinstance(storage.append([begun])[0], ConflictError)
        gaps = frozenset([(1, 1), (2, 3)])
        with pytest.raises(UsageError):
            storage.append([Batch(run_id="run", records=(sealed[0], sealed[2]), erased=gaps)])
        other = JournalWriter(seq=1, digest="0" * 32).batch(1)
        assert storage.append([Batch(run_id="run", records=(sealed[0],))]) == [None]
        unlinked = Batch(run_id="run", records=other.records, erased=gaps)
        assert isinstance(storage.append([unlinked])[0], ConflictError)
        assert stored(storage) == sealed[:1]

    def test_a_batch_may_hide_its_own_records(self, storage: Storage) -> None:
        sealed = make_records(3)
        assert storage.append([Batch(run_id="run", records=tuple(sealed), hide=(1, 2))]) == [None]
        for view in self.views(storage):
            assert stored(view) == sealed
            assert seqs(view) == [3]
            assert infos(view)[0].checkpoints == 1

    def test_append_never_overwrites(self, storage: Storage) -> None:
        sealed = make_records(3)
        assert storage.append([Batch(run_id="run", records=tuple(sealed))]) == [None]
        for record in sealed:
            writer = JournalWriter(seq=record.header.seq - 1, digest=record.header.prev)
            other = writer.record(b'"other"', id=record.header.id)
            assert isinstance(storage.append([writer.batch([other])])[0], ConflictError)
        for view in self.views(storage):
            assert stored(view) == sealed

    def test_a_taken_seq_is_a_conflict_that_carries_run_id_seq_and_head(
        self, storage: Storage
    ) -> None:
        assert storage.append([JournalWriter().batch(4)]) == [None]
        conflict = storage.append([JournalWriter(seq=1, digest="0" * 32).batch(2)])[0]
        assert isinstance(conflict, ConflictError)
        assert (conflict.run_id, conflict.seq, conflict.head) == ("run", 2, 4)
        assert conflict.hint

    @pytest.mark.parametrize("head", [0, 1, 3])
    def test_a_gap_is_a_conflict(self, storage: Storage, head: int) -> None:
        writer = JournalWriter()
        if head:
            assert storage.append([writer.batch(head)]) == [None]
        digest = writer.digest
        skipped = writer.record()
        for prev in (digest, skipped.header.digest):
            conflict = storage.append([JournalWriter(seq=head + 1, digest=prev).batch(1)])[0]
            assert isinstance(conflict, ConflictError)
            assert (conflict.run_id, conflict.seq, conflict.head) == ("run", head + 2, head)
        assert len(stored(storage)) == head

    def test_a_batch_must_follow_the_newest_digest(self, storage: Storage) -> None:
        sealed = make_records(2)
        assert storage.append([Batch(run_id="run", records=tuple(sealed))]) == [None]
        for digest in ("", "f" * 32, sealed[0].header.digest):
            conflict = storage.append([JournalWriter(seq=2, digest=digest).batch()])[0]
            assert isinstance(conflict, ConflictError)
            assert (conflict.run_id, conflict.seq, conflict.head) == ("run", 3, 2)
        for view in self.views(storage):
            assert stored(view) == sealed

    def test_a_first_batch_must_follow_nothing(self, storage: Storage) -> None:
        conflict = storage.append([JournalWriter(digest="f" * 32).batch()])[0]
        assert isinstance(conflict, ConflictError)
        assert conflict.head == 0
        assert infos(storage) == []

    def test_a_repeated_batch_is_none_and_changes_nothing(self, storage: Storage) -> None:
        writer = JournalWriter()
        batches = [writer.batch(2), writer.batch(1), writer.batch(3)]
        assert storage.append(batches) == [None] * 3
        before = (infos(storage), seqs(storage), stored(storage))
        for view in self.views(storage):
            assert view.append(batches) == [None] * 3
            assert view.append(batches[1:2]) == [None]
            assert (infos(view), seqs(view), stored(view)) == before

    def test_a_repeated_batch_may_be_cut_in_another_way(self, storage: Storage) -> None:
        sealed = make_records(3)
        assert storage.append([Batch(run_id="run", records=(r,)) for r in sealed]) == [None] * 3
        assert storage.append([Batch(run_id="run", records=tuple(sealed))]) == [None]
        assert stored(storage) == sealed

    def test_a_batch_that_repeats_in_part_is_a_conflict(self, storage: Storage) -> None:
        sealed = make_records(4)
        assert storage.append([Batch(run_id="run", records=tuple(sealed[:3]))]) == [None]
        conflict = storage.append([Batch(run_id="run", records=tuple(sealed[2:]))])[0]
        assert isinstance(conflict, ConflictError)
        assert (conflict.seq, conflict.head) == (3, 3)
        assert stored(storage) == sealed[:3]

    def test_the_same_ids_with_other_digests_are_a_conflict(self, storage: Storage) -> None:
        first = JournalWriter().record(b"1", id="same")
        other = JournalWriter().record(b"2", id="same")
        assert storage.append([Batch(run_id="run", records=(first,))]) == [None]
        assert isinstance(storage.append([Batch(run_id="run", records=(other,))])[0], ConflictError)
        assert stored(storage) == [first]

    def test_each_batch_of_a_call_succeeds_or_conflicts_alone(self, storage: Storage) -> None:
        held = JournalWriter("b").save(storage)
        fresh = {run_id: JournalWriter(run_id).batch(2) for run_id in "acd"}
        results = storage.append(
            [fresh["a"], JournalWriter("b").batch(2), fresh["c"], _gap("e"), fresh["d"]]
        )
        assert [type(result) for result in results] == [
            type(None),
            ConflictError,
            type(None),
            ConflictError,
            type(None),
        ]
        for view in self.views(storage):
            assert stored(view, "b") == [held]
            assert sorted(info.run_id for info in infos(view)) == ["a", "b", "c", "d"]
            for run_id, batch in fresh.items():
                assert tuple(view.read(run_id)) == batch.records

    def test_batches_that_belong_together_are_all_stored_or_none(
        self, storage: Storage, directory: Path
    ) -> None:
        atomic = self.atomic(storage)
        held = JournalWriter("b").save(storage)
        fresh = {run_id: JournalWriter(run_id).batch(2) for run_id in "ac"}
        results = atomic.append_all([fresh["a"], JournalWriter("b").batch(2), fresh["c"]])
        assert isinstance(results[1], ConflictError) and len(results) == 3
        for view in (storage, *([self.open(directory)] if self.survives else [])):
            assert [info.run_id for info in infos(view)] == ["b"]
            assert stored(view, "b") == [held]
            if view is not storage:
                view.close()
        assert atomic.append_all([*fresh.values()]) == [None, None]
        assert atomic.append_all([*fresh.values()]) == [None, None], "a retry of what succeeded"
        assert atomic.append_all([]) == []
        for view in self.views(storage):
            for run_id, batch in fresh.items():
                assert tuple(view.read(run_id)) == batch.records

    def test_a_stale_epoch_keeps_all_that_belong_together_from_being_stored(
        self, storage: Storage
    ) -> None:
        atomic, leasing = self.atomic(storage), self.leasing(storage)
        stale = leasing.take_lease("a", this_process(), now=0.0, ttl=1.0)
        leasing.take_lease("a", this_process(), now=10.0, ttl=1.0)
        late = structs.replace(JournalWriter("a").batch(1), epoch=stale.epoch)
        results = atomic.append_all([JournalWriter("b").batch(1), late])
        assert isinstance(results[1], ConflictError)
        assert infos(storage) == []

    def test_a_call_may_hold_several_batches_of_one_run(self, storage: Storage) -> None:
        one, two = JournalWriter("one"), JournalWriter("two")
        batches = [one.batch(1), two.batch(2), one.batch(3), two.batch(1), one.batch(1)]
        assert storage.append(batches) == [None] * 5
        for view in self.views(storage):
            assert [r.header.seq for r in view.read("one")] == [1, 2, 3, 4, 5]
            assert [r.header.seq for r in view.read("two")] == [1, 2, 3]

    def test_of_two_batches_for_one_seq_the_first_wins(self, storage: Storage) -> None:
        first, second = (JournalWriter().record(body) for body in (b"1", b"2"))
        batches = [Batch(run_id="run", records=(r,)) for r in (first, second, first)]
        results = storage.append(batches)
        assert (results[0], results[2]) == (None, None)
        assert isinstance(results[1], ConflictError)
        assert stored(storage) == [first]

    def test_what_follows_a_batch_that_conflicts_conflicts_too(self, storage: Storage) -> None:
        held = JournalWriter().save(storage, b"mine")
        late = JournalWriter()
        results = storage.append([late.batch(1), late.batch(1), JournalWriter("x").batch()])
        assert isinstance(results[0], ConflictError)
        assert isinstance(results[1], ConflictError)
        assert results[2] is None
        assert stored(storage) == [held]

    def test_many_runs_in_one_call(self, storage: Storage) -> None:
        batches = [JournalWriter(f"run-{n}").batch(2) for n in range(200)]
        assert storage.append(batches) == [None] * 200
        for view in self.views(storage):
            assert [i.run_id for i in infos(view)] == [f"run-{n}" for n in range(199, -1, -1)]
            assert tuple(view.read("run-123")) == batches[123].records

    @pytest.mark.parametrize(
        "fault", ["all of another run", "one of another run", "a hole", "a broken chain", "twice"]
    )
    def test_a_batch_that_is_not_a_piece_of_one_journal_is_refused(
        self, storage: Storage, fault: str
    ) -> None:
        sealed = make_records(3)
        stray = JournalWriter("other", seq=1, digest=sealed[0].header.digest).record()
        wrong: dict[str, list[Record]] = {
            "all of another run": make_records(2, "other"),
            "one of another run": [sealed[0], stray],
            "a hole": [sealed[0], sealed[2]],
            "a broken chain": [sealed[0], seal(sealed[1].header, b"", prev="f" * 32)],
            "twice": [sealed[0], sealed[0]],
        }
        batch = Batch(run_id="run", records=tuple(wrong[fault]))
        try:
            result = storage.append([batch])[0]
        except SureholdError:
            result = ConflictError("refused at once")
        assert isinstance(result, ConflictError)
        assert (infos(storage), stored(storage), stored(storage, "other")) == ([], [], [])

    def test_read_gives_the_range_asked_for_both_ends_included(self, storage: Storage) -> None:
        assert storage.append([JournalWriter().batch(150)]) == [None]

        for view in self.views(storage):

            def between(
                first: int | None = None, last: int | None = None, view: Storage = view
            ) -> list[int]:
                return [r.header.seq for r in view.read("run", first=first, last=last)]

            assert between() == list(range(1, 151))
            assert between(140) == list(range(140, 151))
            assert between(last=3) == [1, 2, 3]
            assert between(7, 130) == list(range(7, 131))
            assert between(9, 9) == [9]
            assert between(149, 1_000) == [149, 150]
            assert between(0, 2) == [1, 2]
            assert between(9, 8) == between(151) == between(last=0) == []

    def test_a_run_that_is_not_there_reads_as_empty(self, storage: Storage) -> None:
        assert stored(storage, "none") == []
        assert list(storage.runs(RunQuery(run_id="none"))) == []
        assert seqs(storage, "none") == []

    def test_an_append_hides_earlier_records_in_the_same_commit(self, storage: Storage) -> None:
        writer = JournalWriter()
        assert storage.append([writer.batch(4)]) == [None]
        assert storage.append([writer.batch(2, hide=[1, 3, 99])]) == [None]
        for view in self.views(storage):
            assert seqs(view) == [6, 5, 4, 2]
            assert infos(view)[0].checkpoints == 4
            assert len(stored(view)) == 6

    def test_a_batch_without_records_only_hides(self, storage: Storage) -> None:
        old, new = JournalWriter("old"), JournalWriter("new")
        assert storage.append([old.batch(3)]) == [None]
        batches = [new.batch(1), Batch(run_id="old", records=(), hide=(1, 2))]
        assert storage.append(batches) == [None, None]
        assert [h.seq for h in storage.headers(RecordQuery(run_id="old"))] == [3]
        assert [r.header.seq for r in storage.read("old")] == [1, 2, 3]

    def test_a_batch_that_conflicts_hides_nothing(self, storage: Storage) -> None:
        assert storage.append([JournalWriter().batch(2)]) == [None]
        late = JournalWriter(seq=1, digest="f" * 32).batch(1, hide=[1])
        assert isinstance(storage.append([late])[0], ConflictError)
        assert seqs(storage) == [2, 1]


def _gap(run_id: str) -> Batch:
    writer = JournalWriter(run_id)
    writer.record()
    return writer.batch()
