from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surehold.core.policy.triggers import Clockwork, Triggers
from surehold.errors import UsageError


def test_with_no_trigger_every_call_is_due() -> None:
    clock = Clockwork(Triggers())
    assert [clock.due(step, 0.0) for step in (0, 0, 1)] == ["every step"] * 3


def test_the_first_call_only_sets_the_base() -> None:
    clock = Clockwork(Triggers(frequency=5, interval=60.0))
    assert clock.due(41, 1_000_000.0) is None
    assert clock.due(45, 1_000_059.9) is None
    assert clock.due(46, 1_000_059.9) == "every 5 steps"
    assert clock.due(45, 1_000_060.0) == "every 60 s"


def test_a_run_that_begins_saves_its_nth_step() -> None:
    clock = Clockwork(Triggers(frequency=1), step=0)
    assert clock.due(1, 0.0) == "every step"


def test_what_was_saved_before_a_resume_counts() -> None:
    clock = Clockwork(Triggers(frequency=5), step=40)
    assert clock.due(44, 0.0) is None
    assert clock.due(45, 0.0) == "every 5 steps"


def test_seconds_count_from_the_resume() -> None:
    clock = Clockwork(Triggers(interval=10), step=40, now=500.0)
    assert clock.due(41, 509.0) is None
    assert clock.due(42, 510.0) == "every 10 s"


def test_a_save_starts_both_counts_anew_whatever_it_was_for() -> None:
    clock = Clockwork(Triggers(frequency=5, interval=60, nodes=["review"]), step=0, now=0.0)
    assert clock.due(3, 30.0, node="review") == "node review"
    clock.saved(3, 30.0)
    assert clock.due(7, 89.0) is None
    assert clock.due(8, 31.0) == "every 5 steps"
    assert clock.due(4, 90.0) == "every 60 s"


def test_a_failed_save_stays_due() -> None:
    clock = Clockwork(Triggers(frequency=5), step=0)
    assert clock.due(5, 0.0) is not None
    assert clock.due(6, 0.0) is not None
    clock.saved(6, 0.0)
    assert clock.due(7, 0.0) is None


def test_any_trigger_is_enough() -> None:
    triggers = Triggers(
        frequency=10, interval=10, predicate=lambda state: state["done"], nodes=["ask"]
    )

    def due(step: int, now: float, node: str, done: bool) -> str | None:
        return Clockwork(triggers, step=0, now=0.0).due(step, now, node=node, state={"done": done})

    assert due(9, 9.0, "tell", False) is None
    assert due(10, 9.0, "tell", False) == "every 10 steps"
    assert due(9, 10.0, "tell", False) == "every 10 s"
    assert due(9, 9.0, "ask", False) == "node ask"
    assert due(9, 9.0, "tell", True) == "predicate"


def test_the_predicate_is_not_asked_without_a_state() -> None:
    clock = Clockwork(Triggers(predicate=lambda state: "done" in state))
    assert clock.due(1, 0.0) is None
    assert clock.due(1, 0.0, state={}) is None
    assert clock.due(1, 0.0, state={"done": 1}) == "predicate"


def test_a_run_taken_back_counts_from_where_it_went() -> None:
    clock = Clockwork(Triggers(frequency=5), step=40)
    assert clock.due(10, 0.0) is None
    assert clock.due(15, 0.0) == "every 5 steps"


def test_a_clock_set_back_counts_from_where_it_went() -> None:
    clock = Clockwork(Triggers(interval=60), step=0, now=3600.0)
    assert clock.due(1, 10.0) is None
    assert clock.due(2, 70.0) == "every 60 s"


def test_one_node_may_be_given_as_it_is() -> None:
    assert Triggers(nodes="review") == Triggers(nodes=["review"])


@pytest.mark.parametrize(
    "wrong",
    [
        {"frequency": 0},
        {"frequency": -1},
        {"frequency": 1.5},
        {"frequency": True},
        {"frequency": "5"},
        {"interval": 0},
        {"interval": -1.0},
        {"interval": math.nan},
        {"interval": math.inf},
        {"interval": True},
        {"interval": "60"},
        {"predicate": "done"},
        {"nodes": [1]},
        {"nodes": [""]},
    ],
    ids=repr,
)
def test_a_wrong_trigger_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))) as caught:
        Triggers(**wrong)
    assert caught.value.hint


@given(frequency=st.integers(1, 20), start=st.integers(0, 100), steps=st.integers(1, 100))
def test_no_more_than_frequency_steps_are_ever_unsaved(
    frequency: int, start: int, steps: int
) -> None:
    clock, last, saves = Clockwork(Triggers(frequency=frequency), step=start), start, 0
    for step in range(start + 1, start + steps + 1):
        if clock.due(step, 0.0):
            clock.saved(step, 0.0)
            assert step - last == frequency
            last, saves = step, saves + 1
    assert saves == steps // frequency
