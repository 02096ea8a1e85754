"""Drift: an agent's behaviour going wrong, told from what was seen of its last steps.

A run is watched as a row of frozen `Observation`s. A *detector* is anything that can be called
with that row, oldest first, and says what it found. What each finding is sure of lies between 0
and 1; the *sensitivity* is the bar that it must reach to count.

>>> def too_many(history):
...     if len(history) > 2:
...         return f"{len(history)} steps for one question"
>>> watch = DriftMonitor([too_many])
>>> for step in (1, 2, 3):
...     watch.observe(Observation(step=step, action="search kelp"))
>>> print(watch.look())
too_many: 3 steps for one question (1.00, suggests restore)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.errors import UsageError

__all__ = [
    "Detector",
    "DriftMonitor",
    "DriftPolicy",
    "DriftReport",
    "Finding",
    "Observation",
    "Sensitivity",
    "bar_of",
    "certainty",
    "check_policy",
]

Sensitivity: TypeAlias = Literal["low", "normal", "high"]
DriftPolicy: TypeAlias = Literal["warn", "restore", "stop"]
"""What is done about drift: only say so, go back to the last good checkpoint, or stop the run."""

_BARS: dict[str, float] = {"low": 0.9, "normal": 0.7, "high": 0.5}
_DOUBT_LEFT = 0.3
_STATES_KEPT = 12


class Observation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was seen of one step. What is not known is left out, and not judged."""

    step: int = 0
    task: str = ""
    """What the step worked on. Progress is compared within one task."""
    action: str | None = None
    """What was done, spelt the same each time it is the same: a tool and its arguments, say."""
    progress: float | None = None
    """How far the task has come; it should grow."""
    failed: bool = False
    seconds: float | None = None
    """How long it took."""
    values: Mapping[str, Any] | None = None
    """The state after it. As it may be large, a `DriftMonitor` keeps those of the last twelve."""
    damage: str = ""
    """What is wrong with the run's stored records, if anything is."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that looks like drift."""

    detector: str
    saw: str
    confidence: float
    """How sure it is, from 0 to 1."""
    suggests: DriftPolicy = "restore"
    """A finding that suggests to warn is never acted on beyond that."""
    about: str = ""
    """What it is about, where a detector can find several things: a key, an invariant."""
    since: int | None = None
    """The step with which it began; what was saved before that step is not touched by it."""

    def __post_init__(self) -> None:
        if not 0 <= self.confidence <= 1:
            raise UsageError(
                f"{self.detector} is sure to {self.confidence!r}", hint="from 0 to 1, please"
            )
        check_policy(self.suggests, "suggests")

    def __str__(self) -> str:
        return f"{self.detector}: {self.saw} ({self.confidence:.2f}, suggests {self.suggests})"


Detector: TypeAlias = Callable[[Sequence[Observation]], Finding | str | Iterable[Finding] | None]
"""Told the last observations, oldest first. Text stands for a finding that is sure."""


class DriftReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at a run found. It is true if that is drift."""

    findings: tuple[Finding, ...] = ()
    known: tuple[Finding, ...] = ()
    """What was so already in the state that was restored last; it does not count again."""
    observations: int = 0
    """How many there were to look at."""
    bar: float = _BARS["normal"]
    """How sure a finding had to be."""

    def __bool__(self) -> bool:
        return bool(self.findings)

    @property
    def since(self) -> int | None:
        """The step with which it began, as far as that is known."""
        return min((one.since for one in self.findings if one.since is not None), default=None)

    @property
    def only_warns(self) -> bool:
        """Whether nothing that was found suggests more than a warning."""
        return all(one.suggests == "warn" for one in self.findings)

    def __str__(self) -> str:
        if not self.findings:
            return f"no drift in {self.observations} observations"
        return "\n".join(map(str, self.findings))


class DriftMonitor:
    """Keeps the last observations of one run and looks at them.

    *detectors* are functions, objects that can be called, or classes that are made without
    arguments; `core.policy.drift_detectors` has some. *sensitivity* is a word or, to say it
    exactly, the bar itself. The last *window* observations are kept.
    """

    def __init__(
        self,
        detectors: Iterable[Detector | type[Any]],
        *,
        sensitivity: Sensitivity | float = "normal",
        window: int = 50,
    ) -> None:
        if window < 2:
            raise UsageError(f"window is {window!r}", hint="give 2 or more observations")
        self._detectors = [_made(one) for one in detectors]
        self.bar = bar_of(sensitivity)
        self.window = window
        self._history: deque[Observation] = deque(maxlen=window)
        self._known: set[tuple[str, str]] = set()

    @property
    def history(self) -> tuple[Observation, ...]:
        """What there is to look at, oldest first."""
        return tuple(self._history)

    def observe(self, observation: Observation) -> None:
        """Take a step into account."""
        history = self._history
        history.append(observation)
        if len(history) > _STATES_KEPT:
            old = history[-_STATES_KEPT - 1]
            history[-_STATES_KEPT - 1] = msgspec.structs.replace(old, values=None)

    def look(self) -> DriftReport:
        """What the detectors find in what was observed. Looking changes no answer."""
        found = self._findings()
        self._known &= {_key(one) for one in found}
        return DriftReport(
            findings=tuple(one for one in found if _key(one) not in self._known),
            known=tuple(one for one in found if _key(one) in self._known),
            observations=len(self._history),
            bar=self.bar,
        )

    def restart(self, restored: Observation | None = None) -> None:
        """Begin anew after a restore: what was seen before it does not count.

        What is wrong with *restored* itself counts again once it has been right in between, so
        that restoring it cannot be the answer to itself for ever.
        """
        self._history.clear()
        self._known = set()
        if restored is not None:
            self._history.append(restored)
            self._known = {_key(one) for one in self._findings()}

    def _findings(self) -> list[Finding]:
        history = self.history
        found: list[Finding] = []
        for detector in self._detectors if history else ():
            found += _said(detector, detector(history))
        return [one for one in found if one.confidence >= self.bar]


def bar_of(sensitivity: Sensitivity | float) -> float:
    """How sure a finding must be to count.

    >>> bar_of("low"), bar_of("high"), bar_of(0.65)
    (0.9, 0.5, 0.65)
    """
    if isinstance(sensitivity, str) and sensitivity in _BARS:
        return _BARS[sensitivity]
    number = isinstance(sensitivity, int | float) and not isinstance(sensitivity, bool)
    if not number or not 0 < float(sensitivity) <= 1:
        raise UsageError(
            f"sensitivity is {sensitivity!r}",
            hint=f"one of {', '.join(_BARS)}, or how sure a finding must be, above 0 up to 1",
        )
    return float(sensitivity)


def certainty(ratio: float) -> float:
    """How sure it is that something has gone wrong that is *ratio* times its threshold.

    At the threshold 0.7, so that it counts with normal sensitivity; with high it does at 0.58
    times the threshold, with low at 1.92 times.

    >>> certainty(0), certainty(1), certainty(2), certainty(1000)
    (0.0, 0.7, 0.91, 1.0)
    """
    return 0.0 if ratio <= 0 or math.isnan(ratio) else round(1 - _DOUBT_LEFT**ratio, 4)


def check_policy(policy: object, what: str = "on_drift") -> None:
    """Raise a `UsageError` for what is no policy."""
    if policy not in get_args(DriftPolicy):
        raise UsageError(f"{what} is {policy!r}", hint=f"one of {', '.join(get_args(DriftPolicy))}")


def _key(finding: Finding) -> tuple[str, str]:
    return finding.detector, finding.about


def _made(given: Detector | type[Any]) -> Detector:
    made = given() if isinstance(given, type) else given
    if not callable(made):
        raise UsageError(
            f"{given!r} is no detector", hint="give a function of the last observations"
        )
    return made


def _said(detector: Detector, answer: Any) -> list[Finding]:
    """What a detector answered, as findings."""
    name = getattr(detector, "__name__", type(detector).__name__)
    if answer is None or answer is False or answer == "":
        return []
    if isinstance(answer, str):
        return [Finding(detector=name, saw=answer, confidence=1.0)]
    several = list(answer) if isinstance(answer, Iterable) else [answer]
    if not all(isinstance(one, Finding) for one in several):
        raise UsageError(
            f"detector {name} answered {answer!r}", hint="a Finding, text, several Findings or None"
        )
    return several
