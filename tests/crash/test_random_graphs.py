"""Graphs made by chance repeat no recorded call and end in the same state, whatever stops them."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from proof.graphs.trial import try_out
from tests.crash.media import FULL, times

TRIALS = times(2, 1_000, "SUREHOLD_TRIALS")
AT_ONCE = 4 if FULL else 1
"""Trials side by side: most of their time is spent waiting for leases to end."""

pytestmark = pytest.mark.timeout(14_400 if FULL else 600)


def test_recorded_calls_are_not_repeated_and_final_states_are_equal(
    tmp_path: Path, finding: Callable[..., None]
) -> None:
    faults: Counter[str] = Counter()
    calls = asked = 0
    wrong: list[str] = []
    directories = [tmp_path / str(seed) for seed in range(TRIALS)]
    for directory in directories:
        directory.mkdir()
    with ProcessPoolExecutor(AT_ONCE, multiprocessing.get_context("fork")) as pool:
        for seen in pool.map(try_out, range(TRIALS), directories):
            faults += seen.faults
            calls, asked = calls + seen.calls, asked + seen.asked
            wrong += seen.wrong
    del faults["none"]
    kinds = ", ".join(f"{fault} {count:,}" for fault, count in sorted(faults.items()))
    finding(
        "graphs made by chance, stopped in every way",
        TRIALS,
        f"{calls:,} calls, {faults.total():,} faults ({kinds}), a person asked {asked:,} times; "
        f"{len(wrong)} recorded calls repeated, unasked repeats, other final states",
    )
    assert wrong == []
    assert calls > TRIALS and faults.total() > TRIALS


def test_calls_that_are_not_recorded_are_seen_to_be_repeated(
    tmp_path: Path, finding: Callable[..., None]
) -> None:
    noticed = 0
    for seed in range(2):
        directory = tmp_path / str(seed)
        directory.mkdir()
        noticed += bool(try_out(seed, directory, forgetful=True).wrong)
    finding("graphs whose calls are not recorded", 2, f"{noticed} noticed", control=True)
    assert noticed >= 1
