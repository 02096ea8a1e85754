"""Drift detectors: each sees what it is for on a made-up trace, and nothing on a good one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surehold.core.policy.drift import (
    DriftMonitor,
    DriftReport,
    Finding,
    Observation,
    confidence_of,
    level_threshold,
    report_threshold,
)
from surehold.core.policy.drift_detectors import (
    Backlog,
    Corruption,
    ErrorRate,
    Invariants,
    MemoryGrowth,
    OwnSchema,
    Repetition,
    ReversedProgress,
    Schema,
    SlowingDown,
    StalledProgress,
    Uncaptured,
    default_detectors,
)
from surehold.errors import UsageError

Trace = Sequence[Observation]


def trace(**columns: Sequence[Any]) -> list[Observation]:
    """Observations from columns of equal length, the steps counted from 1."""
    rows = zip(*columns.values(), strict=True)
    return [
        Observation(step=step, **dict(zip(columns, row, strict=True)))
        for step, row in enumerate(rows, start=1)
    ]


def look(detector: Any, history: Trace, sensitivity: Any = "normal") -> DriftReport:
    monitor = DriftMonitor([detector], sensitivity=sensitivity)
    for one in history:
        monitor.observe(one)
    return monitor.look()


DRIFTING: dict[str, tuple[Any, list[Observation], str, int]] = {
    "stalled": (StalledProgress(5), trace(progress=[10, 20, 30, 30, 30, 30, 30, 30]), "30", 4),
    "stalled, unsteadily": (
        StalledProgress(5),
        trace(progress=[10, 30, 29, 30, 28, 29, 30, 30, 29, 28]),
        "in 5 steps",
        3,
    ),
    "reversed": (ReversedProgress(), trace(progress=[20, 40, 60, 50, 40]), "from 60 to 40", 4),
    "errors": (
        ErrorRate(),
        trace(failed=[False, False, True, True, False, True, True]),
        "4 of the last 7",
        3,
    ),
    "slowing": (SlowingDown(), trace(seconds=[1.0] * 10 + [2.5] * 5), "2.5 times", 11),
    "repetition": (Repetition(), trace(action=["a", "b", "b", "b", "b"]), "b: 4 times", 3),
    "repetition in turn": (
        Repetition(),
        trace(action=["start", *["look", "ask"] * 4]),
        "look, ask: 4 times",
        4,
    ),
    "repetition without progress": (
        Repetition(),
        trace(action=["a"] * 5, progress=[7, 7, 7, 7, 7]),
        "a: 5 times",
        2,
    ),
    "own schema, gone": (
        OwnSchema(),
        trace(values=[{"plan": []}] * 5 + [{}]),
        "plan was list for 5 steps, and is gone",
        6,
    ),
    "own schema, other type": (
        OwnSchema(),
        trace(values=[{"task": {"n": 1}}] * 6 + [{"task": {"n": "one"}}]),
        "task.n was number for 6 steps, and is str",
        7,
    ),
    "schema, missing": (Schema({"plan": list}), trace(values=[{"n": 1}]), "plan is missing", 1),
    "schema, type": (
        Schema({"task.status": str}),
        trace(values=[{"task": {"status": 3}}]),
        "task.status is int",
        1,
    ),
    "invariant": (
        Invariants({"in budget": lambda values: values["spent"] <= 5}),
        trace(values=[{"spent": 4}, {"spent": 6}]),
        "'in budget' does not hold",
        2,
    ),
    "invariant that raises": (
        Invariants({"in budget": lambda values: values["spent"] <= 5}),
        trace(values=[{}]),
        "KeyError",
        1,
    ),
    "backlog": (Backlog(), trace(backlog=range(0, 44, 4)), "40 items wait, 0 did 10", 1),
    "memory": (
        MemoryGrowth(),
        trace(size=[500_000, 900_000, 2_000_000]),
        "from 500,000 to 2,000,000 bytes in 2 steps",
        1,
    ),
    "uncaptured": (Uncaptured(), trace(missing=["", "memory: gone"]), "memory: gone", 2),
    "corruption": (Corruption(), trace(damage=["", "record 3 is gone"]), "record 3 is gone", 2),
}

SOUND: dict[str, tuple[Any, list[Observation]]] = {
    "progress that grows slowly": (StalledProgress(3), trace(progress=[1, 1, 1, 2, 2, 2, 2, 2])),
    "progress that is won back": (StalledProgress(3), trace(progress=[9, 5, 6, 7, 8, 9])),
    "an idle agent": (
        StalledProgress(3),
        trace(progress=[5, 5, 5, 5, 5], idle=[False, False, False, True, False]),
    ),
    "polling without work": (Repetition(), trace(action=["poll"] * 20, idle=[True] * 20)),
    "the same action for another task": (
        Repetition(),
        trace(action=["work"] * 9, task=["a", "a", "a", "b", "b", "b", "c", "c", "c"]),
    ),
    "a burst of messages": (Backlog(), trace(backlog=[0] * 9 + [50, 48])),
    "a large state": (MemoryGrowth(), trace(size=[5_000_000, 5_100_000, 5_200_000])),
    "a small state that grows": (MemoryGrowth(), trace(size=[1_000, 50_000, 500_000])),
    "progress of another task": (
        StalledProgress(),
        trace(progress=[9] * 6 + [0, 1], task=["a"] * 6 + ["b"] * 2),
    ),
    "a new task begins at nothing": (
        ReversedProgress(),
        trace(progress=[50, 90, 0, 10], task=["a", "a", "b", "b"]),
    ),
    "progress that is not known": (StalledProgress(), trace(progress=[None] * 20)),
    "progress that dips a little": (ReversedProgress(), trace(progress=[50, 60, 57, 61, 60])),
    "a few errors": (ErrorRate(), trace(failed=[False] * 7 + [True, False, True])),
    "one error at the start": (ErrorRate(), trace(failed=[True])),
    "errors long ago": (ErrorRate(), trace(failed=[True] * 6 + [False] * 9)),
    "steady times": (SlowingDown(), trace(seconds=[1.0, 1.2, 0.9] * 6)),
    "one slow step": (SlowingDown(), trace(seconds=[1.0] * 14 + [60.0])),
    "quick steps that vary": (SlowingDown(), trace(seconds=[0.001] * 8 + [0.009] * 5)),
    "too few to compare": (SlowingDown(), trace(seconds=[1.0] * 4 + [9.0] * 5)),
    "actions that differ": (Repetition(), trace(action=["a", "b", "c", "d", "e", "a"])),
    "three times is not yet again and again": (Repetition(), trace(action=["a"] * 3)),
    "the same action with progress": (
        Repetition(),
        trace(action=["read"] * 8, progress=range(8)),
    ),
    "no action known": (Repetition(), trace(action=[None] * 9)),
    "a state that grows": (OwnSchema(), trace(values=[{"a": 1}] * 6 + [{"a": 2.5, "b": "new"}])),
    "a key that comes and goes": (OwnSchema(), trace(values=[{"a": 1}, {}] * 5)),
    "a value that is not there yet": (OwnSchema(), trace(values=[{"a": None}] * 6 + [{"a": 1}])),
    "as the schema says": (Schema({"n": (int, float)}), trace(values=[{"n": 1.5}])),
    "true": (Invariants({"some": bool}), trace(values=[{"n": 1}])),
    "undamaged": (Corruption(), trace(damage=["", ""])),
    "a state that is not known": (Schema({"n": int}), trace(values=[None])),
}


@pytest.mark.parametrize("name", DRIFTING)
def test_a_detector_sees_what_it_is_for(name: str) -> None:
    detector, history, saw, since = DRIFTING[name]
    report = look(detector, history)
    (found,) = report.findings
    assert saw in found.saw
    assert 0.7 <= found.confidence <= 1
    assert found.since == since
    assert found.detector.split()[0] in str(report)


@pytest.mark.parametrize("name", SOUND)
def test_a_detector_sees_nothing_where_nothing_is_wrong(name: str) -> None:
    detector, history = SOUND[name]
    assert not look(detector, history).findings


def test_a_healthy_agent_shows_no_drift_to_all_detectors_at_high_sensitivity() -> None:
    monitor = DriftMonitor(default_detectors(), sensitivity="high")
    for step in range(1, 200):
        monitor.observe(
            Observation(
                step=step,
                action=f"read page {step}",
                progress=step / 2,
                failed=step % 7 == 0,
                seconds=1 + step % 3 / 10,
                values={"pages": step, "plan": ["read"], "task": {"status": "running"}},
            )
        )
        assert not monitor.look(), str(monitor.look())


THRESHOLDS: list[tuple[Callable[[], Any], list[Observation]]] = [
    (lambda: StalledProgress(after=2), trace(progress=[1, 1, 1])),
    (lambda: ReversedProgress(drop=0.05), trace(progress=[100, 94])),
    (lambda: ErrorRate(limit=0.2, window=5, least=1), trace(failed=[False] * 4 + [True])),
    (lambda: SlowingDown(factor=1.2, window=2), trace(seconds=[1, 1, 1.3, 1.3])),
    (lambda: Repetition(times=2), trace(action=["a", "a"])),
    (lambda: OwnSchema(seen=1), trace(values=[{"a": 1}, {}])),
]


@pytest.mark.parametrize(("strict", "history"), THRESHOLDS)
def test_each_threshold_can_be_set(strict: Callable[[], Any], history: Trace) -> None:
    assert look(strict(), history).findings
    assert not look(type(strict())(), history).findings


@pytest.mark.parametrize(
    "make",
    [
        lambda: StalledProgress(0),
        lambda: ReversedProgress(-1),
        lambda: ErrorRate(limit=0),
        lambda: ErrorRate(limit=1),
        lambda: SlowingDown(factor=1),
        lambda: Repetition(1),
        lambda: OwnSchema(0),
        lambda: DriftMonitor([], window=1),
        lambda: DriftMonitor([], sensitivity="very"),  # type: ignore[arg-type]
        lambda: DriftMonitor([], sensitivity=1.5),
        lambda: DriftMonitor([3]),  # type: ignore[list-item]
        lambda: Finding(detector="d", saw="s", confidence=1.01),
        lambda: Finding(detector="d", saw="s", confidence=1, level="panic"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(UsageError):
        make()


def test_a_detector_may_be_a_function_a_class_or_an_object() -> None:
    def too_long(history: Trace) -> str | None:
        return f"{len(history)} steps" if len(history) > 2 else None

    class Shouting:
        def __call__(self, history: Trace) -> list[Finding]:
            loud = [one for one in history if (one.action or "").isupper()]
            return [
                Finding(detector="shouting", about=f"{one.step}", saw="loud", confidence=0.8)
                for one in loud
            ]

    monitor = DriftMonitor([too_long, Shouting, Repetition(2)])
    for action in ("HELP", "a", "a"):
        monitor.observe(Observation(action=action))
    assert [(one.detector, one.saw) for one in monitor.look().findings] == [
        ("too_long", "3 steps"),
        ("shouting", "loud"),
        ("repetition", "a: 2 times in a row"),
    ]


def test_an_answer_that_is_none_of_these_is_refused() -> None:
    with pytest.raises(UsageError, match="answered 7"):
        look(lambda history: 7, trace(failed=[False]))


def test_looking_again_gives_the_same_answer() -> None:
    monitor = DriftMonitor(default_detectors(stalled_after=5))
    for one in DRIFTING["stalled"][1]:
        monitor.observe(one)
    assert monitor.look() == monitor.look()
    assert monitor.look().since == 4


def test_only_the_last_observations_count() -> None:
    monitor = DriftMonitor([ErrorRate(window=100)], window=5)
    for failed in [True] * 20 + [False] * 5:
        monitor.observe(Observation(failed=failed))
    assert len(monitor.history) == 5 and not monitor.look()


def test_states_are_kept_of_the_last_twelve_only() -> None:
    monitor = DriftMonitor([])
    for step in range(30):
        monitor.observe(Observation(step=step, values={"n": step}))
    kept = [one.values["n"] for one in monitor.history if one.values is not None]
    assert len(monitor.history) == 30 and kept == list(range(18, 30))


def test_after_a_restart_what_was_seen_before_does_not_count() -> None:
    monitor = DriftMonitor(default_detectors(stalled_after=1))
    for one in trace(progress=[30] * 8):
        monitor.observe(one)
    assert monitor.look()
    monitor.restart(Observation(step=9, progress=30))
    assert not monitor.look()
    for step in range(10, 12):
        monitor.observe(Observation(step=step, progress=30))
        assert not monitor.look()
    monitor.observe(Observation(step=12, progress=30))
    assert monitor.look(), "it is armed again, and needs as much to see as before"


def test_what_is_wrong_with_the_restored_state_itself_counts_once_it_was_right() -> None:
    monitor = DriftMonitor([Schema({"plan": list})])
    monitor.observe(Observation(values={}))
    assert monitor.look()
    monitor.restart(Observation(values={}))
    for _ in range(3):
        report = monitor.look()
        assert not report and report.known[0].about == "plan"
        monitor.observe(Observation(values={}))
    monitor.observe(Observation(values={"plan": []}))
    assert not monitor.look().known
    monitor.observe(Observation(values={}))
    assert monitor.look()


def test_a_report_is_true_only_if_it_advises_a_restore() -> None:
    slow = look(*DRIFTING["slowing"][:2], sensitivity=0.01)
    assert slow.findings and slow.level == "warn" and not slow
    gone = look(*DRIFTING["own schema, gone"][:2])
    assert gone.level == "note" and not gone
    assert look(*DRIFTING["schema, missing"][:2]).level == "restore"
    assert look(*DRIFTING["schema, missing"][:2])
    assert look(Repetition(), []).level is None


@pytest.mark.parametrize(
    ("steps", "level"), [(5, None), (6, "note"), (11, "warn"), (16, "restore")]
)
def test_more_evidence_raises_the_level(steps: int, level: str | None) -> None:
    assert look(StalledProgress(5), trace(progress=[7] * steps)).level == level


def test_the_steps_of_the_highest_level_say_since_when() -> None:
    findings = (
        Finding(detector="a", saw="a", confidence=1, level="warn", since=3),
        Finding(detector="b", saw="b", confidence=1, since=8),
        Finding(detector="c", saw="c", confidence=1),
    )
    assert DriftReport(findings=findings).since == 8
    assert DriftReport(findings=findings[:1]).since == 3


def test_the_same_action_on_a_changing_state_may_be_work() -> None:
    same = trace(action=["answer"] * 12, values=[{"n": 1}] * 12)
    assert look(Repetition(), same).level == "restore"
    changing = trace(action=["answer"] * 12, values=[{"n": n} for n in range(12)])
    assert look(Repetition(), changing).level == "note"
    assert look(Repetition(exact=True), changing).level == "restore"


numbers = st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(math.nan))
leaves = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=2))
values = st.dictionaries(
    st.sampled_from(["a", "b", "c.d", "e"]),
    st.one_of(leaves, st.dictionaries(st.sampled_from("xy"), leaves), st.lists(leaves)),
)
observations = st.builds(
    Observation,
    step=st.integers(0, 50),
    task=st.sampled_from(["", "t"]),
    action=st.one_of(st.none(), st.sampled_from(["a", "b", ""])),
    progress=numbers,
    failed=st.booleans(),
    seconds=st.one_of(st.none(), st.floats(0, 1e4)),
    values=st.one_of(st.none(), values),
    idle=st.booleans(),
    backlog=st.one_of(st.none(), st.integers(0, 99)),
    size=st.one_of(st.none(), st.integers(0, 10**7)),
    missing=st.sampled_from(["", "", "", "memory"]),
    damage=st.sampled_from(["", "", "", "torn"]),
)
histories = st.lists(observations, max_size=30)
ALL = [
    *default_detectors(),
    Schema({"a": int, "e.x": str}),
    Invariants({"a": lambda values: values["a"]}),
]


@given(histories)
def test_a_higher_sensitivity_finds_at_least_what_a_lower_one_does(history: Trace) -> None:
    found = [
        {
            (one.detector, one.about)
            for detector in ALL
            for one in look(detector, history, how).findings
        }
        for how in ("low", "normal", "high", 0.01)
    ]
    assert found[0] <= found[1] <= found[2] <= found[3]


@given(histories)
def test_every_finding_is_sound_in_itself(history: Trace) -> None:
    steps = {one.step for one in history}
    for detector in ALL:
        for one in look(detector, history, 0.01).findings:
            assert 0 < one.confidence <= 1 and one.saw
            assert one.since in steps


@given(histories, observations)
def test_no_restore_is_answered_by_another_at_once(history: Trace, restored: Observation) -> None:
    monitor = DriftMonitor(ALL, sensitivity="high")
    for one in history:
        monitor.observe(one)
    monitor.restart(restored)
    assert not monitor.look()


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_more_evidence_is_never_less_certain(one: float, two: float) -> None:
    low, high = sorted([one, two])
    assert 0 <= confidence_of(low) <= confidence_of(high) <= 1


def test_a_threshold_is_what_normal_sensitivity_reports() -> None:
    assert confidence_of(1) == report_threshold("normal")
    assert confidence_of(3) == level_threshold(report_threshold("normal"), "restore")
    assert confidence_of(0.5) < report_threshold("high") < confidence_of(0.6)
    assert confidence_of(1.9) < report_threshold("low") < confidence_of(2)
