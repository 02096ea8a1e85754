"""One trace for a run, whatever happens to its processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.builders.agents import call, turns
from tests.engine.runs.traced_program import execute, traced_manager

import surehold
from surehold import AsyncCheckpointManager, CheckpointManager, HookManager, TracingHook
from surehold.testing.scripted import ScriptedModel

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("traced_program.py")

LIVES = {
    # By process, what is under the root: parents are written before what they hold.
    "function": [
        ["save", "step fetch"],
        ["load", "resume", "chat ask"],
        ["load", "resume", "step fetch", "save", "execution"],
    ],
    "loop": [
        ["save", "step call", "save"],
        ["load", "resume", "step call", "save"],
        ["load", "resume", "step call", "save", "save", "execution"],
    ],
    "graph": [
        ["save", "step(chat ask)", "save"],
        ["load", "resume", "step(chat ask)", "save"],
        ["load", "resume", "step(chat ask)", "save", "execution"],
    ],
}


def _spans(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _outline(spans: list[dict[str, Any]], root: str) -> list[str]:
    """The names of the spans below *root*, those below them in brackets."""
    told = []
    for one in spans:
        if one["parent"] == root:
            inner = ",".join(_outline(spans, one["span"]))
            told.append(one["name"].removeprefix("surehold.") + (f"({inner})" if inner else ""))
    return told


@pytest.mark.parametrize("kind", ["function", "loop", "graph"])
def test_a_run_killed_twice_and_forked_once_is_one_trace_and_a_linked_one(
    kind: str, tmp_path: Path
) -> None:
    address, path = f"sqlite:///{tmp_path}/runs.db", tmp_path / "spans.jsonl"
    seen = 0
    root: dict[str, Any] = {}
    for life, fatal in enumerate([1, 2, 9]):
        command = [sys.executable, str(PROGRAM), kind, address, str(path), str(fatal)]
        done = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, check=False)
        assert done.returncode == (-signal.SIGKILL if fatal < 9 else 0)
        spans = _spans(path)[seen:]
        seen += len(spans)
        if not life:
            root = spans.pop(0)
            assert (root["name"], root["parent"]) == ("surehold.run", None)
            assert root["attributes"]["surehold.run.id"] == "traced"
            assert root["attributes"]["surehold.door"] == kind
        assert {one["trace"] for one in spans} == {root["trace"]}
        assert _outline(spans, root["span"]) == LIVES[kind][life]
    execution = _spans(path)[-1]
    assert execution["attributes"]["surehold.status"] == "completed"
    assert execution["attributes"]["surehold.epoch"] == 3
    for one in _spans(path):
        if one["name"] == "chat ask":
            attributes = one["attributes"]
            assert attributes["gen_ai.operation.name"] == "chat"
            assert attributes["gen_ai.usage.input_tokens"] == 10
            assert attributes["gen_ai.usage.output_tokens"] == 5
            assert attributes["gen_ai.response.model"] == "scripted-1"

    with traced_manager(address, path) as manager:
        first = min(manager.list_checkpoints("traced"), key=lambda one: one.step_number)
        manager.fork_from_checkpoint(first.checkpoint_id, run_id="forked")
        made = len(_spans(path))
        execute(kind, manager, "forked")
    spans = [one for one in _spans(path)[made:] if one["attributes"]["surehold.run.id"] == "forked"]
    (other,) = {one["trace"] for one in spans}
    assert other != root["trace"]
    links = [one["links"] for one in spans if one["name"] == "surehold.execution"]
    assert links == [[root["trace"]]]
    names = [one["name"].removeprefix("surehold.").split()[0] for one in spans]
    assert names.count("chat") + (names.count("step") if kind != "graph" else 0) == 3


def _in_memory(*, content: bool) -> tuple[CheckpointManager, InMemorySpanExporter, TracerProvider]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    hooks = HookManager()
    hooks.register_hook(TracingHook(provider, content=content))
    return CheckpointManager("memory://", hook_manager=hooks), exporter, provider


@pytest.mark.parametrize("content", [False, True])
def test_contents_are_shown_only_when_asked_for(content: bool) -> None:
    manager, exporter, _ = _in_memory(content=content)
    with surehold.run("r", storage=manager) as run:
        run.call(str.upper, "kelp")
    told = [str(dict(one.attributes or {})) for one in exporter.get_finished_spans()]
    assert any("KELP" in one and "kelp" in one for one in told) is content
    assert any("kelp" in one.lower() for one in told) is content


async def test_the_trace_of_a_caller_goes_on_and_spans_in_a_call_are_below_it() -> None:
    manager, exporter, provider = _in_memory(content=False)
    tracer = provider.get_tracer("app")

    async def fetch() -> str:
        with tracer.start_as_current_span("http"):
            return "there"

    with tracer.start_as_current_span("request") as request:
        async with surehold.run("r", storage=manager) as run:
            await run.call(fetch)
    spans = {one.name: one for one in exporter.get_finished_spans()}
    context = request.get_span_context()
    assert {one.context.trace_id for one in spans.values()} == {context.trace_id}
    assert spans["surehold.run"].parent.span_id == context.span_id
    assert spans["http"].parent.span_id == spans["surehold.step fetch"].context.span_id
    (saved,) = [one.metadata for one in manager.list_checkpoints("r")][-1:]
    assert trace.format_trace_id(context.trace_id) in saved["traceparent"]


def test_a_run_that_began_untraced_has_one_trace_from_then_on(tmp_path: Path) -> None:
    address, path = f"sqlite:///{tmp_path}/runs.db", tmp_path / "spans.jsonl"

    def stops(run: surehold.Run) -> None:
        run.call(str.upper, "a")
        raise RuntimeError("stops")

    with pytest.raises(RuntimeError), surehold.run("r", storage=address) as run:
        stops(run)
    for _ in range(2):
        with (
            traced_manager(address, path) as manager,
            pytest.raises(RuntimeError),
            surehold.run("r", storage=manager) as run,
        ):
            stops(run)
    (one,) = {one["trace"] for one in _spans(path)}
    assert len(one) == 32


async def test_an_agent_has_spans_of_its_models_and_tools() -> None:
    manager, exporter, _ = _in_memory(content=False)

    @surehold.tool
    async def add(number: int) -> int:
        """Add one."""
        return number + 1

    agent = surehold.Agent(
        "adder",
        model=ScriptedModel(turns(call("add", number=1), "two")),
        tools=[add],
        state_manager=AsyncCheckpointManager.of(manager.face),
        report=lambda line: None,
    )
    await agent.run("add", run_id="r")
    spans = [one for one in exporter.get_finished_spans()]
    assert len({one.context.trace_id for one in spans if one.context is not None}) == 1
    told = {one.name: dict(one.attributes or {}) for one in spans}
    assert told["surehold.run"]["gen_ai.agent.name"] == "adder"
    (tool,) = [one for name, one in told.items() if name.startswith("execute_tool")]
    assert tool["gen_ai.operation.name"] == "execute_tool"
    (model,) = [one for name, one in told.items() if name.startswith("chat")]
    assert model["gen_ai.usage.output_tokens"] >= 0
