"""What checkpointing adds to a cycle of an agent whose conversation weighs a megabyte."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import Line
from benchmarks.words import prose
from benchmarks.work import BareCommits, Times, settings_of, text_of
from holdfast import SQLiteStorage, StateManager
from holdfast.runtime.agent import BaseAutonomousAgent
from holdfast.runtime.agent_config import AutonomousConfig
from holdfast.runtime.models import Message, Reply, ToolCall, ToolSpec, Usage
from holdfast.runtime.tools import tool

__all__ = ["measure"]

_ROUNDS = 3
_LONG = 4096
_FILLING = 128
"""Cycles that each add two messages of 4 KB: a megabyte."""
_CYCLES = 60
"""Cycles that are measured then; each adds two messages of 0.5 KB."""


def measure(directory: Path) -> Iterator[Line]:
    """A cycle saves the model's reply, the tool's result and, with frequency 1, the state."""
    for frequency, limit in ((5, 5), (1, None)):
        found = [_round(directory / f"{frequency}-{n}.db", frequency) for n in range(_ROUNDS)]
        ratios = [ratio for ratio, _ in found]
        bare = median(taken for _, taken in found)
        saved = "every cycle" if frequency == 1 else f"every {frequency} cycles"
        yield Line(
            f"a cycle at 1 MB, saved {saved}: what checkpointing adds / bare commit",
            median(ratios),
            limit,
            note=f"{min(ratios):.2f} to {max(ratios):.2f}; bare commit {bare * 1e3:.3f} ms",
        )


class _Timed:
    """A model that is done at once, and takes the time from one call of it to the next."""

    name = "timed"

    def __init__(self, times: Times, name: str, between: Callable[[], None]) -> None:
        self._times = times
        self._called = name
        self._between = between
        self._left: float | None = None
        self._turn = 0

    async def respond(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[ToolSpec] = (),
        schema: Mapping[str, Any] | None = None,
        on_text: Callable[[str], None] | None = None,
    ) -> Reply:
        turn, self._turn = self._turn, self._turn + 1
        if turn > _FILLING:
            assert self._left is not None
            taken = time.perf_counter() - self._left
            self._times.taken.setdefault(self._called, []).append(taken)
            self._between()
        text = prose(turn, _LONG if turn < _FILLING else 512)
        calls = (ToolCall(f"c{turn}", "look", {"turn": turn}),)
        if turn == _FILLING + _CYCLES:
            calls = ()
        self._left = time.perf_counter()
        return Reply(text, calls, usage=Usage(len(messages), 10, 0.0))


@tool(read_only=True)
async def look(turn: int) -> str:
    """Look something up."""
    return prose(turn + 7, _LONG if turn < _FILLING else 512)


def _round(path: Path, frequency: int) -> tuple[float, float]:
    """How many bare commits checkpointing adds to a cycle, and what one takes."""
    times = Times()
    with SQLiteStorage(path) as storage:
        bare = BareCommits(path.with_suffix(".bare"), settings_of(storage))
        body = text_of(prose(1, 512))

        def between() -> None:
            times.time("bare", lambda: bare.commit(body))

        for name, manager in (("off", None), ("on", StateManager(storage))):
            config = AutonomousConfig(
                max_cycles=_FILLING + _CYCLES + 1,
                planning_enabled=False,
                checkpoint_frequency=frequency,
            )
            agent = BaseAutonomousAgent(
                config,
                state_manager=manager,
                agent_id="bench",
                tools=[look],
                model=_Timed(times, name, between),
            )
            result = asyncio.run(agent.run("go"))
            assert result.status == "completed"
        bare.close()
    added = times.median("on") - times.median("off")
    return added / times.median("bare"), times.median("bare")
