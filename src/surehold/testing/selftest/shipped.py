"""The storages of Surehold against their contract; needs pytest."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from surehold import testing
from surehold.errors import UsageError
from surehold.testing.selftest.verdicts import PromiseVerdict

_SUITE = """
from surehold.storage.files import FilesystemStorage
from surehold.storage.memory import MemoryStorage
from surehold.storage.sqlite import SQLiteStorage
from surehold.testing import StorageContract


class TestMemory(StorageContract):
    survives = False

    def open(self, directory):
        return MemoryStorage()


class TestFile(StorageContract):
    def open(self, directory):
        return FilesystemStorage(directory, compress="zstd")


class TestSqlite(StorageContract):
    def open(self, directory):
        return SQLiteStorage(directory / "runs.db")
"""
_MEDIA = ("memory", "file", "sqlite")
_TEST = re.compile(r".*::Test(\w+)::test_(\w+)(?:\[(.*)\])?")


class _Reporter:
    """A plugin of pytest that keeps what became of each promise."""

    def __init__(self) -> None:
        self.verdicts: list[PromiseVerdict] = []

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.verdicts.append(
                PromiseVerdict("FAIL", report.nodeid or "collecting", _why(report))
            )

    def pytest_runtest_logreport(self, report: Any) -> None:
        promise = _promise(report.nodeid)
        if report.skipped:
            self.verdicts.append(PromiseVerdict("SKIP", promise, report.longrepr[2]))
        elif report.failed:
            self.verdicts.append(PromiseVerdict("FAIL", promise, _why(report)))
        elif report.when == "call":
            self.verdicts.append(PromiseVerdict("PASS", promise))


def _promise(node: str) -> str:
    found = _TEST.fullmatch(node)
    if found is None:
        return node
    medium, name, case = found.groups()
    return f"{medium.lower()}: {name.replace('_', ' ')}" + (f" ({case})" if case else "")


def _why(report: Any) -> str:
    lines = [line for line in str(report.longreprtext).splitlines() if line.startswith("E ")]
    return lines[0].removeprefix("E ").strip() if lines else str(report.longreprtext)[-200:]


def check_contract(medium: str) -> Iterator[PromiseVerdict]:
    """Hold *medium*, or "all", to the contract of a storage; needs pytest."""
    if medium not in (*_MEDIA, "all"):
        raise UsageError(f"{medium!r} is not a medium", hint=f"say {', '.join(_MEDIA)} or all")
    testing.StorageContract  # noqa: B018 - says what is missing, if something is
    import pytest

    reporter = _Reporter()
    # Neither the plugins nor the settings of the place where it is called are ours.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with tempfile.TemporaryDirectory(prefix="surehold-contract-") as directory:
        Path(directory, "pytest.ini").write_text("[pytest]\n")
        suite = Path(directory, "test_contract.py")
        suite.write_text(_SUITE)
        options = ["-p", "no:terminal", "-p", "no:cacheprovider", "-c", f"{directory}/pytest.ini"]
        options += ["--rootdir", directory, "--basetemp", f"{directory}/runs"]
        wanted = _MEDIA if medium == "all" else (medium,)
        tests = [f"{suite}::Test{one.title()}" for one in wanted]
        code = pytest.main([*options, *tests], plugins=[reporter])
    yield from reporter.verdicts
    if code not in (0, 1):
        yield PromiseVerdict("FAIL", "the suite runs", f"pytest ended with {code!r}")
