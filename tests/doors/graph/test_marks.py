"""Saving a run that nobody executes once more: marked, and some of its keys changed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.builders.graphs import Counting, line

from surehold import State, effect
from surehold.errors import LeaseHeldError, ShapeError, StepError, UsageError


class Shop:
    """A node that pays, and then fails for as long as it is told to."""

    def __init__(self) -> None:
        self.paid = 0
        self.fails = True

    async def pay(self) -> int:
        self.paid += 1
        return self.paid

    async def buy(self, state: State) -> dict[str, Any]:
        await effect("pay", self.pay)
        if self.fails:
            raise ConnectionError("no network")
        return {"bought": state["what"]}

    def end(self, state: State) -> None:
        pass


async def test_what_was_decided_and_paid_for_stays(store: str) -> None:
    shop = Shop()
    async with line(shop.buy, shop.end, store=store, interval=1, preserve=True) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"what": "tea"}, run_id="r"))
        marked = await graph.checkpoint("r", {"what": "kelp"}, metadata={"by": "ann"})
        (newest, *_) = await graph.manager.list_checkpoints("r")
        assert newest.checkpoint_id == marked.checkpoint_id
        assert (newest.kind, newest.status, newest.step) == ("manual", "failed", 0)
        assert newest.metadata == {"by": "ann", "error": "ConnectionError"}
        plan = graph.explain_resume("r")
        assert (plan.next, plan.reused, plan.error) == (
            *("buy", ("pay@1",), "ConnectionError: no network"),
        )
        shop.fails = False
        final = await graph.resume("r")
        assert (final["bought"], shop.paid, final.state.metadata) == ("kelp", 1, {"by": "ann"})
        assert all(await graph.manager.verify("r"))


async def test_what_comes_next_is_decided_anew_if_nothing_of_it_has_happened(db: str) -> None:
    counting = Counting(3)
    counting.fails_at = 2
    async with counting.graph(store=db, interval=1, preserve=True) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"n": 0}, run_id="r"))
        assert graph.explain_resume("r").next == "up"
        await graph.checkpoint("r", {"n": 3})
        assert (await graph.resume("r"))["n"] == 3
    assert counting.executed == [0, 1, 2]


async def test_a_run_that_is_not_there_is_begun_and_not_executed(db: str) -> None:
    shop = Shop()
    shop.fails = False
    async with line(shop.buy, shop.end, store=db, interval=1, preserve=True) as graph:
        state = await graph.checkpoint("new", {"what": "tea"})
        assert (state.step, shop.paid) == (0, 0)
        assert (await graph.resume("new"))["bought"] == "tea"


async def test_a_completed_run_can_be_marked_and_not_changed(db: str) -> None:
    shop = Shop()
    shop.fails = False
    async with line(shop.buy, shop.end, store=db, interval=1, preserve=True) as graph:
        final = await graph.execute(State.new({"what": "tea"}, run_id="r"))
        await graph.checkpoint("r", metadata={"note": "good"})
        again = await graph.resume("r")
        assert (again.to_dict(), again.status) == (final.to_dict(), "completed")
        with pytest.raises(UsageError, match="is completed"):
            await graph.checkpoint("r", {"what": "kelp"})
    assert shop.paid == 1


async def test_a_run_that_is_executed_is_left_alone(db: str) -> None:
    told: list[Exception] = []

    async def node(state: State) -> None:
        async with line(node, store=db, interval=1) as other:
            with pytest.raises(LeaseHeldError) as caught:
                await other.checkpoint("r")
            told.append(caught.value)

    async with line(node, store=db, interval=1) as graph:
        await graph.execute(State.new({}, run_id="r"))
    assert len(told) == 1


async def test_a_run_of_another_graph_is_refused(db: str) -> None:
    shop = Shop()
    async with line(shop.buy, shop.end, store=db, interval=1) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"what": "tea"}, run_id="r"))
    async with line(shop.buy, store=db, interval=1) as other:
        with pytest.raises(ShapeError):
            await other.checkpoint("r")


async def test_without_checkpointing_nothing_can_be_marked() -> None:
    with pytest.raises(UsageError, match="checkpointing is off"):
        await line(Shop().buy).checkpoint("r")
