"""A pytest plugin for Agent Framework's own tests: our storage stands in for its in-memory one.

Only the tests that really make a storage are counted; the count is printed at the end.
"""

from __future__ import annotations

import importlib
from typing import Any

from surehold.integrations.agent_framework.storage import SureholdCheckpointStorage

_current: list[str] = []
_used: set[str] = set()


class _Storage(SureholdCheckpointStorage):
    def __init__(self) -> None:
        super().__init__("memory://")
        _used.update(_current)


def pytest_configure() -> None:
    for name in ("agent_framework", "agent_framework._workflows._checkpoint"):
        module: Any = importlib.import_module(name)
        module.InMemoryCheckpointStorage = _Storage


def pytest_runtest_logstart(nodeid: str) -> None:
    _current[:] = [nodeid]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    failed = {report.nodeid for report in terminalreporter.getreports("failed")}
    terminalreporter.write_line(
        f"made our storage: {len(_used)} tests, {len(_used & failed)} of them failed"
    )
