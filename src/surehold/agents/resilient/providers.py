"""Providers: the parts of an agent that checkpoints save and restores give back.

A provider captures its part of the agent as a value, and restores it from one. A failed capture
is never taken for an empty value: it is reported as missing. A restore is all or nothing: if one
provider fails, those before it get their state back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec

from surehold.core.values import decode, encode
from surehold.engine.runs.effects import TimedOut, call_in_thread, describe, failure_text
from surehold.errors import RunError, UsageError

_EMPTY_TEXTS = frozenset(map(encode, ({}, [], "", None)))


class Provider(msgspec.Struct, frozen=True):
    """One part of an agent's state."""

    name: str
    capture: Callable[[], Any]
    restore: Callable[[Any], object]
    timeout: float | None = None
    """Seconds after which a call counts as failed; None waits for ever."""

    def captured(self) -> Any:
        """Call `capture` within the time limit."""
        return _within(self.timeout, self.capture, self.name)

    def put(self, value: Any) -> None:
        """Call `restore` within the time limit."""
        _within(self.timeout, partial(self.restore, value), self.name)


class Captured(msgspec.Struct, frozen=True):
    """Encoded values of providers, which no change of the live objects reaches."""

    texts: dict[str, bytes]
    missing: dict[str, str] = {}
    """Reasons why the other providers have no value."""

    @property
    def is_empty(self) -> bool:
        """True if every provider had an empty value."""
        return not self.missing and not self.filled

    @property
    def filled(self) -> frozenset[str]:
        """Names of the providers whose value is not empty."""
        return frozenset(name for name, text in self.texts.items() if text not in _EMPTY_TEXTS)

    def value(self, name: str) -> Any:
        """Return a copy of the provider's value."""
        return decode(self.texts[name])


class Providers:
    """The providers of one agent, in the order of capture and restore."""

    def __init__(self, own: Iterable[Provider] = ()) -> None:
        self._all: dict[str, Provider] = {}
        for provider in own:
            self.add(provider)

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, in order."""
        return tuple(self._all)

    def add(self, provider: Provider) -> None:
        """Add a provider with a new name."""
        if not provider.name:
            raise UsageError("a provider needs a name")
        if provider.name in self._all:
            raise UsageError(
                f"there is a provider {provider.name!r} already", hint="choose another name"
            )
        for what in (provider.capture, provider.restore):
            if not callable(what):
                raise UsageError(
                    f"provider {provider.name!r} is given {what!r}",
                    hint="capture is a function without arguments, restore one of the value",
                )
        if provider.timeout is not None and not provider.timeout > 0:
            raise UsageError(f"timeout is {provider.timeout!r}", hint="give more than 0 seconds")
        self._all[provider.name] = provider

    def capture(self) -> Captured:
        """Capture each provider; a `RunError` if all of them fail."""
        captured = self.capture_any()
        if not captured.texts:
            raise RunError(
                f"no provider could be captured: {captured.missing}",
                hint="nothing was saved; fix the providers",
                missing=captured.missing,
            )
        return captured

    def capture_any(self) -> Captured:
        """Capture each provider, even if all of them fail: a restore may still help."""
        texts: dict[str, bytes] = {}
        missing: dict[str, str] = {}
        for name, provider in self._all.items():
            try:
                texts[name] = encode(provider.captured())
            except Exception as error:
                missing[name] = failure_text(describe(error))
        return Captured(texts, missing)

    def check(self, held: Mapping[str, Any], checkpoint_id: str, *, partial: bool) -> None:
        """Refuse a checkpoint whose parts do not match the providers."""
        unknown = [name for name in held if name not in self._all]
        if unknown:
            raise UsageError(
                f"checkpoint {checkpoint_id} holds {', '.join(unknown)}, and there is no provider"
                " to restore it",
                hint="register_provider(name, capture, restore) before restoring",
                providers=unknown,
            )
        absent = [name for name in self._all if name not in held]
        if absent and not partial:
            raise UsageError(
                f"checkpoint {checkpoint_id} is partial: it does not hold {', '.join(absent)}",
                hint="partial=True restores what it holds and leaves the rest as it is",
                providers=absent,
            )

    def restore(self, values: Mapping[str, Any], before: Captured) -> None:
        """Restore each provider's value; if one fails, put all back as in *before*.

        Providers without a value in *before* come last: they cannot be put back.
        """
        order = sorted(values, key=lambda name: name in before.missing)
        done: list[str] = []
        for name in order:
            done.append(name)
            try:
                self._all[name].put(values[name])
            except BaseException as error:
                lost = self.put_back(done, before)
                if not isinstance(error, Exception):
                    raise
                raise RunError(
                    f"provider {name!r} could not be restored: {describe(error)}",
                    hint=_after(lost),
                    provider=name,
                    not_put_back=lost,
                ) from error

    def put_back(self, names: list[str], before: Captured) -> dict[str, str]:
        """Restore these providers from *before*, last first; return the failures."""
        lost: dict[str, str] = {}
        for name in reversed(names):
            if name in before.missing:
                lost[name] = f"it could not be captured before: {before.missing[name]}"
                continue
            try:
                self._all[name].put(before.value(name))
            except Exception as error:
                lost[name] = failure_text(describe(error))
        return lost


class AgentParts:
    """The four parts of an agent that are always saved; subclasses may override them.

    A subclass that captures more in ``_get_...`` gets it back in the ``_restore_...`` of the same
    part.
    """

    def _begin_empty(self) -> None:
        self.current_task: dict[str, Any] = {}
        """The current task: its ``id``, ``status``, ``progress_percentage``, ``action``."""
        self.mailbox: dict[str, Any] = {}
        self.operational_context: dict[str, Any] = {}
        self.memory: dict[str, Any] = {}

    def _own_providers(self) -> Iterable[Provider]:
        for name, part in (
            ("current_task", "current_task_state"),
            ("mailbox", "mailbox_state"),
            ("operational_context", "operational_context"),
            ("memory", "memory_state"),
        ):
            yield Provider(name, getattr(self, f"_get_{part}"), getattr(self, f"_restore_{part}"))

    def _get_current_task_state(self) -> dict[str, Any]:
        """Capture the current task."""
        return dict(self.current_task)

    def _get_mailbox_state(self) -> dict[str, Any]:
        """Capture the position in the agent's messages."""
        return dict(self.mailbox)

    def _get_operational_context(self) -> dict[str, Any]:
        """Capture goals, constraints and decisions."""
        return dict(self.operational_context)

    def _get_memory_state(self) -> dict[str, Any]:
        """Capture the agent's memory."""
        return dict(self.memory)

    def _restore_current_task_state(self, value: dict[str, Any]) -> None:
        _fill(self.current_task, value)

    def _restore_mailbox_state(self, value: dict[str, Any]) -> None:
        _fill(self.mailbox, value)

    def _restore_operational_context(self, value: dict[str, Any]) -> None:
        _fill(self.operational_context, value)

    def _restore_memory_state(self, value: dict[str, Any]) -> None:
        _fill(self.memory, value)


def _fill(live: dict[str, Any], value: Mapping[str, Any]) -> None:
    """Give a dict that others hold the content of *value*."""
    live.clear()
    live.update(value)


def _after(lost: Mapping[str, str]) -> str:
    if not lost:
        return "all providers have their earlier state back"
    failed = "; ".join(f"{name}: {why}" for name, why in lost.items())
    return f"the other providers have their earlier state back, but not {failed}"


def _within(seconds: float | None, call: Callable[[], Any], name: str) -> Any:
    """Call, in a thread if there is a time limit; a `TimeoutError` when it has passed."""
    if seconds is None:
        return call()
    try:
        return call_in_thread(call, seconds, f"surehold-provider-{name}")
    except TimedOut:
        text = f"provider {name!r} did not return within {seconds:g} s"
        raise TimeoutError(text) from None
