"""Calls of other frameworks that the run around them records."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from surehold.core.policy import RetryOptions, read_policy, refuse_options
from surehold.engine.runs import OpenRun
from surehold.engine.runs.effects import InDoubt, check_policy
from surehold.engine.runs.positions import CallContext, call_context

KEY: ContextVar[str | None] = ContextVar("surehold_framework_key", default=None)
"""The idempotency key of the tool call that is made here."""


class CallOptions(RetryOptions, total=False):
    """Options of a recorded call: those of `surehold.step`, but for its name."""

    in_doubt: InDoubt | None
    probe: Callable[[str], Any] | None


def idempotency_key() -> str | None:
    """The idempotency key of the tool call that this code is in.

    None outside a recorded call. All attempts of a call have the same key, in later processes too.
    """
    return KEY.get()


def checked_options(what: str, options: CallOptions | None) -> CallOptions:
    """*options*, or a `UsageError` before anything is called."""
    given = CallOptions(**options) if options else CallOptions()
    refuse_options(what, given, CallOptions.__annotations__)
    read_policy(given)
    if given.get("in_doubt") is not None or given.get("probe") is not None:
        given["in_doubt"] = check_policy(what, given.get("in_doubt"), given.get("probe"))
    return given


def open_context() -> tuple[CallContext, OpenRun] | None:
    """The position of the running code, and the run that records its calls."""
    context = call_context()
    return None if context is None or context.run is None else (context, context.run)
