"""LangGraph's conformance suite for checkpointers, every capability, on each medium."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from tests.servers import postgres, valkey

from surehold.integrations.langgraph import SureholdSaver


@pytest.mark.parametrize("medium", ["memory", "file", "sqlite", "postgresql", "redis"])
async def test_every_capability_passes_every_test(medium: str, tmp_path: Path) -> None:
    addresses = {
        "memory": "memory://",
        "file": f"file://{tmp_path}/files",
        "sqlite": f"sqlite:///{tmp_path}/threads.db",
        "postgresql": f"{postgres().url}&schema=conformance_{os.getpid()}",
        "redis": f"{valkey().url}?prefix=conformance-{os.getpid()}",
    }

    await check_conformance(medium, addresses[medium])


async def check_conformance(medium: str, address: str) -> None:
    """Run the suite on a medium; nothing may be absent or fail."""

    @checkpointer_test(name=f"SureholdSaver-{medium}")
    async def saver() -> AsyncIterator[SureholdSaver]:
        async with SureholdSaver(address) as made:
            yield made

    report = await validate(saver)
    results = report.to_dict()["results"]
    absent = [c.value for c in Capability if not results.get(c.value, {}).get("detected", True)]
    failures = {name: found["failures"] for name, found in results.items() if found.get("failures")}
    assert (absent, failures) == ([], {})
    assert report.passed_all()
    assert sum(found["tests_passed"] for found in results.values()) >= 81
