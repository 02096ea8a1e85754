"""Races in a run that is killed: one winner each, and no effect is made twice."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.media import FULL, times
from tests.crash.processes import ForkServer
from tests.crash.race_victim import RUN, racing

RACES = times(30, 1000, "SUREHOLD_TRIALS")
KILLS = times(4, 200, "SUREHOLD_KILLS")
A_LIFE = RACES // (KILLS + 2)
"""New lines after which a life waits to be killed. Each race writes one at least: some are left."""

pytestmark = pytest.mark.timeout(3_600 if FULL else 600)


def test_a_race_has_one_winner_and_repeats_no_effect(
    tmp_path: Path, server: ForkServer, finding: Callable[..., Any]
) -> None:
    url, log = f"sqlite:///{tmp_path}/runs.db", tmp_path / "log"
    log.touch()
    chance, kills = random.Random(7), 0
    while True:
        most, seen = A_LIFE if kills < KILLS else 0, log.stat().st_size
        with server.start("tests.crash.race_victim:execute", url, str(log), most, RACES) as victim:
            if kills < KILLS:
                while log.stat().st_size == seen:
                    time.sleep(0.002)
                time.sleep(chance.uniform(0, 0.05))
                victim.kill()
            if victim.wait() == 0:
                break
            assert victim.exit_code == -signal.SIGKILL
        kills += 1
    result = asyncio.run(racing.resume(RUN, storage=url))
    lines = log.read_text().splitlines()
    paid = Counter(line for line in lines if line.startswith("paid"))
    told = {line for line in lines if line.startswith("won")}
    assert len(result.value) == RACES
    assert max(paid.values()) == 1, "an effect was made twice"
    assert told == {f"won {number} {name}" for number, name in enumerate(result.value)}
    assert kills == KILLS
    wins = ", ".join(f"{name} {count}" for name, count in sorted(Counter(result.value).items()))
    finding("races in a run", RACES, f"killed {kills} times: one winner each ({wins})")
