"""Hooks: user code called around saves, loads and deletions.

Holds the events, the dispatch and the hooks that ship with Surehold.
"""

from __future__ import annotations

from surehold.engine.hooks.builtin import LoggingHook as LoggingHook
from surehold.engine.hooks.builtin import MetricsHook as MetricsHook
from surehold.engine.hooks.builtin import RedactionHook as RedactionHook
from surehold.engine.hooks.builtin import hide_secrets as hide_secrets
from surehold.engine.hooks.builtin import redacted as redacted
from surehold.engine.hooks.builtin import redacting_hooks as redacting_hooks
from surehold.engine.hooks.builtin import without_secrets as without_secrets
from surehold.engine.hooks.events import HookContext as HookContext
from surehold.engine.hooks.events import HookEvent as HookEvent
from surehold.engine.hooks.events import HookPriority as HookPriority
from surehold.engine.hooks.events import HookResult as HookResult
from surehold.engine.hooks.events import pre_outcome as pre_outcome
from surehold.engine.hooks.manager import HookManager as HookManager
from surehold.engine.hooks.tracing import TRACEPARENT as TRACEPARENT
from surehold.engine.hooks.tracing import CallSpan as CallSpan
from surehold.engine.hooks.tracing import RunSpans as RunSpans
from surehold.engine.hooks.tracing import TracingHook as TracingHook
