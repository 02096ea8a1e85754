"""A group's checkpoint holds all members or is not there, whenever its process is killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.group_victim import MEMBERS
from tests.crash.media import FULL, PLAIN, SERVERS, manager_on, open_medium, times
from tests.crash.processes import ForkServer

import surehold

OBJECTS = ("s3", "gs", "az", "cosmos")
MEDIA = (*PLAIN, *SERVERS, *OBJECTS) if FULL else ("sqlite", "file")
APPENDS = 7
"""More than two checkpoints take: each append of one is among them."""
KILLS_PER_GROUP = 2 * APPENDS

pytestmark = pytest.mark.timeout(36_000 if FULL else 120)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer()
    yield made
    made.close()


@pytest.mark.parametrize("medium", MEDIA)
def test_all_members_are_in_it_or_none(
    medium: str, server: ForkServer, tmp_path: Path, finding: Callable[..., None]
) -> None:
    kills = times(6, 500)
    for kill in range(kills):
        number, stored = 1 + kill % APPENDS, kill // APPENDS % 2 == 1
        place = tmp_path / str(kill // KILLS_PER_GROUP)
        place.mkdir(exist_ok=True)
        told = (medium, str(place), number, stored)
        with server.start("tests.crash.group_victim:take_and_die", *told) as child:
            heard = child.hear_all()
            assert child.wait() == -9, heard
        with open_medium(medium, place) as storage:
            manager = manager_on(storage, medium)
            crew = surehold.group("crew", MEMBERS, storage=manager)
            latest = crew.latest()
            steps = {latest.number} if latest else {0}
            if latest is not None:
                assert {one.run_id for one in latest.members} == {*MEMBERS}
                restored = crew.restore()
                assert {state.step for state in restored.values()} == steps
                logs = [list(state["log"]) for state in restored.values()]
                assert logs == [[*range(1, latest.number + 1)]] * len(MEMBERS)
            newest = [manager.resume_from_latest(run_id) for run_id in MEMBERS]
            assert {state.step if state else 0 for state in newest} == steps
    finding(f"killed at an append of a group's checkpoint, {medium}", kills, "all members or none")
