"""Promises of `Storage.headers`, `Storage.page` and `Storage.find`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import combinations
from typing import Any, TypeVar

import msgspec
import pytest

from surehold.core.records import Header
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import RecordQuery, RunQuery, Storage
from surehold.testing.contract.medium import Medium, seqs
from surehold.testing.journal import FakeClock, JournalWriter

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

FILTERS: dict[str, RecordQuery] = {
    "run_id": RecordQuery(run_id="run-2"),
    "name": RecordQuery(name="one"),
    "scope": RecordQuery(scope="inner"),
    "the scope of the run itself": RecordQuery(scope=""),
    "kind": RecordQuery(kind="manual"),
    "status": RecordQuery(status="completed"),
    "tag": RecordQuery(tag="odd"),
    "metadata": RecordQuery(metadata={"rest": 1}),
    "two keys of metadata": RecordQuery(metadata={"rest": 1, "deep": {"list": [1, None]}}),
    "since": RecordQuery(since=NOON.replace(second=20)),
    "until": RecordQuery(until=NOON.replace(second=41)),
    "notes": RecordQuery(notes=True),
    "limit": RecordQuery(limit=7),
}

METADATA: dict[str, Any] = {
    "text": "x",
    "number as text": "1",
    "number": 1,
    "fraction": 0.1,
    "large": 2**53 + 1,
    "nothing": None,
    "empty": "",
    "list": ["a", 1, [None]],
    "mapping": {"a": {"b": 1}},
    "a.b": "dot",
    'quote"': "quote\"'",
    "$.text": "path",
    "": "no name",
    "é\N{SNOWMAN}": "\N{SNOWMAN}",
    "percent%": "100%",
}


def many_runs(storage: Storage) -> list[Header]:
    """Sixty records of three runs, taking turns; their headers newest first."""
    clock = FakeClock(NOON)
    writers = [JournalWriter(f"run-{n}", name=("one", "two")[n % 2], clock=clock) for n in range(3)]
    saved = [
        writers[n % 3].save(
            storage,
            scope="inner" if n % 5 == 0 else "",
            frame="note" if n % 7 == 3 else "delta",
            kind="manual" if n % 4 == 1 else "routine",
            status="completed" if n % 6 == 5 else "running",
            tags=("odd", "all") if n % 2 else ("all",),
            metadata={"n": n, "rest": n % 3, "deep": {"list": [n % 2, None]}},
        )
        for n in range(60)
    ]
    return [record.header for record in reversed(saved)]


Query = TypeVar("Query", RecordQuery, RunQuery)


def narrow(query: Query, other: Query) -> Query | None:
    """Both queries at once; None where they say different things of one field."""
    fields = {
        field: (getattr(query, field), getattr(other, field))
        for field in query.__struct_fields__
        if getattr(other, field) not in (None, False)
    }
    if any(mine not in (None, False) for mine, _ in fields.values()):
        return None
    return msgspec.structs.replace(
        query, **{field: theirs for field, (_, theirs) in fields.items()}
    )


def wanted(headers: list[Header], query: RecordQuery) -> list[Header]:
    return [header for header in headers if query.matches(header)][: query.limit]


class ListPromises(Medium):
    def test_headers_come_newest_first(self, storage: Storage) -> None:
        saved = many_runs(storage)
        for view in self.views(storage):
            assert list(view.headers(RecordQuery(notes=True))) == saved
            for run_id in ("run-0", "run-1", "run-2"):
                of_run = [header for header in saved if header.run_id == run_id]
                assert list(view.headers(RecordQuery(run_id=run_id, notes=True))) == of_run

    @pytest.mark.parametrize("field", FILTERS)
    def test_each_filter_narrows_alone(self, storage: Storage, field: str) -> None:
        saved = many_runs(storage)
        expected = wanted(saved, FILTERS[field])
        assert expected and expected != wanted(saved, RecordQuery())
        for view in self.views(storage):
            assert list(view.headers(FILTERS[field])) == expected

    def test_filters_narrow_together(self, storage: Storage) -> None:
        saved = many_runs(storage)
        queries = [
            both
            for one, two in combinations(FILTERS.values(), 2)
            if (both := narrow(one, two)) is not None
        ]
        queries += [both for query in queries if (both := narrow(query, FILTERS["run_id"]))]
        assert len(queries) > len(FILTERS)
        for view in self.views(storage):
            for query in queries:
                assert list(view.headers(query)) == wanted(saved, query), query

    @pytest.mark.parametrize(
        "query",
        [
            RecordQuery(run_id="run"),
            RecordQuery(run_id="run-1", name="one"),
            RecordQuery(name="On%"),
            RecordQuery(name="ONE"),
            RecordQuery(scope="inne"),
            RecordQuery(kind="Manual"),
            RecordQuery(status="complete"),
            RecordQuery(tag="od"),
            RecordQuery(tag='odd","all'),
            RecordQuery(metadata={"none": None}),
            RecordQuery(metadata={"rest": "1"}),
            RecordQuery(metadata={"deep": {"list": [1]}}),
            RecordQuery(since=NOON.replace(year=2027)),
            RecordQuery(until=NOON.replace(year=2025)),
        ],
        ids=str,
    )
    def test_what_no_record_fits_is_empty(self, storage: Storage, query: RecordQuery) -> None:
        many_runs(storage)
        assert list(storage.headers(query)) == []

    def test_since_and_until_include_their_moment(self, storage: Storage) -> None:
        writer = JournalWriter(clock=FakeClock(NOON, tick=0.000_001))
        times = [writer.save(storage).header.saved_at for _ in range(5)]
        listed = storage.headers(RecordQuery(since=times[1], until=times[3]))
        assert [header.seq for header in listed] == [4, 3, 2]

    @pytest.mark.parametrize("key", METADATA)
    def test_metadata_of_any_kind_is_found_by_its_value(self, storage: Storage, key: str) -> None:
        writer = JournalWriter()
        writer.save(storage)
        writer.save(storage, metadata=METADATA)
        writer.save(storage, metadata={key: [METADATA[key]], "other": METADATA[key]})
        listed = storage.headers(RecordQuery(metadata={key: METADATA[key]}))
        assert [header.seq for header in listed] == [2]

    def test_no_metadata_asked_for_is_any(self, storage: Storage) -> None:
        JournalWriter().save(storage, metadata={"a": 1})
        assert len(list(storage.headers(RecordQuery(metadata={})))) == 1

    def test_notes_are_listed_only_when_asked_for(self, storage: Storage) -> None:
        writer = JournalWriter()
        for frame in ("key", "note", "delta", "note"):
            writer.save(storage, frame=frame, kind="tag" if frame == "note" else "routine")
        for view in self.views(storage):
            assert [h.seq for h in view.headers(RecordQuery())] == [3, 1]
            assert [h.seq for h in view.headers(RecordQuery(notes=True))] == [4, 3, 2, 1]
            assert [h.seq for h in view.headers(RecordQuery(notes=True, kind="tag"))] == [4, 2]
            assert list(view.headers(RecordQuery(kind="tag"))) == []

    def test_a_page_comes_with_the_notes_about_its_runs(self, storage: Storage) -> None:
        one, two = JournalWriter("one", name="agent"), JournalWriter("two", name="agent")
        for writer in (one, two):
            for kind in ("tag", "pin", "effect", "tag"):
                writer.save(storage)
                writer.save(storage, frame="note", kind=kind)
        storage.delete("two", hide=[2])
        wanted = {
            run_id: tuple(
                header
                for header in reversed(
                    list(storage.headers(RecordQuery(run_id=run_id, notes=True)))
                )
                if header.kind in ("tag", "pin")
            )
            for run_id in ("one", "two")
        }
        assert [len(notes) for notes in wanted.values()] == [3, 2]
        kinds = ("pin", "tag")
        for view in self.views(storage):
            for query in (RecordQuery(limit=2), RecordQuery(run_id="one"), RecordQuery()):
                page = view.page(query, notes=kinds)
                assert page.headers == tuple(view.headers(query))
                runs = sorted({header.run_id for header in page.headers})
                assert page.notes == tuple(note for run_id in runs for note in wanted[run_id])
            assert view.page(RecordQuery()).notes == ()
            routine = view.page(RecordQuery(), notes=("routine", "pin"))
            assert [note.kind for note in routine.notes] == ["pin", "pin"]

    def test_a_page_is_about_the_run_of_an_id_or_the_runs_of_a_name(self, storage: Storage) -> None:
        JournalWriter("one", name="agent").save(storage)
        JournalWriter("agent", name="other").save(storage)
        JournalWriter("two", name="other").save(storage)
        for view in self.views(storage):
            listed = {
                about: [header.run_id for header in view.page(RecordQuery(), about=about).headers]
                for about in ("one", "agent", "other", "nobody")
            }
            assert listed == {
                "one": ["one"],
                "agent": ["agent"],
                "other": ["two", "agent"],
                "nobody": [],
            }

    def test_a_limit_is_the_most_that_is_listed(self, storage: Storage) -> None:
        assert storage.append([JournalWriter().batch(150)]) == [None]
        for limit in (0, 1, 2, 99, 149, 150, 151, 10_000):
            listed = [h.seq for h in storage.headers(RecordQuery(run_id="run", limit=limit))]
            assert listed == list(range(150, max(150 - limit, 0), -1))

    @pytest.mark.parametrize(
        "query", [RecordQuery(run_id="a"), RecordQuery(name="x"), RecordQuery()]
    )
    @pytest.mark.parametrize("size", [1, 3, 20])
    def test_paging_repeats_and_misses_nothing_while_others_append(
        self, storage: Storage, query: RecordQuery, size: int
    ) -> None:
        clock = FakeClock()
        writers = [JournalWriter(run_id, name="x", clock=clock) for run_id in "ab"]
        saved = [writers[n % 2].save(storage).header for n in range(41)]
        expected = wanted(saved[::-1], query)
        listed: list[Header] = []
        while page := list(
            storage.headers(
                msgspec.structs.replace(query, limit=size, before=listed[-1].id if listed else None)
            )
        ):
            assert len(page) <= size
            listed += page
            for writer in writers:
                writer.save(storage)
        assert listed == expected

    def test_paging_goes_on_from_a_record_that_was_hidden(self, storage: Storage) -> None:
        writer = JournalWriter()
        saved = [writer.save(storage) for _ in range(5)]
        storage.delete("run", hide=[3])
        query = RecordQuery(run_id="run", before=saved[2].header.id)
        assert [header.seq for header in storage.headers(query)] == [2, 1]

    def test_paging_goes_on_from_a_note(self, storage: Storage) -> None:
        writer = JournalWriter()
        writer.save(storage)
        note = writer.save(storage, frame="note")
        writer.save(storage)
        query = RecordQuery(run_id="run", before=note.header.id)
        assert [header.seq for header in storage.headers(query)] == [1]

    def test_paging_from_an_id_that_two_runs_have_stays_in_the_run_asked_for(
        self, storage: Storage
    ) -> None:
        for run_id in "ab":
            writer = JournalWriter(run_id)
            for id_ in ("x", "y", "z"):
                writer.save(storage, id=id_)
        for run_id in "ab":
            listed = storage.headers(RecordQuery(run_id=run_id, before="y"))
            assert [(header.run_id, header.id) for header in listed] == [(run_id, "x")]

    def test_paging_from_an_id_that_is_not_there_is_an_error(self, storage: Storage) -> None:
        JournalWriter().save(storage)
        with pytest.raises((NotFoundError, UsageError)):
            list(storage.headers(RecordQuery(before="none")))

    def test_the_newest_of_a_scope_is_found_behind_many_notes(self, storage: Storage) -> None:
        writer = JournalWriter()
        inner = writer.save(storage, scope="inner").header
        outer = writer.save(storage).header
        notes = [writer.record(frame="note", kind="effect") for _ in range(2_000)]
        assert storage.append([writer.batch(notes)]) == [None]
        for scope, newest in (("inner", inner), ("", outer)):
            query = RecordQuery(run_id="run", scope=scope, limit=1)
            assert list(storage.headers(query)) == [newest]

    def test_what_is_rare_is_found_behind_much_that_is_not_wanted(self, storage: Storage) -> None:
        writer = JournalWriter(clock=FakeClock(NOON))
        rare = writer.save(storage, metadata={"rare": 1}).header
        assert storage.append([writer.batch(2_500)]) == [None]
        for query in (RecordQuery(metadata={"rare": 1}), RecordQuery(until=NOON, limit=3)):
            assert list(storage.headers(query)) == [rare]

    def test_a_clock_set_back_changes_no_order(self, storage: Storage) -> None:
        clock = FakeClock()
        writer = JournalWriter(clock=clock)
        for _ in range(6):
            writer.save(storage)
            clock.shift(-3_600)
        for view in self.views(storage):
            assert seqs(view) == [6, 5, 4, 3, 2, 1]
            latest = list(view.headers(RecordQuery(run_id="run", scope="", limit=1)))
            assert [header.seq for header in latest] == [6]

    def test_what_is_listed_and_read_shares_nothing_with_what_is_stored(
        self, storage: Storage
    ) -> None:
        given = {"list": [1], "deep": {"a": 1}}
        record = JournalWriter().save(storage, metadata=given, id="x")
        text = record.text

        def all_views() -> Iterator[Header]:
            yield from storage.headers(RecordQuery())
            yield from storage.find("x")
            yield from (read.header for read in storage.read("run"))

        for header in (record.header, *all_views()):
            header.metadata["list"].append(2)
            header.metadata["deep"].clear()
            header.metadata["new"] = 1
        for header in all_views():
            assert header.metadata == {"list": [1], "deep": {"a": 1}}
        assert [read.text for read in storage.read("run")] == [text]
        assert list(storage.headers(RecordQuery(metadata={"new": 1}))) == []


class FindPromises(Medium):
    def test_find_takes_a_prefix(self, storage: Storage) -> None:
        save_ids(storage, "abc", "abd", "ac", "b")
        for view in self.views(storage):
            assert _found(view, "ab") == ["abc", "abd"]
            assert _found(view, "a") == ["abc", "abd", "ac"]
            assert _found(view, "abd") == ["abd"]
            assert _found(view, "abde") == _found(view, "c") == []

    def test_an_exact_id_gives_only_its_own(self, storage: Storage) -> None:
        save_ids(storage, "abcd", "ab", "abc")
        assert _found(storage, "ab") == ["ab"]
        assert _found(storage, "a") == ["ab", "abc", "abcd"]

    def test_find_keeps_up_with_what_comes_and_goes(self, storage: Storage) -> None:
        writer = JournalWriter()
        # 7 and 100 have no factor in common: every id from 00 to 99 comes once, out of order.
        records = [writer.record(id=f"id-{n * 7 % 100:02}") for n in range(100)]
        assert storage.append([writer.batch(records)]) == [None]
        assert _found(storage, "id-4") == [f"id-4{n}" for n in range(10)]
        writer.save(storage, id="id-4x")
        writer.save(storage, id="id-40")
        gone = [r.header.seq for r in records if r.header.id in ("id-40", "id-41", "id-49")]
        assert storage.delete("run", erase=gone) == 3
        writer.save(storage, id="id-50")
        assert storage.delete("run", erase=[writer.seq - 2]) == 1
        for view in self.views(storage):
            assert _found(view, "id-4") == ["id-40", *(f"id-4{n}" for n in range(2, 9))]
            assert [header.seq for header in view.find("id-50")] == [writer.seq]

    def test_find_gives_whole_headers(self, storage: Storage) -> None:
        record = JournalWriter().save(storage, id="x", metadata={"a": [1]}, tags=("t",))
        assert storage.find("x") == [record.header]

    def test_find_knows_no_notes(self, storage: Storage) -> None:
        writer = JournalWriter()
        writer.save(storage, id="ab", frame="note")
        writer.save(storage, id="abc")
        assert _found(storage, "ab") == ["abc"]

    def test_of_an_id_used_again_in_a_run_and_scope_only_the_newest_counts(
        self, storage: Storage
    ) -> None:
        writer = JournalWriter()
        for scope in ("", "inner", "", "inner", ""):
            writer.save(storage, id="again", scope=scope)
        for view in self.views(storage):
            for prefix in ("again", "aga"):
                assert sorted((h.scope, h.seq) for h in view.find(prefix)) == [
                    ("", 5),
                    ("inner", 4),
                ]

    def test_an_id_of_several_runs_gives_them_all(self, storage: Storage) -> None:
        for run_id in "abc":
            writer = JournalWriter(run_id)
            writer.save(storage, id="shared")
            writer.save(storage, id="shared")
        for view in self.views(storage):
            found = sorted((header.run_id, header.seq) for header in view.find("shared"))
            assert found == [("a", 2), ("b", 2), ("c", 2)]

    def test_an_id_that_was_hidden_is_not_found(self, storage: Storage) -> None:
        save_ids(storage, "abc", "abd", "x")
        storage.delete("run", hide=[1])
        for view in self.views(storage):
            assert _found(view, "abc") == []
            assert _found(view, "ab") == ["abd"]

    @pytest.mark.parametrize("special", ["%", "_", "*", "?", "[", "]", "\\", "'", '"', "^", "-"])
    def test_no_character_of_an_id_is_a_wildcard(self, storage: Storage, special: str) -> None:
        save_ids(storage, "axb", "ab", f"a{special}b", f"a{special}c", f"{special}", "a[x]b")
        assert _found(storage, f"a{special}") == sorted(
            id_
            for id_ in ("a[x]b", f"a{special}b", f"a{special}c")
            if id_.startswith(f"a{special}")
        )
        assert _found(storage, f"a{special}b") == [f"a{special}b"]
        assert _found(storage, special) == [special]

    def test_a_prefix_tells_upper_from_lower_case(self, storage: Storage) -> None:
        save_ids(storage, "Abc", "abc", "ABC", "Éa", "éa")
        assert _found(storage, "A") == ["ABC", "Abc"]
        assert _found(storage, "ab") == ["abc"]
        assert _found(storage, "é") == ["éa"]

    def test_a_prefix_finds_what_follows_in_any_alphabet(self, storage: Storage) -> None:
        ids = ["a\x01", "az", "a\x7f", "aé", "a\uffff", "a\N{SNOWMAN}", "a😀", "a\U0010ffff"]
        save_ids(storage, *ids, "b", "A", "`")
        assert _found(storage, "a") == sorted(ids)
        assert _found(storage, "a\U0010ffff") == ["a\U0010ffff"]


def save_ids(storage: Storage, *ids: str) -> None:
    writer = JournalWriter()
    for id_ in ids:
        writer.save(storage, id=id_)


def _found(storage: Storage, prefix: str) -> list[str]:
    return sorted(header.id for header in storage.find(prefix))
