"""Durable functions: recorded calls are their progress, and are not made again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

import surehold
from surehold import (
    CheckpointManager,
    RunResult,
    answer,
    approve,
    gather,
    interrupt,
    patched,
    pending,
    step,
    wait_for,
    workflow,
)
from surehold.doors.functions.execution import FunctionRun
from surehold.errors import (
    EncodeError,
    LeaseHeldError,
    NotFoundError,
    ShapeError,
    UsageError,
)


class Killed(BaseException):
    """Stands for SIGKILL: nothing more is saved."""


@pytest.fixture
def db(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    end_with = FunctionRun.end_with

    def unless_killed(run: FunctionRun, error: BaseException) -> Any:
        return None if isinstance(error, Killed) else end_with(run, error)

    monkeypatch.setattr(FunctionRun, "end_with", unless_killed)
    return f"sqlite:///{tmp_path}/runs.db"


class Calls:
    """Counts calls, and can be killed or fail at one."""

    def __init__(self) -> None:
        self.made: list[Any] = []
        self.keys: list[str] = []
        self.kill_at: Any = None
        self.fail_at: Any = None

    def __call__(self, what: Any, idempotency_key: str = "") -> Any:
        self.made.append(what)
        self.keys.append(idempotency_key)
        if what == self.kill_at:
            self.kill_at = None
            raise Killed
        if what == self.fail_at:
            self.fail_at = None
            raise ConnectionError(f"no reply to {what}")
        return f"done {what}"


@pytest.fixture
def calls() -> Calls:
    return Calls()


def working(calls: Calls, **options: Any) -> tuple[Any, Any]:
    """A step that is counted, and a workflow of several."""

    @step(**options)
    def work(what: Any, idempotency_key: str) -> str:
        return str(calls(what, idempotency_key))

    def plan(items: list[int]) -> list[str]:
        return [work(item) for item in items]

    return work, workflow(name="plan")(plan)


def test_a_workflow_records_its_calls_and_returns_its_value(db: str, calls: Calls) -> None:
    _, plan = working(calls)
    result = plan.run([1, 2], run_id="r", storage=db)
    assert isinstance(result, RunResult) and result.completed
    assert (result.value, result.run_id, result.step) == (["done 1", "done 2"], "r", 2)
    assert result.usage.calls == 2 and result.saved.calls == 0
    again = plan.run([1, 2], run_id="r", storage=db)
    assert (again.value, again.status, again.step) == (result.value, "completed", 2)
    assert plan.result("r", storage=db).value == result.value
    assert calls.made == [1, 2]


def test_a_recorded_time_or_number_counts_as_no_call(db: str, calls: Calls) -> None:
    work, _ = working(calls)

    @workflow(name="chance")
    def chance() -> Any:
        surehold.now(), surehold.random(), surehold.uuid4(), surehold.patched("p")
        return work(1)

    result = chance.run(run_id="r", storage=db)
    assert (result.usage.calls, result.step) == (1, 5)
    assert chance.result("r", storage=db).usage.calls == 1


def test_recorded_calls_are_not_made_again_after_a_crash(db: str, calls: Calls) -> None:
    _, plan = working(calls)
    calls.kill_at = 3
    with pytest.raises(Killed):
        plan.run([1, 2, 3, 4], run_id="r", storage=db)
    assert plan.result("r", storage=db).status == "running"
    result = plan.resume("r", storage=db)
    assert result.value == [f"done {n}" for n in (1, 2, 3, 4)]
    assert result.saved.calls == 2 and result.usage.calls == 4
    assert calls.made == [1, 2, 3, 3, 4]
    assert calls.keys[2] == calls.keys[3] and len(set(calls.keys)) == 4


def test_a_step_that_asks_makes_the_run_wait(db: str, calls: Calls) -> None:
    _, plan = working(calls, in_doubt="ask")
    calls.kill_at = 2
    with pytest.raises(Killed):
        plan.run([1, 2, 3], run_id="r", storage=db)
    result = plan.resume("r", storage=db)
    assert result.status == "waiting" and result.returned is None
    (one,) = result.waiting
    assert (one.kind, one.name, one.id) == ("effect", "work", "work@2")
    assert pending(storage=db) == [one]
    assert plan.result("r", storage=db).waiting == (one,)
    answer("r", "work", "it was done", storage=db)
    assert plan.resume("r", storage=db).value == ["done 1", "it was done", "done 3"]
    assert calls.made == [1, 2, 3]


def test_a_failed_step_is_made_again_by_a_resume_with_the_same_key(db: str, calls: Calls) -> None:
    _, plan = working(calls)
    calls.fail_at = 2
    with pytest.raises(ConnectionError) as caught:
        plan.run([1, 2, 3], run_id="r", storage=db)
    assert any("plan.resume('r')" in note for note in caught.value.__notes__)
    looked = plan.result("r", storage=db)
    assert (looked.status, looked.error) == ("failed", "ConnectionError: no reply to 2")
    assert plan.resume("r", storage=db).value == ["done 1", "done 2", "done 3"]
    assert calls.made == [1, 2, 2, 3] and calls.keys[1] == calls.keys[2]


def test_a_failure_that_the_workflow_handled_stays_recorded(db: str, calls: Calls) -> None:
    broken = [True]

    @step
    def work(what: str) -> str:
        return str(calls(what))

    @workflow
    def careful() -> list[str]:
        try:
            first = work("a")
        except ConnectionError:
            first = work("b")
        if broken:
            raise ValueError(broken.pop())
        return [first, work("c")]

    calls.fail_at = "a"
    with pytest.raises(ValueError):
        careful.run(run_id="r", storage=db)
    assert careful.resume("r", storage=db).value == ["done b", "done c"]
    assert calls.made == ["a", "b", "c"]


def test_retries_keep_one_key_and_mistakes_are_not_retried(db: str) -> None:
    keys: list[str] = []

    @step(retries=2, backoff=0)
    def flaky(idempotency_key: str) -> str:
        keys.append(idempotency_key)
        if len(keys) < 3:
            raise ConnectionError
        return "ok"

    mistakes: list[int] = []

    @step(retries=5, backoff=0)
    def mistaken() -> None:
        mistakes.append(1)
        raise TypeError("a mistake")

    @workflow
    def both() -> str:
        with contextlib.suppress(TypeError):
            mistaken()
        return flaky()

    assert both.run(run_id="r", storage=db).value == "ok"
    assert len(keys) == 3 and len(set(keys)) == 1 and len(mistakes) == 1


def test_a_step_that_takes_too_long_follows_its_policy(db: str) -> None:
    done = threading.Event()

    @step(timeout=0.05, in_doubt="ask")
    def slow() -> None:
        done.wait(300)

    @step(timeout=0.05, retries=1, backoff=0)
    def safe() -> None:
        done.wait(300)

    @workflow
    def asks() -> None:
        slow()

    @workflow
    def repeats() -> str:
        try:
            safe()
        except TimeoutError:
            return "gave up"
        return "done"

    assert asks.run(run_id="a", storage=db).status == "waiting"
    assert repeats.run(run_id="b", storage=db).value == "gave up"
    done.set()


def test_another_call_at_a_recorded_position_shows_both_sides(db: str, calls: Calls) -> None:
    @step(in_doubt="retry")
    def fetch(what: int) -> Any:
        return calls(what)

    @step(in_doubt="retry")
    def charge(what: int) -> Any:
        return calls(what)

    changed = [False]

    @workflow
    def shop() -> None:
        (charge if changed[0] else fetch)(1)
        fetch(2)

    calls.kill_at = 2
    with pytest.raises(Killed):
        shop.run(run_id="r", storage=db)
    changed[0] = True
    with pytest.raises(ShapeError, match=r"call 1 of run 'r' is recorded as 'fetch'.*'charge'"):
        shop.resume("r", storage=db)
    changed[0] = False
    assert shop.resume("r", storage=db).completed
    assert calls.made == [1, 2, 2]


def test_other_arguments_at_a_recorded_position_are_refused(db: str, calls: Calls) -> None:
    values = [1, 2]

    @step(in_doubt="retry")
    def work(what: int) -> Any:
        return calls(what)

    @workflow
    def guess() -> None:
        work(values[0])
        work(3)

    calls.kill_at = 3
    with pytest.raises(Killed):
        guess.run(run_id="r", storage=db)
    values.pop(0)
    with pytest.raises(ShapeError, match="other arguments"):
        guess.resume("r", storage=db)


def test_old_runs_finish_on_the_old_side_of_a_patch(db: str, calls: Calls) -> None:
    @step(in_doubt="retry")
    def work(what: str) -> Any:
        return calls(what)

    new_code = [False]

    @workflow
    def shop() -> None:
        work("first")
        if new_code[0] and patched("fix-7"):
            work("checked")
        work("last")

    calls.kill_at = "last"
    with pytest.raises(Killed):
        shop.run(run_id="reached", storage=db)
    calls.kill_at = "first"
    with pytest.raises(Killed):
        shop.run(run_id="before", storage=db)
    new_code[0] = True
    shop.run(run_id="new", storage=db)
    calls.made.clear()
    assert shop.resume("before", storage=db).completed
    assert calls.made == ["first", "checked", "last"]
    calls.made.clear()
    assert shop.resume("reached", storage=db).completed
    assert calls.made == ["checked", "last"]  # it had not come to the call after the patch yet
    calls.made.clear()
    calls.kill_at = "last"
    with pytest.raises(Killed):
        shop.run(run_id="again", storage=db)
    assert shop.resume("again", storage=db).completed
    assert calls.made == ["first", "checked", "last", "last"]


def test_a_run_past_a_patch_stays_on_the_old_code(db: str, calls: Calls) -> None:
    @step(in_doubt="retry")
    def work(what: str) -> Any:
        return calls(what)

    new_code = [False]

    @workflow
    def shop() -> None:
        if new_code[0] and patched("fix-8"):
            work("checked")
        work("first")
        work("last")

    calls.kill_at = "last"
    with pytest.raises(Killed):
        shop.run(run_id="r", storage=db)
    new_code[0] = True
    assert shop.resume("r", storage=db).completed
    assert calls.made == ["first", "last", "last"]


def test_old_runs_finish_on_the_version_they_began_with(db: str, calls: Calls) -> None:
    @step(in_doubt="retry")
    def work(what: str) -> Any:
        return calls(what)

    @workflow(name="report")
    def report_1() -> str:
        work("old")
        return "one"

    calls.kill_at = "old"
    with pytest.raises(Killed):
        report_1.run(run_id="r", storage=db)

    @workflow(name="report", version=2)
    def report_2() -> str:
        work("new")
        return "two"

    assert report_2.resume("r", storage=db).value == "one"
    assert report_2.run(run_id="s", storage=db).value == "two"

    @workflow(name="other", version=1)
    def other() -> None:
        work("x")

    calls.kill_at = "x"
    with pytest.raises(Killed):
        other.run(run_id="o", storage=db)
    from surehold.doors.functions.definition import _versions

    _versions["other", __name__].clear()

    @workflow(name="other", version=3)
    def other_3() -> None:
        return None

    with pytest.raises(ShapeError, match="began with version 1"):
        other_3.resume("o", storage=db)


def test_of_two_functions_with_one_name_the_one_that_is_run_is_called(db: str) -> None:
    @workflow(name="total")
    def plain(price: int) -> int:
        return price

    @workflow(name="total")
    def taxed(price: int) -> int:
        return price + 20

    assert plain.run(100, run_id="plain", storage=db).value == 100
    assert taxed.run(100, run_id="taxed", storage=db).value == 120


def test_children_are_recorded_with_their_calls(db: str, calls: Calls) -> None:
    @step(in_doubt="retry")
    def work(what: str) -> Any:
        return calls(what)

    @workflow
    def inner(name: str) -> str:
        return f"{work(name + '1')}, {work(name + '2')}"

    @workflow
    def outer() -> list[str]:
        return [inner("a"), inner("b"), str(work("c"))]

    calls.kill_at = "b2"
    with pytest.raises(Killed):
        outer.run(run_id="r", storage=db)
    assert outer.resume("r", storage=db).value == ["done a1, done a2", "done b1, done b2", "done c"]
    assert calls.made == ["a1", "a2", "b1", "b2", "b2", "c"]
    calls.made.clear()
    calls.fail_at = "b1"
    with pytest.raises(ConnectionError):
        outer.run(run_id="s", storage=db)
    assert outer.resume("s", storage=db).completed
    assert calls.made == ["a1", "a2", "b1", "b1", "b2", "c"]


async def test_gathered_coroutines_have_positions_of_their_own(db: str, calls: Calls) -> None:
    pauses = {"a": 0.03, "b": 0.0}

    @step(in_doubt="retry")
    async def work(what: str) -> Any:
        await asyncio.sleep(pauses[what[0]])
        return calls(what)

    async def two(name: str) -> str:
        return f"{await work(name + '1')} {await work(name + '2')}"

    @workflow
    async def both() -> list[str]:
        made = await gather(two("a"), two("b"))
        return [*made, await work("b9")]

    calls.kill_at = "b9"
    with pytest.raises(Killed):
        await both.run(run_id="r", storage=db)
    assert sorted(calls.made) == ["a1", "a2", "b1", "b2", "b9"]
    pauses.update(a=0.0, b=0.03)
    result = await both.resume("r", storage=db)
    assert result.value == ["done a1 done a2", "done b1 done b2", "done b9"]
    assert len(calls.made) == 6
    assert (await both.result("r", storage=db)).value == result.value


async def test_gather_gives_failures_in_their_places_if_asked(db: str) -> None:
    @step
    async def work(number: int) -> int:
        if number == 1:
            raise ValueError("one")
        return number

    @workflow
    async def branches() -> list[str]:
        made = await gather(work(0), work(1), work(2), return_exceptions=True)
        await asyncio.to_thread(int)
        return [repr(one) for one in made]

    expected = ["0", "ValueError('one')", "2"]
    assert (await branches.run(run_id="r", storage=db)).value == expected

    @workflow
    async def waits() -> list[Any]:
        made: list[Any] = await gather(work(1), wait_for("event"), return_exceptions=True)
        return [repr(one) for one in made]

    result = await waits.run(run_id="w", storage=db, wait=False)
    assert result.status == "waiting"  # to wait is no failure
    surehold.answer("w", "event", 7, storage=db)
    assert (await waits.resume("w", storage=db)).value == ["ValueError('one')", "7"]


def test_a_resume_or_a_result_without_an_id_is_an_error(db: str) -> None:
    @workflow
    def nothing() -> None:
        pass

    for wrong in (None, ""):
        with pytest.raises(UsageError, match="run_id"):
            nothing.resume(wrong, storage=db)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="run_id"):
            nothing.result(wrong, storage=db)  # type: ignore[arg-type]


async def test_steps_are_ordered_by_creation_in_asyncio_gather(db: str, calls: Calls) -> None:
    pauses = [0.03, 0.0]

    @step(in_doubt="retry")
    async def work(number: int) -> Any:
        await asyncio.sleep(pauses[number])
        return calls(number)

    @step(in_doubt="retry")
    async def last() -> Any:
        return calls("last")

    @workflow
    async def both() -> list[str]:
        return [*(await asyncio.gather(work(0), work(1))), await last()]

    calls.kill_at = "last"
    with pytest.raises(Killed):
        await both.run(run_id="r", storage=db)
    result = await both.resume("r", storage=db)
    assert result.value == ["done 0", "done 1", "done last"]
    assert calls.made == [1, 0, "last", "last"]


def test_time_and_chance_are_recorded(db: str, calls: Calls) -> None:
    seen: list[Any] = []

    @step(in_doubt="retry")
    def work(what: str) -> Any:
        return calls(what)

    @workflow
    def lucky() -> None:
        seen.append((surehold.now(), surehold.random(), surehold.uuid4()))
        work("a")

    calls.kill_at = "a"
    with pytest.raises(Killed):
        lucky.run(run_id="lost", storage=db)  # nothing had been recorded that depends on them
    calls.fail_at = "a"
    with pytest.raises(ConnectionError):
        lucky.run(run_id="r", storage=db)
    lucky.resume("r", storage=db)
    assert seen[1] == seen[2] != seen[0]
    assert surehold.now().tzinfo is not None and 0 <= surehold.random() < 1


def test_a_sleep_frees_the_process_and_ends_at_its_time(db: str, calls: Calls) -> None:
    @workflow
    def naps(seconds: float) -> str:
        calls("before")
        surehold.sleep(seconds)
        return "awake"

    result = naps.run(3600, run_id="long", storage=db, wait=False)
    assert result.status == "waiting" and result.waiting[0].kind == "timer"
    assert naps.result("long", storage=db).status == "waiting"
    assert naps.resume("long", storage=db, wait=False).status == "waiting"
    with pytest.raises(UsageError, match="waits for a time"):
        answer("long", "sleep", 1, storage=db)
    began = time.time()
    naps.run(0.3, run_id="short", storage=db, wait=False)
    assert naps.resume("short", storage=db).value == "awake"
    assert time.time() - began >= 0.3


def test_a_sleep_that_is_over_is_not_waited_for(db: str, calls: Calls) -> None:
    @workflow
    def naps() -> Any:
        surehold.sleep(0.01)
        return wait_for("approval")

    result = naps.run(run_id="r", storage=db, wait=False)
    assert [one.kind for one in result.waiting] == ["event"]
    assert [one.id for one in pending("r", storage=db)] == ["approval@2"]
    again = naps.resume("r", storage=db, wait=False)
    assert [one.id for one in again.waiting] == ["approval@2"]
    answer("r", "approval", "yes", storage=db)
    assert naps.resume("r", storage=db).value == "yes"


def test_an_event_frees_the_process_until_it_is_answered(db: str) -> None:
    @workflow
    def asks() -> Any:
        return wait_for("approval", timeout=60)

    result = asks.run(run_id="r", storage=db, wait=False)
    assert result.status == "waiting"
    (one,) = pending(storage=db)
    assert (one.kind, one.name, one.id) == ("event", "approval", "approval@1")
    answer("r", "approval", {"by": "Ann"}, storage=db)
    with pytest.raises(NotFoundError):
        answer("r", "approval", {"by": "Bob"}, storage=db)
    assert asks.resume("r", storage=db, wait=False).value == {"by": "Ann"}


def test_an_event_can_be_answered_while_a_process_waits_for_it(db: str) -> None:
    @workflow
    def asks() -> Any:
        return wait_for("approval", timeout=60)

    def say() -> None:
        with CheckpointManager(db) as manager:
            while True:
                try:
                    if pending("r", storage=manager):
                        break
                except NotFoundError:
                    pass
                time.sleep(0.02)
            answer("r", "approval", "yes", storage=manager)

    person = threading.Thread(target=say)
    person.start()
    assert asks.run(run_id="r", storage=db).value == "yes"
    person.join()


async def test_an_event_that_does_not_come_is_a_timeout_on_every_replay(
    db: str, calls: Calls
) -> None:
    @step(in_doubt="retry")
    async def work(what: str) -> Any:
        return calls(what)

    @workflow
    async def asks() -> Any:
        try:
            return await wait_for("approval", timeout=0.05)
        except TimeoutError:
            return await work("default")

    calls.kill_at = "default"
    with pytest.raises(Killed):
        await asks.run(run_id="r", storage=db)
    with pytest.raises(NotFoundError):
        answer("r", "approval", "late", storage=db)
    assert (await asks.resume("r", storage=db)).value == "done default"


async def test_a_question_in_a_workflow_waits_for_its_answer(db: str) -> None:
    @workflow
    async def asks() -> Any:
        return await interrupt("deploy?", schema=bool)

    result = await asks.run(run_id="r", storage=db)
    assert result.status == "waiting" and result.waiting[0].question == "deploy?"
    approve("r", storage=db)
    assert (await asks.resume("r", storage=db)).value is True


@dataclasses.dataclass
class Page:
    url: str
    words: int = 0


class Report(msgspec.Struct):
    pages: list[Page]


def test_arguments_and_results_have_the_types_of_the_annotations(db: str, calls: Calls) -> None:
    seen: list[Any] = []

    @step(in_doubt="retry")
    def read(page: Page) -> Page:
        calls(page.url)
        return Page(page.url, 7)

    @step(in_doubt="retry")
    def end() -> None:
        calls("end")

    @workflow
    def typed(pages: list[Page], limit: int = 3) -> Report:
        seen.append((pages, limit))
        made = Report([read(page) for page in pages[:limit]])
        end()
        return made

    calls.kill_at = "end"
    with pytest.raises(Killed):
        typed.run([Page("a")], run_id="r", storage=db)
    assert typed.resume("r", storage=db).value == Report([Page("a", 7)])
    assert typed.result("r", storage=db).value == Report([Page("a", 7)])
    assert seen == [([Page("a")], 3)] * 2
    with pytest.raises(UsageError, match="pages"):
        typed.run(5, run_id="s", storage=db)
    with pytest.raises(UsageError, match="missing"):
        typed.run(run_id="s", storage=db)
    with pytest.raises(NotFoundError):
        typed.result("s", storage=db)


def test_a_run_id_stands_for_one_call(db: str, calls: Calls) -> None:
    _, plan = working(calls)
    calls.fail_at = 1
    with pytest.raises(ConnectionError):
        plan.run([1], run_id="r", storage=db)
    with pytest.raises(UsageError, match="other arguments"):
        plan.run([2], run_id="r", storage=db)
    assert plan.run([1], run_id="r", storage=db).completed

    @workflow
    def another() -> None:
        return None

    with pytest.raises(UsageError, match="'plan', not of workflow 'another'"):
        another.resume("r", storage=db)
    with pytest.raises(NotFoundError):
        plan.resume("nobody", storage=db)


def test_a_run_that_is_executed_elsewhere_is_refused(db: str) -> None:
    @workflow
    def busy() -> Any:
        return outer.resume("r", storage=db)

    @workflow
    def outer() -> Any:
        return outer.resume("r", storage=db)

    with pytest.raises(LeaseHeldError):
        outer.run(run_id="r", storage=db)


def test_outside_a_run_steps_and_workflows_are_plain_calls(calls: Calls) -> None:
    @step
    def work(what: str) -> Any:
        return calls(what)

    @workflow
    def plain() -> Any:
        return work("a")

    assert plain() == "done a"
    assert work.__name__ == "work" and plain.__name__ == "plain"


def test_steps_are_recorded_in_a_run_of_ones_own_loop(db: str, calls: Calls) -> None:
    work, _ = working(calls, in_doubt="retry")
    with pytest.raises(ValueError), surehold.run("r", storage=db) as run:
        work(1)
        run.call(work, 2)
        raise ValueError
    with surehold.run("r", storage=db) as run:
        assert (work(1), run.call(work, 2)) == ("done 1", "done 2")
    assert calls.made == [1, 2]


def test_a_result_that_cannot_be_stored_fails_the_run(db: str) -> None:
    @workflow
    def odd() -> Any:
        return object()

    with pytest.raises(EncodeError):
        odd.run(run_id="r", storage=db)
    assert odd.result("r", storage=db).status == "failed"


@pytest.mark.parametrize(
    ("options", "what"),
    [({"retries": -1}, "retries"), ({"retries": 1.5}, "retries"), ({"timeout": "1"}, "timeout")],
)
def test_wrong_options_are_refused(options: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        step(**options)


def test_a_parameter_that_run_takes_itself_is_refused() -> None:
    with pytest.raises(UsageError, match="'run_id'"):

        @workflow
        def bad(run_id: str) -> None:
            return None


def test_an_async_step_needs_an_async_workflow(db: str) -> None:
    @step
    async def work() -> None:
        return None

    @workflow
    def plain() -> None:
        work()

    with pytest.raises(UsageError, match="is async"):
        plain.run(run_id="r", storage=db)


def test_waits_do_not_write_the_recorded_calls_again(db: str, calls: Calls) -> None:
    work, _ = working(calls, in_doubt="retry")

    @workflow
    def long() -> None:
        for number in range(50):
            work(number)
        wait_for("go")

    long.run(run_id="r", storage=db, wait=False)
    for _ in range(5):
        assert long.resume("r", storage=db, wait=False).status == "waiting"
    with CheckpointManager(db) as manager:
        run = manager.reader.run("r")
        assert run is not None and run.seq < 50 + 2 * 6 + 5
    answer("r", "go", None, storage=db)
    assert long.resume("r", storage=db).completed
    assert calls.made == [*range(50)]


def test_retention_keeps_the_calls_of_a_run_that_waits(tmp_path: Path, calls: Calls) -> None:
    work, _ = working(calls, in_doubt="retry")

    @workflow
    def long() -> None:
        for number in range(20):
            work(number)
        wait_for("go")

    db = f"sqlite:///{tmp_path}/kept.db"
    for _ in range(150):
        with CheckpointManager(db, retention=surehold.Rules(keep_last=1)) as manager:
            long.run(run_id="r", storage=manager, wait=False)
    with CheckpointManager(db, retention=surehold.Rules(keep_last=1)) as manager:
        manager.cleanup_old_checkpoints("r")
        answer("r", "go", None, storage=manager)
        assert long.resume("r", storage=manager).completed
    assert calls.made == [*range(20)]


def test_a_call_that_was_taken_from_the_end_of_the_code_is_noticed() -> None:
    storage, calls = surehold.MemoryStorage(), ["a", "b", "c"]

    @step
    def act(name: str) -> str:
        return name

    @workflow(name="shrinks")
    def shrinks() -> None:
        for name in calls:
            act(name)
        if len(calls) == 3:
            raise ConnectionError("no network")

    with pytest.raises(ConnectionError):
        shrinks.run(run_id="r", storage=storage)
    calls.pop()
    with pytest.raises(ShapeError, match=r"call 3 .* is recorded as .act., and the code now ends"):
        shrinks.run(run_id="r", storage=storage)
    calls.append("c")
    calls.append("d")
    assert shrinks.run(run_id="r", storage=storage).status == "completed"
