"""An agent of twelve cycles, with a plan and tools, killed with SIGKILL and started again.

Calls of the model and of tools are counted outside the journal. Killed at every append, on every
medium, with SUREHOLD_FULL=1.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.agent_victim import ASKING, CYCLES, DRIFTING, FAMILY, MOMENTS
from tests.crash.media import DURABLE, FULL, crossed, spread

MEDIA = DURABLE if FULL else ("sqlite", "file-gzip")
WHEN = ("before-append", "after-append")


def told_by(base: Path, medium: str, what: str, stride: int = 1, *more: str) -> Any:
    """What each round of kills came to, beside the run that was never killed."""
    told_what = (str(base), medium, what, str(stride), *more)
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.agent_victim", *told_what],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rounds(base: Path, medium: str, what: str, stride: int = 1, *more: str) -> Any:
    """The same, each round compared with the run that was never killed."""
    told = told_by(base, medium, what, stride, *more)
    whole = told["whole"]
    assert whole["kills"] == 0 and set(whole["counts"].values()) == {1}
    assert (whole["end"]["result"]["status"], whole["end"]["problems"]) == ("completed", [])
    # How many appends there are hangs on which of them shared a commit, so that the last numbers
    # may not be reached.
    assert sum(one["kills"] > 0 for one in told["rounds"]) >= len(told["rounds"]) - 2
    for one in told["rounds"]:
        assert one["end"]["result"] == whole["end"]["result"]
        assert one["end"]["problems"] == []
        assert done_by(one).keys() == done_by(whole).keys()
        assert calls(one, "model") <= calls(whole, "model") + one["kills"]
        assert {n for line, n in done_by(one).items() if line.startswith("charge ")} == {1}
        keys = [line.split()[1] for line in one["counts"] if line.startswith("key ")]
        assert sorted(keys) == sorted({*keys})  # a call that is made again has the same key
    return told


def calls(one: Any, kind: str) -> int:
    return sum(count for line, count in one["counts"].items() if line.split()[0] == kind)


def done_by(one: Any) -> dict[str, int]:
    """What the model and the tools did."""
    about = ("resumed", "parked", "key")
    return {line: n for line, n in one["counts"].items() if line.split()[0] not in about}


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("medium", spread(MEDIA, 1))
def test_killed_in_every_cycle_an_agent_ends_as_if_nothing_had_happened(
    medium: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    told = rounds(tmp_path / "base", medium, "cycles")
    by_moment = dict(zip(MOMENTS, told["rounds"], strict=True))
    assert by_moment["model"]["kills"] == CYCLES + 1  # the plan's call, too
    assert by_moment["before"]["kills"] == by_moment["after"]["kills"] == CYCLES - 1
    for moment in ("before", "after"):
        assert calls(by_moment[moment], "model") == calls(told["whole"], "model")
        assert calls(by_moment[moment], "parked") == calls(told["whole"], "charge")
    assert calls(by_moment["model"], "resumed") == CYCLES + 1
    finding(
        f"SIGKILL of an agent in every cycle, {medium}",
        sum(one["kills"] for one in told["rounds"]),
        "the same result, no payment twice, at most one model call more per kill",
    )


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("when", "medium"), crossed(WHEN, MEDIA))
def test_killed_at_any_append_an_agent_ends_as_if_nothing_had_happened(
    medium: str, when: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    told = rounds(tmp_path / "base", medium, when, 1 if FULL else 9)
    finding(
        f"SIGKILL of an agent {when.replace('-', ' an ')}, {medium}",
        len(told["rounds"]),
        "the same result, no payment twice",
    )


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("what", ["cycles", "before-append", "after-append"])
def test_killed_inside_a_child_its_parent_goes_on_with_it(
    what: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    told = rounds(tmp_path / "base", "sqlite", what, 1 if FULL else 13, FAMILY)
    answer = told["whole"]["end"]["result"]["answer"]
    assert answer.startswith("the child said: done after")
    finding(
        f"SIGKILL of an agent that is another's tool, {what}",
        sum(one["kills"] for one in told["rounds"]),
        "the same result, no payment twice",
    )


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("when", "medium"), crossed(WHEN, MEDIA[::-1]))
def test_killed_at_any_append_an_agent_that_is_taken_back_for_drift_keeps_true_accounts(
    medium: str, when: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    told = told_by(tmp_path / "base", medium, when, 1 if FULL else 16, DRIFTING)
    whole = told["whole"]
    assert whole["counts"]["back"] == 1 and whole["counts"]["note 4"] == 5
    for one in (whole, *told["rounds"]):
        end, counts = one["end"], one["counts"]
        assert (end["result"]["status"], end["problems"]) == ("completed", [])
        known = end["result"]["budget"]["model_calls"]
        assert known <= calls(one, "model") <= known + one["kills"], "what was spent stays spent"
        assert {n for line, n in counts.items() if line.startswith("charge ")} == {1}
        keys = [line.split()[2] for line in counts if line.startswith("key ")]
        assert len(keys) == len({*keys}), "a key stands for one call, made again or not"
        made = sum(n for line, n in counts.items() if line.startswith("key "))
        assert made <= len(keys) + one["kills"], "what is done anew has another key"
    finding(
        f"SIGKILL of an agent that is taken back for drift, {when.replace('-', ' an ')}, {medium}",
        sum(one["kills"] for one in told["rounds"]),
        "completed, all that was spent accounted for, no payment twice",
    )


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("when", WHEN)
def test_killed_at_any_append_an_answer_reaches_the_agent_inside_that_asked_and_is_kept(
    when: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    told = told_by(tmp_path / "base", "sqlite", when, 1 if FULL else 3, ASKING)
    assert told["whole"]["end"]["result"]["answer"] == "answer 2"
    assert len(told["rounds"]) > 5
    for one in (told["whole"], *told["rounds"]):
        end, counts = one["end"], one["counts"]
        assert (end["result"]["status"], end["problems"]) == ("completed", [])
        assert counts["charge 1"] == 1
        (said,) = (line for line in counts if line.startswith("told "))  # the same each time
        assert said == f"told {end['result']['answer']}"
        assert calls(one, "answered") <= 2 + one["kills"]
    finding(
        f"SIGKILL while a question two agents below is answered, {when.replace('-', ' an ')}",
        sum(one["kills"] for one in told["rounds"]),
        "completed, the first answer kept, no payment twice",
    )
