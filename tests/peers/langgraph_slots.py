"""A pytest plugin for LangGraph's own suite: our saver stands where its SQLite savers stood.

Only the tests that go through one of those two slots are kept. SUREHOLD_SLOT_STORAGE is the address
of another storage, with {} where each test has a name of its own: `postgresql://...&schema={}`.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from uuid import uuid4

import pytest

from surehold.integrations.langgraph.saver import SureholdSaver

_MEMORY = "/dev/shm"
"""Where syncing costs nothing; what is tested here is not the disk."""
_LEAST = 632
"""And one module that is skipped as a whole, because it needs Postgres."""
_SLOTS = {"sync_checkpointer": "sqlite", "async_checkpointer": "sqlite_aio"}


@contextmanager
def _saver() -> Iterator[SureholdSaver]:
    other = os.environ.get("SUREHOLD_SLOT_STORAGE")
    if other:
        with SureholdSaver(other.format(f"t{uuid4().hex}")) as saver:
            yield saver
        return
    place = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="surehold-", dir=place) as directory,
        SureholdSaver(f"sqlite:///{directory}/threads.db") as saver,
    ):
        yield saver


@asynccontextmanager
async def _async_saver() -> AsyncIterator[SureholdSaver]:
    with _saver() as saver:
        yield saver


def pytest_configure() -> None:
    slots: Any = importlib.import_module("tests.conftest_checkpointer")
    slots._checkpointer_sqlite = _saver
    slots._checkpointer_sqlite_aio = _async_saver


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    kept = [item for item in items if _goes_through_a_slot(item)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(kept)])
    items[:] = kept
    if len(kept) < _LEAST and not config.option.keyword:
        raise pytest.UsageError(f"{len(kept)} tests go through a saver; there were {_LEAST}")


def _goes_through_a_slot(item: Any) -> bool:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return any(params.get(fixture) == slot for fixture, slot in _SLOTS.items())
