"""Every state of the OpenAI Agents SDK's version corpus comes back from our store as it was."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from surehold.integrations.openai_agents import SureholdRunStates

STATES = sorted(Path(os.environ["RUN_STATES"]).rglob("*.json"))


def test_the_corpus_is_there() -> None:
    assert len(STATES) > 40


@pytest.mark.parametrize("medium", ["memory://", "sqlite:///{}/states.db", "file://{}/states"])
def test_every_state_comes_back_as_it_was(medium: str, tmp_path: Path) -> None:
    async def through(store: SureholdRunStates, name: str, state: Any) -> Any:
        await store.save(name, state)
        return (await store.claim(name)).state

    with SureholdRunStates(medium.format(tmp_path)) as store:
        for path in STATES:
            state = json.loads(path.read_text("utf-8"))
            if isinstance(state, dict):
                assert asyncio.run(through(store, str(path), state)) == state, path
