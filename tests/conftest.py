"""Settings that all tests share."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Coverage, a second worker and a busy disk make one example slow by chance; pytest-timeout
# catches what is really stuck.
settings.register_profile("holdfast", deadline=None)
settings.load_profile("holdfast")

# Started in the background, the tests and all they start would ignore ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)

_FIGURE = "figure"


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Prints a line with what a test measured once all tests have run."""
    return lambda text: record_property(_FIGURE, text)


@pytest.fixture
def finding(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Tells what a proof tried, how often, and what it saw; *control* if it had to go wrong.

    *seen* may have places for the *worst* of several tests that tried the same.
    """

    def tell(tried: str, count: int, seen: str, *, control: bool = False, **worst: float) -> None:
        said = f"{tried}: {count:,} times, {seen.format(**worst)}"
        record_property(_FIGURE, f"control: {said}" if control else said)
        facts = {"tried": tried, "times": count, "seen": seen, "control": control, "worst": worst}
        record_property("finding", facts)

    return tell


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where syncing costs nothing, if there is such a place.

    A process that is killed leaves to the system what it had written, so nothing is missed there.
    """
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="holdfast-", dir=memory))
    yield made
    shutil.rmtree(made)


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
