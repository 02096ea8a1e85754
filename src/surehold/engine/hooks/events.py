"""The interface between the engine and a hook: events, contexts, results.

What the engine puts into `HookContext.data`: ``agent_id``, ``run_id``, ``step_number``, ``status``
and ``timestamp``, and ``state`` where there is one. After the fact (a POST event is fired only
when it succeeded) also ``checkpoint_id`` and ``duration_ms``; of a save or load ``kind``, ``size``
and ``stored`` (bytes, as in a record's header). The status of a resume is that which the run was
found with. A fork tells ``new_run_id`` beside what it is made from. A prune has no step and no
status, but ``run_ids`` and, after the fact, ``removed`` (checkpoints) and ``freed`` (bytes). A
repair, which fires after the fact only, has ``problems`` and ``actions``, lists of text, and the
``checkpoint_id`` that is the newest now.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum, StrEnum
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from surehold.engine.hooks.calls import CallOutcome
from surehold.errors import UsageError, VetoError

MOST_SILENT_CALLS = 8
"""A handler that does not answer so many times in a row is not called again."""

S = TypeVar("S")


class HookEvent(StrEnum):
    """The events a hook can handle, before (PRE) and after (POST) each operation."""

    PRE_TOOL_USE = "pre_tool_use"
    POST_TOOL_USE = "post_tool_use"
    PRE_AGENT_LOOP = "pre_agent_loop"
    POST_AGENT_LOOP = "post_agent_loop"
    PRE_SPECIALIST_INVOKE = "pre_specialist_invoke"
    POST_SPECIALIST_INVOKE = "post_specialist_invoke"
    POST_PERMISSION_CHECK = "post_permission_check"
    PRE_CHECKPOINT_SAVE = "pre_checkpoint_save"
    POST_CHECKPOINT_SAVE = "post_checkpoint_save"
    PRE_CHECKPOINT_LOAD = "pre_checkpoint_load"
    POST_CHECKPOINT_LOAD = "post_checkpoint_load"
    PRE_INTERRUPT = "pre_interrupt"
    POST_INTERRUPT = "post_interrupt"
    PRE_PLAN_GENERATION = "pre_plan_generation"
    POST_PLAN_GENERATION = "post_plan_generation"
    PRE_RESUME = "pre_resume"
    POST_RESUME = "post_resume"
    PRE_FORK = "pre_fork"
    POST_FORK = "post_fork"
    PRE_PRUNE = "pre_prune"
    POST_PRUNE = "post_prune"
    POST_REPAIR = "post_repair"

    @property
    def is_pre(self) -> bool:
        """True if it is fired before the fact, when something can still be changed."""
        return self.startswith("pre_")


class HookPriority(IntEnum):
    """The order of an event's handlers; within a level, that of registration."""

    CRITICAL = 0
    HIGH = 1
    NORMAL = 2
    LOW = 3


class HookContext(msgspec.Struct, frozen=True):
    """A handler's argument. `data` is its own copy; the values in it are shared."""

    event_type: HookEvent
    agent_id: str
    run_id: str
    timestamp: float
    """Seconds since 1970."""
    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    trace_id: str | None = None


class HookResult(msgspec.Struct, frozen=True):
    """A handler's answer. None is the same as ``HookResult(success=True)``.

    >>> HookResult(success=False)
    Traceback (most recent call last):
    ...
    surehold.errors.UsageError: a failed or vetoing HookResult carries no error (say why: error="…")
    """

    success: bool
    data: dict[str, Any] | None = None
    """Before a save, ``{"state": new}`` replaces the state."""
    error: str | None = None
    veto: bool = False
    """True from a PRE hook: what was about to happen must not."""
    duration_ms: float = 0
    hook: str = ""
    """The name of the handler that answered; filled in by the manager, as is the duration."""

    def __post_init__(self) -> None:
        if (self.veto or not self.success) and not self.error:
            raise UsageError(
                "a failed or vetoing HookResult carries no error", hint='say why: error="…"'
            )


Answer: TypeAlias = HookResult | Awaitable[HookResult | None] | None


class Hook(Protocol):
    """An object that handles events. It may also have these attributes:

    `events`, for `HookManager.register_hook`; `priority`, its default there; `name`, for logs and
    statistics; and `required`: if True, its failing or hanging before the fact counts as a veto.
    """

    def handle(self, context: HookContext) -> Answer:
        """Do what is to be done; may be async."""


Handler: TypeAlias = Callable[[HookContext], Answer] | Hook


class PreOutcome(msgspec.Struct, Generic[S], frozen=True):
    """The outcome of the PRE handlers of a save: the state to save, or the veto."""

    state: S
    veto: HookResult | None = None

    def unwrap(self, what: str = "save", **facts: Any) -> S:
        """The state, or a `VetoError` that names the hook and *what*, and carries *facts*."""
        if self.veto is None:
            return self.state
        raise VetoError(
            f"hook {self.veto.hook} refused the {what}: {self.veto.error}",
            hook=self.veto.hook,
            reason=self.veto.error,
            **facts,
        )


def pre_outcome(state: S, results: Sequence[HookResult]) -> PreOutcome[S]:
    """Combine the *results* of firing a PRE event with *state*.

    >>> pre_outcome("a", [HookResult(True, data={"state": "b"}), HookResult(True)]).state
    'b'
    """
    for result in results:
        if result.veto:
            return PreOutcome(state, result)
        state = replacement(result, state)
    return PreOutcome(state)


def replacement(result: HookResult, state: S) -> S:
    """The state after a handler answered *result*."""
    if result.success and isinstance(result.data, dict):
        return result.data.get("state", state)  # type: ignore[no-any-return]
    return state


class Verdict(msgspec.Struct, frozen=True):
    """The result of a call, and its problem if there is one."""

    result: HookResult
    kind: str = ""
    error: BaseException | None = None


def judge(
    outcome: CallOutcome | None, event: HookEvent, timeout: float, state: object = None
) -> Verdict:
    """Judge a handler's answer; without an *outcome* the handler was not called."""
    if outcome is None:
        return _failed("stuck", f"not called, as it gave no answer {MOST_SILENT_CALLS} times")
    if outcome.abandoned:
        text = f"no answer within {timeout:g} s"
        return _failed("timeout", text, TimeoutError(text))
    if outcome.error is not None:
        return _failed("raised", _words_of(outcome.error), outcome.error)
    result = HookResult(success=True) if outcome.value is None else outcome.value
    if not isinstance(result, HookResult):
        return _failed("answer", f"returned a {type(result).__name__} and not a HookResult")
    if result.veto:
        return Verdict(result) if event.is_pre else _failed("veto", "only a PRE hook can veto")
    if not result.success:
        return Verdict(result, "failed")
    new = replacement(result, state)
    if event.is_pre and state is not None and type(new) is not type(state):
        names = f"{type(state).__name__} by a {type(new).__name__}"
        return _failed("state", f"would replace a {names}")
    return Verdict(result)


def _failed(kind: str, text: str, error: BaseException | None = None) -> Verdict:
    return Verdict(HookResult(success=False, error=text), kind, error)


def _words_of(error: BaseException) -> str:
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # its own __str__ fails, and that must not be our failure
        return name
