"""A pytest plugin for the MCP SDK's own tests: our event store is theirs in memory."""

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
    slot: Any = importlib.import_module("tests.interaction.transports._event_store")
    if not IS_STOCK:
        slot.SequencedEventStore = _store_class()
    _report.counting(slot.SequencedEventStore)


def _store_class() -> Any:
    import anyio

    from surehold.integrations.mcp import SureholdEventStore

    class Store(SureholdEventStore):
        """With the helpers for tests that the stock class has."""

        def __init__(self) -> None:
            super().__init__("memory://")

        async def wait_until_stored(self, count: int) -> None:
            while len(self._events) < count:
                await anyio.sleep(0.001)

        @property
        def _events(self) -> list[Any]:
            known = self._lists.read(self._run_id(""))
            return [(one["stream"], _message(one["message"])) for one in known.values()]

    return Store


def _message(stored: Any) -> Any:
    from mcp_types import jsonrpc_message_adapter

    return None if stored is None else jsonrpc_message_adapter.validate_python(stored)
