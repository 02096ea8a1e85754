"""Calls that a recorded call makes itself do not move the positions of those around it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.builders.agents import turns

import surehold
from surehold import (
    Agent,
    MemoryStorage,
    Reply,
    StateGraph,
    ToolCall,
    effect,
    step,
    tool,
    workflow,
)
from surehold.errors import LeaseHeldError, NotFoundError, StepError, UsageError
from surehold.testing.scripted import ScriptedModel


class Bank:
    """Counts payments, and can fail before or after one."""

    def __init__(self) -> None:
        self.paid: list[tuple[int, str]] = []
        self.fails: list[str] = []

    def pay(self, amount: int, idempotency_key: str) -> str:
        self.paid.append((amount, idempotency_key))
        return f"paid {amount}"

    def maybe_fail(self, where: str) -> None:
        if where in self.fails:
            self.fails.remove(where)
            raise ConnectionError(where)


def in_a_workflow(bank: Bank, storage: MemoryStorage) -> Callable[[], Any]:
    pay = step(in_doubt="retry")(bank.pay)

    @step(in_doubt="retry")
    def order(name: str) -> str:
        bank.maybe_fail(f"before {name}")
        made = pay(5)
        surehold.uuid4()
        bank.maybe_fail(f"after {name}")
        return str(made)

    @workflow(name="shop")
    def shop() -> list[str]:
        return [order("a"), order("b")]

    return lambda: shop.run(run_id="r", storage=storage).value


def in_a_graph(bank: Bank, storage: MemoryStorage) -> Callable[[], Any]:
    async def order(name: str) -> str:
        bank.maybe_fail(f"before {name}")
        made = await effect("pay", bank.pay, 5, in_doubt="retry")
        bank.maybe_fail(f"after {name}")
        return made

    async def both(state: Any) -> Any:
        names = ("a", "b")
        return {"made": [await effect("order", order, n, in_doubt="retry") for n in names]}

    graph = StateGraph("shop", storage=storage)
    graph.add_node("both", both)
    graph.set_entry_point("both")
    graph.set_exit_point("both")

    def start() -> Any:
        try:
            return graph.run_sync(run_id="r")["made"]
        except StepError as error:
            raise error.__cause__ or error from None

    return start


def in_a_run(bank: Bank, storage: MemoryStorage) -> Callable[[], Any]:
    def start() -> Any:
        with surehold.run("r", storage=storage) as run:

            def order(name: str) -> Any:
                bank.maybe_fail(f"before {name}")
                made = run.effect("pay", bank.pay, 5, in_doubt="retry")
                bank.maybe_fail(f"after {name}")
                return made

            return [run.effect("order", order, name, in_doubt="retry") for name in ("a", "b")]

    return start


@pytest.mark.parametrize("where", ["before b", "after b", "before a", "after a"])
@pytest.mark.parametrize("door", [in_a_workflow, in_a_graph, in_a_run])
def test_each_order_is_paid_once_wherever_the_run_was_broken_off(door: Any, where: str) -> None:
    bank = Bank()
    bank.fails = [where]
    start = door(bank, MemoryStorage())
    with pytest.raises(ConnectionError):
        start()
    assert start() == ["paid 5", "paid 5"]
    assert len({key for _, key in bank.paid}) == len(bank.paid) == 2


def test_an_attempt_of_a_step_reuses_the_calls_inside_it_that_succeeded() -> None:
    bank = Bank()
    bank.fails = ["after pay", "audit"]
    pay = step(in_doubt="retry")(bank.pay)

    @step(in_doubt="retry")
    def audit() -> str:
        bank.maybe_fail("audit")
        return "audited"

    @step(retries=3, backoff=0.001, in_doubt="retry")
    def order() -> list[str]:
        made = pay(5)
        bank.maybe_fail("after pay")
        return [made, audit()]

    @workflow(name="order-with-retries")
    def shop() -> list[str]:
        return order()

    result = shop.run(run_id="r", storage=MemoryStorage())
    assert result.value == ["paid 5", "audited"]
    assert len(bank.paid) == 1


def test_a_step_inside_a_step_with_a_time_limit_is_recorded() -> None:
    bank, storage = Bank(), MemoryStorage()
    bank.fails = ["later"]
    pay = step(in_doubt="retry")(bank.pay)

    @step(timeout=30, in_doubt="retry")
    def order() -> str:
        made = pay(5)
        bank.maybe_fail("later")
        return made

    @workflow(name="limited")
    def shop() -> str:
        return order()

    with pytest.raises(ConnectionError):
        shop.run(run_id="r", storage=storage)
    assert shop.resume("r", storage=storage).value == "paid 5"
    assert len(bank.paid) == 1


async def test_each_tool_call_of_a_reply_has_the_calls_that_its_tool_makes() -> None:
    bank, storage, broken = Bank(), MemoryStorage(), ["b"]

    @tool(idempotent=True)
    async def buy(what: str) -> str:
        """Buy something."""
        if broken == [what]:
            broken.clear()
            raise KeyboardInterrupt
        return await effect("pay", bank.pay, 5)

    both = Reply(tool_calls=tuple(ToolCall(w, "buy", {"what": w}) for w in ("a", "b")))

    def shopper() -> Agent:
        model = ScriptedModel(turns(both, "done"))
        return Agent("s", model=model, tools=[buy], storage=storage, report=lambda line: None)

    with pytest.raises(KeyboardInterrupt):
        await shopper().run("shop", run_id="r")
    assert (await shopper().resume("r")).status == "completed"
    assert len({key for _, key in bank.paid}) == len(bank.paid) == 2


def test_a_question_inside_a_nested_graph_is_approved_by_its_run_alone() -> None:
    storage = MemoryStorage()

    async def ask(state: Any) -> Any:
        return {"agreed": await surehold.interrupt("agree?", schema=bool)}

    inner = StateGraph("inner")
    inner.add_node("ask", ask)
    inner.set_entry_point("ask")
    inner.set_exit_point("ask")
    outer = StateGraph("outer", storage=storage)
    outer.add_node("inner", inner)
    outer.set_entry_point("inner")
    outer.set_exit_point("inner")
    assert outer.run_sync(run_id="r").waiting[0].id == "inner@1/ask@1"
    surehold.approve("r", storage=storage)
    assert outer.resume_sync("r")["agreed"] is True


@pytest.mark.parametrize(("policy", "frees"), [("ask", False), ("fail", False), ("retry", True)])
def test_a_step_that_must_not_be_repeated_keeps_the_process_while_it_waits(
    policy: Any, frees: bool
) -> None:
    storage, began = MemoryStorage(), []

    @step(in_doubt=policy)
    def rest() -> str:
        began.append(1)
        surehold.sleep(1.1)
        return "rested"

    @workflow
    def rests() -> str:
        return rest()

    result = rests.run(run_id="r", storage=storage, wait=False)
    assert (result.status == "waiting") is frees
    if frees:
        assert [one.kind for one in result.waiting] == ["timer"]
        result = rests.resume("r", storage=storage)
    assert (result.value, len(began)) == ("rested", 2 if frees else 1)


def test_an_event_reaches_a_step_that_must_not_be_repeated() -> None:
    storage, began = MemoryStorage(), threading.Event()

    @step(in_doubt="ask")
    def hear() -> str:
        began.set()
        return str(surehold.wait_for("go"))

    @workflow
    def hears() -> str:
        return hear()

    def say() -> None:
        assert began.wait(60)
        for _ in range(6000):
            with contextlib.suppress(NotFoundError, LeaseHeldError):
                surehold.answer("r", "go", "now", storage=storage)
                return
            time.sleep(0.01)

    saying = threading.Thread(target=say)
    saying.start()
    assert hears.run(run_id="r", storage=storage, wait=False).value == "now"
    saying.join()


async def test_a_step_asks_only_if_it_may_be_repeated() -> None:
    storage = MemoryStorage()

    async def ask() -> str:
        return str(await surehold.interrupt("agree?"))

    @workflow
    async def asks(policy: str) -> str:
        return await step(in_doubt=policy)(ask)()  # type: ignore[call-overload, no-any-return]

    with pytest.raises(UsageError, match="must not be made again"):
        await asks.run("ask", run_id="a", storage=storage)
    (asked,) = (await asks.run("retry", run_id="r", storage=storage)).waiting
    surehold.answer("r", asked.id, "yes", storage=storage)
    assert (await asks.resume("r", storage=storage)).value == "yes"
