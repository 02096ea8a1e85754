"""Every system call that touches a file is the last one of a process, or fails, in turn."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.crash.judging import Told
from tests.crash.media import FULL, PLAIN, times
from tests.crash.processes import ForkServer
from tests.crash.tracing import CHANGING, READING, count_calls, inject, need_strace

SOME, SOME_FAILURES = 6, 4
THROUGH = "tests.crash.workload:work_through"
WHILE = "tests.crash.workload:work_while_it_lasts"
KILL = ("SIGKILL",)
CODES = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EINTR", "EMFILE")

pytestmark = pytest.mark.timeout(14_400 if FULL else 600)


def points(
    server: ForkServer, medium: str, tmp_path: Path, calls: tuple[str, ...], codes: tuple[str, ...]
) -> list[tuple[str, int, str]]:
    """Every call of the workload by name and number, with each code, or a spread of them."""
    need_strace()
    directory = tmp_path / "counted"
    directory.mkdir()
    arguments = (medium, str(directory), 3)
    counted = count_calls(server, THROUGH, arguments, calls, tmp_path / "log")
    shutil.rmtree(directory)
    calls_made = [(call, when) for call, count in counted.items() for when in range(1, count + 1)]
    # Every call with one of the codes, then every call with another.
    every = [
        (call, when, codes[(number + turn) % len(codes)])
        for turn in range(len(codes))
        for number, (call, when) in enumerate(calls_made)
    ]
    count = times(SOME if codes == KILL else SOME_FAILURES, len(every))
    if count >= len(calls_made):
        return every[:count]
    # Each kind of call once, and then any.
    chance = random.Random(medium)
    chance.shuffle(every)
    first = {point[0]: point for point in every if point[0] in CHANGING}
    return [*first.values(), *every][:count]


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[Path]:
    """Directories, each removed when the next is asked for."""

    def made() -> Iterator[Path]:
        number = 0
        while True:
            directory = tmp_path / str(number)
            directory.mkdir()
            yield directory
            shutil.rmtree(directory)
            number += 1

    return made()


@pytest.mark.parametrize("medium", PLAIN)
def test_a_kill_at_any_system_call_loses_nothing_and_leaves_nothing(
    medium: str,
    tmp_path: Path,
    directories: Iterator[Path],
    server: ForkServer,
    finding: Callable[..., None],
) -> None:
    killed = acknowledged = 0
    every = points(server, medium, tmp_path, CHANGING, KILL)
    for call, when, signal in every:
        directory = next(directories)
        arguments = (medium, str(directory), 3)
        fault = f"signal={signal}"
        lines, code = inject(server, THROUGH, arguments, call, fault, str(when))
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
    finding(
        f"SIGKILL at the entry of a system call, {medium}",
        killed,
        f"of {len(every):,} calls; {acknowledged:,} saves acknowledged, 0 lost",
    )
    assert killed > 0.8 * len(every), "faults were not reached"


def judge_faults(
    server: ForkServer,
    target: str,
    medium: str,
    directories: Iterator[Path],
    every: list[tuple[str, int, str]],
    later: str,
) -> tuple[int, int]:
    """Let each of these calls fail: how often a caller was told, and how many saves were made."""
    raised = acknowledged = 0
    for call, when, code in every:
        directory = next(directories)
        arguments = (medium, str(directory), 3)
        # The interpreter makes an interrupted call again, without end if it always is interrupted.
        until = f"..{when + 20}" if later and code == "EINTR" else later
        lines, ended = inject(server, target, arguments, call, f"error={code}", f"{when}{until}")
        told = Told()
        try:
            told.hear(lines)
            assert ended == 0 and lines[-1] == ["done"], lines[-1]
            told.check(medium, directory)
            told.go_on(medium, directory, when)
        except BaseException as error:
            error.add_note(f"{code} of {call} number {when}{until}")
            raise
        raised += told.failures > 0
        acknowledged += len(told.acknowledged)
    return raised, acknowledged


@pytest.mark.parametrize("medium", PLAIN)
def test_a_system_call_that_fails_is_a_storage_error_and_acknowledges_nothing(
    medium: str,
    tmp_path: Path,
    directories: Iterator[Path],
    server: ForkServer,
    finding: Callable[..., None],
) -> None:
    every = points(server, medium, tmp_path, CHANGING + READING, CODES)
    raised, _ = judge_faults(server, THROUGH, medium, directories, every, "")
    finding(
        f"a system call fails once, {medium}",
        len(every),
        f"{raised:,} told as a StorageError, the others overcome, 0 false acknowledgements",
    )
    assert raised > 0


@pytest.mark.parametrize("medium", PLAIN)
def test_a_system_call_that_fails_from_then_on_is_a_storage_error_until_it_works_again(
    medium: str,
    tmp_path: Path,
    directories: Iterator[Path],
    server: ForkServer,
    finding: Callable[..., None],
) -> None:
    every = points(server, medium, tmp_path, CHANGING + READING, CODES)
    raised, acknowledged = judge_faults(server, WHILE, medium, directories, every, "+")
    finding(
        f"a system call fails from then on, {medium}",
        len(every),
        f"{raised:,} told as a StorageError, {acknowledged:,} saves acknowledged, 0 lost, "
        "all work again afterwards",
    )
    assert raised > 0


def test_the_test_sees_a_failed_save_that_is_acknowledged(
    tmp_path: Path, directories: Iterator[Path], server: ForkServer, finding: Callable[..., None]
) -> None:
    need_strace()
    seen = 0
    for when in range(3, 9):
        directory = next(directories)
        arguments = ("file", str(directory), 3)
        target = "tests.crash.workload:shrug"
        lines, _ = inject(server, target, arguments, "pwrite64", "error=ENOSPC", f"{when}+")
        told = Told()
        told.hear(lines)
        with suppress(AssertionError):
            told.check("file", directory)
            continue
        seen += 1
    finding("a failed save that is acknowledged", 6, f"{seen} noticed", control=True)
    assert seen == 6
