"""The hooks that come with the library do what they say and never show a value."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
import time
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from surehold.core.policy.redaction import KEYS
from surehold.core.state.agent_state import AgentState
from surehold.core.state.state import State
from surehold.engine.hooks import LoggingHook, MetricsHook, RedactionHook, TracingHook
from surehold.engine.hooks.events import HookEvent, HookPriority, HookResult, pre_outcome
from surehold.engine.hooks.manager import HookManager
from surehold.engine.metrics import Metrics
from surehold.errors import MissingExtraError, UsageError, VetoError

KEY = "ghp_" + "a1B2" * 9
GONE = "[redacted:github_token]"

DATA = {
    "agent_id": "researcher",
    "run_id": "nightly",
    "step_number": 41,
    "status": "running",
    "timestamp": "2026-11-15T20:21:19+00:00",
    "checkpoint_id": "0199-abc",
    "kind": "routine",
    "duration_ms": 12.5,
    "size": 2048,
    "stored": 160,
    "state": State.new({"password": "hunter2"}, run_id="nightly"),
}

POSTS = {
    HookEvent.POST_CHECKPOINT_SAVE: "surehold.save",
    HookEvent.POST_CHECKPOINT_LOAD: "surehold.load",
    HookEvent.POST_RESUME: "surehold.resume",
    HookEvent.POST_FORK: "surehold.fork",
    HookEvent.POST_PRUNE: "surehold.prune",
}


def manager_with(hook: Any) -> HookManager:
    manager = HookManager()
    manager.register_hook(hook)
    return manager


# Logging


@pytest.mark.parametrize("event", POSTS)
def test_logging_shows_ids_step_and_status_and_no_value(
    event: HookEvent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "surehold.checkpoints")
    manager_with(LoggingHook()).fire(event, "researcher", DATA)
    (record,) = caplog.records
    assert record.name == "surehold.checkpoints"
    assert record.getMessage() == (
        f"{event} run_id=nightly agent_id=researcher checkpoint_id=0199-abc step_number=41 "
        "status=running kind=routine duration_ms=12.5"
    )
    assert "hunter2" not in repr(vars(record))


def test_logging_keeps_a_line_one_line(caplog: pytest.LogCaptureFixture) -> None:
    hook = LoggingHook(level=logging.WARNING, events=[HookEvent.PRE_FORK])
    manager_with(hook).fire("pre_fork", "a", {"run_id": "x\nERROR all is lost", "status": None})
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "pre_fork run_id='x\\nERROR all is lost'"


def test_logging_says_nothing_below_the_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "surehold.checkpoints")
    manager_with(LoggingHook()).fire(HookEvent.POST_FORK, "a", DATA)
    assert caplog.records == []


# Metrics


def test_metrics_are_fed_by_the_events() -> None:
    metrics = Metrics()
    manager = manager_with(MetricsHook(metrics))
    for event in POSTS:
        results = manager.fire(event, "a", {**DATA, "removed": 4, "freed": 900})
        assert [result.success for result in results] == [True]
    snapshot = metrics.snapshot()
    assert snapshot["saves"]["ok"] == snapshot["loads"]["ok"] == snapshot["forks"] == 1
    assert snapshot["bytes"] == {"logical": 2048, "stored": 160}
    assert snapshot["save_seconds"]["sum"] == pytest.approx(0.0125)
    assert snapshot["resumes"] == {"crash": {"tried": 1, "succeeded": 1}}
    assert (snapshot["forgotten"], snapshot["pruned_bytes"]) == (4, 900)


# Tracing


def traced() -> tuple[TracerProvider, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider, exporter


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@pytest.mark.parametrize("event", POSTS)
def test_a_span_has_the_name_the_ids_and_the_duration(event: HookEvent) -> None:
    provider, exporter = traced()
    before = time.time_ns()
    (result,) = manager_with(TracingHook(provider)).fire(event, "researcher", DATA)
    assert result.success
    (span,) = exporter.get_finished_spans()
    assert span.name == POSTS[event]
    assert span.kind is trace.SpanKind.INTERNAL
    assert span.start_time is not None and span.end_time is not None
    assert span.end_time - span.start_time == 12_500_000
    assert abs(span.end_time - before) < 60e9
    shown = attributes_of(span)
    assert shown.pop("surehold.resume.reason", None) == (
        "crash" if event is HookEvent.POST_RESUME else None
    )
    assert shown == {
        "surehold.name": "researcher",
        "surehold.run.id": "nightly",
        "surehold.checkpoint.id": "0199-abc",
        "surehold.step": 41,
        "surehold.status": "running",
        "surehold.kind": "routine",
        "surehold.bytes.logical": 2048,
        "surehold.bytes.stored": 160,
    }


def test_a_span_is_a_child_of_the_callers_from_blocking_code() -> None:
    provider, exporter = traced()
    manager = manager_with(TracingHook(provider))
    with provider.get_tracer("test").start_as_current_span("step") as parent:
        manager.fire(HookEvent.POST_CHECKPOINT_SAVE, "a", DATA)
    span = exporter.get_finished_spans()[0]
    assert span.parent is not None
    assert span.parent.span_id == parent.get_span_context().span_id


async def test_a_span_is_a_child_of_the_callers_from_async_code() -> None:
    provider, exporter = traced()
    manager = manager_with(TracingHook(provider))
    with provider.get_tracer("test").start_as_current_span("step") as parent:
        await manager.trigger(HookEvent.POST_CHECKPOINT_SAVE, "a", DATA)
    span = exporter.get_finished_spans()[0]
    assert span.parent is not None
    assert span.parent.span_id == parent.get_span_context().span_id


def test_tracing_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'surehold\[otel\]'"):
        TracingHook()


def test_the_hooks_are_imported_without_opentelemetry() -> None:
    code = "import surehold.engine.hooks, sys; print('opentelemetry' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


# Redaction


def save(manager: HookManager, state: Any) -> Any:
    """What would be saved."""
    results = manager.fire(HookEvent.PRE_CHECKPOINT_SAVE, "a", {"state": state})
    return pre_outcome(state, results).unwrap()


def test_a_state_is_saved_without_its_secrets_and_the_live_one_keeps_them() -> None:
    state = State.new(
        {"api_key": "abc", "messages": [{"content": f"use {KEY}"}], "token_count": 3},
        run_id="r",
        name="n",
    ).at(step=4, node="ask", metadata={"token": "xyz", "cost": 1})
    saved = save(manager_with(RedactionHook()), state)
    assert saved.to_dict() == {
        "api_key": "[redacted:api_key]",
        "messages": [{"content": f"use {GONE}"}],
        "token_count": 3,
    }
    assert saved.metadata == {"token": "[redacted:token]", "cost": 1}
    assert (saved.run_id, saved.name, saved.step, saved.node) == ("r", "n", 4, "ask")
    assert saved.lineage is state.lineage
    assert state["api_key"] == "abc" and state.metadata["token"] == "xyz"


def test_only_what_changed_is_set() -> None:
    state = State.new({"messages": [{"content": "hello"}], "password": "hunter2", "n": [1]})
    saved = save(manager_with(RedactionHook()), state)
    assert saved["messages"] is state["messages"]
    assert saved["n"] is state["n"]
    assert saved["password"] == "[redacted:password]"


def test_a_clean_state_is_not_replaced() -> None:
    hook = RedactionHook()
    for state in (State.new({"messages": ["hello"]}), AgentState(agent_id="a", model="m")):
        assert save(manager_with(hook), state) is state
    assert hook.counts == {}


def test_a_key_of_a_state_that_is_a_secret_itself_is_replaced() -> None:
    saved = save(manager_with(RedactionHook()), State.new({KEY: 1, "n": 2}))
    assert saved.to_dict() == {"n": 2, GONE: 1}


def test_an_agents_state_is_saved_without_its_secrets_and_the_live_one_keeps_them() -> None:
    state = AgentState(
        agent_id=f"agent {KEY}",
        run_id="r",
        step_number=3,
        conversation_history=[{"role": "user", "content": KEY}],
        tool_results_cache={"login": {"password": "hunter2"}},
        tool_usage_counts={"token": 7},
        metadata={"Authorization": "Basic abc"},
        extra={"secret": "s"},
    )
    before = copy.deepcopy(state)
    saved = save(manager_with(RedactionHook()), state)
    assert type(saved) is AgentState
    assert saved.conversation_history == [{"role": "user", "content": GONE}]
    assert saved.tool_results_cache == {"login": {"password": "[redacted:password]"}}
    assert saved.tool_usage_counts is state.tool_usage_counts
    assert saved.metadata == {"Authorization": "[redacted:authorization]"}
    assert saved.extra == {"secret": "[redacted:secret]"}
    assert (saved.agent_id, saved.run_id, saved.step_number) == (state.agent_id, "r", 3)
    assert saved.checkpoint_id == state.checkpoint_id
    assert state == before


def test_plain_values_can_be_redacted_as_well() -> None:
    assert RedactionHook().redact({"password": "hunter2", 3: 4}) == {
        "password": "[redacted:password]",
        3: 4,
    }


def test_redactions_are_counted_by_kind_and_shown_nowhere(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    metrics = Metrics()
    hook = RedactionHook(metrics=metrics)
    manager = manager_with(hook)
    state = State.new({"password": "hunter2", "notes": [KEY, KEY]})
    for _ in range(2):
        results = manager.fire(HookEvent.PRE_CHECKPOINT_SAVE, "a", {"state": state})
    assert hook.counts == {"password": 2, "github_token": 4}
    assert metrics.snapshot()["redactions"] == {"password": 2, "github_token": 4}
    for text in (caplog.text, repr(results), repr(manager.get_stats()), metrics.prometheus()):
        assert "hunter2" not in text and KEY not in text


def test_patterns_and_keys_can_be_given() -> None:
    hook = RedactionHook(patterns={"ticket": "TCK-[0-9]+"}, keys=[*KEYS, "pin"])
    saved = save(manager_with(hook), State.new({"pin": "1", "note": f"TCK-7 {KEY}"}))
    assert saved.to_dict() == {"pin": "[redacted:pin]", "note": f"[redacted:ticket] {KEY}"}
    with pytest.raises(UsageError):
        RedactionHook(patterns={"x": "("})


def test_it_runs_after_hooks_that_put_secrets_in() -> None:
    manager = manager_with(RedactionHook())

    def add(context: Any) -> HookResult:
        return HookResult(success=True, data={"state": context.data["state"].set("token", KEY)})

    manager.register(HookEvent.PRE_CHECKPOINT_SAVE, add, HookPriority.NORMAL)
    assert save(manager, State.new({}))["token"] == "[redacted:token]"


def test_if_redaction_fails_nothing_is_saved_and_nothing_is_told() -> None:
    cycle: list[Any] = ["hunter2"]
    cycle.append(cycle)
    state = AgentState(agent_id="a", extra={"loop": cycle})
    with pytest.raises(VetoError, match="raised RecursionError while redacting") as caught:
        save(manager_with(RedactionHook()), state)
    assert "hunter2" not in str(caught.value)


def test_if_redaction_takes_too_long_nothing_is_saved() -> None:
    manager = HookManager(timeout=0.01)
    manager.register_hook(RedactionHook())
    state = AgentState(agent_id="a", extra={"texts": [f"text {n}" for n in range(200_000)]})
    with pytest.raises(VetoError, match="no answer within"):
        save(manager, state)
