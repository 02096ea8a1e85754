"""A graph with loops, branches, parallel items, a nested graph and effects, killed with SIGKILL.

What a node or an effect did is counted outside the journal. The full matrix, every append for
every setting, runs with SUREHOLD_FULL=1.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.media import DURABLE, FULL, crossed
from tests.crash.processes import child_environment

MEDIA = DURABLE if FULL else ("sqlite", "file", "sqlite-zstd-encrypted", "file-gzip")
OTHER_MEDIA = DURABLE if FULL else ("sqlite", "file-encrypted")
WORKERS = 2  # of the victim's parallel node: so many items are in flight at once


def rounds(base: Path, medium: str, interval: int, when: str, stride: int) -> Any:
    """What each round of kill and resume came to, and the run that was never killed."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.crash.graph_victim", str(base), medium),
            *(str(interval), when, str(1 if FULL else stride)),
        ],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["rounds"]
    for one in told["rounds"]:
        assert one["killed"] and one["status"] == 0, done.stderr
        for fact in ("state", "step", "status", "path", "problems"):
            assert one["end"][fact] == told["whole"]["end"][fact], fact
    assert told["whole"]["end"]["problems"] == []
    assert set(told["whole"]["counts"].values()) == {1}
    return told


def of(kind: str, counts: dict[str, int]) -> dict[str, int]:
    return {line: count for line, count in counts.items() if line.split()[0] == kind}


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("medium", MEDIA)
def test_killed_at_any_append_each_node_and_effect_is_executed_once(
    medium: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    told = rounds(tmp_path / "base", medium, 1, "after", 3 if medium in ("sqlite", "file") else 11)
    for one in told["rounds"]:
        assert one["counts"] == told["whole"]["counts"]
    finding(
        f"SIGKILL of a graph after an append, {medium}",
        len(told["rounds"]),
        "each node and effect executed once",
    )


@pytest.mark.timeout(1000)
@pytest.mark.parametrize("medium", OTHER_MEDIA)
def test_killed_before_any_append_only_what_was_in_flight_is_repeated(
    medium: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    told = rounds(tmp_path / "base", medium, 1, "before", 9)
    for one in told["rounds"]:
        repeated = {k: n for k, n in one["counts"].items() if n != told["whole"]["counts"][k]}
        items = [line for line in repeated if line.startswith("item ")]
        assert len(repeated) <= 1 or (len(items) == len(repeated) == WORKERS)
        assert set(repeated.values()) <= {2}
        assert not any(line.startswith("effect pay") for line in repeated)
        assert one["counts"].keys() == told["whole"]["counts"].keys()
    finding(
        f"SIGKILL of a graph before an append, {medium}",
        len(told["rounds"]),
        "only what was in flight repeated, no payment",
    )


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("interval", "medium"), crossed((3, 7), OTHER_MEDIA))
def test_with_an_interval_nodes_run_again_and_effects_do_not(
    medium: str, interval: int, tmp_path: Path, finding: Callable[..., None]
) -> None:
    told = rounds(tmp_path / "base", medium, interval, "after", 9)
    for one in told["rounds"]:
        for kind in ("effect", "item", "link"):
            assert of(kind, one["counts"]) == of(kind, told["whole"]["counts"])
    if FULL:
        again = [of("node", one["counts"]) for one in told["rounds"]]
        assert any(max(counts.values()) > 1 for counts in again)
    finding(
        f"SIGKILL of a graph that saves every {interval} steps, {medium}",
        len(told["rounds"]),
        "no recorded effect repeated",
    )
