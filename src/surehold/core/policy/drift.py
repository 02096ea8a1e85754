"""Drift: signs in an agent's last steps that its behaviour has gone wrong.

A *detector* is called with the last `Observation`s, oldest first, and returns findings. A finding
has a confidence between 0 and 1 and a level: ``note`` (worth knowing), ``warn`` (somebody should
look) or ``restore`` (going back to an earlier checkpoint helps). The *sensitivity* is the
confidence from which a finding is reported. A restore costs work, so levels need evidence: with
less than twice what is needed for a report a finding is a note, with less than three times it is
a warning.

>>> def too_many(history):
...     if len(history) > 2:
...         return f"{len(history)} steps for one question"
>>> monitor = DriftMonitor([too_many])
>>> for step in (1, 2, 3):
...     monitor.observe(Observation(step=step, action="search kelp"))
>>> print(monitor.look())
too_many: 3 steps for one question (1.00, restore)
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from surehold.errors import UsageError

Sensitivity: TypeAlias = Literal["low", "normal", "high"]
DriftLevel: TypeAlias = Literal["note", "warn", "restore"]
DriftPolicy: TypeAlias = Literal["warn", "restore", "stop"]
"""The reaction to drift: log it, go back to the last good checkpoint, or stop the run."""

_LEVELS: tuple[DriftLevel, ...] = get_args(DriftLevel)
_THRESHOLDS: dict[str, float] = {"low": 0.9, "normal": 0.7, "high": 0.5}
_DOUBT_AT_THRESHOLD = 0.3
_STATES_KEPT = 12


class Observation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts about one step. Detectors ignore what is not known."""

    step: int = 0
    task: str = ""
    """The task the step worked on. Progress is compared within one task."""
    action: str | None = None
    """The action taken, spelt the same whenever it is the same: a tool and its arguments, say."""
    progress: float | None = None
    """Progress of the task; it should grow."""
    failed: bool = False
    seconds: float | None = None
    """Duration of the step."""
    idle: bool = False
    """True if there was nothing to work on. Repeating oneself is then no fault."""
    backlog: int | None = None
    """Number of messages or items that wait to be worked on."""
    size: int | None = None
    """Size of the encoded state in bytes."""
    values: Mapping[str, Any] | None = None
    """The state after the step. A `DriftMonitor` keeps the last twelve only."""
    missing: str = ""
    """Parts of the state that could not be captured, with the reason."""
    damage: str = ""
    """Damage found in the run's stored records."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of drift."""

    detector: str
    saw: str
    confidence: float
    """Between 0 and 1."""
    level: DriftLevel = "restore"
    """The strongest reaction this finding justifies."""
    about: str = ""
    """A key or an invariant, for detectors that report several things."""
    since: int | None = None
    """The step it began with: checkpoints of earlier steps are not affected."""

    def __post_init__(self) -> None:
        if not 0 <= self.confidence <= 1:
            raise UsageError(
                f"the confidence of {self.detector} is {self.confidence!r}",
                hint="confidence must be between 0 and 1",
            )
        if self.level not in _LEVELS:
            raise UsageError(f"level is {self.level!r}", hint=f"one of {', '.join(_LEVELS)}")

    def __str__(self) -> str:
        return f"{self.detector}: {self.saw} ({self.confidence:.2f}, {self.level})"


Detector: TypeAlias = Callable[[Sequence[Observation]], Finding | str | Iterable[Finding] | None]
"""Takes the last observations, oldest first. Text is short for a finding with confidence 1."""


class DriftReport(msgspec.Struct, frozen=True, kw_only=True):
    """The findings of one look. True only if one of them advises a restore."""

    findings: tuple[Finding, ...] = ()
    known: tuple[Finding, ...] = ()
    """Findings that the last restored state had from the start. They do not count again."""
    observations: int = 0
    """Number of observations looked at."""
    bar: float = _THRESHOLDS["normal"]
    """Confidence from which a finding was reported."""

    def __bool__(self) -> bool:
        return self.level == "restore"

    @property
    def level(self) -> DriftLevel | None:
        """The highest level among the findings; None without findings."""
        levels = [one.level for one in self.findings]
        return max(levels, key=_LEVELS.index, default=None)

    @property
    def since(self) -> int | None:
        """The first step concerned by the findings of the highest level, if known."""
        level = self.level
        steps = (one.since for one in self.findings if one.level == level)
        return min((step for step in steps if step is not None), default=None)

    def __str__(self) -> str:
        if not self.findings:
            return f"no drift in {self.observations} observations"
        return "\n".join(map(str, self.findings))


class DriftMonitor:
    """The last observations of one run, and the detectors that look at them.

    *detectors* are functions, callable objects, or classes that are called without arguments;
    `core.policy.drift_detectors` has some. *sensitivity* is a word or the confidence itself. The
    last *window* observations are kept.
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
        self._detectors = [_detector(one) for one in detectors]
        self.bar = report_threshold(sensitivity)
        self.window = window
        self._history: deque[Observation] = deque(maxlen=window)
        self._known: set[tuple[str, str]] = set()

    @property
    def history(self) -> tuple[Observation, ...]:
        """The observations kept, oldest first."""
        return tuple(self._history)

    def observe(self, observation: Observation) -> None:
        """Add a step."""
        history = self._history
        history.append(observation)
        if len(history) > _STATES_KEPT:
            old = history[-_STATES_KEPT - 1]
            history[-_STATES_KEPT - 1] = msgspec.structs.replace(old, values=None)

    def look(self) -> DriftReport:
        """Run the detectors. Looking twice gives the same report."""
        found = self._findings()
        self._known &= {_key(one) for one in found}
        return DriftReport(
            findings=tuple(one for one in found if _key(one) not in self._known),
            known=tuple(one for one in found if _key(one) in self._known),
            observations=len(self._history),
            bar=self.bar,
        )

    def restart(self, restored: Observation | None = None) -> None:
        """Start over after a restore: earlier observations no longer count.

        Findings about *restored* itself count again only after they were absent once, so a
        restore cannot trigger the same restore for ever.
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
            found += _answers(detector, detector(history))
        return [self._limited(one) for one in found if one.confidence >= self.bar]

    def _limited(self, finding: Finding) -> Finding:
        """Lower the level of a finding to what its confidence justifies."""
        justified = [one for one in _LEVELS if finding.confidence >= level_threshold(self.bar, one)]
        level = min(finding.level, justified[-1], key=_LEVELS.index)
        return finding if level == finding.level else msgspec.structs.replace(finding, level=level)


def report_threshold(sensitivity: Sensitivity | float) -> float:
    """Confidence from which a finding is reported.

    >>> report_threshold("low"), report_threshold("high"), report_threshold(0.65)
    (0.9, 0.5, 0.65)
    """
    if isinstance(sensitivity, str) and sensitivity in _THRESHOLDS:
        return _THRESHOLDS[sensitivity]
    number = isinstance(sensitivity, int | float) and not isinstance(sensitivity, bool)
    if not number or not 0 < float(sensitivity) <= 1:
        raise UsageError(
            f"sensitivity is {sensitivity!r}",
            hint=f"one of {', '.join(_THRESHOLDS)}, or a confidence above 0 up to 1",
        )
    return float(sensitivity)


def level_threshold(bar: float, level: DriftLevel) -> float:
    """Confidence a level needs: once, twice or three times the evidence of *bar*.

    >>> level_threshold(0.7, "warn"), level_threshold(0.7, "restore"), confidence_of(3)
    (0.91, 0.973, 0.973)
    """
    return round(1 - (1 - bar) ** (1 + _LEVELS.index(level)), 4)


def confidence_of(ratio: float) -> float:
    """Confidence of a finding whose evidence is *ratio* times the threshold.

    At the threshold it is 0.7, which normal sensitivity reports. High sensitivity reports from
    0.58 times the threshold, low from 1.92 times.

    >>> confidence_of(0), confidence_of(1), confidence_of(2), confidence_of(1000)
    (0.0, 0.7, 0.91, 1.0)
    """
    return 0.0 if ratio <= 0 or math.isnan(ratio) else round(1 - _DOUBT_AT_THRESHOLD**ratio, 4)


def check_policy(policy: object, what: str = "on_drift") -> None:
    """Raise a `UsageError` if *policy* is not a `DriftPolicy`."""
    if policy not in get_args(DriftPolicy):
        raise UsageError(f"{what} is {policy!r}", hint=f"one of {', '.join(get_args(DriftPolicy))}")


def _key(finding: Finding) -> tuple[str, str]:
    return finding.detector, finding.about


def _detector(given: Detector | type[Any]) -> Detector:
    made = given() if isinstance(given, type) else given
    if not callable(made):
        raise UsageError(
            f"{given!r} is not a detector", hint="give a function of the last observations"
        )
    return made


def _answers(detector: Detector, answer: Any) -> list[Finding]:
    """Return a detector's answer as findings."""
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
