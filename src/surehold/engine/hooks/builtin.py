"""Hooks for what most people want: logs, metrics, traces, and no secrets on disk.

```python
hooks = HookManager()
hooks.register_hook(LoggingHook())
hooks.register_hook(RedactionHook())
```
"""

from __future__ import annotations

import copy
import logging
import re
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from surehold.core.policy import KEYS, PATTERNS, RedactionRules, Redactor, make_rules
from surehold.core.records import digest_of
from surehold.core.state import AgentState, State
from surehold.engine.hooks.events import HookContext, HookEvent, HookPriority, HookResult
from surehold.engine.hooks.manager import HookManager
from surehold.engine.metrics import Metrics, resume_cause

WORDS = {
    HookEvent.POST_CHECKPOINT_SAVE: "save",
    HookEvent.POST_CHECKPOINT_LOAD: "load",
    HookEvent.POST_RESUME: "resume",
    HookEvent.POST_FORK: "fork",
    HookEvent.POST_PRUNE: "prune",
}
"""What happened, by the event that tells of it."""

_IDENTITY = frozenset(
    ["agent_id", "run_id", "workflow_run_id", "checkpoint_id", "parent_checkpoint_id", "status"]
)
"""The fields of an `AgentState` that say whose it is, and must not change."""


class LoggingHook:
    """Logs ids, steps and status (`surehold.checkpoints`), never a value of the state."""

    _SHOWN = ("run_id", "agent_id", "checkpoint_id", "step_number", "status", "kind", "duration_ms")

    def __init__(
        self, level: int = logging.INFO, events: Iterable[HookEvent] = tuple(WORDS)
    ) -> None:
        self.events = tuple(events)
        self._level = level
        self._logger = logging.getLogger("surehold.checkpoints")

    def handle(self, context: HookContext) -> None:
        """Write one line."""
        if self._logger.isEnabledFor(self._level):
            facts = [(key, context.data.get(key)) for key in self._SHOWN]
            shown = [f"{key}={_shown(value)}" for key, value in facts if value is not None]
            self._logger.log(self._level, "%s %s", context.event_type, " ".join(shown))


def _shown(value: object) -> str:
    # An id may hold anything, and a line of a log must stay one line.
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    return text if text.isprintable() and " " not in text else repr(text)


class MetricsHook:
    """Counts events in a `Metrics`; not for one that the engine itself feeds."""

    events = tuple(WORDS)

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def handle(self, context: HookContext) -> None:
        """Count one event."""
        data = context.data
        seconds = data.get("duration_ms", 0) / 1000
        match context.event_type:
            case HookEvent.POST_CHECKPOINT_SAVE:
                self._metrics.saved(
                    seconds, logical=data.get("size", 0), stored=data.get("stored", 0)
                )
            case HookEvent.POST_CHECKPOINT_LOAD:
                self._metrics.loaded(seconds)
            case HookEvent.POST_RESUME:
                self._metrics.resumed(resume_cause(data.get("status", "")))
            case HookEvent.POST_FORK:
                self._metrics.forked()
            case HookEvent.POST_PRUNE:
                self._metrics.pruned(data.get("removed", 0))
                self._metrics.freed(data.get("freed", 0))


class RedactionHook:
    """Replaces secrets in everything that is saved; live values keep them.

    States, notes of effects, items, questions and answers, tags and metadata are redacted before
    they are sealed. A later process gets redacted values back. Secrets are found by *patterns*
    (kind to regular expression) and by names of *keys*; see `surehold.core.policy`. `counts` says
    how many of each kind were replaced. If it fails or takes too long the save is refused, as
    otherwise the secrets would be written.

    >>> from surehold.core.state import State
    >>> hook = RedactionHook()
    >>> hook.redact(State.new({"api_key": "abc", "token_count": 3})).to_dict()
    {'api_key': '[redacted:api_key]', 'token_count': 3}
    """

    events = (HookEvent.PRE_CHECKPOINT_SAVE,)
    priority = HookPriority.LOW
    """After every hook that might put a secret in."""
    required = True

    def __init__(
        self,
        patterns: Mapping[str, str | re.Pattern[str]] = PATTERNS,
        keys: Iterable[str] = KEYS,
        metrics: Metrics | None = None,
    ) -> None:
        self._redactor = Redactor(make_rules(patterns, keys))
        self._metrics = metrics
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()

    def handle(self, context: HookContext) -> HookResult | None:
        """Answer with the state to save, if it differs."""
        state = context.data["state"]
        try:
            made = self.redact(state)
        except Exception as error:
            # Its message may quote the value at fault, so only its class is reported.
            return HookResult(
                success=False, veto=True, error=f"it raised {type(error).__name__} while redacting"
            )
        return None if made is state else HookResult(success=True, data={"state": made})

    def redact(self, state: Any) -> Any:
        """*state* without its secrets; itself if it has none."""
        made: Any
        if isinstance(state, State):
            made, counts = self._redact_state(state)
        elif isinstance(state, AgentState):
            made, counts = self._redact_agent_state(state)
        else:
            made, counts = self._redactor.redact(state)
        with self._lock:
            self.counts.update(counts)
        if self._metrics is not None:
            for kind, count in counts.items():
                self._metrics.redacted(kind, count)
        return made

    def _redact_state(self, state: State) -> tuple[State, Counter[str]]:
        values = dict(state.items())
        made, counts = self._redactor.redact(values)
        metadata, more = self._redactor.redact(state.metadata)
        if counts:
            # Only what changed is set, so that the rest is still known to be what was saved before.
            state = state.without(*(values.keys() - made.keys())).merge(_changes(values, made))
        if more:
            state = state.at(metadata=metadata)
        return state, counts + more

    def _redact_agent_state(self, state: AgentState) -> tuple[AgentState, Counter[str]]:
        names = [field.name for field in fields(state) if field.name not in _IDENTITY]
        values = {name: getattr(state, name) for name in names}
        made, counts = self._redactor.redact(values)
        if counts:
            state = copy.copy(state)
            for name, value in _changes(values, made).items():
                setattr(state, name, value)
        return state, counts


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    return {key: new[key] for key in new if key not in old or new[key] is not old[key]}


@cache
def _rules() -> RedactionRules:
    return make_rules()


def without_secrets(value: Any) -> Any:
    """*value* without secrets of known forms and names; itself if it has none."""
    return Redactor(_rules()).redact(value)[0]


def redacted(value: Any, hooks: HookManager | None) -> Any:
    """*value* as it is stored where *hooks* redact; itself if it has no secret."""
    for hook in hooks.hooks if hooks is not None else ():
        if isinstance(hook, RedactionHook):
            value = hook.redact(value)
    return value


def hide_secrets(key: str | None, hooks: HookManager | None) -> str | None:
    """The *key* of a call or question without its secrets, as ids have it.

    A digest of the whole key keeps two such keys apart, and the id the same on every replay.
    """
    if key is None or hooks is None:
        return key
    found = redacted(key, hooks)
    return key if found == key else f"{found}#{digest_of(key.encode())[:12]}"


def redacting_hooks() -> HookManager:
    """Hooks that only take secrets out."""
    hooks = HookManager()
    hooks.register_hook(RedactionHook())
    return hooks
