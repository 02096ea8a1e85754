"""A fleet of twelve rounds, killed with SIGKILL at any append.

Model calls are counted outside the journal. SUREHOLD_FULL=1 tries every append of both storages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.crash.media import FULL
from tests.crash.processes import child_environment


def victim(base: Path, scheme: str, when: str, stride: int) -> Any:
    """Run the fleet, killed at every *stride*th append, and compare each end with the whole run."""
    arguments = (str(base), scheme, when, str(1 if FULL else stride))
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.fleet_victim", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment(),
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    whole = told["whole"]
    assert (whole["end"]["rounds"], whole["end"]["status"]) == (12, "completed")
    assert whole["end"]["state"]["reset_count"] == 1
    assert whole["end"]["usage"]["calls"] == sum(whole["calls"].values())
    assert told["kills"]
    for one in told["kills"]:
        assert one["killed"] and one["status"] == 0, done.stderr
        for fact in ("state", "answer", "rounds", "status", "usage", "problems"):
            assert one["end"][fact] == whole["end"][fact], fact
    assert whole["end"]["problems"] == []
    return told


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("scheme", "stride"), [("sqlite", 9), ("file", 11)])
def test_killed_after_any_append_a_fleet_ends_as_if_it_had_not_been(
    scheme: str, stride: int, tmp_path: Path
) -> None:
    told = victim(tmp_path / "base", scheme, "after", stride)
    for one in told["kills"]:
        assert one["calls"] == told["whole"]["calls"]


@pytest.mark.timeout(1000)
def test_killed_before_any_append_only_the_call_in_flight_is_made_again(tmp_path: Path) -> None:
    told = victim(tmp_path / "base", "sqlite", "before", 13)
    for one in told["kills"]:
        assert one["calls"].keys() == told["whole"]["calls"].keys()
        assert sum(one["calls"].values()) - sum(told["whole"]["calls"].values()) in (0, 1)
