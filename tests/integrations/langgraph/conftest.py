"""Savers on every medium, called through blocking or awaited methods."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

from surehold.integrations.langgraph.saver import SureholdSaver


class Side:
    """A saver, called through its blocking methods or through the awaited ones."""

    def __init__(self, saver: SureholdSaver, awaited: bool) -> None:
        self.saver = saver
        self._awaited = awaited

    async def __call__(self, method: str, *args: Any, **kwargs: Any) -> Any:
        if not self._awaited:
            found = getattr(self.saver, method)(*args, **kwargs)
            return list(found) if method == "list" else found
        called = getattr(self.saver, f"a{method}")(*args, **kwargs)
        return [one async for one in called] if method == "list" else await called

    async def step(
        self,
        config: dict[str, Any],
        values: dict[str, Any],
        *,
        id: str | None = None,
        versions: dict[str, Any] | None = None,
        **metadata: Any,
    ) -> dict[str, Any]:
        """Put a checkpoint with these values as a child of the one that *config* names."""
        checkpoint = empty_checkpoint()
        checkpoint["id"] = id or str(uuid6())
        checkpoint["channel_values"] = values
        checkpoint["channel_versions"] = versions or dict.fromkeys(values, "1")
        told = {"source": "loop", "step": 0, "parents": {}, **metadata}
        return await self("put", config, checkpoint, told, checkpoint["channel_versions"])

    async def values(self, config: dict[str, Any]) -> dict[str, Any]:
        return (await self("get_tuple", config)).checkpoint["channel_values"]


def thread(name: str = "t", ns: str = "", id: str | None = None) -> dict[str, Any]:
    """The config of a thread."""
    named = {"thread_id": name, "checkpoint_ns": ns}
    return {"configurable": named if id is None else {**named, "checkpoint_id": id}}


def id_of(config: dict[str, Any]) -> str:
    return config["configurable"]["checkpoint_id"]


@pytest.fixture(params=["blocking", "awaited"])
def side(request: pytest.FixtureRequest, address: str) -> Iterator[Side]:
    with SureholdSaver(address) as saver:
        yield Side(saver, request.param == "awaited")
