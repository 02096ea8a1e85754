"""The table in docs/explain/guarantees.md: what a kill inside a framework's agent repeats."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.langgraph import test_kills as langgraph
from tests.integrations.openai_agents import test_kills as openai_agents
from tests.integrations.pydantic_ai import test_kills as pydantic_ai

DOCUMENT = Path(__file__).parents[2] / "docs" / "explain" / "guarantees.md"
FRAMEWORKS: dict[str, Any] = {
    "OpenAI Agents SDK": openai_agents,
    "Pydantic AI": pydantic_ai,
    "LangGraph": langgraph,
}
POINTS = {
    "inside a model call": "model 1",
    "inside a tool that may be repeated": "search orders",
    "inside another tool": "pay 1",
    "between two turns": "after write 3",
    "while it waits for an approval": None,
}


def told(framework: str, point: str) -> str:
    """The cell of the table."""
    lines = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    head = next(line for line in lines if "OpenAI Agents SDK" in line)
    column = [cell.strip() for cell in head.split("|")].index(framework)
    row = next(line for line in lines if line.startswith(f"| {point} |"))
    return row.split("|")[column].strip()


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The calls of an undisturbed run, by framework."""
    made = {}
    for name, module in FRAMEWORKS.items():
        directory = tmp_path_factory.mktemp("undisturbed")
        with module.serving() as server:
            asyncio.run(module._finish(server, f"sqlite:///{directory}/runs.db", False))
            made[name] = list(server.calls)
    return made


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("point", POINTS)
async def test_a_kill_repeats_what_the_table_says(
    framework: str, point: str, order: dict[str, list[str]], tmp_path: Path
) -> None:
    module, storage = FRAMEWORKS[framework], f"sqlite:///{tmp_path}/runs.db"
    cell = told(framework, point)
    if cell == "nothing is there":
        return  # nothing is written between two turns
    with module.serving() as server:
        wanted = POINTS[point]
        if wanted is not None:
            server.fatal = order[framework].index(wanted) + 1
            assert module._life(server, storage, False) == -signal.SIGKILL
        else:
            assert module._life(server, storage, False) == 0  # no process has to wait
        result, _ = await module._finish(server, storage, False)
        assert result.value == module.SAID
        counted = Counter(call for call in server.calls if "write" not in call)
        again = {re.sub(r"\W?\d+", "", call): n - 1 for call, n in counted.items() if n > 1}
        assert (", ".join(f"{n} {call}" for call, n in again.items()) or "none") == cell
