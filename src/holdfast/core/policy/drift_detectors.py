"""The detectors of drift that come with Holdfast. Each threshold is what normal sensitivity
reports; see `holdfast.core.policy.drift.certainty`.

>>> from holdfast.core.policy.drift import DriftMonitor, Observation
>>> watch = DriftMonitor(default_detectors(stalled_after=3))
>>> for step in range(1, 6):
...     watch.observe(Observation(step=step, progress=40.0))
>>> print(watch.look())
stalled: progress has not gone beyond 40 for 4 steps (0.80, suggests restore)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from holdfast.core.policy.drift import Detector, Finding, Observation, certainty
from holdfast.errors import UsageError

__all__ = [
    "Corruption",
    "ErrorRate",
    "Invariants",
    "OwnSchema",
    "Repetition",
    "ReversedProgress",
    "Schema",
    "SlowingDown",
    "StalledProgress",
    "default_detectors",
]

History = Sequence[Observation]
_DEPTH = 3
_MOST_KEYS = 500
_LONGEST_CYCLE = 3
_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class StalledProgress:
    """Progress that has reached nothing new for *after* steps on one task."""

    after: int = 5

    def __post_init__(self) -> None:
        _check_above(0, after=self.after)

    def __call__(self, history: History) -> Finding | None:
        known = _progress(history)
        best = _best(known)
        stalled = known[best + 1 :]
        if not stalled:
            return None
        return Finding(
            detector="stalled",
            saw=f"progress has not gone beyond {known[best][1]:g} for {len(stalled)} steps",
            confidence=certainty(len(stalled) / self.after),
            since=stalled[0][0].step,
        )


@dataclass(frozen=True, slots=True)
class ReversedProgress:
    """Progress that has fallen by *drop*, as a share of the best there was on the task."""

    drop: float = 0.2

    def __post_init__(self) -> None:
        _check_above(0, drop=self.drop)

    def __call__(self, history: History) -> Finding | None:
        known = _progress(history)
        best = _best(known)
        if not known or known[-1][1] >= known[best][1]:
            return None
        top, now = known[best][1], known[-1][1]
        fallen = (top - now) / max(abs(top), 1e-9)
        return Finding(
            detector="reversed",
            saw=f"progress fell from {top:g} to {now:g}",
            confidence=certainty(fallen / self.drop),
            since=known[best + 1][0].step,
        )


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """A share of *limit* of the last *window* steps that failed; *least* steps are looked at."""

    limit: float = 0.5
    window: int = 10
    least: int = 4

    def __post_init__(self) -> None:
        _check_above(0, limit=self.limit, window=self.window, least=self.least)

    def __call__(self, history: History) -> Finding | None:
        recent = history[-self.window :]
        failed = [one for one in recent if one.failed]
        if not failed or len(recent) < self.least:
            return None
        return Finding(
            detector="errors",
            saw=f"{len(failed)} of the last {len(recent)} steps failed",
            confidence=certainty(len(failed) / len(recent) / self.limit),
            since=failed[0].step,
        )


@dataclass(frozen=True, slots=True)
class SlowingDown:
    """Steps that take *factor* times as long as those before them, by their medians.

    The last *window* are compared with those before, of which there must be as many. Medians
    under *ignore_below* seconds are chance. Going back does not make a run faster, so that this
    only warns.
    """

    factor: float = 2.0
    window: int = 5
    ignore_below: float = 0.1

    def __post_init__(self) -> None:
        _check_above(1, factor=self.factor)
        _check_above(0, window=self.window)

    def __call__(self, history: History) -> Finding | None:
        timed = [(one, one.seconds) for one in history if one.seconds is not None]
        if len(timed) < 2 * self.window:
            return None
        recent = timed[-self.window :]
        before = median(seconds for _, seconds in timed[: -self.window])
        now = median(seconds for _, seconds in recent)
        if now < self.ignore_below or now <= before:
            return None
        times = now / before if before > 0 else math.inf
        return Finding(
            detector="slowing",
            saw=f"steps take {now:.3g} s, {times:.1f} times what they took",
            confidence=certainty((times - 1) / (self.factor - 1)),
            suggests="warn",
            since=recent[0][0].step,
        )


@dataclass(frozen=True, slots=True)
class Repetition:
    """The same action *times* times in a row without progress; or the same two or three in turn."""

    times: int = 4

    def __post_init__(self) -> None:
        _check_above(1, times=self.times)

    def __call__(self, history: History) -> Finding | None:
        acted = [one for one in history if one.action]
        best: Finding | None = None
        for length in range(1, _LONGEST_CYCLE + 1):
            found = self._cycle(acted, length)
            if found is not None and (best is None or found.confidence > best.confidence):
                best = found
        return best

    def _cycle(self, acted: Sequence[Observation], length: int) -> Finding | None:
        actions = [one.action for one in acted]
        cycle = actions[-length:]
        if len(cycle) < length or (length > 1 and len(set(cycle)) == 1):
            return None
        count = 1
        while actions[-length * (count + 1) : -length * count or None] == cycle:
            count += 1
        stretch = acted[-length * count :]
        if count < 2 or _grew(stretch):
            return None
        what = ", ".join(_short(action) for action in cycle)
        return Finding(
            detector="repetition",
            saw=f"{what}: {count} times in a row",
            confidence=certainty((count - 1) / (self.times - 1)),
            since=stretch[length].step,
        )


@dataclass(frozen=True, slots=True)
class OwnSchema:
    """A key that is gone from the state, or of another type, after *seen* steps of being there.

    It is learnt from the run itself, as far back as states are kept, and a state may well change
    its shape for a reason, so that this only warns. `Schema` is for what must always be so.
    """

    seen: int = 5

    def __post_init__(self) -> None:
        _check_above(0, seen=self.seen)

    def __call__(self, history: History) -> Iterator[Finding]:
        known = [one for one in history if one.values is not None]
        if len(known) < 2:
            return
        now, before = _shape(known[-1].values), _shape(known[-2].values)
        if now == before:
            return
        for key, kind in before.items():
            there = now.get(key)
            if there == kind or (there is None and _parent_changed(key, now, before)):
                continue
            if "" in (there, kind):
                continue  # None fits anywhere
            count = _times(key, kind, known[:-1])
            was = f"{key} was {kind} for {count} steps"
            yield Finding(
                detector="own schema",
                about=key,
                saw=f"{was}, and is gone" if there is None else f"{was}, and is {there}",
                confidence=certainty(count / self.seen),
                suggests="warn",
                since=known[-1].step,
            )


@dataclass(frozen=True)
class Schema:
    """What keys the state must have, and of which types: ``Schema({"plan": list, "n": int})``.

    A key may be a path (``current_task.status``). A type may be a tuple of types.
    """

    keys: Mapping[str, type | tuple[type, ...]]

    def __call__(self, history: History) -> Iterator[Finding]:
        now = history[-1]
        if now.values is None:
            return
        for path, kinds in self.keys.items():
            there, value = _at(now.values, path)
            if there and isinstance(value, kinds):
                continue
            saw = f"{path} is a {type(value).__name__}" if there else f"{path} is missing"
            yield Finding(detector="schema", about=path, saw=saw, confidence=1.0, since=now.step)


@dataclass(frozen=True)
class Invariants:
    """What must be true of the state: ``Invariants({"in budget": lambda v: v["spent"] <= 5})``.

    One that cannot be told, because it raises, is broken.
    """

    rules: Mapping[str, Callable[[Mapping[str, Any]], bool]] = field(default_factory=dict)

    def __call__(self, history: History) -> Iterator[Finding]:
        now = history[-1]
        if now.values is None:
            return
        for name, rule in self.rules.items():
            try:
                problem = "" if rule(now.values) else "is not true"
            except Exception as error:
                problem = f"cannot be told: {error!r}"
            if problem:
                yield Finding(
                    detector="invariant",
                    about=name,
                    saw=f"{name!r} {problem}",
                    confidence=1.0,
                    since=now.step,
                )


@dataclass(frozen=True, slots=True)
class Corruption:
    """Stored records that are damaged or missing."""

    def __call__(self, history: History) -> Finding | None:
        now = history[-1]
        if not now.damage:
            return None
        return Finding(detector="corruption", saw=now.damage, confidence=1.0, since=now.step)


def default_detectors(
    *,
    stalled_after: int = 5,
    progress_drop: float = 0.2,
    error_limit: float = 0.5,
    error_window: int = 10,
    slower_factor: float = 2.0,
    slower_window: int = 5,
    repeated_times: int = 4,
    shape_seen: int = 5,
) -> tuple[Detector, ...]:
    """All the detectors that need to be told nothing, with these thresholds."""
    return (
        StalledProgress(stalled_after),
        ReversedProgress(progress_drop),
        ErrorRate(error_limit, error_window),
        SlowingDown(slower_factor, slower_window),
        Repetition(repeated_times),
        OwnSchema(shape_seen),
        Corruption(),
    )


def _check_above(bound: float, /, **given: float) -> None:
    for name, value in given.items():
        if not bound < value < math.inf:
            raise UsageError(f"{name} is {value!r}", hint=f"give a number above {bound:g}")


def _progress(history: History) -> list[tuple[Observation, float]]:
    """The newest observations of the newest task whose progress is known."""
    known: list[tuple[Observation, float]] = []
    for one in reversed(history):
        if one.task != history[-1].task:
            break
        if one.progress is not None and not math.isnan(one.progress):
            known.append((one, one.progress))
    return known[::-1]


def _best(known: Sequence[tuple[Observation, float]]) -> int:
    """Where progress first was as high as it ever got."""
    values = [value for _, value in known]
    return values.index(max(values)) if values else 0


def _grew(stretch: Sequence[Observation]) -> bool:
    known = _progress(stretch)
    return len(known) > 1 and known[-1][1] > known[0][1]


def _short(action: str | None) -> str:
    text = action or ""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def _shape(values: Mapping[str, Any] | None, prefix: str = "", depth: int = 1) -> dict[str, str]:
    """The name of each value's type, "" for None, by its path."""
    shape: dict[str, str] = {}
    for key, value in (values or {}).items():
        path = f"{prefix}{key}"
        shape[path] = _kind(value)
        if isinstance(value, Mapping) and depth < _DEPTH:
            shape.update(_shape(value, f"{path}.", depth + 1))
        if len(shape) > _MOST_KEYS:
            break
    return shape


def _kind(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number"
    for kind in (dict, list, str):
        if isinstance(value, kind):
            return kind.__name__  # frozen ones count as what they stand for
    return type(value).__name__


def _parent_changed(key: str, now: Mapping[str, str], before: Mapping[str, str]) -> bool:
    """Whether a key is gone because what it stood in is: that is told once, of the parent."""
    parent = key.rpartition(".")[0]
    return bool(parent) and parent in before and now.get(parent) != before[parent]


def _times(key: str, kind: str, known: History) -> int:
    """For how many of the newest observations there was a value of that kind."""
    count = 0
    for one in reversed(known):
        if _shape(one.values).get(key) != kind:
            break
        count += 1
    return count


def _at(values: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    """Whether there is something at *path*, and what."""
    if path in values:
        return True, values[path]
    found: Any = values
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return False, None
        found = found[part]
    return True, found
