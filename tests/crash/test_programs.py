"""Programs made by chance do what they do undisturbed, whatever stops them."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from proof.programs.source import DOORS
from proof.programs.trial import try_out
from tests.crash.media import FULL, times

TRIALS = times(len(DOORS), 2_000, "SUREHOLD_TRIALS")
FIRST = int(os.environ.get("SUREHOLD_FIRST", "0"))
"""The first seed, to make a long proof in parts."""

pytestmark = pytest.mark.timeout(14_400 if FULL else 600)


def test_programs_repeat_nothing_do_nothing_while_leaving_and_end_alike(
    tmp_path: Path, finding: Callable[..., None]
) -> None:
    faults, ends = Counter[str](), Counter[str]()
    calls = asked = 0
    wrong: list[str] = []
    seeds = range(FIRST, FIRST + TRIALS)
    directories = [tmp_path / str(seed) for seed in seeds]
    for directory in directories:
        directory.mkdir()
    # A process of its own, because this one may have threads, which a fork loses.
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        for seen in pool.map(try_out, seeds, directories):
            faults += seen.faults
            ends[seen.ended] += 1
            calls, asked = calls + seen.calls, asked + seen.asked
            wrong += seen.wrong
    del faults["none"]
    kinds = ", ".join(f"{fault} {count:,}" for fault, count in sorted(faults.items()))
    ended = ", ".join(f"{count:,} {end}" for end, count in sorted(ends.items()))
    finding(
        f"programs made by chance, from seed {FIRST}, at {len(DOORS)} doors",
        TRIALS,
        f"{calls:,} calls, {faults.total():,} faults ({kinds}), a person asked {asked:,} times;"
        f" ended: {ended}; {len(wrong)} recorded calls repeated, calls made while leaving, wedged"
        " runs, or other ends",
    )
    assert wrong == []
    assert calls > TRIALS and faults.total() > TRIALS


def test_calls_that_are_not_recorded_are_seen_to_be_repeated(
    tmp_path: Path, finding: Callable[..., None]
) -> None:
    noticed = 0
    for seed in range(3):
        directory = tmp_path / str(seed)
        directory.mkdir()
        noticed += bool(try_out(seed, directory, door="async function", forgetful=True).wrong)
    finding("programs whose calls are not recorded", 3, f"{noticed} noticed", control=True)
    assert noticed >= 1
