"""A process that was stopped for longer than its lease appends nothing when it continues."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.crash.media import DURABLE, FULL, manager_on, open_medium
from tests.crash.media import times as times_of
from tests.crash.pausing import RUN
from tests.crash.processes import Child, ForkServer

MEDIA = DURABLE if FULL else ("sqlite", "file-encrypted")
PAUSES = times_of(16, 1_000, "SUREHOLD_PAUSES")
LEASE = 0.4
TOGETHER = 8
"""So many runs are held, paused and taken over at the same time, each in its own directory."""
PATIENCE, LONGEST = 6, 500
"""Seconds within which another process takes the run over, and within which anything happens."""

pytestmark = pytest.mark.timeout(7_200 if FULL else 600)


class Round:
    """One run: held by one process, which is stopped, and taken over by another."""

    def __init__(
        self, stack: ExitStack, server: ForkServer, medium: str, directory: Path, fenced: bool
    ) -> None:
        directory.mkdir()
        self._server = server
        self._stack = stack
        self._medium = medium
        self._directory = directory
        chance = random.Random(str(directory.name))
        arguments = (medium, str(directory), LEASE, chance.choice([0, 0.01, 0.01, 0.02]), fenced)
        self._first = stack.enter_context(server.start("tests.crash.pausing:hold", *arguments))
        self._stop_at = time.monotonic() + chance.random() * 0.05
        self._second: Child | None = None

    def stop(self) -> None:
        """Stop the holder once it has saved, at some moment of its work."""
        told = self._first.hear_until(lambda line: line[0] == "saved")
        assert told[-1][0] == "saved", told
        time.sleep(max(0, self._stop_at - time.monotonic()))
        os.kill(self._first.pid, signal.SIGSTOP)
        arguments = (self._medium, str(self._directory), LEASE)
        self._second = self._stack.enter_context(
            self._server.start("tests.crash.pausing:take_over", *arguments)
        )

    def go_on(self) -> str:
        """Wake the holder when the run is another's, and say what came of it."""
        assert self._second is not None
        try:
            took = self._second.hear_until(lambda line: line[0] == "took", PATIENCE)
        except TimeoutError:
            # The holder was stopped inside a commit and holds the medium's lock: no other process
            # can write, the run is still its own, and it continues.
            os.kill(self._first.pid, signal.SIGCONT)
            self._first.hear_until(lambda line: line[0] in ("saved", "refused"), LONGEST)
            self._first.kill()
            self._second.hear_until(lambda line: line[0] == "took", LONGEST)
            self._end()
            return "inside a commit"
        assert took == [["took", 2]], took
        before = self._step()
        os.kill(self._first.pid, signal.SIGCONT)
        told = self._first.hear_until(
            lambda line: line[0] == "refused" or (line[0] == "saved" and line[1] > before), LONGEST
        )
        stale = self._step() != before
        self._end()
        assert stale is (told[-1][0] == "saved"), told[-1]
        return "stale" if stale else "refused"

    def _step(self) -> int:
        """The newest step that is stored, whoever asks."""
        with open_medium(self._medium, self._directory) as storage:
            return max(record.header.step for record in storage.read(RUN))

    def _end(self) -> None:
        """The other process goes on with the run, and it is sound."""
        assert self._second is not None
        self._first.kill()
        (self._directory / "go").touch()
        told = self._second.hear_all(LONGEST)
        assert told[-1] == ["done"], told
        with open_medium(self._medium, self._directory) as storage:
            assert all(manager_on(storage, self._medium).verify())
        shutil.rmtree(self._directory)


def rounds(
    server: ForkServer, medium: str, tmp_path: Path, count: int, *, fenced: bool
) -> Iterator[str]:
    """What came of each pause."""
    for first in range(0, count, TOGETHER):
        with ExitStack() as stack:
            held = [
                Round(stack, server, medium, tmp_path / str(number), fenced)
                for number in range(first, min(first + TOGETHER, count))
            ]
            for one in held:
                one.stop()
            for one in held:
                yield one.go_on()


@pytest.mark.parametrize("medium", MEDIA)
def test_a_process_that_was_paused_past_its_lease_appends_nothing(
    medium: str, tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    found = Counter(rounds(server, medium, tmp_path, PAUSES, fenced=True))
    finding(
        f"SIGSTOP past the lease, {medium}",
        found.total(),
        f"{found['refused']:,} refused, {found['stale']} stale appends; "
        f"{found['inside a commit']:,} stopped inside a commit, which others wait for",
    )
    assert found["stale"] == 0
    assert found["refused"] >= PAUSES // 4


def test_the_test_sees_what_a_lease_without_epochs_lets_through(
    tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    found = Counter(rounds(server, "sqlite", tmp_path, 8, fenced=False))
    finding(
        "SIGSTOP past a lease without an epoch",
        found.total(),
        f"{found['stale']} stale appends",
        control=True,
    )
    assert found["stale"] > 4
