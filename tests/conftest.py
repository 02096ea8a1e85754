"""Settings and fixtures that all tests share."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from surehold.storage import process

# A busy machine makes single examples slow; pytest-timeout catches those that hang.
_EXAMPLES = 400 if os.environ.get("SUREHOLD_FULL") == "1" else 40
settings.register_profile("surehold", deadline=None, max_examples=_EXAMPLES)
settings.load_profile("surehold")

# A process started in the background ignores Ctrl-C, and so does all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

_FIGURE = "figure"
_MEMORY = Path("/dev/shm")
_ROOM = 2 << 30
"""Bytes that must be free in memory for the temporary files of a session."""


def _choose_temporary_directory() -> None:
    """Put temporary files in memory, where a sync is free, unless TMPDIR names a place.

    A killed process leaves its written data to the kernel, so memory proves the same as a disk.
    Tests of power cuts and full disks mount file systems of their own.
    """
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK):
        return
    if shutil.disk_usage(_MEMORY).free >= _ROOM:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None


_choose_temporary_directory()


@pytest.fixture
def disk() -> Iterator[Path]:
    """A directory on a disk, for tests of speed and of programs, which memory may not run."""
    with tempfile.TemporaryDirectory(prefix="surehold-", dir="/var/tmp") as made:
        yield Path(made)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Mounts a file system of so many KiB in memory; called again, gives it another size."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    root = tmp_path / "small"

    def mount(kib: int) -> Path:
        option = "remount," if root.exists() else ""
        root.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", f"{option}size={kib}k", "tmpfs", str(root)]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode and not option:
            root.rmdir()
            pytest.skip(f"a file system cannot be mounted here: {done.stderr.decode().strip()}")
        assert done.returncode == 0, done.stderr
        return root

    yield mount
    if root.is_mount():
        subprocess.run(["umount", "--lazy", str(root)], check=True)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print a line with what a test measured after all tests have run."""
    return lambda text: record_property(_FIGURE, text)


@pytest.fixture
def finding(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Report what a proof tried, how often, and what it saw; *control* if it had to go wrong.

    *seen* may have places for the *worst* of several tests that tried the same.
    """

    def tell(tried: str, count: int, seen: str, *, control: bool = False, **worst: float) -> None:
        said = f"{tried}: {count:,} times, {seen.format(**worst)}"
        record_property(_FIGURE, f"control: {said}" if control else said)
        facts = {"tried": tried, "times": count, "seen": seen, "control": control, "worst": worst}
        record_property("finding", facts)

    return tell


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    figures = [
        str(value)
        for outcome in ("passed", "failed")
        for report in terminalreporter.getreports(outcome)
        for name, value in report.user_properties
        if name == _FIGURE and report.when == "call"
    ]
    if figures:
        terminalreporter.section("figures")
        for line in figures:
            terminalreporter.write_line(line)


@pytest.fixture(params=["memory", "file", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, of each medium."""
    if request.param == "memory":
        from surehold import MemoryStorage, register_checkpoint_store

        register_checkpoint_store("scratch", MemoryStorage())
        return "scratch"
    return {"file": f"file://{tmp_path}/runs", "sqlite": f"sqlite:///{tmp_path}/runs.db"}[
        request.param
    ]


@pytest.fixture
def db(tmp_path: Path) -> str:
    """The address of an empty SQLite store."""
    return f"sqlite:///{tmp_path}/runs.db"


@pytest.fixture(autouse=True)
def no_abandoned_leases() -> Iterator[None]:
    """Forget the leases that a test gave up: tests share run ids, epochs and times."""
    yield
    process._abandoned.clear()
    process._left.clear()
