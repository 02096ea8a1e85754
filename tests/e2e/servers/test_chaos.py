"""Workers over PostgreSQL while they, their connections and the database fail.

The judge reads a file that only the steps write, and when each worker had an answer of the
database: see `proof.chaos`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from proof.chaos.trial import try_out
from tests.crash.media import times
from tests.servers import pgbouncer_program

RUNS = times(24, 1_000, "SUREHOLD_CHAOS_RUNS")
FAULTS = times(6, 200, "SUREHOLD_CHAOS_FAULTS")
LONG = 4 * 3600


@pytest.mark.timeout(LONG)
def test_no_run_is_lost_and_no_step_begun_that_is_not_owned(
    home: Path, finding: Callable[..., None]
) -> None:
    outcome = try_out(home, runs=RUNS, faults=FAULTS)
    assert outcome.is_sound, f"{outcome}: {outcome.verdict}"
    finding("chaos, workers and PostgreSQL", FAULTS, f"{outcome}")


@pytest.mark.long
@pytest.mark.timeout(LONG)
@pytest.mark.skipif(pgbouncer_program() is None, reason="pgbouncer is not installed: make system")
def test_nor_through_a_pooler(home: Path, finding: Callable[..., None]) -> None:
    outcome = try_out(home, runs=RUNS, faults=FAULTS, pooler=True, seed=31)
    assert outcome.is_sound, f"{outcome}: {outcome.verdict}"
    finding("chaos, through PgBouncer", FAULTS, f"{outcome}")


@pytest.mark.long
@pytest.mark.timeout(LONG)
def test_the_judge_sees_steps_that_are_begun_without_a_look_at_the_clock(
    home: Path, finding: Callable[..., None]
) -> None:
    runs, faults = max(40, RUNS // 10), max(10, FAULTS // 10)
    outcome = try_out(home, runs=runs, faults=faults, kinds=("stop", "hole"), forgetful=True)
    assert outcome.verdict.late
    finding("chaos without a look at the clock", faults, f"{outcome}", control=True)
