"""Providers: the parts of an agent that a checkpoint is made of, and that a restore gives back.

A provider captures its part of the agent as a value, and restores it from one. Capturing never
takes a failure for emptiness: what could not be captured is named. Restoring is all or nothing:
when one provider fails, those before it are given back what they had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.checkpoint.effects import describe, failure_text
from holdfast.core.values import decode, encode
from holdfast.errors import RunError, UsageError

__all__ = ["AgentParts", "Captured", "Provider", "Providers"]


class Provider(msgspec.Struct, frozen=True):
    """One part of an agent's state."""

    name: str
    capture: Callable[[], Any]
    restore: Callable[[Any], object]


class Captured(msgspec.Struct, frozen=True):
    """What providers gave, as text, so that nothing done to the live objects reaches it."""

    texts: dict[str, bytes]
    missing: dict[str, str] = {}
    """Why the others gave nothing, by provider."""

    def value(self, name: str) -> Any:
        """A copy of what the provider gave."""
        return decode(self.texts[name])


class Providers:
    """The providers of one agent, in the order in which they are captured and restored."""

    def __init__(self) -> None:
        self._all: dict[str, Provider] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called, in order."""
        return tuple(self._all)

    def add(self, provider: Provider) -> None:
        """Add a provider; a name is given once."""
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
        self._all[provider.name] = provider

    def capture(self) -> Captured:
        """What each provider gives now. If none gives anything, that is a `RunError`."""
        captured = self.capture_any()
        if not captured.texts:
            raise RunError(
                f"no provider could be captured: {captured.missing}",
                hint="nothing was saved; see why they fail",
                missing=captured.missing,
            )
        return captured

    def capture_any(self) -> Captured:
        """The same, even if that is nothing: what a restore is to get an agent out of."""
        texts: dict[str, bytes] = {}
        missing: dict[str, str] = {}
        for name, provider in self._all.items():
            try:
                texts[name] = encode(provider.capture())
            except Exception as error:
                missing[name] = failure_text(describe(error))
        return Captured(texts, missing)

    def check(self, held: Mapping[str, Any], checkpoint_id: str, *, partial: bool) -> None:
        """Refuse a checkpoint that does not hold what there are providers for."""
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
        """Give each provider its value; if one fails, give all back what *before* says.

        Those that *before* does not know come last, for they cannot be put back.
        """
        order = sorted(values, key=lambda name: name in before.missing)
        done: list[str] = []
        for name in order:
            done.append(name)
            try:
                self._all[name].restore(values[name])
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
        """Give these providers what they had, the last first; tells which could not, and why."""
        lost: dict[str, str] = {}
        for name in reversed(names):
            if name in before.missing:
                lost[name] = f"it could not be captured before: {before.missing[name]}"
                continue
            try:
                self._all[name].restore(before.value(name))
            except Exception as error:
                lost[name] = failure_text(describe(error))
        return lost


class AgentParts:
    """The parts that an agent's state is made of by itself, to be overridden as needed.

    A subclass that captures more in ``_get_...`` is given it back in the ``_restore_...`` of the
    same part.
    """

    def _begin_empty(self) -> None:
        self.current_task: dict[str, Any] = {}
        """What the agent is at: its ``id``, ``status``, ``progress_percentage``, ``action``."""
        self.mailbox: dict[str, Any] = {}
        self.operational_context: dict[str, Any] = {}
        self.memory: dict[str, Any] = {}

    def _own_providers(self) -> tuple[Provider, ...]:
        return (
            Provider(
                "current_task", self._get_current_task_state, self._restore_current_task_state
            ),
            Provider("mailbox", self._get_mailbox_state, self._restore_mailbox_state),
            Provider(
                "operational_context",
                self._get_operational_context,
                self._restore_operational_context,
            ),
            Provider("memory", self._get_memory_state, self._restore_memory_state),
        )

    def _get_current_task_state(self) -> dict[str, Any]:
        """What the agent is at."""
        return dict(self.current_task)

    def _get_mailbox_state(self) -> dict[str, Any]:
        """Where the agent is in its messages."""
        return dict(self.mailbox)

    def _get_operational_context(self) -> dict[str, Any]:
        """Goals, constraints, decisions: what the agent goes by."""
        return dict(self.operational_context)

    def _get_memory_state(self) -> dict[str, Any]:
        """What the agent remembers."""
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
    """Make a dict that others hold the same as *value*."""
    live.clear()
    live.update(value)


def _after(lost: Mapping[str, str]) -> str:
    if not lost:
        return "all providers have what they had before"
    told = "; ".join(f"{name}: {why}" for name, why in lost.items())
    return f"the others have what they had before, but not {told}"
