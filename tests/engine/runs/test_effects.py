"""Effects: recorded ones are not repeated, doubtful ones are surfaced."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.builders.graphs import Heard, line

from surehold import CheckpointManager, State, StateGraph, answer, effect, pending
from surehold.core.records import Effect
from surehold.errors import (
    ConflictError,
    EncodeError,
    InDoubtError,
    LeaseHeldError,
    NotFoundError,
    ShapeError,
    StepError,
    UsageError,
)


class Crash(BaseException):
    """The end of the process, as far as the code of a node can tell."""


class Bank:
    """Counts what it was asked for, and can die before or after it."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.calls: list[tuple[Any, ...]] = []
        self.dies = False
        self.fails: Exception | None = None

    async def charge(self, *args: Any, idempotency_key: str) -> dict[str, Any]:
        self.calls.append(args)
        self.keys.append(idempotency_key)
        if self.dies:
            raise Crash
        if self.fails:
            raise self.fails
        return {"charged": list(args)}


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.fixture
def bank() -> Bank:
    return Bank()


def paying(bank: Bank, db: str, heard: Heard | None = None, **options: Any) -> StateGraph:
    """A graph of one node that charges, and may fail after that."""

    async def pay(state: State) -> dict[str, Any]:
        receipt = await effect("charge", bank.charge, 5, **options)
        if state.get("fails"):
            raise ValueError("after the charge")
        return {"receipt": receipt}

    def end(state: State) -> None:
        return None

    return line(pay, end, store=db, interval=1, preserve=True, observer=heard or "noop")


async def crash(graph: StateGraph, bank: Bank) -> None:
    """Leave the run as a process does that dies inside the call: no checkpoint is taken."""
    bank.dies = True
    journal = graph.manager.face.journal

    async def run() -> None:
        save = graph.manager.save_draft
        count = 0

        async def dying(*args: Any, **kwargs: Any) -> str:
            nonlocal count
            count += 1
            if count > 1:
                raise Crash
            return await save(*args, **kwargs)

        graph.manager.save_draft = dying  # type: ignore[method-assign]
        try:
            await graph.execute(State.new({}, run_id="r"))
        finally:
            graph.manager.save_draft = save  # type: ignore[method-assign]

    with pytest.raises(Crash):
        await run()
    journal.invalidate("r")
    bank.dies = False


async def test_an_effect_outside_a_run_is_just_called_and_says_so_once(bank: Bank) -> None:
    with pytest.warns(RuntimeWarning, match="outside a run"):
        assert await effect("outside", bank.charge, 1) == {"charged": [1]}
    assert await effect("outside", bank.charge, 1) == {"charged": [1]}
    assert len(bank.keys[0]) > 20


async def test_an_effect_outside_a_run_can_be_told_not_to_warn(bank: Bank) -> None:
    assert await effect("quiet", bank.charge, 1, outside_ok=True) == {"charged": [1]}


async def test_an_effect_without_checkpoints_is_just_called(bank: Bank) -> None:
    async def pay(state: State) -> dict[str, Any]:
        return {"r": await effect("charge", bank.charge, 2)}

    assert (await line(pay).execute({}))["r"] == {"charged": [2]}


async def test_plain_functions_are_effects_too(db: str) -> None:
    def add(a: int, b: int = 0) -> int:
        return a + b

    async def node(state: State) -> dict[str, Any]:
        return {"sum": await effect("add", add, 1, b=2)}

    async with line(node, store=db, interval=1) as graph:
        assert (await graph.execute({}))["sum"] == 3


async def test_a_recorded_outcome_is_reused_when_the_node_runs_again(bank: Bank, db: str) -> None:
    heard = Heard()
    async with paying(bank, db, heard) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({"fails": True}, run_id="r"))
        with pytest.raises(StepError):
            await graph.resume("r")
        assert len(bank.calls) == 1
        assert heard.of("effect.reused")[0]["effect"] == "charge@1"


async def test_outcomes_come_back_as_the_types_they_were(db: str) -> None:
    fails = [True]
    seen: list[Any] = []

    async def node(state: State) -> None:
        seen.append(await effect("tuple", lambda: (1, {2: b"3"}, {4})))
        if fails.pop():
            raise ValueError

    async with line(node, store=db, interval=1) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({}, run_id="r"))
        fails.append(False)
        await graph.resume("r")
    assert seen[0] == seen[1] == (1, {2: b"3"}, {4}) and type(seen[1]) is tuple


async def test_the_key_is_that_of_the_place_and_each_run_has_its_own(bank: Bank, db: str) -> None:
    async def pay(state: State) -> None:
        await effect("charge", bank.charge, 1)
        await effect("charge", bank.charge, 1)
        await effect("charge", bank.charge, 1, key="invoice-7")

    async with line(pay, store=db, interval=1) as graph:
        await graph.execute(State.new({}, run_id="a"))
        await graph.execute(State.new({}, run_id="b"))
    assert len(set(bank.keys)) == 6


async def test_other_arguments_at_the_same_place_are_refused(bank: Bank, db: str) -> None:
    amounts = iter([1, 2])

    async def pay(state: State) -> None:
        await effect("charge", bank.charge, next(amounts))
        raise ValueError

    async with line(pay, store=db, interval=1) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({}, run_id="r"))
        with pytest.raises(ShapeError, match="other arguments"):
            await graph.resume("r")
    assert bank.calls == [(1,)]


async def test_what_cannot_be_stored_counts_by_its_type_among_arguments(db: str) -> None:
    class Client:
        pass

    async def node(state: State) -> dict[str, Any]:
        return {"a": await effect("use", lambda client, n: n, Client(), 1)}

    async with line(node, store=db, interval=1) as graph:
        assert (await graph.execute({}))["a"] == 1


async def test_an_outcome_that_cannot_be_stored_is_a_failure_and_not_in_doubt(db: str) -> None:
    results: list[object] = [object(), "text"]

    async def node(state: State) -> dict[str, str]:
        return {"said": await effect("odd", lambda: results.pop(0))}

    async with line(node, store=db, interval=1) as graph:
        with pytest.raises(StepError) as caught:
            await graph.execute(State.new({}, run_id="r"))
        assert isinstance(caught.value.__cause__, EncodeError)
        assert pending("r", storage=db) == []
        assert (await graph.resume("r"))["said"] == "text"


async def test_undeclared_effects_in_doubt_park_the_run(bank: Bank, db: str) -> None:
    heard = Heard()
    async with paying(bank, db, heard) as graph:
        await crash(graph, bank)
        for _ in range(2):
            caught = await graph.resume("r")
            assert caught.status == "waiting"
            (waiting,) = caught.waiting
            assert (waiting.kind, waiting.id, waiting.name) == ("effect", "charge@1", "charge")
            assert waiting.key == bank.keys[0] and waiting.policy == "ask"
        newest = await graph.manager.latest("r")
        assert newest is not None and newest.status == "waiting"
        assert [one.id for one in pending(storage=db)] == ["charge@1"]
        assert len(bank.calls) == 1
        assert "effect.in_doubt" in heard.types()


async def test_a_parked_effect_goes_on_with_the_outcome_it_is_told(bank: Bank, db: str) -> None:
    async with paying(bank, db) as graph:
        await crash(graph, bank)
        assert (await graph.resume("r")).status == "waiting"
        said = answer("r", "charge", {"charged": "by phone"}, storage=db)
        assert said.id == "charge@1"
        assert pending("r", storage=db) == []
        final = await graph.resume("r")
        assert final["receipt"] == {"charged": "by phone"}
        assert len(bank.calls) == 1


async def test_a_parked_effect_can_be_said_not_to_have_happened(bank: Bank, db: str) -> None:
    async with paying(bank, db) as graph:
        await crash(graph, bank)
        answer("r", "charge@1", repeat=True, storage=db)
        await graph.resume("r")
        assert len(bank.calls) == 2 and len(set(bank.keys)) == 1


async def test_a_parked_effect_can_be_said_to_have_failed(bank: Bank, db: str) -> None:
    async with paying(bank, db) as graph:
        await crash(graph, bank)
        answer("r", "charge@1", error="the bank refused", storage=db)
        with pytest.raises(StepError) as caught:
            await graph.resume("r")
        assert "the bank refused" in str(caught.value.__cause__)
        assert len(bank.calls) == 1


async def test_resolve_refuses_what_it_cannot_know(bank: Bank, db: str) -> None:
    async with paying(bank, db) as graph:
        await crash(graph, bank)
        with pytest.raises(UsageError):
            answer("r", "charge@1", storage=db)
        with pytest.raises(UsageError):
            answer("r", "charge@1", 1, repeat=True, storage=db)
        with pytest.raises(NotFoundError, match=r"waiting: charge@1"):
            answer("r", "refund", 1, storage=db)
        with pytest.raises(NotFoundError):
            answer("nobody", "charge@1", 1, storage=db)
        with pytest.raises(NotFoundError):
            pending("nobody", storage=db)


async def test_a_run_that_is_being_executed_cannot_be_resolved(db: str) -> None:
    inside, go = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        inside.set()
        await go.wait()

    async def node(state: State) -> None:
        await effect("slow", slow)

    async with line(node, store=db, interval=1) as graph:
        running = asyncio.create_task(graph.execute(State.new({}, run_id="r")))
        await inside.wait()
        assert pending(storage=db) == []
        with pytest.raises(LeaseHeldError):
            answer("r", "slow", None, storage=db)
        go.set()
        await running


async def test_retry_calls_again_with_the_same_key(bank: Bank, db: str) -> None:
    async with paying(bank, db, in_doubt="retry") as graph:
        await crash(graph, bank)
        await graph.resume("r")
        assert len(bank.calls) == 2 and len(set(bank.keys)) == 1


async def test_retry_costs_one_write_less(bank: Bank, db: str) -> None:
    counts = {}
    for policy in ("retry", "ask"):
        async with paying(bank, db, in_doubt=policy) as graph:
            await graph.execute(State.new({}, run_id=policy))
            run = graph.manager.reader.run(policy)
            assert run is not None
            counts[policy] = run.seq
    assert counts["ask"] == counts["retry"] + 1


@pytest.mark.parametrize("found", [None, {"charged": "found"}])
async def test_probe_asks_the_outside(bank: Bank, db: str, found: Any) -> None:
    asked: list[str] = []

    async def look(key: str) -> Any:
        asked.append(key)
        return found

    async with paying(bank, db, probe=look) as graph:
        await crash(graph, bank)
        final = await graph.resume("r")
        assert asked == [bank.keys[0]]
        assert final["receipt"] == (found or {"charged": [5]})
        assert len(bank.calls) == (1 if found else 2)


async def test_what_a_probe_will_settle_waits_for_nobody(bank: Bank, db: str) -> None:
    async with paying(bank, db, probe=lambda key: {"charged": "found"}) as graph:
        await crash(graph, bank)
        assert pending("r", storage=db) == []
        assert "in doubt: charge@1, and would be looked up" in str(graph.explain_resume("r"))
        with pytest.raises(UsageError, match="charge@1 of run 'r' has in_doubt='probe'"):
            answer("r", "charge", {"charged": "guessed"}, storage=db)
        assert (await graph.resume("r"))["receipt"] == {"charged": "found"}


async def test_code_that_asks_instead_of_probing_is_answered(bank: Bank, db: str) -> None:
    async with paying(bank, db, probe=lambda key: None) as graph:
        await crash(graph, bank)
    async with paying(bank, db) as graph:
        result = await graph.resume("r")
        assert [one.policy for one in result.waiting] == ["ask"]
        assert [one.id for one in pending("r", storage=db)] == ["charge@1"]
        answer("r", "charge", {"charged": "yes"}, storage=db)
        assert (await graph.resume("r"))["receipt"] == {"charged": "yes"}


async def test_fail_is_an_error_that_says_what_to_do(bank: Bank, db: str) -> None:
    async with paying(bank, db, in_doubt="fail") as graph:
        await crash(graph, bank)
        with pytest.raises(InDoubtError, match=r"surehold.answer\('r', 'charge@1'"):
            await graph.resume("r")
        answer("r", "charge@1", {"charged": "yes"}, storage=db)
        assert (await graph.resume("r"))["receipt"] == {"charged": "yes"}


async def test_a_function_may_say_that_it_cannot_tell(bank: Bank, db: str) -> None:
    bank.fails = InDoubtError("the line broke")
    async with paying(bank, db) as graph:
        with pytest.raises(InDoubtError):
            await graph.execute(State.new({}, run_id="r"))
        bank.fails = None
        assert (await graph.resume("r")).status == "waiting"
    assert len(bank.calls) == 1


async def test_an_exception_is_an_outcome_and_the_failed_step_tries_again(
    bank: Bank, db: str
) -> None:
    bank.fails = ConnectionError("no line")
    async with paying(bank, db) as graph:
        with pytest.raises(StepError) as caught:
            await graph.execute(State.new({}, run_id="r"))
        assert isinstance(caught.value.__cause__, ConnectionError)
        assert pending("r", storage=db) == []
        bank.fails = None
        assert (await graph.resume("r"))["receipt"] == {"charged": [5]}
    assert len(bank.calls) == 2 and len(set(bank.keys)) == 1


async def test_a_recorded_exception_is_raised_again_after_a_crash(db: str) -> None:
    class Odd(Exception):
        pass

    calls: list[str] = []
    crashes = [True]
    seen: list[type[Exception]] = []

    def fails(kind: str) -> None:
        calls.append(kind)
        raise Odd("odd") if kind == "odd" else LookupError("not there")

    async def node(state: State) -> None:
        for kind in ("odd", "known"):
            try:
                await effect(kind, fails, kind)
            except Exception as error:
                seen.append(type(error))
        if crashes.pop():
            graph.manager.save_draft = dead  # type: ignore[method-assign]
            raise Crash

    async def dead(*args: Any, **kwargs: Any) -> str:
        raise Crash

    async with line(node, lambda state: None, store=db, interval=1) as graph:
        save = graph.manager.save_draft
        with pytest.raises(Crash):
            await graph.execute(State.new({}, run_id="r"))
        graph.manager.save_draft = save  # type: ignore[method-assign]
        crashes.append(False)
        await graph.resume("r")
    assert calls == ["odd", "known"]
    assert seen == [Odd, LookupError] * 2


@pytest.mark.parametrize(
    "options", [{"in_doubt": "maybe"}, {"in_doubt": "probe"}, {"in_doubt": "ask", "probe": len}]
)
async def test_policies_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        await effect("x", lambda: None, **options)


async def test_time_tokens_and_dollars_are_noted(db: str) -> None:
    async def think() -> dict[str, Any]:
        await asyncio.sleep(0.02)
        return {"text": "hm", "usage": 12}

    async def node(state: State) -> None:
        await effect(
            "think",
            think,
            in_doubt="retry",
            usage=lambda value: {"tokens": value["usage"], "dollars": 0.25},
        )
        raise ValueError

    heard = Heard()
    async with line(node, store=db, interval=1, observer=heard) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({}, run_id="r"))
        told = heard.of("effect.complete")[0]
        assert told["tokens"] == 12 and told["dollars"] == 0.25 and told["seconds"] >= 0.02
        plan = graph.explain_resume("r")
        assert plan.reused == ("think@1",)
        assert (plan.saves.tokens, plan.saves.dollars) == (12, 0.25)
        assert plan.saves.seconds >= 0.02


async def test_effects_after_the_newest_checkpoint_are_reused_in_every_node(
    bank: Bank, db: str
) -> None:
    fails = [True]

    async def pay(state: State) -> dict[str, Any]:
        await effect("charge", bank.charge, state["n"])
        return {"n": state["n"] + 1}

    def maybe(state: State) -> None:
        if fails.pop():
            graph.manager.save_draft = dead  # type: ignore[method-assign]
            raise Crash

    async def dead(*args: Any, **kwargs: Any) -> str:
        raise Crash

    def pay2(state: State) -> Any:
        return pay(state)

    def pay3(state: State) -> Any:
        return pay(state)

    async with line(
        pay, pay2, pay3, maybe, lambda state: None, store=db, interval=9, preserve=True
    ) as graph:
        save = graph.manager.save_draft
        with pytest.raises(Crash):
            await graph.execute(State.new({"n": 0}, run_id="r"))
        graph.manager.save_draft = save  # type: ignore[method-assign]
        fails.append(False)
        plan = graph.explain_resume("r")
        assert plan.again == ("pay", "pay2", "pay3") and plan.next == "pay"
        assert (await graph.resume("r"))["n"] == 3
    assert bank.calls == [(0,), (1,), (2,)]


async def test_a_run_taken_back_does_not_repeat_its_effects(bank: Bank, db: str) -> None:
    fails: list[bool] = []

    async def pay(state: State) -> dict[str, Any]:
        await effect("charge", bank.charge, state["n"])
        return {"n": state["n"] + 1}

    def pay2(state: State) -> Any:
        return pay(state)

    def end(state: State) -> None:
        if fails:
            raise ValueError

    async with line(pay, pay2, end, store=db, interval=1, preserve=True) as graph:
        await graph.execute(State.new({"n": 0}, run_id="r"))
        fails.append(True)
        with pytest.raises(StepError):
            await graph.resume("r", step=0)
        fails.clear()
        await graph.resume("r", step=0)
    assert bank.calls == [(0,), (1,)]


async def test_a_fork_inherits_no_effects(bank: Bank, db: str) -> None:
    async with paying(bank, db) as graph:
        await graph.execute(State.new({}, run_id="r"))
        first = (await graph.manager.list_checkpoints("r"))[-1]
        await graph.fork(first.checkpoint_id, run_id="other")
        await graph.resume("other")
    assert len(bank.calls) == 2 and len(set(bank.keys)) == 2


async def test_effects_are_encrypted_with_the_rest(tmp_path: Any) -> None:
    from surehold import CheckpointConfig, GraphConfig, StateManager

    async def node(state: State) -> None:
        await effect("look", lambda word: f"found {word}", "kelpforest")

    path = tmp_path / "runs.db"
    manager = StateManager(f"sqlite:///{path}", encryption_key=bytes(range(32)))
    graph = StateGraph(
        GraphConfig(checkpoint=CheckpointConfig(interval=1, preserve=True)), manager=manager
    )
    graph.add_node("node", node)
    graph.set_entry_point("node")
    graph.set_exit_point("node")
    await graph.execute(State.new({}, run_id="r"))
    await manager.close()
    stored = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert b"kelpforest" not in stored


async def test_what_a_node_left_running_writes_nothing_once_the_run_is_let_go(
    bank: Bank, db: str
) -> None:
    left: list[asyncio.Task[Any]] = []
    go = asyncio.Event()

    async def late() -> str:
        await go.wait()
        return "late"

    async def node(state: State) -> None:
        left.append(asyncio.create_task(effect("late", late)))
        await asyncio.sleep(0.05)
        raise ValueError

    async with line(node, store=db, interval=1, preserve=True) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({}, run_id="r"))
        go.set()
        with pytest.raises(ConflictError, match="no longer executed here"):
            await left[0]
        assert [one.id for one in pending("r", storage=db)] == ["late@1"]


async def test_a_timeout_that_a_node_handles_leaves_its_call_in_doubt(
    db: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[list[str]] = []

    async def pay(state: State) -> None:
        try:
            async with asyncio.timeout(0.01):
                await effect("charge", asyncio.Event().wait)
        except TimeoutError:
            pass

    async def fails(state: State) -> None:
        if not seen:
            seen.append([])
            raise ConnectionError

    async with line(pay, fails, store=db, interval=1, preserve=True) as graph:
        with pytest.raises(StepError):
            await graph.execute(State.new({}, run_id="r"))
        assert [one.id for one in pending("r", storage=db)] == ["charge@1"]
        with caplog.at_level("WARNING", "surehold"):
            await graph.resume("r")
    assert "run r is completed, and it is not known whether charge@1 happened" in caplog.text


def test_an_entry_knows_its_defaults() -> None:
    entry = Effect(id="a@1", name="a", key="k")
    assert not entry.done and entry.policy == "ask"


def test_pending_takes_a_manager_and_leaves_it_open() -> None:
    manager = CheckpointManager("memory://")
    assert pending(storage=manager) == []
    assert manager.list_checkpoints() == []
