"""Killed at any moment, a process loses nothing that was acknowledged, and the next one goes on."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.crash.judging import Told
from tests.crash.media import DURABLE, FULL, SERVERS, open_medium, strays, times
from tests.crash.processes import Child, ForkServer
from tests.crash.workload import message

from surehold import CheckpointManager, State

KILLS = times(10, 10_000, "SUREHOLD_KILLS")
LIVES = 10
"""How many processes work in a directory, each killed, before a new one is begun."""
LONGEST, SHORT = 0.06, 0.003
"""Seconds that a process lives, or goes on living once it has told enough."""

pytestmark = pytest.mark.timeout(7_200 if FULL else 600)


def lived(child: Child, chance: random.Random) -> list[list[Any]]:
    """Kill a worker after some time, or shortly after it has told so much; what it told."""
    heard: list[list[Any]] = []
    longest = LONGEST
    if chance.random() < 0.7:
        heard, longest = child.hear(int(chance.expovariate(1 / 30))), SHORT
    time.sleep(chance.random() * longest)
    child.kill()
    return [*heard, *child.hear_all()]


def kill_and_check(
    medium: str, directory: Path, server: ForkServer, kills: int, chance: random.Random
) -> int:
    """Kill workers again and again, and check what they told; the saves that they told of."""
    acknowledged = 0
    for life in range(kills):
        if life % LIVES == 0:
            told, place = Told(), directory / str(life)
            place.mkdir()
        with server.start("tests.crash.workload:work", medium, str(place), life) as child:
            told.hear(lived(child, chance))
        thorough = life % LIVES == LIVES - 1 or life == kills - 1
        told.check(medium, place, thorough=thorough)
        if thorough:
            acknowledged += len(told.acknowledged)
            shutil.rmtree(place)
    return acknowledged


@pytest.mark.parametrize("medium", (*DURABLE, *SERVERS))
def test_a_kill_at_any_moment_loses_nothing_and_leaves_nothing(
    medium: str, tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    acknowledged = kill_and_check(medium, tmp_path, server, KILLS, random.Random(medium))
    finding(f"SIGKILL, {medium}", KILLS, f"{acknowledged:,} saves acknowledged, 0 lost")
    assert acknowledged > KILLS


def kill_and_resume(
    medium: str, directory: Path, server: ForkServer, tries: int, chance: random.Random
) -> tuple[list[float], int]:
    """Kill a loop and start it again; the seconds until each began, and the last step."""
    target, arguments = "tests.crash.workload:loop", (medium, str(directory))
    low = high = 0
    waits = []
    for attempt in range(1, tries + 1):
        started = time.perf_counter()
        with server.start(target, *arguments) as child:
            began = child.hear(1)
            waits.append(time.perf_counter() - started)
            told = [*began, *lived(child, chance)]
        match began:
            case [["began", step, number, state]]:
                assert number == attempt, "it was held by the dead"
                assert low <= step <= high
                assert state == ({"done": step} if step else {})
            case _:
                raise AssertionError(told)
        low = max([step, *(line[1] for line in told if line[0] == "saved")])
        high = max([step, *(line[1] for line in told if line[0] == "save")])
        open_medium(medium, directory).close()
        assert strays(directory) == []
    return waits, low


@pytest.mark.parametrize("medium", (*DURABLE, *SERVERS))
def test_a_killed_loop_that_is_started_again_at_once_goes_on(
    medium: str, tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    tries = max(5, min(KILLS // 5, 1_000))
    waits, low = kill_and_resume(medium, tmp_path, server, tries, random.Random(medium))
    finding(
        f"SIGKILL and started again at once, {medium}",
        len(waits),
        f"resumed after {sorted(waits)[len(waits) // 2] * 1000:.0f} ms, at step {low:,} in the end",
    )
    assert low > 0


def test_the_test_sees_a_save_that_is_acknowledged_too_early(
    tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    seen = 0
    for life in range(8):
        directory = tmp_path / str(life)
        directory.mkdir()
        told = Told()
        with server.start("tests.crash.workload:boast", "sqlite", str(directory)) as child:
            heard = child.hear(2 + life)
            child.kill()
            told.hear([*heard, *child.hear_all()])
        with suppress(AssertionError):
            told.check("sqlite", directory)
            continue
        seen += 1
    finding("a save that is acknowledged too early", 8, f"{seen} noticed", control=True)
    assert seen > 0


def test_what_the_dead_had_sent_may_be_stored_while_it_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [
        State.new({"messages": [], "round": 0}, run_id="b")
        .set("messages", [message("b", n) for n in range(1, step + 1)])
        .set("round", step)
        .at(step=step)
        for step in (1, 2)
    ]
    with open_medium("file", tmp_path) as storage, CheckpointManager(storage) as dead:
        told, resume = Told(), CheckpointManager.resume_from_latest
        told.hear([["save", "b", 1], ["saved", "b", 1, dead.save_checkpoint(late.pop(0))]])
        told.hear([["save", "b", 2]])

        def resume_later(manager: CheckpointManager, run_id: str) -> object:
            if late:
                dead.save_checkpoint(late.pop())
            return resume(manager, run_id)

        monkeypatch.setattr(CheckpointManager, "resume_from_latest", resume_later)
        told.check("file", tmp_path)
        assert not late
