"""OpenTelemetry: one trace for each run, whatever happens to its processes.

The trace begins with a root span that ends at once, so that it is there even if the process is
killed. Its `traceparent` is in the metadata of the run's checkpoints, and all other spans of the
run, in whichever process, are below it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from surehold.engine.hooks.builtin import WORDS
from surehold.engine.hooks.events import HookContext
from surehold.engine.metrics import resume_cause
from surehold.lazy import extra

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, TracerProvider

TRACEPARENT = "traceparent"
"""The metadata of a checkpoint that names the trace of its run."""
FORKED_FROM = "forked_from"
LONGEST = 8192
"""The number of characters of a content that a span shows."""

OPERATIONS: Mapping[str, str] = {
    "agent": "invoke_agent",
    "model": "chat",
    "tool": "execute_tool",
}
"""`gen_ai.operation.name` by the kind of a span; other kinds have none."""
NAMES: Mapping[str, str] = {
    "agent": "gen_ai.agent.name",
    "model": "surehold.call.name",
    "tool": "gen_ai.tool.name",
    "effect": "surehold.call.name",
    "step": "surehold.call.name",
}
"""The attribute that holds the name of what is called, by the kind of a span."""
CONTENT: Mapping[str, tuple[str, str]] = {
    "model": ("gen_ai.input.messages", "gen_ai.output.messages"),
    "tool": ("gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
    "effect": ("surehold.call.arguments", "surehold.call.result"),
    "step": ("surehold.call.arguments", "surehold.call.result"),
}
"""The attributes that hold arguments and result, by the kind of a span."""


class TracingHook:
    """Makes OpenTelemetry spans of runs, their calls, saves and loads.

    All spans of a run are one trace, in which a resume continues: its root, `surehold.run`, is a
    child of the span that is current when the run begins. `surehold.execution` is one process's
    part of it. Nodes are `surehold.step`, recorded calls `surehold.effect`, calls of models and
    tools `chat NAME` and `execute_tool NAME`, with the `gen_ai.*` attributes. A fork begins a
    trace that links to that of its origin. Recorded outcomes that are returned make no span.

    Saves, loads, resumes, forks and prunes are spans that last as long as what happened. Spans
    carry ids, steps and sizes, and no value of the state; with *content*, redacted arguments, and
    results.
    """

    events = tuple(WORDS)

    _ATTRIBUTES: Mapping[str, str] = {
        "agent_id": "surehold.name",
        "run_id": "surehold.run.id",
        "checkpoint_id": "surehold.checkpoint.id",
        "step_number": "surehold.step",
        "status": "surehold.status",
        "kind": "surehold.kind",
        "size": "surehold.bytes.logical",
        "stored": "surehold.bytes.stored",
        "removed": "surehold.prune.removed",
        "freed": "surehold.prune.freed",
    }

    def __init__(
        self, tracer_provider: TracerProvider | None = None, *, content: bool = False
    ) -> None:
        with extra("otel", "TracingHook needs OpenTelemetry"):
            from opentelemetry import trace
        self.tracer = trace.get_tracer("surehold", tracer_provider=tracer_provider)
        self.content = content
        self._runs: WeakValueDictionary[str, RunSpans] = WeakValueDictionary()

    def spans_of(self, run_id: str) -> RunSpans:
        """The spans of a run that this process executes from now on."""
        made = self._runs[run_id] = RunSpans(self, run_id)
        return made

    def handle(self, context: HookContext) -> None:
        """Make one span, already ended."""
        data = context.data
        end = int(context.timestamp * 1e9)
        word = WORDS[context.event_type]
        attributes = {
            name: data[key] for key, name in self._ATTRIBUTES.items() if data.get(key) is not None
        }
        if word == "resume":
            attributes["surehold.resume.reason"] = resume_cause(data.get("status", ""))
        run = self._runs.get(data.get("run_id", ""))
        if run is not None and run.parent is None:
            run.continued(getattr(data.get("state"), "metadata", {}))
        span = self.tracer.start_span(
            f"surehold.{word}",
            context=None if run is None else run.around(),
            attributes=attributes,
            start_time=end - int(data.get("duration_ms", 0) * 1e6),
        )
        span.end(end)


class RunSpans:
    """The spans of one run in this process."""

    def __init__(self, hook: TracingHook, run_id: str) -> None:
        self._hook = hook
        self._run_id = run_id
        self.parent: SpanContext | None = None
        """The root of the run's trace; None before the run began or was loaded."""
        self.status = ""
        """The status that was saved last."""
        self._execution: Span | None = None

    @property
    def shows_content(self) -> bool:
        """True if spans show arguments and results."""
        return self._hook.content

    def continued(self, metadata: Mapping[str, Any]) -> None:
        """Continue the trace that a checkpoint names, or that of the run id."""
        if self.parent is None:
            known = _read(metadata.get(TRACEPARENT))
            self.parent = known or _derived(self._run_id)
            origin = metadata.get(FORKED_FROM)
            told = origin.get(TRACEPARENT) if isinstance(origin, Mapping) else None
            self._begin_execution(_read(told) if known is None else None)

    def begun(self, name: str, door: str) -> None:
        """Begin the trace of a new run."""
        if self.parent is None:
            kind = "agent" if door == "agent" else "run"
            attributes = {"surehold.run.id": self._run_id, "surehold.door": door}
            attributes |= {NAMES.get(kind, "surehold.name"): name} if name else {}
            if kind in OPERATIONS:
                attributes["gen_ai.operation.name"] = OPERATIONS[kind]
            root = self._hook.tracer.start_span("surehold.run", attributes=attributes)
            root.end()
            self.parent = root.get_span_context()
            self._begin_execution(None)

    def _begin_execution(self, origin: SpanContext | None) -> None:
        from opentelemetry.trace import Link

        self._execution = self._hook.tracer.start_span(
            "surehold.execution",
            context=self._below(),
            attributes={"surehold.run.id": self._run_id},
            links=[] if origin is None else [Link(origin, {"surehold.link": "forked_from"})],
        )

    def ended(self, epoch: int) -> None:
        """End this process's part of the run."""
        execution, self._execution = self._execution, None
        if execution is not None:
            execution.set_attributes({"surehold.status": self.status, "surehold.epoch": epoch})
            execution.end()

    def stamp(self, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """*metadata* with the `traceparent` of the run."""
        assert self.parent is not None
        told = f"00-{self.parent.trace_id:032x}-{self.parent.span_id:016x}-01"
        return metadata if metadata.get(TRACEPARENT) == told else {**metadata, TRACEPARENT: told}

    def around(self) -> Context | None:
        """The context for a span of the run; None for the current one, in this trace."""
        from opentelemetry.trace import get_current_span

        if self.parent is None:
            return None
        current = get_current_span().get_span_context()
        return None if current.trace_id == self.parent.trace_id else self._below()

    def _below(self) -> Context:
        from opentelemetry.trace import NonRecordingSpan, set_span_in_context

        assert self.parent is not None
        return set_span_in_context(NonRecordingSpan(self.parent))

    @contextmanager
    def step(self, node: str, number: int) -> Iterator[None]:
        """A span around the execution of a node."""
        attributes: dict[str, str | int] = {
            "surehold.run.id": self._run_id,
            "surehold.node": node,
            "surehold.step": number,
        }
        with self._hook.tracer.start_as_current_span(
            "surehold.step", context=self.around(), attributes=attributes
        ):
            yield

    @contextmanager
    def call(self, kind: str, name: str, place: str, inputs: str) -> Iterator[CallSpan]:
        """A span around a recorded call that is made."""
        operation = OPERATIONS.get(kind)
        attributes = {
            "surehold.run.id": self._run_id,
            "surehold.call.id": place,
            NAMES[kind]: name,
        }
        if operation is not None:
            attributes["gen_ai.operation.name"] = operation
        if self._hook.content and inputs:
            attributes[CONTENT[kind][0]] = inputs[:LONGEST]
        title = f"{operation or f'surehold.{kind}'} {name}"
        with self._hook.tracer.start_as_current_span(
            title, context=self.around(), attributes=attributes
        ) as span:
            yield CallSpan(span, kind, self._hook.content)


class CallSpan:
    """The span of a call, which is told its outcome."""

    def __init__(self, span: Span, kind: str, content: bool) -> None:
        self._span = span
        self._kind = kind
        self._content = content

    def ended(self, model: str, tokens: int, output: int, dollars: float, value: bytes) -> None:
        """Note what the call has cost, and what it returned."""
        if self._kind == "model":
            self._span.set_attribute("gen_ai.usage.input_tokens", tokens - output)
            self._span.set_attribute("gen_ai.usage.output_tokens", output)
            if model:
                self._span.set_attribute("gen_ai.response.model", model)
        if dollars:
            self._span.set_attribute("surehold.dollars", dollars)
        if self._content and value:
            self._span.set_attribute(
                CONTENT[self._kind][1], value[:LONGEST].decode("utf-8", "ignore")
            )


def _read(told: object) -> SpanContext | None:
    """The span that a `traceparent` names."""
    parts = told.split("-") if isinstance(told, str) else []
    if len(parts) != 4:
        return None
    try:
        return _remote(int(parts[1], 16), int(parts[2], 16))
    except ValueError:
        return None


def _derived(run_id: str) -> SpanContext:
    """The root of a run whose checkpoints name no trace: the same in every process."""
    digest = sha256(run_id.encode()).digest()
    return _remote(int.from_bytes(digest[:16]), int.from_bytes(digest[16:24]))


def _remote(trace_id: int, span_id: int) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(0x01))
