"""Where there is no room, a save fails and says so; with room again, the work goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.crash.full import LOG
from tests.crash.judging import Told
from tests.crash.media import FULL, PLAIN, spread
from tests.crash.processes import ForkServer, child_environment

STEP = 512
SHORT = 6
MEDIA = PLAIN if FULL else ("sqlite", "file-gzip")

pytestmark = pytest.mark.timeout(3_600 if FULL else 600)


@pytest.mark.parametrize("kind", ["room", "inodes"])
@pytest.mark.parametrize("medium", MEDIA)
def test_a_full_disk_is_told_of_and_loses_nothing(
    medium: str, kind: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("mounting a small file system needs root and unshare")
    ran = subprocess.run(
        [
            *("unshare", "--mount", sys.executable, "-m", "tests.crash.full"),
            *(medium, kind, str(tmp_path), str(SHORT)),
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env=child_environment(),
    )
    assert ran.returncode == 0
    results = [json.loads(line) for line in ran.stdout.splitlines()]
    errors = Counter(name for _, names, _ in results for name in names[:1])
    wrong = [text for _, _, text in results if text]
    what = "a page more each time" if kind == "room" else "an inode more each time"
    finding(
        f"a full file system, {what}, {medium}",
        len(results),
        f"{errors.total():,} gave up ({tell(errors)}), {sum(c for c, _, _ in results):,} saves "
        f"acknowledged, {len(wrong)} sizes with a loss",
    )
    assert wrong == []
    assert errors.total() > 0


@pytest.mark.parametrize("medium", MEDIA)
def test_files_that_may_not_grow_are_told_of_and_lose_nothing(
    medium: str, tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    errors: Counter[str] = Counter()
    acknowledged = 0
    largest = measured(server, medium, tmp_path / "measured")
    limits = spread(range(0, largest + STEP, STEP), SHORT)
    for limit in limits:
        directory = tmp_path / "limited"
        directory.mkdir()
        told = Told()
        target = "tests.crash.workload:work_within"
        with server.start(target, medium, str(directory), 3, limit) as child:
            lines = child.hear_all()
        try:
            told.hear(lines)
            assert lines[-1] == ["done"]
            told.check(medium, directory)
            told.go_on(medium, directory, 10_000)
        except BaseException as error:
            error.add_note(f"no file larger than {limit} bytes")
            raise
        errors.update(line[1] for line in lines if line[0] == "gave up")
        acknowledged += len(told.acknowledged)
        shutil.rmtree(directory)
    finding(
        f"no file may grow beyond a size, {STEP} bytes more each time, {medium}",
        len(limits),
        f"{errors.total():,} gave up ({tell(errors)}), {acknowledged:,} saves acknowledged, 0 lost",
    )
    assert errors.total() > 0


def measured(server: ForkServer, medium: str, directory: Path) -> int:
    """The size of the largest file that the workload makes, a log that is gone included."""
    directory.mkdir()
    target = "tests.crash.workload:work_while_it_lasts"
    with server.start(target, medium, str(directory), 3) as child:
        assert child.hear_all()[-1] == ["done"]
    largest = max(path.stat().st_size for path in directory.rglob("*") if path.is_file())
    return LOG * largest if medium == "sqlite" else largest


def test_the_test_sees_a_save_that_found_no_room_and_is_acknowledged(
    tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    seen = 0
    limits = range(2 * STEP, 8 * STEP, STEP)
    for limit in limits:
        directory = tmp_path / str(limit)
        directory.mkdir()
        target = "tests.crash.workload:shrug_within"
        told = Told()
        with server.start(target, "file", str(directory), 3, limit) as child:
            told.hear(child.hear_all())
        with suppress(AssertionError):
            told.check("file", directory)
            continue
        seen += 1
    finding(
        "a save without room that is acknowledged", len(limits), f"{seen} noticed", control=True
    )
    assert seen == len(limits)


def tell(errors: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in errors.items())
