"""Every system call that touches a file is the last one of a process, or fails, in turn."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.crash.judging import Told
from tests.crash.media import FULL, PLAIN
from tests.crash.processes import ForkServer
from tests.crash.tracing import CHANGING, READING, count_calls, inject, need_strace

SOME = 10
TARGET = "tests.crash.workload:work_through"

pytestmark = pytest.mark.timeout(7_200 if FULL else 120)


def points(
    server: ForkServer, medium: str, scratch: Path, calls: tuple[str, ...]
) -> list[tuple[str, int]]:
    """Every call of the workload by name and number or, in the short form, a spread of them."""
    need_strace()
    directory = scratch / "counted"
    directory.mkdir()
    arguments = (medium, str(directory), 3)
    counted = count_calls(server, TARGET, arguments, calls, scratch / "log")
    shutil.rmtree(directory)
    every = [(call, when) for call, count in counted.items() for when in range(1, count + 1)]
    if FULL:
        return every
    # Each kind of call once, and then any.
    chance = random.Random(medium)
    chance.shuffle(every)
    first = {call: (call, when) for call, when in every if call in CHANGING}
    return [*first.values(), *every][:SOME]


@pytest.fixture
def directories(scratch: Path) -> Iterator[Path]:
    """Directories, each removed when the next is asked for."""

    def made() -> Iterator[Path]:
        number = 0
        while True:
            directory = scratch / str(number)
            directory.mkdir()
            yield directory
            shutil.rmtree(directory)
            number += 1

    return made()


@pytest.mark.parametrize("medium", PLAIN)
def test_a_kill_at_any_system_call_loses_nothing_and_leaves_nothing(
    medium: str,
    scratch: Path,
    directories: Iterator[Path],
    server: ForkServer,
    figure: Callable[[str], None],
) -> None:
    killed = acknowledged = 0
    every = points(server, medium, scratch, CHANGING)
    for call, when in every:
        directory = next(directories)
        arguments = (medium, str(directory), 3)
        lines, code = inject(server, TARGET, arguments, call, "signal=SIGKILL", when)
        told = Told()
        try:
            told.hear(lines)
            told.check(medium, directory)
            told.go_on(medium, directory, when)
        except BaseException as error:
            error.add_note(f"killed at {call} number {when}")
            raise
        killed += code == -9
        acknowledged += len(told.acknowledged)
    figure(
        f"SIGKILL at a system call, {medium}: {killed:,} of {len(every):,} calls, "
        f"{acknowledged:,} acknowledged, 0 lost"
    )
    assert killed > 0.8 * len(every), "faults were not reached"


def codes(call: str, when: int) -> list[str]:
    """How a call is made to fail; only one that changes something can find no room for it."""
    every = ["EIO", "ENOSPC"] if call in CHANGING else ["EIO"]
    return every if FULL else [random.Random(when).choice(every)]


@pytest.mark.parametrize("medium", PLAIN)
def test_a_system_call_that_fails_is_a_storage_error_and_acknowledges_nothing(
    medium: str,
    scratch: Path,
    directories: Iterator[Path],
    server: ForkServer,
    figure: Callable[[str], None],
) -> None:
    failed = raised = 0
    # Memory that cannot be had is also the interpreter's own failure, of which a thread may hang.
    calls = tuple(call for call in CHANGING + READING if call != "mmap")
    every = points(server, medium, scratch, calls)
    for call, when in every:
        for code in ("EIO", "ENOSPC") if FULL else (random.Random(when).choice(("EIO", "ENOSPC")),):
            directory = next(directories)
            arguments = (medium, str(directory), 3)
            lines, ended = inject(server, TARGET, arguments, call, f"error={code}", when)
            told = Told()
            try:
                told.hear(lines)
                assert ended == 0 and lines[-1] == ["done"], lines[-1]
                told.check(medium, directory)
                told.go_on(medium, directory, when)
            except BaseException as error:
                error.add_note(f"{code} of {call} number {when}")
                raise
            failed += 1
            raised += told.failures > 0
    figure(
        f"failed system calls, {medium}: {failed:,} failed once, {raised:,} as a StorageError, "
        f"the others overcome, 0 false acknowledgements"
    )
    assert raised > 0
