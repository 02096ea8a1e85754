"""Processes that race for one run: one wins each round, and a stale writer is refused."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.crash.media import FULL, open_medium, times
from tests.crash.processes import ForkServer

from surehold.errors import ConflictError, LeaseHeldError
from surehold.storage.base import Leasing, this_process
from surehold.testing import JournalWriter

pytestmark = pytest.mark.timeout(7_200 if FULL else 600)

PROCESSES = 8
_PAUSE = 0.02
_LONGEST = 600


def race(tell: Callable[..., None], medium: str, directory: str, start: float, rounds: int) -> None:
    """Try to take a run in each round, at the moment at which all others try."""
    with open_medium(medium, Path(directory)) as storage:
        assert isinstance(storage, Leasing)
        for number in range(rounds):
            run_id = f"run-{number}"
            time.sleep(max(0.0, start + number * _PAUSE - time.time()))
            try:
                lease = storage.take_lease(run_id, this_process(), now=time.time(), ttl=600)
            except LeaseHeldError:
                tell("lost", number)
                continue
            refused = storage.append([JournalWriter(run_id).batch(epoch=lease.epoch)])[0]
            assert not isinstance(refused, ConflictError), refused
            tell("won", number, lease.epoch)
        tell("done")
        time.sleep(_LONGEST)  # the lease of a process that has ended may be taken


@pytest.mark.parametrize("medium", ["postgres", "valkey"])
def test_of_processes_that_race_for_a_run_one_wins_each_round(
    medium: str, tmp_path: Path, forks: ForkServer, finding: Callable[..., None]
) -> None:
    rounds = times(25, 200)
    open_medium(medium, tmp_path).close()
    start = time.time() + 2
    arguments = (medium, str(tmp_path), start, rounds)
    with ExitStack() as stack:
        target = "tests.e2e.servers.test_races:race"
        racers = [stack.enter_context(forks.start(target, *arguments)) for _ in range(PROCESSES)]
        told = [
            line for racer in racers for line in racer.hear_until(lambda line: line == ["done"])
        ]
    won = Counter(line[1] for line in told if line[0] == "won")
    assert won == Counter(range(rounds))
    assert {line[2] for line in told if line[0] == "won"} == {1}
    assert len(told) == PROCESSES * (rounds + 1)
    finding(f"{PROCESSES} processes race for a run, {medium}", rounds, "one winner each")
