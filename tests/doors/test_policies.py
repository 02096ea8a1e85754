"""One policy for nodes, steps and tools: attempts, time limits, concurrency."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from tests.builders.graphs import Heard

import surehold
from surehold import (
    Agent,
    MemoryStorage,
    Reply,
    RetryPolicy,
    State,
    StateGraph,
    ToolCall,
    effect,
    pending,
    tool,
)
from surehold.core.policy import may_help
from surehold.errors import ConflictError, StepError, UsageError
from surehold.storage.base import Batch
from surehold.testing.scripted import ScriptedModel

QUICK = RetryPolicy(retries=2, backoff=0.001)


class Flaky:
    """A call that fails so many times before it succeeds."""

    def __init__(self, failures: int, error: type[Exception] = ConnectionError) -> None:
        self.left = failures
        self.error = error
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error("no network")
        return "there"


def in_a_step(storage: Any, call: Callable[[], str], policy: RetryPolicy, **more: Any) -> Any:
    @surehold.step(name="fetch", policy=policy, **{"in_doubt": "retry", **more})
    def fetch() -> str:
        return call()

    @surehold.workflow(name="job")
    def job() -> str:
        return fetch()

    return job.run(run_id="r", storage=storage).value


def in_a_node(storage: Any, call: Callable[[], str], policy: RetryPolicy) -> Any:
    async def fetch(state: State) -> dict[str, str]:
        return {"text": call()}

    graph = StateGraph("job", storage=storage)
    graph.add_node("fetch", fetch, policy=policy)
    graph.set_entry_point("fetch")
    graph.set_exit_point("fetch")
    return graph.run_sync(run_id="r")["text"]


def in_a_tool(storage: Any, call: Callable[[], str], policy: RetryPolicy) -> Any:
    @tool(name="fetch", policy=policy, idempotent=True)
    def fetch() -> str:
        return call()

    def script(messages: Sequence[dict[str, Any]]) -> Reply | str:
        if messages[-1]["role"] == "tool":
            return str(messages[-1]["content"])
        return Reply(tool_calls=(ToolCall("c1", "fetch", {}),))

    agent = Agent(
        "job", tools=[fetch], model=ScriptedModel(script), storage=storage, report=lambda line: None
    )
    result = asyncio.run(agent.run("Go", run_id="r"))
    assert result.status == "completed", result.error
    return result.answer


DOORS = [in_a_step, in_a_node, in_a_tool]
doors = pytest.mark.parametrize("door", DOORS)


@doors
def test_a_failed_attempt_is_followed_by_others(door: Any) -> None:
    call = Flaky(2)
    assert door(MemoryStorage(), call, QUICK) == "there"
    assert call.calls == 3


@doors
def test_after_the_last_attempt_it_has_failed(door: Any) -> None:
    call = Flaky(9)
    if door is in_a_tool:  # which tells the model
        assert "no network" in door(MemoryStorage(), call, QUICK)
    else:
        with pytest.raises((ConnectionError, StepError), match="no network"):
            door(MemoryStorage(), call, QUICK)
    assert call.calls == 3


@doors
@pytest.mark.parametrize("mistake", [TypeError, KeyError, ZeroDivisionError, UsageError])
def test_a_mistake_is_not_tried_again(door: Any, mistake: type[Exception]) -> None:
    call = Flaky(9, mistake)
    if door is in_a_tool:
        door(MemoryStorage(), call, QUICK)
    else:
        with pytest.raises((mistake, StepError)):
            door(MemoryStorage(), call, QUICK)
    assert call.calls == 1
    assert not may_help(mistake("x"))


@doors
@pytest.mark.parametrize("given", [ConnectionError, (ValueError, OSError)])
def test_an_error_of_the_classes_that_are_named_is_not_tried_again(door: Any, given: Any) -> None:
    call = Flaky(9, ConnectionResetError)
    with suppress(ConnectionError, StepError):
        door(MemoryStorage(), call, RetryPolicy(retries=2, backoff=0.001, non_retryable=given))
    assert call.calls == 1


@doors
def test_no_attempt_begins_after_the_total_time_and_none_is_further_apart_than_the_longest(
    door: Any,
) -> None:
    late = RetryPolicy(retries=9, backoff=60, max_backoff=60, total_timeout=59)
    call = Flaky(9)
    with suppress(ConnectionError, StepError):
        door(MemoryStorage(), call, late)
    assert call.calls == 1
    short = RetryPolicy(retries=9, backoff=60, max_backoff=0.001, total_timeout=59)
    assert door(MemoryStorage(), Flaky(3), short) == "there"


@doors
def test_the_total_time_goes_on_while_no_process_executes_the_run(
    door: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process begins with the time of the first attempt, not with its own."""
    policy = RetryPolicy(retries=9, backoff=0.001, total_timeout=600)
    for number in range(1, 9):
        storage, call = Mortal(), Flaky(9)
        storage.dies_at, storage.after = number, True
        with pytest.raises(Died):
            door(storage, call, policy)
        if call.calls:
            break
    assert call.calls == 1, "killed when the first failure was recorded"
    storage.dead, storage.dies_at = False, 0
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 3600)
    with suppress(ConnectionError, StepError):
        door(storage, call, policy)
    assert call.calls == 2, "an attempt was permitted, and no other is"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"retries": -1}, "retries is -1"),
        ({"retries": "3"}, "retries is '3'"),
        ({"retries": True}, "retries is True"),
        ({"backoff": -0.5}, "backoff is -0.5"),
        ({"backoff": float("inf")}, "backoff is inf"),
        ({"timeout": 0}, "timeout is 0"),
        ({"timeout": 1e12}, "timeout is 1000000000000.0"),
        ({"timeout": "1 s"}, "timeout is '1 s'"),
        ({"total_timeout": 0}, "total_timeout is 0"),
        ({"max_backoff": -1}, "max_backoff is -1"),
        ({"non_retryable": "OSError"}, "non_retryable is 'OSError'"),
        ({"non_retryable": (KeyboardInterrupt,)}, "non_retryable is"),
        ({"concurrency": 0}, "concurrency is 0"),
        ({"concurrency": 1.5}, "concurrency is 1.5"),
    ],
)
def test_bad_values_are_refused_at_construction(fields: dict[str, Any], said: str) -> None:
    graph = StateGraph("job", storage=MemoryStorage())
    for refuse in (
        lambda: RetryPolicy(**fields),
        lambda: surehold.step(**fields),
        lambda: tool(**fields),
        lambda: graph.add_node("fetch", lambda state: None, **fields),
    ):
        with pytest.raises(UsageError, match=said):
            refuse()


def test_a_policy_and_its_fields_are_not_given_together() -> None:
    with pytest.raises(UsageError, match="policy= and retries= are given"):
        surehold.step(policy=QUICK, retries=1)
    with pytest.raises(UsageError, match="policy is 3"):
        surehold.step(policy=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: surehold.step(retry=3), "step has no option 'retry' .did you mean retries="),
        (lambda: surehold.step(time_out=3), "did you mean timeout="),
        (lambda: surehold.workflow(versoin=2), "workflow has no option .*did you mean version="),
        (lambda: tool(readonly=True), "tool has no option .*did you mean read_only="),
    ],
)
def test_a_mistyped_option_names_the_nearest_one(make: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make()


# Time limits


async def test_a_node_that_takes_too_long_is_stopped_and_tried_again() -> None:
    calls: list[int] = []
    heard = Heard()

    async def fetch(state: State) -> dict[str, int]:
        calls.append(1)
        if len(calls) == 1:
            await asyncio.Event().wait()
        return {"calls": len(calls)}

    graph = StateGraph("job", storage=MemoryStorage())
    graph.add_node("fetch", fetch, timeout=0.05, retries=1, backoff=0.001)
    graph.set_entry_point("fetch")
    graph.set_exit_point("fetch")
    result = await graph.watched_by(heard).run(run_id="r")
    assert result["calls"] == 2
    (again,) = heard.of("node.retry")
    assert (again["node"], again["attempt"], again["error"]) == ("fetch", 1, "TimeoutError")
    calls.clear()
    other = StateGraph("other", storage=MemoryStorage())
    other.add_node("fetch", fetch, timeout=0.05)
    other.set_entry_point("fetch")
    other.set_exit_point("fetch")
    with pytest.raises(StepError, match=r"took over 0\.05 s"):
        await other.run(run_id="r")


def test_a_plain_node_has_no_time_limit() -> None:
    graph = StateGraph("job", storage=MemoryStorage())
    with pytest.raises(UsageError, match="cannot be stopped"):
        graph.add_node("fetch", lambda state: None, timeout=1)


def test_a_tool_that_takes_too_long_is_in_doubt_or_tried_again() -> None:
    gone = threading.Event()

    def run(safe: bool) -> tuple[Any, int]:
        calls: list[int] = []

        @tool(name="fetch", timeout=0.5, retries=9, backoff=0.001, idempotent=safe)
        def fetch() -> str:
            calls.append(1)
            if len(calls) == 1:
                gone.wait(300)
            return "there"

        def script(messages: Sequence[dict[str, Any]]) -> Reply | str:
            if messages[-1]["role"] == "tool":
                return str(messages[-1]["content"])
            return Reply(tool_calls=(ToolCall("c1", "fetch", {}),))

        agent = Agent("job", tools=[fetch], model=ScriptedModel(script), storage=MemoryStorage())

        async def main() -> Any:
            gone.clear()
            result = await agent.run("Go", run_id="r")
            gone.set()
            return result

        return asyncio.run(main()), len(calls)

    done, calls = run(safe=True)
    assert (done.status, done.answer) == ("completed", "there")
    assert calls >= 2
    waiting, calls = run(safe=False)
    assert (waiting.status, waiting.waiting[0].kind, calls) == ("waiting", "effect", 1)


# Concurrency


class Crowd:
    """Counts how many are inside at a time."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)

    def leave(self) -> None:
        with self._lock:
            self.inside -= 1


async def test_a_policy_limits_all_that_share_it() -> None:
    crowd, shared = Crowd(), RetryPolicy(concurrency=2)

    async def fetch(state: State) -> None:
        crowd.enter()
        await asyncio.sleep(0.002)
        async with asyncio.timeout(300):
            while crowd.most < 2:
                await asyncio.sleep(0.002)
        crowd.leave()

    @surehold.step(policy=shared)
    async def one(number: int) -> int:
        await fetch(State.new())
        return number

    @surehold.workflow
    async def many(count: int) -> list[int]:
        return await surehold.gather(*(one(number) for number in range(count)))

    graph = StateGraph("job", storage=MemoryStorage())
    graph.add_node("fetch", fetch, policy=shared)
    graph.set_entry_point("fetch")
    graph.set_exit_point("fetch")
    runs = [graph.run(run_id=f"r{number}") for number in range(6)]
    done = await asyncio.gather(many.run(6, run_id="m", storage=MemoryStorage()), *runs)
    assert done[0].value == [*range(6)]
    assert crowd.most == 2


def test_a_limit_holds_across_threads_and_a_cancelled_wait_takes_no_place() -> None:
    crowd, go = Crowd(), threading.Event()

    @surehold.step(concurrency=1, in_doubt="retry")
    def work(number: int) -> int:
        crowd.enter()
        go.wait(0.01)
        crowd.leave()
        return number

    @surehold.workflow
    def job(number: int) -> int:
        return work(number)

    storage = MemoryStorage()
    threads = [
        threading.Thread(target=job.run, args=(number,), kwargs={"storage": storage})
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert crowd.most == 1

    entered, leave = asyncio.Event(), asyncio.Event()

    @surehold.step(concurrency=1, in_doubt="retry")
    async def wait() -> str:
        entered.set()
        await leave.wait()
        return "done"

    @surehold.workflow
    async def waiting() -> str:
        return await wait()

    async def main() -> str:
        first = asyncio.create_task(waiting.run(storage=storage))
        await entered.wait()
        second = asyncio.create_task(waiting.run(storage=storage))
        await asyncio.sleep(0.01)
        second.cancel()
        leave.set()
        assert (await first).value == "done"
        return str((await waiting.run(storage=storage)).value)

    assert asyncio.run(main()) == "done"


# Deaths


class Died(BaseException):
    """The storage's process is gone."""


class Mortal(MemoryStorage):
    """A memory that dies at one append, as it begins or when it is done, until it is revived."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.dies_at = 0
        self.after = False
        self.dead = False

    def append(self, batches: Sequence[Batch]) -> list[ConflictError | None]:
        self.count += 1
        if self.dead:
            raise Died
        self.dead = self.count == self.dies_at
        if self.dead and not self.after:
            raise Died
        result = super().append(batches)
        if self.dead:
            raise Died
        return result


@doors
@pytest.mark.parametrize("after", [False, True])
def test_a_death_at_any_append_loses_no_failed_attempt(door: Any, after: bool) -> None:
    whole = Mortal()
    assert door(whole, Flaky(2), QUICK) == "there"
    for number in range(1, whole.count + 1):
        storage, call = Mortal(), Flaky(2)
        storage.dies_at, storage.after = number, after
        with suppress(Died, ConflictError):
            door(storage, call, QUICK)
        storage.dead, storage.dies_at = False, 0
        assert door(storage, call, QUICK) == "there", number
        assert call.calls <= 4, "three attempts, and one whose end was not recorded"


@doors
def test_a_death_gives_no_further_attempts(door: Any) -> None:
    whole = Mortal()
    with suppress(ConnectionError, StepError):
        door(whole, Flaky(99), QUICK)
    for number in range(1, whole.count):  # after the last append the run has failed
        storage, call = Mortal(), Flaky(99)
        storage.dies_at, storage.after = number, True
        with pytest.raises((Died, ConflictError)):
            door(storage, call, QUICK)
        storage.dead, storage.dies_at = False, 0
        with suppress(ConnectionError, StepError):
            door(storage, call, QUICK)
        assert call.calls <= 4, number


async def test_effects_of_a_node_that_is_tried_again_are_not_repeated() -> None:
    paid: list[str] = []
    attempts: list[int] = []
    keys: list[str] = []

    async def look(idempotency_key: str) -> str:
        keys.append(idempotency_key)
        if len(keys) < 3:
            raise ConnectionError("no network")
        return "seen"

    async def buy(state: State) -> dict[str, Any]:
        attempts.append(1)
        await effect("pay", paid.append, "kelp")
        return {"said": await effect("look", look, in_doubt="retry")}

    storage = MemoryStorage()
    graph = StateGraph("shop", storage=storage)
    graph.add_node("buy", buy, policy=QUICK)
    graph.set_entry_point("buy")
    graph.set_exit_point("buy")
    result = await graph.run(run_id="r")
    assert (result["said"], paid, len(attempts)) == ("seen", ["kelp"], 3)
    assert len(keys) == 3 and len({*keys}) == 1
    assert pending(storage=storage) == []


async def test_a_nested_graph_that_is_tried_again_continues_where_it_was() -> None:
    executed: list[str] = []

    def first(state: State) -> dict[str, int]:
        executed.append("first")
        return {"n": 1}

    def second(state: State) -> None:
        executed.append("second")
        if executed.count("second") < 3:
            raise ConnectionError("no network")

    inner = StateGraph("inner", storage=MemoryStorage())
    inner.add_node("first", first)
    inner.add_node("second", second)
    inner.add_edge("first", "second")
    inner.set_entry_point("first")
    inner.set_exit_point("second")
    outer = StateGraph("outer", storage=MemoryStorage())
    outer.add_node("inner", inner, policy=QUICK)
    outer.set_entry_point("inner")
    outer.set_exit_point("inner")
    result = await outer.run(run_id="r")
    assert (result.status, result["n"]) == ("completed", 1)
    assert executed == ["first", "second", "second", "second"]


async def test_a_run_that_waits_for_its_next_attempt_can_be_stopped() -> None:
    storage, call = MemoryStorage(), Flaky(1)

    class Stops:
        def on_event(self, event: surehold.Event) -> None:
            from surehold.engine.runs.positions import CURRENT_STEP

            here = CURRENT_STEP.get()
            if event.type == "node.retry" and here is not None:
                here.outer.stop.request("user", "")

    graph = StateGraph("job", storage=storage)
    graph.add_node("fetch", lambda state: {"text": call()}, retries=1, backoff=60)
    graph.set_entry_point("fetch")
    graph.set_exit_point("fetch")
    stopped = await graph.watched_by(Stops()).run(run_id="r")
    assert (stopped.status, call.calls) == ("interrupted", 1)
    assert (await graph.resume("r"))["text"] == "there"
    assert call.calls == 2
