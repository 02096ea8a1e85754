"""A pytest plugin for the OpenAI Agents SDK's own tests: our session is their list in memory.

SQLiteSession is replaced, too, for the tests of sessions themselves.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

from slot_report import IS_STOCK, SlotReport

_report = SlotReport()
_DERIVED = ("CountingSession", "IdStrippingSession")


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(_report)
    simple: Any = importlib.import_module("tests.utils.simple_session")
    package: Any = importlib.import_module("agents")
    if IS_STOCK:
        _report.counting(simple.SimpleListSession)
        _report.counting(package.SQLiteSession)
        return
    ours = _list_session()
    _report.counting(ours)
    stock = {name: getattr(simple, name) for name in _DERIVED}
    simple.SimpleListSession = ours
    simple.CountingSession = _based_on(stock["CountingSession"], ours)
    simple.IdStrippingSession = _based_on(stock["IdStrippingSession"], simple.CountingSession)
    sqlite = _sqlite_session()
    _report.counting(sqlite)
    for name in ("agents", "agents.memory", "agents.memory.sqlite_session"):
        importlib.import_module(name).SQLiteSession = sqlite  # type: ignore[attr-defined]


def _list_session() -> Any:
    from surehold.integrations.openai_agents import SureholdSession
    from surehold.integrations.openai_agents.sessions import ListChange

    class ListSession(SureholdSession):
        """With the arguments and the attributes for tests that the stock class has."""

        def __init__(self, session_id: str = "test", history: Any = None) -> None:
            super().__init__(session_id, "memory://")
            self._ignore_ids_for_matching = False
            if history:
                self._items = history

        @property
        def _items(self) -> Any:
            return self._lists.read(self.session_id).values()

        @_items.setter
        def _items(self, items: Any) -> None:
            change = ListChange(added=list(items), kept=0)
            self._lists.change(self.session_id, self._name, lambda _: change)

        @property
        def saved_items(self) -> Any:
            return self._items

    return ListSession


def _sqlite_session() -> Any:
    from surehold.integrations.openai_agents import SureholdSession

    class SQLiteSession(SureholdSession):
        def __init__(
            self, session_id: str, db_path: Any = ":memory:", *names: Any, **options: Any
        ) -> None:
            settings = options.get("session_settings")
            address = "memory://" if str(db_path) == ":memory:" else f"sqlite:///{db_path}.ours"
            super().__init__(session_id, address, session_settings=settings)

    return SQLiteSession


def _based_on(cls: type, base: type) -> type:
    """*cls* with another base."""
    space = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    made = type(cls.__name__, (base,), space)
    for value in space.values():
        closure = getattr(value, "__closure__", None) or ()
        for cell in closure:
            if cell.cell_contents is cls:
                cell.cell_contents = made
    return made
