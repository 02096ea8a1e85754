"""Drift detectors; a finding at the threshold is a note at normal sensitivity.

>>> from surehold.core.policy.drift import DriftMonitor, Observation
>>> monitor = DriftMonitor(default_detectors(stalled_after=3))
>>> for step in range(1, 6):
...     monitor.observe(Observation(step=step, progress=40.0))
>>> print(monitor.look())
stalled: no progress beyond 40 in 4 steps (0.80, note)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Any

from surehold.core.policy.drift import Detector, DriftLevel, Finding, Observation, confidence_of
from surehold.errors import UsageError

History = Sequence[Observation]
_Known = Sequence[tuple[Observation, float]]
_DEPTH = 3
_MOST_KEYS = 500
_LONGEST_CYCLE = 3
_LONGEST_SHOWN = 80


@dataclass(frozen=True, slots=True)
class StalledProgress:
    """Progress on one task that reached nothing new in *after* steps.

    Steps that win back lost progress do not count. A task whose progress comes slowly is given
    more time: at least twice the longest pause between two of its advances.
    """

    after: int = 10

    def __post_init__(self) -> None:
        _check_above(0, after=self.after)

    def __call__(self, history: History) -> Finding | None:
        known = _progress(history)
        if not known:
            return None
        _, known = _last_round(known)
        advances = _advances(known)
        last = advances[-1]
        stalled = [later for earlier, later in pairwise(known[last:]) if not later[1] > earlier[1]]
        if not stalled:
            return None
        longest = max((later - earlier for earlier, later in pairwise(advances)), default=0)
        patience = max(self.after, 2 * longest)
        saw = f"no progress beyond {known[last][1]:g} in {len(stalled)} steps"
        return _finding("stalled", saw, len(stalled) / patience, stalled[0][0])


@dataclass(frozen=True, slots=True)
class ReversedProgress:
    """Progress that fell by *drop*, as a share of the best value of the task.

    A fall at once to where the task began is another round of a recurring task: a note, or a
    warning if the round before was not nearly complete.
    """

    drop: float = 0.2

    def __post_init__(self) -> None:
        _check_above(0, drop=self.drop)

    def __call__(self, history: History) -> Finding | None:
        known = _progress(history)
        if not known:
            return None
        before, known = _last_round(known)
        if before and len(known) == 1:
            (_, start), (_, end) = known[0], before[-1]
            step = end - before[-2][1]
            is_complete = any(end <= whole <= end + 1.5 * step for whole in (1, 100))
            saw = f"progress began again at {start:g} after {end:g}"
            return _finding("reversed", saw, 1 if is_complete else 2, known[0][0])
        best = _advances(known)[-1]
        top, now = known[best][1], known[-1][1]
        if now >= top:
            return None
        fallen = (top - now) / max(abs(top), 1e-9)
        saw = f"progress fell from {top:g} to {now:g}"
        return _finding("reversed", saw, fallen / self.drop, known[best + 1][0])


@dataclass(frozen=True, slots=True)
class ErrorRate:
    """A share of *limit* of the last *window* steps failed, and at least *least*.

    The evidence is the odds of a failure against the odds at the limit: with the defaults, half
    of the steps is a warning and three quarters advise a restore.
    """

    limit: float = 0.5
    window: int = 10
    least: int = 4

    def __post_init__(self) -> None:
        _check_above(0, limit=self.limit, window=self.window, least=self.least)
        if self.limit >= 1:
            raise UsageError(f"limit is {self.limit!r}", hint="give a share below 1")

    def __call__(self, history: History) -> Finding | None:
        recent = history[-self.window :]
        failed = [one for one in recent if one.failed]
        if len(failed) < self.least:
            return None
        odds = len(failed) / (len(recent) - len(failed)) if len(failed) < len(recent) else math.inf
        saw = f"{len(failed)} of the last {len(recent)} steps failed"
        return _finding("errors", saw, odds / (self.limit / (1 - self.limit)), failed[0])


@dataclass(frozen=True, slots=True)
class SlowingDown:
    """Steps take *factor* times as long as the steps before them, by their medians.

    The last *window* steps are compared with at least as many before them. Medians under
    *ignore_below* seconds are ignored. Going back does not make a run faster: this only warns.
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
        saw = f"steps take {now:.3g} s, {times:.1f} times as long as before"
        return _finding("slowing", saw, (times - 1) / (self.factor - 1), recent[0][0], "warn")


@dataclass(frozen=True, slots=True)
class Backlog:
    """At least *least* items wait, twice as many as *window* steps ago, mostly rising.

    Going back does not empty a mailbox: this only warns.
    """

    least: int = 20
    window: int = 10

    def __post_init__(self) -> None:
        _check_above(0, least=self.least)
        _check_above(1, window=self.window)

    def __call__(self, history: History) -> Finding | None:
        known = [(one, one.backlog) for one in history if one.backlog is not None]
        recent = known[-self.window - 1 :]
        if len(recent) <= self.window:
            return None
        counts = [count for _, count in recent]
        rose = sum(later > earlier for earlier, later in pairwise(counts))
        if counts[-1] < 2 * counts[0] or rose <= self.window // 2:
            return None
        saw = f"{counts[-1]} items wait, {counts[0]} did {self.window} steps ago"
        return _finding("backlog", saw, counts[-1] / self.least, recent[0][0], "warn")


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """A state of *least* bytes or more grew *factor* times in *window* steps.

    A leak lies in the code: this only warns.
    """

    factor: float = 2.0
    window: int = 20
    least: int = 1_000_000

    def __post_init__(self) -> None:
        _check_above(1, factor=self.factor, window=self.window)
        _check_above(0, least=self.least)

    def __call__(self, history: History) -> Finding | None:
        known = [(one, one.size) for one in history if one.size]
        recent = known[-self.window - 1 :]
        if len(recent) < 3 or recent[-1][1] < self.least:
            return None
        before, now = recent[0][1], recent[-1][1]
        if now <= before:
            return None
        saw = f"the state grew from {before:,} to {now:,} bytes in {len(recent) - 1} steps"
        growth = (now / before - 1) / (self.factor - 1)
        return _finding("memory", saw, growth, recent[0][0], "warn")


@dataclass(frozen=True, slots=True)
class Repetition:
    """The same action, or two or three in turn, *times* times without progress.

    Idle steps do not count. If progress is not known and the state changes, the action may be
    useful work under one name: this is only noted, unless *exact* says that actions are spelt
    with their arguments.
    """

    times: int = 4
    exact: bool = False

    def __post_init__(self) -> None:
        _check_above(1, times=self.times)

    def __call__(self, history: History) -> Finding | None:
        acted = [one for one in _newest_task(history) if one.action]
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
        saw = f"{', '.join(_short(action) for action in cycle)}: {count} times in a row"
        level: DriftLevel = "note" if not self.exact and _may_be_work(stretch) else "restore"
        return _finding("repetition", saw, (count - 1) / (self.times - 1), stretch[length], level)


@dataclass(frozen=True, slots=True)
class OwnSchema:
    """A key that vanished or changed its type after being the same for *seen* steps.

    The shape is learnt from the run itself, and a state may change its shape for a reason: a new
    type only warns, a key that is gone is only noted. `Schema` states what must always hold.
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
                confidence=confidence_of(count / self.seen),
                level="note" if there is None else "warn",
                since=known[-1].step,
            )


@dataclass(frozen=True)
class Schema:
    """Keys the state must have, and their types: ``Schema({"plan": list, "n": int})``.

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
            saw = f"{path} is {type(value).__name__}" if there else f"{path} is missing"
            yield Finding(detector="schema", about=path, saw=saw, confidence=1.0, since=now.step)


@dataclass(frozen=True)
class Invariants:
    """Conditions on the state: ``Invariants({"paid": lambda v: v["spent"] <= 5})``.

    A condition that raises is broken.
    """

    rules: Mapping[str, Callable[[Mapping[str, Any]], bool]] = field(default_factory=dict)

    def __call__(self, history: History) -> Iterator[Finding]:
        now = history[-1]
        if now.values is None:
            return
        for name, rule in self.rules.items():
            try:
                problem = "" if rule(now.values) else "does not hold"
            except Exception as error:
                problem = f"cannot be checked: {error!r}"
            if problem:
                saw = f"{name!r} {problem}"
                yield Finding(
                    detector="invariant", about=name, saw=saw, confidence=1.0, since=now.step
                )


@dataclass(frozen=True, slots=True)
class Corruption:
    """Stored records that are damaged or missing.

    The agent itself is not affected, and a restore would cost its work: this only warns.
    """

    def __call__(self, history: History) -> Finding | None:
        now = history[-1]
        if not now.damage:
            return None
        return Finding(
            detector="corruption", saw=now.damage, confidence=1.0, level="warn", since=now.step
        )


@dataclass(frozen=True, slots=True)
class Uncaptured:
    """Parts of the state that cannot be captured; a restore gives what was saved."""

    def __call__(self, history: History) -> Finding | None:
        now = history[-1]
        if not now.missing:
            return None
        return Finding(detector="uncaptured", saw=now.missing, confidence=1.0, since=now.step)


def default_detectors(
    *, stalled_after: int = 10, repeated_times: int = 4, exact_actions: bool = False
) -> tuple[Detector, ...]:
    """Return every detector that needs no configuration.

    Its class makes a detector with other thresholds: ``ErrorRate(limit=0.3)``.
    """
    return (
        StalledProgress(stalled_after),
        ReversedProgress(),
        ErrorRate(),
        SlowingDown(),
        Repetition(repeated_times, exact_actions),
        OwnSchema(),
        Backlog(),
        MemoryGrowth(),
        Uncaptured(),
        Corruption(),
    )


def _finding(
    detector: str, saw: str, evidence: float, first: Observation, level: DriftLevel = "restore"
) -> Finding:
    """A finding since *first*, its *evidence* as a multiple of the threshold."""
    confidence = confidence_of(evidence)
    return Finding(detector=detector, saw=saw, confidence=confidence, level=level, since=first.step)


def _check_above(bound: float, /, **given: float) -> None:
    for name, value in given.items():
        if not bound < value < math.inf:
            raise UsageError(f"{name} is {value!r}", hint=f"give a number above {bound:g}")


def _newest_task(history: History) -> History:
    """Return the observations of the newest task since the last idle step."""
    for index in range(len(history) - 1, -1, -1):
        if history[index].idle or history[index].task != history[-1].task:
            return history[index + 1 :]
    return history


def _progress(history: History) -> _Known:
    """Return the newest observations of the newest task whose progress is known."""
    return [
        (one, one.progress)
        for one in _newest_task(history)
        if one.progress is not None and not math.isnan(one.progress)
    ]


def _advances(known: _Known) -> list[int]:
    """Return the indexes at which progress was higher than ever before."""
    advances: list[int] = []
    for index, (_, value) in enumerate(known):
        if not advances or value > known[advances[-1]][1]:
            advances.append(index)
    return advances


def _last_round(known: _Known) -> tuple[_Known, _Known]:
    """Return the last but one and the last round of a task that begins anew each time.

    A round advances at least twice, and ends at its best with a fall to its start or below.
    """
    before, begin = known[:0], 0
    for index in range(1, len(known)):
        now, last = known[index][1], known[index - 1][1]
        rounds = known[begin:index]
        fell = now <= min(rounds[0][1], last / 3) and last >= max(value for _, value in rounds)
        is_cut = index < 3 and len(known) > 5  # the history begins near the end of a round
        if fell and (is_cut or len(_advances(rounds)) > 2):
            before, begin = rounds, index
    return before, known[begin:]


def _grew(stretch: Sequence[Observation]) -> bool:
    known = _progress(stretch)
    return len(known) > 1 and known[-1][1] > known[0][1]


def _may_be_work(stretch: Sequence[Observation]) -> bool:
    """True if progress is not known and the state changed during *stretch*."""
    if any(one.progress is not None for one in stretch):
        return False
    values = [one.values for one in stretch if one.values is not None]
    return any(one != values[0] for one in values[1:])


def _short(action: str | None) -> str:
    text = action or ""
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


def _shape(values: Mapping[str, Any] | None, prefix: str = "", depth: int = 1) -> dict[str, str]:
    """Return the type name of each value by its path, "" for None."""
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
            return kind.__name__  # a frozen value counts as its plain type
    return type(value).__name__


def _parent_changed(key: str, now: Mapping[str, str], before: Mapping[str, str]) -> bool:
    """True if a key is gone because its parent is: only the parent is reported."""
    parent = key.rpartition(".")[0]
    return bool(parent) and parent in before and now.get(parent) != before[parent]


def _times(key: str, kind: str, known: History) -> int:
    """Count the newest observations in a row that have a value of that kind."""
    count = 0
    for one in reversed(known):
        if _shape(one.values).get(key) != kind:
            break
        count += 1
    return count


def _at(values: Mapping[str, Any], path: str) -> tuple[bool, Any]:
    """Return whether there is a value at *path*, and the value."""
    if path in values:
        return True, values[path]
    found: Any = values
    for part in path.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return False, None
        found = found[part]
    return True, found
