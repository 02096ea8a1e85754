"""A pytest plugin for LangGraph's tests of stores and caches, with ours in their places.

The cache stands where its cache in Redis stood, whose tests ask a server first.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

from slot_report import IS_STOCK, SlotReport

_report = SlotReport()


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(_report)
    config.addinivalue_line("markers", "flaky: of a plugin that reruns tests")
    importlib.import_module("redis").Redis = _Server  # type: ignore[attr-defined]
    memory: Any = importlib.import_module("langgraph.store.memory")
    if IS_STOCK:
        _report.counting(memory.InMemoryStore)
    else:
        memory.InMemoryStore = _memory_store()
        importlib.import_module("langgraph.cache.redis").RedisCache = _cache()  # type: ignore[attr-defined]
    if find_spec("langgraph.store.sqlite") is None:
        return
    sqlite: Any = importlib.import_module("langgraph.store.sqlite")
    if IS_STOCK:
        _report.counting(sqlite.SqliteStore)
        _report.counting(sqlite.AsyncSqliteStore)
        return
    places = [sqlite, importlib.import_module("langgraph.store.sqlite.aio")]
    for place in places:
        place.AsyncSqliteStore = _sqlite_store(awaited=True)
    sqlite.SqliteStore = _sqlite_store(awaited=False)


def _memory_store() -> Any:
    from surehold.integrations.langgraph import SureholdStore

    class Store(SureholdStore):
        def __init__(self, *, index: Any = None) -> None:
            super().__init__("memory://")
            _refuse(index)

    _report.counting(Store)
    return Store


def _refuse(index: Any) -> None:
    if index is not None:
        raise NotImplementedError("a search by meaning")


def _sqlite_store(*, awaited: bool) -> Any:
    from surehold.integrations.langgraph import SureholdStore

    class Store(SureholdStore):
        def __init__(self, conn: str, ttl: Any = None) -> None:
            address = "memory://" if conn == ":memory:" else f"sqlite:///{conn}.ours"
            super().__init__(address, ttl=ttl)

        def setup(self) -> Any:
            """Nothing is to be made; an awaited store returns what can be awaited."""
            return _nothing() if awaited else None

    if awaited:

        async def sweep_ttl(self: Any) -> int:
            return SureholdStore.sweep_ttl(self)

        Store.sweep_ttl = sweep_ttl  # type: ignore[method-assign,assignment]
    _report.counting(Store)

    @contextmanager
    def opened(conn: str, *, index: Any = None, ttl: Any = None) -> Iterator[Store]:
        _refuse(index)
        with Store(conn, ttl) as store:
            yield store

    @asynccontextmanager
    async def opened_awaited(conn: str, **options: Any) -> AsyncIterator[Store]:
        with opened(conn, **options) as store:
            yield store

    Store.from_conn_string = staticmethod(opened_awaited if awaited else opened)  # type: ignore[attr-defined]
    return Store


async def _nothing() -> None:
    """Done."""


class _Server:
    """In place of a client of a Redis server."""

    def __init__(self, **_: Any) -> None:
        pass

    def ping(self) -> None:
        """The tests of the stock cache are skipped, those of ours need no server."""
        if IS_STOCK:
            raise importlib.import_module("redis").ConnectionError

    def flushdb(self) -> None:
        """Each test makes a cache of its own."""


def _cache() -> Any:
    from surehold.integrations.langgraph import SureholdCache

    class Cache(SureholdCache):
        def __init__(self, client: Any, *, prefix: str = "", **options: Any) -> None:
            super().__init__("memory://", **options)

    _report.counting(Cache)
    return Cache
