"""Workers in simulated time, among nodes that die, freeze and lose touch with the database."""

from __future__ import annotations

import pytest
from proof.simulation.__main__ import failing, scaled
from proof.simulation.fleet import Plan

from surehold.engine.leases import RunLease

PLAN = Plan(
    workers=10,
    concurrency=2,
    backlog=250,
    timers=250,
    tenants=5,
    spread=60.0,
    lease=2.0,
    step_seconds=0.2,
)
MINUTE = 6.0


def test_every_run_ends_and_no_step_begins_without_the_right() -> None:
    told = failing(PLAN, MINUTE)
    counts = told["counts"]
    assert told["ended"] == told["runs"] == 500
    assert counts["steps recorded"] == 1500
    assert counts["steps begun without a lease"] == 0
    assert counts["recorded steps begun again"] == 0
    assert counts["attempts lost"] > 0  # the faults were felt
    assert len(told["faults"]) == 6
    index, share = told["fairness"].values()
    assert index > 0.9 and share < 0.4  # of five tenants the first has nine tenths of the backlog


def test_without_the_look_at_the_clock_steps_begin_that_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RunLease, "ensure", lambda _: None)
    assert failing(PLAN, MINUTE)["counts"]["steps begun without a lease"] > 0


def test_workers_add_up_until_the_database_is_busy() -> None:
    few, more = (scaled(count, 10.0, step_seconds=2.0) for count in (1, 4))
    assert 3.0 < more["steps"] / few["steps"] < 5.0
    slow = scaled(4, 2.0, step_seconds=0.02, processors=1)
    assert sum(slow["processors"].values()) > 0.9
    assert slow["steps"] < 0.7 * slow["free"]
