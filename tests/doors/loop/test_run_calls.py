"""Calls and loops in `surehold.run`: recorded ones are not made again after a crash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import surehold
from surehold import CheckpointManager, HookManager, RedactionHook, Rules, answer, effect, pending
from surehold.doors.loop.definition import Run
from surehold.errors import InDoubtError, Interrupted, ShapeError, StorageError, UsageError


class Killed(BaseException):
    """Stands for SIGKILL: the run is left as it is in the journal."""


class Bank:
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.keys: list[str] = []
        self.kills = False
        self.fails = 0

    def charge(self, order: Any, idempotency_key: str) -> str:
        self.calls.append(order)
        self.keys.append(idempotency_key)
        if self.kills:
            raise Killed
        if self.fails:
            self.fails -= 1
            raise ConnectionError("no reply")
        return f"receipt {order}"


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.fixture(params=["sqlite:///{}/runs.db", "file:///{}/runs"])
def db(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(request.param).format(tmp_path)


class killed:
    """A run that ends as a killed process does: nothing more is saved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch

    def __enter__(self) -> None:
        self._patch.setattr(Run, "_end", lambda run, error: None)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        self._patch.undo()
        return kind is Killed


@pytest.fixture
def kill(monkeypatch: pytest.MonkeyPatch) -> killed:
    return killed(monkeypatch)


def test_a_recorded_call_is_returned_and_not_made_again(db: str, bank: Bank, kill: killed) -> None:
    with kill, surehold.run("r", storage=db) as run:
        assert run.call(bank.charge, 1) == "receipt 1"
        raise Killed
    with surehold.run("r", storage=db) as run:
        assert run.resumed and run.step == 0
        assert run.call(bank.charge, 1) == "receipt 1"
        assert run.call(bank.charge, 2) == "receipt 2"
    assert bank.calls == [1, 2] and len(set(bank.keys)) == 2


def test_a_call_that_was_in_flight_is_made_again(db: str, bank: Bank, kill: killed) -> None:
    bank.kills = True
    with kill, surehold.run("r", storage=db) as run:
        run.call(bank.charge, 1)
    bank.kills = False
    assert pending(storage=db) == []
    with surehold.run("r", storage=db) as run:
        assert run.call(bank.charge, 1) == "receipt 1"
    assert bank.calls == [1, 1] and len(set(bank.keys)) == 1


def test_an_effect_in_doubt_is_asked_about(db: str, bank: Bank, kill: killed) -> None:
    bank.kills = True
    with kill, surehold.run("r", storage=db) as run:
        run.effect("charge", bank.charge, 1)
    bank.kills = False
    with pytest.raises(Interrupted), surehold.run("r", storage=db) as run:
        run.effect("charge", bank.charge, 1)
    assert run.status == "waiting"
    (one,) = pending(storage=db)
    assert (one.run_id, one.id, one.kind, one.key) == ("r", "charge@1", "effect", bank.keys[0])
    answer("r", one.id, "receipt by phone", storage=db)
    assert pending(storage=db) == []
    with surehold.run("r", storage=db) as run:
        assert run.effect("charge", bank.charge, 1) == "receipt by phone"
    assert bank.calls == [1]


def test_an_effect_in_doubt_follows_its_policy(db: str, bank: Bank, kill: killed) -> None:
    def attempt(run: Run, **options: Any) -> Any:
        return run.effect("pay", bank.charge, 1, **options)

    bank.kills = True
    for run_id in ("retry", "probe", "fail"):
        options: Any = {"in_doubt": run_id} | ({"probe": str.upper} if run_id == "probe" else {})
        with kill, surehold.run(run_id, storage=db) as run:
            attempt(run, **options)
    bank.kills = False
    with surehold.run("retry", storage=db) as run:
        assert attempt(run, in_doubt="retry") == "receipt 1"
    assert len(bank.keys) == 4 and bank.keys[0] == bank.keys[3]
    with surehold.run("probe", storage=db) as run:
        assert attempt(run, probe=str.upper) == bank.keys[1].upper()
    with pytest.raises(InDoubtError), surehold.run("fail", storage=db) as run:
        attempt(run, in_doubt="fail")
    assert len(bank.calls) == 4


async def test_effects_in_an_async_run(db: str, bank: Bank, kill: killed) -> None:
    async def charge(order: int) -> str:
        return bank.charge(order, "")

    with kill:
        async with surehold.run("r", storage=db) as run:
            assert await effect("charge", charge, 1) == "receipt 1"
            assert await run.call(charge, 2) == "receipt 2"
            raise Killed
    async with surehold.run("r", storage=db) as run:
        assert await effect("charge", charge, 1) == "receipt 1"
        assert await run.call(charge, 2) == "receipt 2"
        assert await run.effect("plain", str, 3) == "3"
    assert bank.calls == [1, 2]


def test_an_async_function_cannot_be_called_by_a_blocking_run(db: str) -> None:
    async def charge() -> None:
        return None

    with pytest.raises(UsageError, match="is async"), surehold.run("r", storage=db) as run:
        run.call(charge)


def test_a_checkpoint_settles_the_calls_before_it(db: str, bank: Bank, kill: killed) -> None:
    with kill, surehold.run("r", storage=db) as run:
        run.call(bank.charge, 1)
        run.checkpoint(paid=1)
        run.call(bank.charge, 2)
        raise Killed
    assert bank.calls == [1, 2]
    with surehold.run("r", storage=db) as run:
        assert run.state == {"paid": 1}
        assert run.call(bank.charge, 2) == "receipt 2"
        run.checkpoint(paid=2)
    assert bank.calls == [1, 2]
    assert len(set(bank.keys)) == 2


def test_calls_of_steps_that_were_not_saved_are_not_made_again(
    db: str, bank: Bank, kill: killed
) -> None:
    def work(stop: int | None) -> None:
        with surehold.run("r", storage=db, every=4) as run:
            for order in range(run.state.get("paid", 0), 10):
                if order == stop:
                    raise Killed
                run.call(bank.charge, order)
                run.checkpoint(paid=order + 1)

    with kill:
        work(7)
    work(None)
    assert bank.calls == [*range(10)]


def test_other_arguments_at_a_recorded_position_are_refused(
    db: str, bank: Bank, kill: killed
) -> None:
    with kill, surehold.run("r", storage=db) as run:
        run.call(bank.charge, 1)
        raise Killed
    with pytest.raises(ShapeError, match="other arguments"), surehold.run("r", storage=db) as run:
        run.call(bank.charge, 2)
    assert bank.calls == [1]


def test_a_failed_call_is_made_again_when_the_run_is(db: str, bank: Bank) -> None:
    bank.fails = 1
    for _ in range(2):
        try:
            with surehold.run("r", storage=db) as run:
                run.call(bank.charge, 1)
                run.call(bank.charge, 2)
        except ConnectionError:
            assert run.status == "failed"
    assert bank.calls == [1, 1, 2] and bank.keys[0] == bank.keys[1]


def test_a_loop_resumes_after_the_last_completed_item(db: str, bank: Bank, kill: killed) -> None:
    seen: list[int] = []

    def work(stop: int | None) -> dict[str, Any]:
        with surehold.run("r", storage=db) as run:
            for item in run.each(range(10)):
                seen.append(item)
                receipt = run.call(bank.charge, item)
                if item == stop:
                    raise Killed
                run.state.setdefault("receipts", []).append(receipt)
        return run.state

    with kill:
        work(3)
    with kill:
        work(6)
    state = work(None)
    assert state == {"receipts": [f"receipt {n}" for n in range(10)]}
    assert seen == [0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9]
    assert bank.calls == [*range(10)]
    with surehold.run("r", storage=db) as run:
        assert run.completed and run.step == 10
        assert [*run.each(range(10))] == []


def test_a_set_is_refused_because_its_order_differs_in_each_process(db: str) -> None:
    with (
        pytest.raises(UsageError, match=r"are a set, .* \(give a list: sorted\(items\)\)"),
        surehold.run("r", storage=db) as run,
    ):
        run.each({"a", "b"})
    with surehold.run("r", storage=db) as run:
        assert run.step == 0 and [*run.each(dict.fromkeys("ba"))] == ["b", "a"]


def test_a_loop_resumes_after_a_failure_inside_an_item(db: str, bank: Bank) -> None:
    broken = [True]

    def work() -> None:
        with surehold.run("r", storage=db) as run:
            orders = run.call(lambda: [1, 2, 3])
            for order in run.each(orders):
                for part in run.each("ab"):
                    run.call(bank.charge, f"{order}{part}")
                    if order == 2 and part == "b" and broken:
                        raise ValueError(broken.pop())

    with pytest.raises(ValueError):
        work()
    work()
    assert bank.calls == ["1a", "1b", "2a", "2b", "3a", "3b"]


def test_a_call_before_a_loop_is_kept_while_the_loop_lasts(
    db: str, bank: Bank, kill: killed
) -> None:
    def work(stop: int | None) -> None:
        with surehold.run("r", storage=db) as run:
            total = run.call(bank.charge, "deposit")
            for item in run.each(range(4)):
                run.call(bank.charge, item)
                if item == stop:
                    raise Killed
            assert total == "receipt deposit"

    for stop in (1, 2, None):
        with kill:
            work(stop)
    assert bank.calls == ["deposit", 0, 1, 2, 3]


def test_a_loop_that_saves_seldom_makes_no_recorded_call_again(
    db: str, bank: Bank, kill: killed
) -> None:
    def work(stop: int | None) -> None:
        with surehold.run("r", storage=db, every=4) as run:
            for item in run.each(range(10)):
                run.call(bank.charge, item)
                if item == stop:
                    raise Killed

    for stop in (2, 6, None):
        with kill:
            work(stop)
    assert bank.calls == [*range(10)]


def test_two_loops_and_a_break_are_told_apart(db: str, bank: Bank, kill: killed) -> None:
    def work(stop: str | None) -> None:
        with surehold.run("r", storage=db) as run:
            for item in run.each("abc"):
                run.call(bank.charge, item)
                if item == "b":
                    break
            run.call(bank.charge, "between")
            for item in run.each("xyz"):
                if item == stop:
                    raise Killed
                run.call(bank.charge, item)

    for stop in ("x", "z", None):
        with kill:
            work(stop)
    assert bank.calls == ["a", "b", "between", "x", "y", "z"]


@pytest.mark.parametrize("items", [[9, 1, 2], [0], []])
def test_a_loop_over_other_items_is_refused(db: str, kill: killed, items: list[int]) -> None:
    with kill, surehold.run("r", storage=db) as run:
        for item in run.each([0, 1, 2]):
            if item == 2:
                raise Killed
    with pytest.raises(ShapeError, match="other ones"), surehold.run("r", storage=db) as run:
        for item in run.each(items):
            raise AssertionError(item)


def test_a_loop_may_get_more_items(db: str, kill: killed) -> None:
    with kill, surehold.run("r", storage=db) as run:
        for item in run.each([0, 1]):
            if item == 1:
                raise Killed
    with surehold.run("r", storage=db) as run:
        assert [*run.each([0, 1, 2, 3])] == [1, 2, 3]


async def test_async_loops_resume_too(db: str, bank: Bank, kill: killed) -> None:
    async def orders() -> AsyncIterator[int]:
        for number in range(4):
            await asyncio.sleep(0)
            yield number

    for stop in (2, None):
        with kill:
            async with surehold.run("r", storage=db) as run:
                async for order in run.each(orders()):
                    await run.call(bank.charge, order)
                    if order == stop:
                        raise Killed
    assert bank.calls == [0, 1, 2, 3]


def test_retention_keeps_the_calls_of_the_step_in_progress(
    tmp_path: Path, bank: Bank, kill: killed
) -> None:
    def work(stop: int | None) -> None:
        manager = CheckpointManager(f"sqlite:///{tmp_path}/r.db", retention=Rules(keep_last=1))
        with manager, surehold.run("r", storage=manager) as run:
            run.call(bank.charge, "first")
            for item in run.each(range(30)):
                run.call(bank.charge, item)
                if item == stop:
                    raise Killed

    for stop in (10, 20, None):
        with kill:
            work(stop)
    assert bank.calls == ["first", *range(30)]


def test_calls_are_encrypted_with_the_rest(tmp_path: Path, kill: killed) -> None:
    key = "k" * 44
    with CheckpointManager(f"file:///{tmp_path}/r", encryption_key=key) as manager:
        with kill, surehold.run("r", storage=manager) as run:
            run.call(lambda: "hunter2")
            raise Killed
        with surehold.run("r", storage=manager) as run:
            assert run.call(lambda: "hunter2") == "hunter2"
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"hunter2" not in stored


def test_a_fork_continues_the_loop_with_effects_of_its_own(db: str, bank: Bank) -> None:
    def work(run_id: str) -> None:
        with surehold.run(run_id, storage=db) as run:
            for item in run.each(range(3)):
                run.call(bank.charge, item)
                if item == 1 and run_id == "r":
                    raise ValueError

    with pytest.raises(ValueError):
        work("r")
    with CheckpointManager(db) as manager:
        newest = manager.latest("r")
        assert newest is not None
        manager.fork_from_checkpoint(newest.checkpoint_id, "f")
    work("f")
    assert bank.calls == [0, 1, 1, 2] and len(set(bank.keys)) == 4


def test_an_effect_that_cannot_be_recorded_is_not_made(
    db: str, bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointManager(db, on_save_failure="warn") as manager:
        run = surehold.run("r", storage=manager)
        with pytest.raises(StorageError), run:
            run.checkpoint(n=1)

            def full(batches: Any) -> Any:
                raise StorageError("no room")

            monkeypatch.setattr(manager.storage, "append", full)
            run.effect("charge", bank.charge, 1)
    assert bank.calls == []


def test_a_graph_inside_a_run_is_a_run_of_its_own(db: str, bank: Bank) -> None:
    from tests.builders.graphs import line

    async def node(state: Any) -> dict[str, Any]:
        return {"r": await effect("charge", bank.charge, 7)}

    async def main() -> None:
        graph = line(node, store=db, interval=1, preserve=True)
        async with surehold.run("r", storage=db), graph:
            made = await graph.execute(surehold.State.new({}, run_id="inner"))
            assert made["r"] == "receipt 7"

    asyncio.run(main())
    with CheckpointManager(db) as manager:
        assert manager.latest("inner") is not None


def test_the_text_of_a_failed_call_is_redacted(tmp_path: Path) -> None:
    hooks = HookManager()
    hooks.register("pre_checkpoint_save", RedactionHook())
    key = "sk-" + "a1" * 20

    def fail() -> None:
        raise ConnectionError(f"rejected {key}")

    with (
        CheckpointManager(f"file:///{tmp_path}/r", hook_manager=hooks) as manager,
        pytest.raises(ConnectionError),
        surehold.run("r", storage=manager) as run,
    ):
        run.call(fail)
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert key.encode() not in stored
