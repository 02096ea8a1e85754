"""A pytest plugin for the Claude Agent SDK's own tests: our store is its in-memory one."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

from slot_report import IS_STOCK, SlotReport

_report = SlotReport()


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(_report)
    package: Any = importlib.import_module("claude_agent_sdk")
    stock = package.InMemorySessionStore
    _report.counting(stock if IS_STOCK else _store_class())
    if not IS_STOCK:
        package.InMemorySessionStore = _store_class()
        inner: Any = importlib.import_module("claude_agent_sdk._internal.session_store")
        inner.InMemorySessionStore = _store_class()


def _store_class() -> Any:
    from surehold.integrations.claude_agent import SureholdSessionStore

    if _made:
        return _made[0]

    class Store(SureholdSessionStore):
        """With the helpers for tests that the stock class has."""

        def __init__(self) -> None:
            super().__init__("memory://")

        def get_entries(self, key: Any) -> Any:
            return self._lists.read(*self._place(key)).values()

        @property
        def size(self) -> int:
            from surehold.storage.base import RunQuery

            return sum(run.step > 0 for run in self.manager.storage.runs(RunQuery()))

        def clear(self) -> None:
            from surehold.storage.base import RunQuery

            for run in [*self.manager.storage.runs(RunQuery())]:
                self._lists.forget(run.run_id)

    _made.append(Store)
    return Store


_made: list[Any] = []
