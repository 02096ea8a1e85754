"""Cost that checkpointing adds to an agent's cycle with a conversation of 1 MB."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.prose import prose
from benchmarks.report import Line
from benchmarks.workload import BareCommits, Times, settings_of, text_of
from surehold import SQLiteStorage, StateManager
from surehold.agents.models.model import Message, Reply, ToolCall, ToolSpec
from surehold.agents.tools.definition import tool
from surehold.compat import AutonomousConfig, BaseAutonomousAgent
from surehold.core.values import Usage

__all__ = ["measure"]

_ROUNDS = 5
_LONG = 4096
_FILLING = 128
"""Cycles that each add two messages of 4 KB: a megabyte."""
_CYCLES = 60
"""The cycles measured after that; each adds two messages of 0.5 KB."""
_SETTLING = 0.005
"""Seconds left to background writes after a cycle."""


def measure(directory: Path) -> Iterator[Line]:
    """Measure cycles that save the model's reply, the tool's result and perhaps the state."""
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


class _Turns:
    """Alternates cycles of two agents with a bare commit in between."""

    def __init__(self, commit: Callable[[], None]) -> None:
        self.times = Times()
        self._commit = commit
        self._turns = {"off": asyncio.Event(), "on": asyncio.Event()}
        self._turns["off"].set()

    async def next(self, name: str) -> None:
        """Wait for the turn of *name*."""
        await self._turns[name].wait()
        self._turns[name].clear()

    async def done(self, name: str) -> None:
        """Give the turn to the other agent, after background writes have settled."""
        await asyncio.sleep(_SETTLING)
        self.times.time("bare", self._commit)
        self._turns["on" if name == "off" else "off"].set()


class _Timed:
    """A model that answers at once and records the time between its calls."""

    name = "timed"

    def __init__(self, turns: _Turns, agent: str) -> None:
        self._turns = turns
        self._agent = agent
        self._left = 0.0
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
            taken = time.perf_counter() - self._left
            self._turns.times.taken.setdefault(self._agent, []).append(taken)
        text = prose(turn, _LONG if turn < _FILLING else 512)
        calls = (ToolCall(f"c{turn}", "look", {"turn": turn}),)
        last = turn == _FILLING + _CYCLES
        if turn:
            await self._turns.done(self._agent)
        if not last:
            await self._turns.next(self._agent)
        self._left = time.perf_counter()
        return Reply(text, () if last else calls, usage=Usage(len(messages), 10, 0.0))


@tool(read_only=True)
async def look(turn: int) -> str:
    """Look something up."""
    return prose(turn + 7, _LONG if turn < _FILLING else 512)


def _round(path: Path, frequency: int) -> tuple[float, float]:
    """Bare commits that checkpointing adds to a cycle, and seconds of one."""
    with SQLiteStorage(path) as storage:
        bare = BareCommits(path.with_suffix(".bare"), settings_of(storage))
        body = text_of(prose(1, 512))
        times = asyncio.run(_both(storage, frequency, lambda: bare.commit(body)))
        bare.close()
    added = times.median("on") - times.median("off")
    return added / times.median("bare"), times.median("bare")


async def _both(storage: SQLiteStorage, frequency: int, commit: Callable[[], None]) -> Times:
    """Run the same agent side by side without and with a state manager."""
    turns = _Turns(commit)
    config = AutonomousConfig(
        max_cycles=_FILLING + _CYCLES + 1,
        planning_enabled=False,
        checkpoint_frequency=frequency,
        enable_interrupts=False,
    )
    agents = [
        BaseAutonomousAgent(
            config,
            state_manager=manager,
            agent_id="bench",
            tools=[look],
            model=_Timed(turns, name),
        )
        for name, manager in (("off", None), ("on", StateManager(storage)))
    ]
    results = await asyncio.gather(*(agent.run("go") for agent in agents))
    assert [result.status for result in results] == ["completed", "completed"]
    return turns.times
