"""Whatever bytes a reader is given, its answer is a value or an error of ours.

The short form damages sound input by chance; the full one is guided by what the input reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from proof.fuzzing import NoFuzzerError, fuzz, fuzz_by_chance, fuzzer
from proof.targets import TARGETS
from tests.crash.media import FULL, times

RUNS = times(500, 1_000_000)

pytestmark = pytest.mark.timeout(14_400 if FULL else 600)


@pytest.fixture
def guided() -> None:
    """Where the full form cannot run, it says why."""
    if not FULL:
        return
    try:
        fuzzer()
    except NoFuzzerError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("guided")
@pytest.mark.parametrize("target", TARGETS)
def test_any_bytes_are_a_value_or_an_error_of_ours(
    target: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    if FULL:
        count, wrong = fuzz(target, RUNS, tmp_path)
        assert not wrong
    else:
        count = fuzz_by_chance(target, RUNS)
    finding(f"fuzzing of the {target}", count, "0 unexpected errors, 0 hangs")
    assert count >= RUNS


@pytest.mark.usefixtures("guided")
def test_the_fuzzer_finds_a_fault_that_was_planted(
    tmp_path: Path, finding: Callable[..., None]
) -> None:
    if FULL:
        count, wrong = fuzz("planted fault", 100_000, tmp_path)
        assert "ZeroDivisionError" in wrong or "TypeError" in wrong, wrong
    else:
        count = 3 * RUNS
        with pytest.raises((ZeroDivisionError, TypeError)):
            fuzz_by_chance("planted fault", count)
    finding("fuzzing of a reader with a planted fault", count, "found", control=True)
