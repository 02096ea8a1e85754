"""Scopes that have an order of their own: ranks, branches, and what is newest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from surehold import CheckpointManager, MemoryStorage
from surehold.core.state.position import Lineage, Place
from surehold.core.values.frozen import Nature
from surehold.engine.journal.draft import CheckpointDraft
from surehold.errors import ConflictError
from surehold.integrations.branching import LATE, SortedBranches, by_id, in_order, top_of
from surehold.storage.base import RecordQuery

QUERY = RecordQuery(run_id="r", scope="")


def _subject(
    id: str, value: int, parent: str | None = None, *, alone: bool = False, scope: str = ""
) -> CheckpointDraft:
    return CheckpointDraft(
        form="",
        place=Place(run_id="r", scope=scope),
        values={"n": value},
        natures={"n": Nature.PLAIN},
        lineage=Lineage(parent),
        id=id,
        branching=SortedBranches(by_id, alone),
    )


def _value(manager: CheckpointManager, id: str) -> int:
    return manager.load_checkpoint(id)["n"]  # type: ignore[index]


@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=30),
    st.sets(st.integers(0, 30)),
    st.booleans(),
)
def test_the_order_is_that_of_the_ranks_whatever_was_saved_and_hidden_when(
    numbers: list[int], hidden: set[int], others: bool
) -> None:
    storage = MemoryStorage()
    manager, second = CheckpointManager(storage), CheckpointManager(storage)
    for turn, number in enumerate(numbers):
        writer = second if others and turn % 3 == 0 else manager
        writer.save_draft(_subject(f"{number:03}", turn), force=True)
    last = {number: turn for turn, number in enumerate(numbers)}
    gone = [h.seq for h in storage.headers(QUERY) if int(h.id) in hidden]
    storage.delete("r", hide=gone)
    visible = sorted(set(numbers) - hidden, reverse=True)
    found = list(in_order(storage.headers(QUERY), by_id))
    assert [int(header.id) for header in found] == visible
    assert {int(h.id): _value(manager, h.id) for h in found} == {n: last[n] for n in visible}
    top = top_of(storage, "r", "", by_id)
    assert top.greatest == (f"{visible[0]:03}" if visible else "")
    assert all(manager.verify("r"))


def test_only_what_comes_after_a_greater_one_is_tagged() -> None:
    storage = MemoryStorage()
    manager = CheckpointManager(storage)
    for id in ("b", "d", "c", "d", "e"):
        manager.save_draft(_subject(id, 0), force=True)
    assert {h.id: LATE in h.tags for h in storage.headers(QUERY)} == {
        **{"b": False, "c": True, "d": False, "e": False}
    }


def test_a_branch_is_built_on_the_one_it_names_and_two_writers_do_not_get_in_the_way() -> None:
    storage = MemoryStorage()
    manager, second = CheckpointManager(storage), CheckpointManager(storage)
    manager.save_draft(_subject("a", 1), force=True)
    for turn, writer in enumerate((manager, second, manager, second)):
        writer.save_draft(_subject(f"b{turn}", 10 + turn, "a"), force=True)
        writer.save_draft(_subject(f"c{turn}", 20 + turn, f"b{turn}"), force=True)
    assert [_value(manager, f"c{turn}") for turn in range(4)] == [20, 21, 22, 23]
    parents = {h.id: h.parent for h in storage.headers(QUERY)}
    assert parents["b3"] == "a" and parents["c2"] == "b2" and parents["a"] is None
    manager.save_draft(_subject("z", 0, "never saved"), force=True)
    assert {h.id: h.parent for h in storage.headers(QUERY)}["z"] == "never saved"


def test_alone_means_on_what_was_saved_last_by_whomever() -> None:
    storage = MemoryStorage()
    manager, second = CheckpointManager(storage), CheckpointManager(storage)
    manager.save_draft(_subject("a", 1, alone=True), force=True)
    manager.save_draft(_subject("x", 1, alone=True, scope="other"), force=True)
    second.save_draft(_subject("b", 2, "a", alone=True), force=True)
    for parent in ("a", None):
        try:
            manager.save_draft(_subject("c", 3, parent, alone=True), force=True)
        except ConflictError as error:
            assert "was continued to checkpoint b" in error.message
        else:
            raise AssertionError("it was saved")
    manager.save_draft(_subject("c", 3, "b", alone=True), force=True)
    manager.save_draft(_subject("d", 4, "a"), force=True)
    assert _value(second, "d") == 4


def test_a_run_with_very_many_scopes_is_remembered_in_part_and_saved_in_full() -> None:
    manager = CheckpointManager("memory://")
    for turn in range(3):
        for scope in range(100):
            parent = f"{turn - 1}" if turn else None
            draft = _subject(f"{turn}", turn * 1000 + scope, parent, scope=f"s{scope}")
            manager.save_draft(draft, force=True)
    cursor = manager.face.journal._cursors["r"]
    assert max(len(cursor.bases), len(cursor.branches)) <= 64
    states = {h.scope: manager.reader.load(h).texts["n"] for h in _newest(manager)}
    assert states == {f"s{n}": b"%d" % (2000 + n) for n in range(100)}


def _newest(manager: CheckpointManager) -> list:  # type: ignore[type-arg]
    return [h for h in manager.storage.headers(RecordQuery(run_id="r")) if h.id == "2"]
