"""Hooks are told in order, may change or refuse a save, and can harm nothing else."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from surehold.core.state.agent_state import AgentState
from surehold.core.state.state import State
from surehold.engine.hooks.events import (
    MOST_SILENT_CALLS,
    HookContext,
    HookEvent,
    HookPriority,
    HookResult,
    PreOutcome,
    pre_outcome,
)
from surehold.engine.hooks.manager import HookManager
from surehold.errors import UsageError, VetoError

PRE = HookEvent.PRE_CHECKPOINT_SAVE
POST = HookEvent.POST_CHECKPOINT_SAVE

Fire = Callable[..., list[HookResult]]


async def trigger_in_a_loop(manager: HookManager, *args: Any, **kwargs: Any) -> list[HookResult]:
    return await manager.trigger(*args, **kwargs)


@pytest.fixture(params=["fire", "trigger"])
def entry(request: pytest.FixtureRequest) -> Callable[[HookManager], Fire]:
    """Both ways to fire, each as a blocking call."""
    if request.param == "fire":
        return lambda manager: manager.fire
    return lambda manager: (
        lambda *args, **kwargs: asyncio.run(trigger_in_a_loop(manager, *args, **kwargs))
    )


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a hanging handler waits for; opened in the end, so that no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


def hook_threads() -> int:
    return sum(thread.name.startswith("surehold-hook") for thread in threading.enumerate())


def as_handler(function: Callable[[HookContext], Any], sort: str) -> Any:
    """*function* as each sort of thing that can be registered."""
    if sort == "plain":
        return function
    if sort == "async":

        async def handler(context: HookContext) -> Any:
            return function(context)

        return handler
    if sort == "returns an awaitable":
        inner = as_handler(function, "async")

        def plain(context: HookContext) -> Any:
            return inner(context)

        return plain
    if sort == "partial of async":
        inner = as_handler(function, "async")

        async def with_more(more: str, context: HookContext) -> Any:
            return await inner(context)

        return functools.partial(with_more, "more")

    class Plain:
        def handle(self, context: HookContext) -> Any:
            return function(context)

    class Async:
        async def handle(self, context: HookContext) -> Any:
            return function(context)

    class Callable_:
        async def __call__(self, context: HookContext) -> Any:
            return function(context)

    return {"object": Plain, "async object": Async, "async callable": Callable_}[sort]()


SORTS = [
    "plain",
    "async",
    "returns an awaitable",
    "partial of async",
    "object",
    "async object",
    "async callable",
]


# Being told


@pytest.mark.parametrize("sort", SORTS)
def test_every_sort_of_handler_is_called_and_answers(
    entry: Callable[[HookManager], Fire], sort: str
) -> None:
    manager = HookManager()
    seen: list[HookContext] = []

    def handler(context: HookContext) -> HookResult:
        seen.append(context)
        return HookResult(success=True, data={"n": 1})

    manager.register(POST, as_handler(handler, sort))
    results = entry(manager)(
        POST, "agent", {"run_id": "r", "step_number": 3}, metadata={"m": 1}, trace_id="t"
    )
    assert [(result.success, result.data) for result in results] == [(True, {"n": 1})]
    (context,) = seen
    assert context.event_type is POST
    assert (context.agent_id, context.run_id, context.trace_id) == ("agent", "r", "t")
    assert context.data == {"run_id": "r", "step_number": 3}
    assert context.metadata == {"m": 1}
    assert abs(context.timestamp - time.time()) < 60


def test_a_trace_id_is_made_where_none_is_given(entry: Callable[[HookManager], Fire]) -> None:
    manager = HookManager()
    seen: list[str | None] = []
    manager.register(POST, lambda context: seen.append(context.trace_id))
    manager.register(POST, lambda context: seen.append(context.trace_id))
    entry(manager)(POST)
    entry(manager)(POST)
    assert seen[0] == seen[1] != seen[2] == seen[3]
    assert seen[0] is not None and len(seen[0]) == 32


def test_handlers_run_in_order_of_priority_and_then_of_registration(
    entry: Callable[[HookManager], Fire],
) -> None:
    manager = HookManager()
    order: list[str] = []
    for name, priority in [
        ("low", HookPriority.LOW),
        ("first normal", HookPriority.NORMAL),
        ("critical", HookPriority.CRITICAL),
        ("second normal", HookPriority.NORMAL),
        ("high", 1),
    ]:
        manager.register(POST, lambda context, name=name: order.append(name), priority)  # type: ignore[misc]
    entry(manager)(POST)
    assert order == ["critical", "high", "first normal", "second normal", "low"]


def test_pre_comes_before_post_and_each_only_to_those_who_asked() -> None:
    manager = HookManager()
    order: list[str] = []
    manager.register("PRE_CHECKPOINT_SAVE", lambda context: order.append("pre"))
    manager.register("post_checkpoint_save", lambda context: order.append("post"))
    manager.fire(PRE)
    order.append("save")
    manager.fire(POST)
    manager.fire(HookEvent.POST_FORK)
    assert order == ["pre", "save", "post"]


def test_one_handler_cannot_change_what_the_next_is_told(
    entry: Callable[[HookManager], Fire],
) -> None:
    manager = HookManager()
    seen: list[dict[str, Any]] = []

    def meddler(context: HookContext) -> None:
        context.data["step_number"] = 99
        context.data.pop("state")
        context.metadata.clear()

    manager.register(PRE, meddler)
    manager.register(PRE, lambda context: seen.append({**context.data, **context.metadata}))
    data = {"step_number": 1, "state": "s"}
    entry(manager)(PRE, "a", data, metadata={"m": 1})
    assert seen == [{"step_number": 1, "state": "s", "m": 1}]
    assert data == {"step_number": 1, "state": "s"}


async def test_async_handlers_run_on_the_callers_loop_and_plain_ones_on_another_thread() -> None:
    manager = HookManager()
    threads: dict[str, threading.Thread] = {}
    loops: list[asyncio.AbstractEventLoop] = []

    async def async_one(context: HookContext) -> None:
        threads["async"] = threading.current_thread()
        loops.append(asyncio.get_running_loop())

    def plain_one(context: HookContext) -> None:
        threads["plain"] = threading.current_thread()

    manager.register(POST, async_one)
    manager.register(POST, plain_one)
    await manager.trigger(POST)
    assert loops == [asyncio.get_running_loop()]
    assert threads["async"] is threading.current_thread()
    assert threads["plain"] is not threading.current_thread()
    assert threads["plain"].daemon


def test_blocking_code_runs_async_handlers_always_on_the_same_loop() -> None:
    """A client that a handler keeps, bound to its loop, works from one firing to the next."""
    manager = HookManager()
    loops: set[int] = set()

    async def handler(context: HookContext) -> None:
        loops.add(id(asyncio.get_running_loop()))

    manager.register(POST, handler)
    for _ in range(5):
        manager.fire(POST)
    assert len(loops) == 1


async def test_fire_works_under_a_running_loop_too() -> None:
    manager = HookManager()

    async def handler(context: HookContext) -> HookResult:
        await asyncio.sleep(0)
        return HookResult(success=True)

    manager.register(POST, handler)
    assert [result.success for result in manager.fire(POST)] == [True]


@pytest.mark.parametrize("sort", ["plain", "async"])
def test_handlers_see_the_callers_context_variables(
    entry: Callable[[HookManager], Fire], sort: str
) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")
    manager = HookManager()
    seen: list[str] = []
    manager.register(POST, as_handler(lambda context: seen.append(variable.get()), sort))
    token = variable.set("mine")
    entry(manager)(POST)
    variable.reset(token)
    assert seen == ["mine"]


def test_a_handler_may_fire_hooks_itself() -> None:
    manager = HookManager(timeout=2)
    order: list[str] = []

    def outer(context: HookContext) -> None:
        order.append("outer")
        manager.fire(HookEvent.POST_FORK)

    manager.register(POST, outer)
    manager.register(HookEvent.POST_FORK, lambda context: order.append("inner"))
    assert manager.fire(POST)[0].success
    assert order == ["outer", "inner"]


# Registering


def test_every_event_is_fired_somewhere() -> None:
    rooms = (path for path in Path("src").rglob("*.py") if path.parent.name != "hooks")
    fired = "".join(path.read_text("utf-8") for path in rooms)
    assert [event for event in HookEvent if f"HookEvent.{event.name}" not in fired] == []


def test_an_unknown_event_is_refused_with_the_nearest_name() -> None:
    manager = HookManager()
    with pytest.raises(UsageError, match="did you mean post_checkpoint_save"):
        manager.register("post_checkpoint_saved", lambda context: None)
    with pytest.raises(UsageError, match="pre_tool_use"):
        manager.fire("pre_tool")
    with pytest.raises(UsageError, match="there is no event 3"):
        manager.register(3, lambda context: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), float("nan"), "1"])
def test_a_timeout_must_be_a_number_of_seconds(timeout: Any) -> None:
    with pytest.raises(UsageError, match="timeout"):
        HookManager(timeout=timeout)
    with pytest.raises(UsageError, match="timeout"):
        HookManager().register(POST, lambda context: None, timeout=timeout)


def test_what_cannot_handle_events_is_refused() -> None:
    class WithHandle:
        def handle(self, context: HookContext) -> None: ...

    with pytest.raises(UsageError, match="cannot handle"):
        HookManager().register(POST, "handler")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot handle"):
        HookManager().register(POST, WithHandle)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="names no events"):
        HookManager().register_hook(WithHandle())
    with pytest.raises(UsageError, match="priority"):
        HookManager().register(POST, WithHandle(), priority=7)


class Recorder:
    events = ("pre_checkpoint_save", POST)
    priority = HookPriority.HIGH
    name = "recorder"

    def __init__(self) -> None:
        self.seen: list[HookEvent] = []

    def handle(self, context: HookContext) -> None:
        self.seen.append(context.event_type)


def test_a_hook_is_registered_for_all_its_events_with_its_own_priority_and_name() -> None:
    manager = HookManager()
    hook = Recorder()
    manager.register(PRE, lambda context: hook.seen.clear())
    manager.register_hook(hook)
    manager.fire(PRE)
    manager.fire(POST)
    assert hook.seen == [POST]
    assert "recorder" in manager.registered_hook_names()

    late = HookManager()
    late.register(PRE, lambda context: hook.seen.clear())
    late.register_hook(hook, HookPriority.LOW)
    late.fire(PRE)
    assert hook.seen == [PRE]


def test_unregister_takes_one_or_all_and_says_how_many() -> None:
    manager = HookManager()
    hook, other = Recorder(), Recorder()
    manager.register_hook(hook)
    manager.register(PRE, other.handle)
    manager.register(PRE, other.handle)
    assert manager.unregister("pre_checkpoint_save", other.handle) == 2
    assert manager.unregister(PRE, other.handle) == 0
    manager.fire(PRE)
    assert (hook.seen, other.seen) == ([PRE], [])
    assert manager.unregister(PRE) == 1
    assert not manager.has(PRE) and manager.has(POST)
    assert manager.unregister(POST, hook) == 1
    assert manager.registered_hook_names() == []
    assert manager.get_stats() == {}


def test_handlers_of_one_name_are_told_apart() -> None:
    manager = HookManager()
    manager.register(POST, lambda context: None)
    manager.register(POST, lambda context: None)
    assert manager.registered_hook_names() == ["<lambda>", "<lambda>#2"]


def test_has_knows_whether_anyone_listens() -> None:
    manager = HookManager()
    assert not manager.has(POST)
    assert manager.fire(POST) == []
    manager.register(POST, lambda context: None)
    assert manager.has(POST) and not manager.has(PRE)


async def test_triggering_what_nobody_hears_gives_nothing() -> None:
    assert await HookManager().trigger("post_fork", "agent", {}) == []


@pytest.mark.figures
def test_firing_what_nobody_hears_costs_next_to_nothing() -> None:
    manager = HookManager()
    manager.register(POST, lambda context: None)

    def seconds(function: Callable[[], object]) -> float:
        started = time.perf_counter()
        for _ in range(20_000):
            function()
        return time.perf_counter() - started

    # Against an empty call, so that a slow machine is no reason to fail.
    pairs = [(seconds(lambda: None), seconds(lambda: manager.fire(PRE))) for _ in range(7)]
    bare, ours = (min(times) for times in zip(*pairs, strict=True))
    assert ours < 20 * bare


# Results


def test_a_failed_result_must_say_why() -> None:
    with pytest.raises(UsageError, match="say why"):
        HookResult(success=False)
    with pytest.raises(UsageError, match="say why"):
        HookResult(success=True, veto=True)
    assert HookResult(success=False, error="disk is read-only").error == "disk is read-only"


def test_a_result_is_filled_in_with_the_handlers_name_and_time() -> None:
    manager = HookManager()

    def slow(context: HookContext) -> HookResult:
        time.sleep(0.02)
        return HookResult(success=True)

    manager.register(POST, slow)
    (result,) = manager.fire(POST)
    assert result.hook == "slow"
    assert result.duration_ms >= 20


# Before a save


def replace_by(state: Any) -> Callable[[HookContext], HookResult]:
    return lambda context: HookResult(success=True, data={"state": state})


def state_of(run: str, **values: Any) -> State:
    return State.new(values, run_id=run)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (state_of("r", n=1), state_of("r", n=2)),
        (AgentState(agent_id="a"), AgentState(agent_id="a", model="m")),
    ],
    ids=["State", "AgentState"],
)
def test_a_pre_hook_may_replace_the_state(
    entry: Callable[[HookManager], Fire], old: Any, new: Any
) -> None:
    manager = HookManager()
    manager.register(PRE, replace_by(new))
    outcome = pre_outcome(old, entry(manager)(PRE, "a", {"state": old}))
    assert outcome.unwrap() is new


def test_replacements_are_chained_in_order_of_priority(
    entry: Callable[[HookManager], Fire],
) -> None:
    manager = HookManager()

    def add(letter: str) -> Callable[[HookContext], HookResult]:
        return lambda context: HookResult(
            success=True,
            data={"state": context.data["state"].set("w", context.data["state"]["w"] + letter)},
        )

    manager.register(PRE, add("c"), HookPriority.LOW)
    manager.register(PRE, add("b"))
    manager.register(PRE, add("a"), HookPriority.CRITICAL)
    state = state_of("r", w="")
    outcome = pre_outcome(state, entry(manager)(PRE, "a", {"state": state}))
    assert outcome.state["w"] == "abc"
    assert state["w"] == ""


@pytest.mark.parametrize("wrong", [{"n": 2}, AgentState(), None, State])
def test_a_replacement_of_another_class_is_ignored_and_a_failure(
    caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    manager = HookManager()
    manager.register(PRE, replace_by(wrong))
    seen: list[Any] = []
    manager.register(PRE, lambda context: seen.append(context.data["state"]))
    state = state_of("r", n=1)
    results = manager.fire(PRE, "a", {"state": state})
    assert pre_outcome(state, results).unwrap() is state
    assert seen == [state]
    assert [result.success for result in results] == [False, True]
    assert "would replace a State" in caplog.text


def test_a_post_hook_replaces_nothing() -> None:
    manager = HookManager()
    manager.register(POST, replace_by(state_of("r", n=2)))
    seen: list[Any] = []
    manager.register(POST, lambda context: seen.append(context.data["state"]["n"]))
    manager.fire(POST, "a", {"state": state_of("r", n=1)})
    assert seen == [1]


@pytest.mark.parametrize("success", [True, False])
def test_a_veto_names_its_hook_and_ends_the_firing(
    entry: Callable[[HookManager], Fire], success: bool, caplog: pytest.LogCaptureFixture
) -> None:
    manager = HookManager()
    seen: list[str] = []

    def guard(context: HookContext) -> HookResult:
        return HookResult(success=success, veto=True, error="balance is negative")

    manager.register(PRE, guard, HookPriority.HIGH)
    manager.register(PRE, lambda context: seen.append("later"))
    state = state_of("r")
    outcome = pre_outcome(state, entry(manager)(PRE, "a", {"state": state}))
    with pytest.raises(VetoError, match="hook guard refused the save: balance is") as caught:
        outcome.unwrap(run_id="r")
    assert (caught.value.hook, caught.value.run_id) == ("guard", "r")
    assert caught.value.reason == "balance is negative"
    assert seen == []
    stats = manager.get_stats()["guard"]
    assert (stats["veto_count"], stats["failure_count"], stats["success_count"]) == (1, 0, 0)
    assert caplog.text == ""


def test_a_veto_after_the_fact_is_a_failure_and_stops_nobody() -> None:
    manager = HookManager()
    manager.register(POST, lambda context: HookResult(success=True, veto=True, error="too late"))
    manager.register(POST, lambda context: None)
    results = manager.fire(POST)
    assert [(result.success, result.veto) for result in results] == [(False, False), (True, False)]


def test_what_pre_outcome_makes_of_results_needs_no_manager() -> None:
    results = [
        HookResult(True),
        HookResult(True, data={"state": "b"}),
        HookResult(False, data={"state": "x"}, error="failed, so it does not count"),
        HookResult(True, data={"other": 1}),
    ]
    assert pre_outcome("a", results) == PreOutcome("b")
    veto = HookResult(False, error="no", veto=True, hook="h")
    assert pre_outcome("a", [*results, veto]).veto is veto
    assert pre_outcome("a", []) == PreOutcome("a")


class Required:
    required = True

    def __init__(self, does: Callable[[], object]) -> None:
        self.does = does

    def handle(self, context: HookContext) -> Any:
        return self.does()


@pytest.mark.parametrize("how", ["raises", "hangs", "fails", "answers nonsense"])
def test_a_required_hook_that_fails_before_the_fact_vetoes(how: str, gate: threading.Event) -> None:
    does: dict[str, Callable[[], object]] = {
        "raises": lambda: 1 / 0,
        "hangs": gate.wait,
        "fails": lambda: HookResult(success=False, error="no"),
        "answers nonsense": lambda: 3,
    }
    manager = HookManager(timeout=0.05)
    manager.register(PRE, Required(does[how]))
    manager.register(POST, Required(does[how]))
    with pytest.raises(VetoError, match="hook Required refused"):
        pre_outcome("s", manager.fire(PRE, "a", {"state": "s"})).unwrap()
    assert [result.veto for result in manager.fire(POST)] == [False]


# Doing harm


def raise_value_error(context: HookContext) -> None:
    raise ValueError("the secret is hunter2")


def raise_system_exit(context: HookContext) -> None:
    sys.exit("out of here")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raise_unspeakable(context: HookContext) -> None:
    raise Unspeakable


def raise_cancelled(context: HookContext) -> None:
    raise asyncio.CancelledError


def fail(context: HookContext) -> HookResult:
    return HookResult(success=False, error="not today")


def answer_nonsense(context: HookContext) -> str:
    return "done"


def raise_timeout(context: HookContext) -> None:
    raise TimeoutError("of its own")


def raise_stop_iteration(context: HookContext) -> None:
    raise StopIteration


HARMFUL = [
    raise_value_error,
    raise_system_exit,
    raise_unspeakable,
    raise_cancelled,
    raise_timeout,
    raise_stop_iteration,
    fail,
    answer_nonsense,
]


@pytest.mark.parametrize("sort", ["plain", "async"])
@pytest.mark.parametrize("harmful", HARMFUL)
def test_a_harmful_handler_is_counted_logged_once_and_changes_nothing(
    entry: Callable[[HookManager], Fire],
    caplog: pytest.LogCaptureFixture,
    harmful: Callable[[HookContext], Any],
    sort: str,
) -> None:
    manager = HookManager()
    told: list[int] = []
    manager.register(PRE, as_handler(harmful, sort), HookPriority.CRITICAL)
    manager.register(PRE, lambda context: told.append(1))
    state = state_of("r")
    for _ in range(3):
        results = entry(manager)(PRE, "a", {"state": state})
        assert [result.success for result in results] == [False, True]
        assert results[0].error
        assert pre_outcome(state, results).unwrap() is state
    assert len(told) == 3
    failed, fine = (manager.get_stats()[name] for name in (results[0].hook, results[1].hook))
    assert (failed["call_count"], failed["failure_count"], failed["success_count"]) == (3, 3, 0)
    assert (fine["call_count"], fine["failure_count"], fine["success_count"]) == (3, 0, 3)
    assert failed["timeout_count"] == 0
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("surehold.hooks", logging.WARNING)


def test_the_log_has_the_traceback_and_no_message_that_may_quote_the_state(
    caplog: pytest.LogCaptureFixture,
) -> None:
    manager = HookManager()
    manager.register(POST, raise_value_error)
    (result,) = manager.fire(POST, "a", {"state": state_of("r", password="hunter2")})
    assert "raised ValueError" in caplog.text
    assert "in raise_value_error" in caplog.text
    assert "hunter2" not in caplog.text.replace('raise ValueError("the secret is hunter2")', "")
    assert result.error == "ValueError: the secret is hunter2"


def test_each_kind_of_failure_of_each_handler_is_logged_once(
    caplog: pytest.LogCaptureFixture, gate: threading.Event
) -> None:
    manager = HookManager(timeout=1.5)
    turn = iter([raise_value_error, fail, lambda context: gate.wait(), fail, raise_system_exit])

    def fickle(context: HookContext) -> Any:
        return next(turn)(context)

    manager.register(POST, fickle)
    manager.register(POST, fail)
    for _ in range(5):
        manager.fire(POST)
    texts = [record.getMessage().partition("; from now on")[0] for record in caplog.records]
    assert texts == [
        "hook fickle on post_checkpoint_save: raised ValueError",
        "hook fail on post_checkpoint_save: not today",
        "hook fickle on post_checkpoint_save: not today",
        "hook fickle on post_checkpoint_save: no answer within 1.5 s",
    ]


@pytest.mark.parametrize("sort", ["plain", "async object"])
def test_a_handler_that_sleeps_for_ever_is_abandoned_at_its_timeout(
    entry: Callable[[HookManager], Fire], sort: str, gate: threading.Event
) -> None:
    manager = HookManager(timeout=500)
    told: list[int] = []
    if sort == "plain":
        manager.register(POST, lambda context: gate.wait(), HookPriority.HIGH, timeout=0.1)
    else:
        manager.register(POST, SleepsForEver(), HookPriority.HIGH, timeout=0.1)
    manager.register(POST, lambda context: told.append(1))
    results = entry(manager)(POST)
    assert [result.error for result in results] == ["no answer within 0.1 s", None]
    assert told == [1]
    stats = manager.get_stats()[results[0].hook]
    assert (stats["timeout_count"], stats["failure_count"], stats["call_count"]) == (1, 1, 1)
    assert stats["max_duration_ms"] >= 100


class SleepsForEver:
    async def handle(self, context: HookContext) -> None:
        await asyncio.sleep(10**6)


def test_the_timeout_is_the_handlers_else_the_firings_else_the_managers(
    gate: threading.Event,
) -> None:
    manager = HookManager(timeout=0.03)
    manager.register(POST, lambda context: gate.wait())
    manager.register(POST, lambda context: gate.wait(), timeout=0.05)
    texts = [result.error for result in manager.fire(POST)]
    assert texts == ["no answer within 0.03 s", "no answer within 0.05 s"]
    texts = [result.error for result in manager.fire(POST, timeout=0.04)]
    assert texts == ["no answer within 0.04 s", "no answer within 0.05 s"]


def test_a_thousand_firings_of_a_hanging_handler_take_few_threads_and_little_time(
    gate: threading.Event,
) -> None:
    manager = HookManager(timeout=0.02)
    told: list[int] = []
    before = hook_threads()
    manager.register(POST, lambda context: gate.wait())
    manager.register(POST, lambda context: told.append(1), timeout=500)
    for _ in range(1000):
        manager.fire(POST)
    assert hook_threads() - before <= MOST_SILENT_CALLS + 1
    assert len(told) == 1000
    stats = manager.get_stats()["<lambda>"]
    assert (stats["call_count"], stats["failure_count"]) == (1000, 1000)
    assert stats["timeout_count"] == MOST_SILENT_CALLS


def test_a_handler_that_is_given_up_is_called_again_once_it_is_registered_anew(
    gate: threading.Event,
) -> None:
    manager = HookManager(timeout=0.02)
    manager.register(POST, wait := lambda context: gate.wait() and None)
    for _ in range(MOST_SILENT_CALLS):
        assert manager.fire(POST)[0].error == "no answer within 0.02 s"
    gate.set()
    assert "not called" in str(manager.fire(POST, timeout=60)[0].error)
    manager.unregister(POST, wait)
    manager.register(POST, wait)
    assert manager.fire(POST, timeout=60)[0].success


def test_an_answer_in_between_keeps_a_slow_handler_called(gate: threading.Event) -> None:
    manager = HookManager(timeout=0.02)
    slow = threading.Event()
    manager.register(POST, lambda context: slow.is_set() and gate.wait() and None)
    for _ in range(2):
        slow.set()
        for _ in range(MOST_SILENT_CALLS - 1):
            assert not manager.fire(POST)[0].success
        slow.clear()
        assert "not called" not in str(manager.fire(POST, timeout=60)[0].error)


def test_a_required_handler_is_never_given_up(gate: threading.Event) -> None:
    manager = HookManager(timeout=0.02)
    manager.register(PRE, Required(lambda: gate.wait() and None))
    for _ in range(MOST_SILENT_CALLS + 2):
        assert manager.fire(PRE)[0].veto
    gate.set()
    assert manager.fire(PRE, timeout=60)[0].success


def test_an_async_handler_that_blocks_the_private_loop_starves_nobody(
    gate: threading.Event,
) -> None:
    manager = HookManager(timeout=0.05)
    told: list[int] = []

    async def blocks(context: HookContext) -> None:
        gate.wait()

    async def well_behaved(context: HookContext) -> None:
        await asyncio.sleep(0)
        told.append(1)

    manager.register(POST, blocks)
    manager.register(POST, well_behaved, timeout=500)
    before = hook_threads()
    for _ in range(20):
        assert manager.fire(POST)[1].success
    assert len(told) == 20
    assert hook_threads() - before <= MOST_SILENT_CALLS + 1


def test_a_coroutine_that_will_not_be_cancelled_holds_nobody_up() -> None:
    manager = HookManager(timeout=0.05)
    stop = threading.Event()

    async def stubborn(context: HookContext) -> None:
        while not stop.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    manager.register(POST, stubborn)
    for _ in range(MOST_SILENT_CALLS + 20):
        (result,) = manager.fire(POST)
    stop.set()
    assert result.error is not None and "not called" in result.error


async def test_cancelling_the_caller_propagates_and_abandons_the_handler() -> None:
    manager = HookManager(timeout=60)
    began = asyncio.Event()
    ended: list[str] = []

    async def slow(context: HookContext) -> None:
        began.set()
        try:
            await asyncio.sleep(10**6)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    manager.register(POST, slow)
    task = asyncio.create_task(manager.trigger(POST))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)
    assert ended == ["cancelled"]


async def test_cancelling_the_caller_of_a_plain_handler_does_not_wait_for_it(
    gate: threading.Event,
) -> None:
    manager = HookManager(timeout=60)
    began = threading.Event()

    def slow(context: HookContext) -> None:
        began.set()
        gate.wait()

    manager.register(POST, slow)
    task = asyncio.create_task(manager.trigger(POST))
    while not began.is_set():
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_keyboard_interrupt_on_the_callers_loop_is_the_callers() -> None:
    manager = HookManager()

    async def interrupted(context: HookContext) -> None:
        raise KeyboardInterrupt

    manager.register(POST, interrupted)
    with pytest.raises(KeyboardInterrupt):
        await manager.trigger(POST)


def test_many_threads_may_fire_at_once() -> None:
    manager = HookManager(timeout=30)
    manager.register(POST, as_handler(lambda context: None, "plain"))
    manager.register(POST, as_handler(lambda context: None, "async"))
    wrong: list[HookResult] = []

    def work() -> None:
        for _ in range(50):
            wrong.extend(result for result in manager.fire(POST) if not result.success)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert {stats["success_count"] for stats in manager.get_stats().values()} == {400}


def test_stats_add_up() -> None:
    manager = HookManager()
    turn = iter([fail, lambda context: None, raise_value_error, lambda context: None])

    def handler(context: HookContext) -> Any:
        return next(turn)(context)

    manager.register(POST, handler)
    for _ in range(4):
        manager.fire(POST)
    stats = manager.get_stats()["handler"]
    assert (stats["call_count"], stats["success_count"], stats["failure_count"]) == (4, 2, 2)
    assert stats["avg_duration_ms"] == pytest.approx(stats["total_duration_ms"] / 4)
    assert 0 < stats["max_duration_ms"] <= stats["total_duration_ms"]


# on_error


@pytest.mark.parametrize("sort", ["plain", "async"])
def test_on_error_hears_every_failure(entry: Callable[[HookManager], Fire], sort: str) -> None:
    heard: list[tuple[str, str, HookEvent]] = []

    def note(error: BaseException, context: HookContext) -> None:
        heard.append((type(error).__name__, str(error), context.event_type))

    async def note_async(error: BaseException, context: HookContext) -> None:
        note(error, context)

    manager = HookManager(timeout=500, on_error=note if sort == "plain" else note_async)
    manager.register(POST, raise_value_error)
    manager.register(POST, fail)
    manager.register(POST, SleepsForEver(), timeout=0.05)
    manager.register(POST, lambda context: None)
    entry(manager)(POST)
    entry(manager)(POST)
    assert heard == 2 * [
        ("ValueError", "the secret is hunter2", POST),
        ("RuntimeError", "not today", POST),
        ("TimeoutError", "no answer within 0.05 s", POST),
    ]


def test_an_on_error_that_raises_or_hangs_is_logged_once_and_harms_nobody(
    caplog: pytest.LogCaptureFixture, gate: threading.Event
) -> None:
    def bad(error: BaseException, context: HookContext) -> None:
        raise KeyError("twice")

    manager = HookManager(timeout=500, on_error=bad)
    manager.register(POST, fail)
    for _ in range(3):
        manager.fire(POST)
    assert sum("hook on_error" in record.getMessage() for record in caplog.records) == 1

    manager = HookManager(timeout=0.02, on_error=lambda error, context: gate.wait())
    manager.register(POST, fail)
    for _ in range(100):
        assert len(manager.fire(POST)) == 1


# The process


def run_script(code: str) -> subprocess.CompletedProcess[str]:
    head = (
        "from surehold.engine.hooks import HookManager, HookResult\n"
        "import asyncio, os, sys, threading, time\n"
    )
    return subprocess.run(
        [sys.executable, "-c", head + code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )


def test_a_hook_that_sleeps_for_ever_does_not_keep_the_interpreter_alive() -> None:
    done = run_script(
        "manager = HookManager(timeout=0.05)\n"
        "async def sleeper(context): await asyncio.sleep(10**6)\n"
        "async def blocker(context): time.sleep(10**6)\n"
        "manager.register('post_fork', lambda context: time.sleep(10**6))\n"
        "manager.register('post_fork', sleeper)\n"
        "manager.register('post_fork', blocker)\n"
        "print(len(manager.fire('post_fork')))\n"
    )
    assert (done.stdout, done.returncode) == ("3\n", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="calls the system's pthread_exit")
def test_a_hook_that_kills_its_own_thread_is_abandoned_like_one_that_hangs() -> None:
    """Not by an exception: the thread is gone without running another line of Python."""
    done = run_script(
        "import ctypes\n"
        "manager = HookManager(timeout=0.05)\n"
        "manager.register('post_fork', lambda context: ctypes.CDLL(None).pthread_exit(None))\n"
        "manager.register('post_fork', lambda context: print('told', flush=True))\n"
        "for _ in range(12): manager.fire('post_fork')\n"
        "print(manager.get_stats()['<lambda>']['failure_count'])\n"
    )
    assert (done.stdout, done.returncode) == ("told\n" * 12 + "12\n", 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_hooks_work_in_a_forked_child() -> None:
    done = run_script(
        "manager = HookManager(timeout=5)\n"
        "async def answer(context): return HookResult(success=True)\n"
        "manager.register('post_fork', lambda context: None)\n"
        "manager.register('post_fork', answer)\n"
        "manager.fire('post_fork')\n"
        "pid = os.fork()\n"
        "fine = all(result.success for result in manager.fire('post_fork'))\n"
        "if pid == 0: os._exit(0 if fine else 1)\n"
        "print(fine, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    assert (done.stdout, done.returncode) == ("True 0\n", 0)


def test_the_private_loop_ends_with_its_manager() -> None:
    manager = HookManager()

    async def handler(context: HookContext) -> None: ...

    manager.register(POST, handler)
    manager.fire(POST)
    (thread,) = [t for t in threading.enumerate() if t.name == "surehold-hook-loop"][-1:]
    del manager
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_a_thread_ends_with_its_call() -> None:
    manager = HookManager()
    threads: list[threading.Thread] = []
    manager.register(POST, lambda context: threads.append(threading.current_thread()))
    assert manager.fire(POST)[0].success
    threads[0].join(timeout=10)
    assert not threads[0].is_alive()


@pytest.mark.parametrize("sort", ["plain", "async"])
def test_a_system_without_threads_to_give_is_a_failure_and_no_more(
    monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    manager = HookManager()
    manager.register(POST, as_handler(lambda context: None, sort))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        (result,) = manager.fire(POST)
        assert result.error == "RuntimeError: can't start new thread"
    assert manager.fire(POST)[0].success


async def test_a_handler_whose_task_is_cancelled_from_outside_has_failed() -> None:
    manager = HookManager()

    async def victim(context: HookContext) -> None:
        await asyncio.sleep(10**6)

    async def killer() -> None:
        mine = {asyncio.current_task(), firing}
        for task in asyncio.all_tasks() - mine - {main}:
            task.cancel()

    main = asyncio.current_task()
    manager.register(POST, victim)
    firing = asyncio.create_task(manager.trigger(POST))
    await asyncio.sleep(0)
    await asyncio.create_task(killer())
    (result,) = await firing
    assert result.error is not None and result.error.startswith("CancelledError")


def test_a_handler_that_stops_the_private_loop_stops_only_itself() -> None:
    manager = HookManager(timeout=0.1)
    told: list[int] = []

    async def stopper(context: HookContext) -> None:
        asyncio.get_running_loop().stop()

    async def well_behaved(context: HookContext) -> None:
        await asyncio.sleep(0.001)
        told.append(1)

    manager.register(POST, stopper)
    manager.register(POST, well_behaved)
    fired = 0
    while len(told) < 30:  # a busy machine may not get round to one within its timeout
        manager.fire(POST)
        fired += 1
        assert fired < 200
    assert manager.get_stats()["stopper"]["call_count"] == fired
