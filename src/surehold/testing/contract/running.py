"""Promises of `Storage.runs` and `Storage.head_and_newest`."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import combinations

import pytest

from surehold.storage.base import RunInfo, RunQuery, Storage
from surehold.testing.contract.listing import NOON, narrow
from surehold.testing.contract.medium import Medium, infos
from surehold.testing.journal import FakeClock, JournalWriter

FILTERS: dict[str, RunQuery] = {
    "run_id": RunQuery(run_id="run-3"),
    "name": RunQuery(name="one"),
    "status": RunQuery(status="completed"),
    "not_status": RunQuery(not_status="running"),
    "open": RunQuery(open=True),
    "saved_before": RunQuery(saved_before=datetime(2026, 1, 1, 12, 0, 2, tzinfo=UTC)),
    "limit": RunQuery(limit=5),
}


def many_runs(storage: Storage) -> None:
    statuses = ("running", "completed", "failed")
    for n in range(12):
        writer = JournalWriter(f"run-{n}", name=("one", "two")[n % 2])
        writer.save(storage)
        writer.save(storage, status=statuses[n % 3])
        if n % 4 == 0:
            writer.save(storage, frame="note", kind="effect")


def wanted(runs: list[RunInfo], query: RunQuery) -> list[RunInfo]:
    return [
        run
        for run in runs
        if query.matches(run) and (query.before is None or run.ordinal < query.before)
    ][: query.limit]


class RunPromises(Medium):
    def test_a_run_is_known_by_its_head(self, storage: Storage) -> None:
        writer = JournalWriter("run", name="agent", clock=FakeClock(NOON))
        writer.save(storage, b"12345", node="plan")
        newest = writer.save(
            storage, b"678", step=7, node="ask", kind="interrupt", status="interrupted"
        )
        for view in self.views(storage):
            (info,) = infos(view)
            assert info == RunInfo(
                run_id="run",
                name="agent",
                ordinal=info.ordinal,
                seq=2,
                digest=newest.header.digest,
                checkpoints=2,
                stored=8,
                step=7,
                node="ask",
                kind="interrupt",
                status="interrupted",
                started_at=NOON,
                saved_at=NOON.replace(second=1),
                open=False,
            )

    def test_step_node_kind_and_status_are_those_of_the_newest_checkpoint_of_the_run_itself(
        self, storage: Storage
    ) -> None:
        writer = JournalWriter("run", name="agent")
        writer.save(storage, step=4, node="old", kind="manual", status="failed")
        writer.save(storage, step=3, node="mine", kind="final", status="completed")
        writer.save(storage, scope="inner", step=9, node="theirs", kind="fork", status="stalled")
        note = writer.save(storage, frame="note", step=8, node="x", kind="tag", status="running")
        for view in self.views(storage):
            (info,) = infos(view)
            assert (info.step, info.node, info.kind, info.status) == (
                3,
                "mine",
                "final",
                "completed",
            )
            assert (info.seq, info.digest) == (4, note.header.digest)
            assert info.checkpoints == 3
            assert list(view.runs(RunQuery(status="stalled"))) == []
            assert list(view.runs(RunQuery(status="completed"))) == [info]

    def test_a_run_whose_newest_checkpoint_is_hidden_stands_where_it_stood_before(
        self, storage: Storage
    ) -> None:
        writer = JournalWriter()
        writer.save(storage, step=1, status="running")
        writer.save(storage, step=2, status="completed")
        writer.save(storage, frame="note", kind="prune")
        storage.delete("run", hide=[2])
        for view in self.views(storage):
            assert [(info.step, info.status) for info in infos(view)] == [(1, "running")]
            assert list(view.runs(RunQuery(status="completed"))) == []
            assert len(list(view.runs(RunQuery(not_status="completed")))) == 1

    def test_a_run_is_open_if_records_after_its_newest_checkpoint_may_wait(
        self, storage: Storage
    ) -> None:
        for status in ("running", "failed", "waiting", "completed"):
            JournalWriter(f"{status}-settled").save(storage, status=status)
            writer = JournalWriter(f"{status}-open")
            writer.save(storage, status=status)
            writer.save(storage, frame="note", kind="effect")
        JournalWriter("notes-open").save(storage, frame="note", kind="key")
        JournalWriter("marked-open").save(storage, metadata={"open_from": 1})
        JournalWriter("other").save(storage, metadata={"not": "open_from"})
        for view in self.views(storage):
            assert {info.run_id for info in infos(view) if info.open} == {
                *("running-open", "failed-open", "waiting-open", "notes-open", "marked-open")
            }
            assert list(view.runs(RunQuery(open=True))) == [one for one in infos(view) if one.open]
            (one,) = view.runs(RunQuery(open=True, status="failed"))
            assert one.run_id == "failed-open"
            assert list(view.runs(RunQuery(open=True, run_id="completed-open"))) == []

    def test_the_head_comes_with_the_newest_visible_checkpoint_of_a_scope(
        self, storage: Storage
    ) -> None:
        writer = JournalWriter("run", name="agent")
        JournalWriter("other").save(storage)
        writer.save(storage, step=1)
        newest = writer.save(storage, step=2)
        writer.save(storage, step=3)
        inner = writer.save(storage, scope="inner", step=9)
        writer.save(storage, frame="note", kind="tag", scope="inner")
        storage.delete("run", hide=[3])
        for view in self.views(storage):
            (info,) = view.runs(RunQuery(run_id="run"))
            assert view.head_and_newest("run") == (info, newest.header)
            assert view.head_and_newest("run", "inner") == (info, inner.header)
            assert view.head_and_newest("run", "nowhere") == (info, None)
            assert view.head_and_newest("no-run") is None

    def test_a_run_of_notes_alone_has_a_head_and_no_newest_checkpoint(
        self, storage: Storage
    ) -> None:
        JournalWriter("run").save(storage, frame="note", kind="key")
        for view in self.views(storage):
            (info,) = infos(view)
            assert view.head_and_newest("run") == (info, None)

    def test_a_run_of_notes_alone_is_a_run(self, storage: Storage) -> None:
        JournalWriter("run", name="agent").save(storage, frame="note", kind="key")
        for view in self.views(storage):
            (info,) = view.runs(RunQuery(name="agent", not_status="completed"))
            assert (info.run_id, info.seq, info.checkpoints) == ("run", 1, 0)

    def test_runs_come_in_the_order_they_began_newest_first(self, storage: Storage) -> None:
        clock = FakeClock()
        writers = [JournalWriter(run_id, clock=clock) for run_id in ("c", "a", "d", "b")]
        for writer in [*writers, *writers[::-1], writers[0]]:
            writer.save(storage)
            clock.shift(-3_600)
        for view in self.views(storage):
            listed = infos(view)
            assert [info.run_id for info in listed] == ["b", "d", "a", "c"]
            ordinals = [info.ordinal for info in listed]
            assert ordinals == sorted(set(ordinals), reverse=True)

    def test_runs_that_begin_in_one_call_are_ordered_by_it(self, storage: Storage) -> None:
        storage.append([JournalWriter(run_id).batch() for run_id in ("b", "c", "a")])
        for view in self.views(storage):
            assert [info.run_id for info in infos(view)] == ["a", "c", "b"]

    def test_an_ordinal_stays_with_its_run(self, storage: Storage) -> None:
        writers = [JournalWriter(run_id) for run_id in ("a", "b")]
        for writer in writers:
            writer.save(storage)
        before = {info.run_id: info.ordinal for info in infos(storage)}
        assert storage.append([writers[0].batch(3)]) == [None]
        storage.delete("a", erase=[1, 2])
        for view in self.views(storage):
            assert {info.run_id: info.ordinal for info in infos(view)} == before

    @pytest.mark.parametrize("field", FILTERS)
    def test_each_filter_of_runs_narrows_alone(self, storage: Storage, field: str) -> None:
        many_runs(storage)
        expected = wanted(infos(storage), FILTERS[field])
        assert 0 < len(expected) < 12
        for view in self.views(storage):
            assert list(view.runs(FILTERS[field])) == expected

    def test_filters_of_runs_narrow_together(self, storage: Storage) -> None:
        many_runs(storage)
        everything = infos(storage)
        before = RunQuery(before=everything[4].ordinal)
        pairs = combinations([*FILTERS.values(), before], 2)
        queries = [both for one, two in pairs if (both := narrow(one, two)) is not None]
        queries.append(RunQuery(status="running", not_status="running"))
        queries.append(RunQuery(name="one", not_status="completed", limit=1))
        queries.append(RunQuery(run_id="run-3", before=_ordinal(everything, "run-3")))
        queries.append(RunQuery(run_id="run-3", before=_ordinal(everything, "run-4"), limit=0))
        for view in self.views(storage):
            for query in queries:
                assert list(view.runs(query)) == wanted(everything, query), query

    def test_a_filter_of_runs_is_exact(self, storage: Storage) -> None:
        many_runs(storage)
        for query in (
            RunQuery(run_id="run"),
            RunQuery(run_id="RUN-1"),
            RunQuery(run_id="run-_"),
            RunQuery(name="o%"),
            RunQuery(name=""),
            RunQuery(status="complete"),
        ):
            assert list(storage.runs(query)) == []

    def test_a_status_is_the_newest_one(self, storage: Storage) -> None:
        writer = JournalWriter()
        for status in ("running", "interrupted", "running", "completed", "running"):
            writer.save(storage, status=status)
            for asked in ("running", "interrupted", "completed"):
                assert len(list(storage.runs(RunQuery(status=asked)))) == (asked == status)
                assert len(list(storage.runs(RunQuery(not_status=asked)))) == (asked != status)

    def test_pages_of_runs_repeat_and_miss_nothing_while_others_begin(
        self, storage: Storage
    ) -> None:
        storage.append([JournalWriter(f"run-{n}", name="x").batch() for n in range(25)])
        listed: list[str] = []
        before: int | None = None
        while page := list(storage.runs(RunQuery(name="x", limit=4, before=before))):
            assert len(page) <= 4
            listed += [info.run_id for info in page]
            before = page[-1].ordinal
            JournalWriter(f"late-{before}", name="x").save(storage)
        assert listed == [f"run-{n}" for n in range(24, -1, -1)]

    def test_a_limit_of_runs_is_the_most_that_is_listed(self, storage: Storage) -> None:
        storage.append([JournalWriter(f"run-{n}").batch() for n in range(150)])
        for limit in (0, 1, 2, 149, 150, 151):
            listed = [info.run_id for info in storage.runs(RunQuery(limit=limit))]
            assert listed == [f"run-{n}" for n in range(149, max(149 - limit, -1), -1)]

    def test_the_one_run_that_is_not_completed_is_found_among_many(self, storage: Storage) -> None:
        first = JournalWriter("open", name="x").batch()
        done = []
        for n in range(300):
            writer = JournalWriter(f"done-{n}", name="x")
            done.append(writer.batch([writer.record(status="completed")]))
        assert storage.append([first, *done]) == [None] * 301
        (info,) = storage.runs(RunQuery(name="x", not_status="completed", limit=1))
        assert info.run_id == "open"


def _ordinal(runs: list[RunInfo], run_id: str) -> int:
    return next(info.ordinal for info in runs if info.run_id == run_id)
