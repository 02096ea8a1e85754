"""Shared by the plugins that put our class in the place of a stock class.

With SUREHOLD_SLOT=stock the stock class stays, to learn which tests fail with that. The tests that
failed, and those that made the class, are written to the file that SUREHOLD_SLOT_REPORT names.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

IS_STOCK = os.environ.get("SUREHOLD_SLOT") == "stock"


class SlotReport:
    """A plugin that counts the tests which make the class in the slot."""

    def __init__(self) -> None:
        self._current = ""
        self._used: set[str] = set()
        self._failed: set[str] = set()

    def made(self) -> None:
        self._used.add(self._current)

    def counting(self, cls: type) -> None:
        """Count the tests that make objects of *cls*."""
        init: Any = cls.__init__

        def counted(made: Any, *args: Any, **kwargs: Any) -> None:
            self.made()
            init(made, *args, **kwargs)

        cls.__init__ = counted  # type: ignore[misc]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._current = nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        path = os.environ.get("SUREHOLD_SLOT_REPORT")
        if path:
            told = {"used": sorted(self._used), "failed": sorted(self._failed)}
            Path(path).write_text(json.dumps(told))
