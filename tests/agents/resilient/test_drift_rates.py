"""Drift on labelled behaviours: rates as documented, and no sound work lost by the seed's loop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import le
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from tests.agents.resilient.behaviours import (
    CYCLES,
    SOUND,
    TRACES,
    Agent,
    Behaviour,
    Rates,
    measure,
)
from tests.crash.media import FULL

from surehold import ResilientCheckpointManager

GUIDE = Path("docs/guides/drift.md")
ROW = re.compile(r"^\| `(?P<name>[a-z ]+)` \|.*\| (\d+) % \| (\d+) % \| (\d+) % \|$", re.MULTILINE)


class End(BaseException):
    """The end of a trial."""


class Trial:
    """One agent with a behaviour, run in the loop of the document "Agent Loop Integration"."""

    def __init__(self, behaviour: Behaviour, seed: int) -> None:
        self.now = 1_000_000.0
        self.manager = ResilientCheckpointManager(
            "agent-3", "memory://", monotonic=lambda: self.now
        )
        self.worked = 0
        self._agent = Agent(self.manager.current_task, self.manager.mailbox, self.manager.memory)
        self._cycles: Iterator[bool] = behaviour(self._agent, Random(seed))

    def cycle(self) -> None:
        if next(self._cycles, None) is None or self.worked == CYCLES:
            raise End
        self.worked += 1
        self.manager.memory["results"] = self.manager.memory.get("results", 0) + 1
        self.now += self._agent.seconds
        if self._agent.failed:
            raise ConnectionError("no network")

    def run(self) -> int:
        """Run the loop as the document has it, but for the names; returns the cycles lost."""
        checkpoint_manager = self.manager
        time = SimpleNamespace(time=lambda: self.now)
        session_start_time = time.time()
        last_checkpoint_time = session_start_time
        while True:
            try:
                self.cycle()
                current_time = time.time()
                if current_time - last_checkpoint_time >= 1800:
                    checkpoint_manager.create_checkpoint("routine")
                    last_checkpoint_time = current_time
                if current_time - session_start_time >= 7200:
                    checkpoint_manager.create_checkpoint("recovery")
                    session_start_time = current_time
                if checkpoint_manager.detect_drift():
                    checkpoint_manager.create_checkpoint("recovery")
                    latest = checkpoint_manager.get_latest_checkpoint("routine")
                    if latest:
                        checkpoint_manager.restore_checkpoint(latest)
            except End:
                break
            except Exception:
                checkpoint_manager.create_checkpoint("recovery")
        return self.worked - int(self.manager.memory["results"])


@pytest.mark.parametrize("behaviour", SOUND, ids=lambda one: one.__name__)
def test_the_documents_loop_loses_no_cycle_of_a_sound_agent(behaviour: Behaviour) -> None:
    for seed in (1, 2):
        trial = Trial(behaviour, seed)
        assert trial.run() == 0
        assert trial.worked == CYCLES
        assert trial.manager.get_latest_checkpoint("routine") is not None


def test_the_guide_states_the_rates_that_are_measured() -> None:
    traces, near = (TRACES, (0, 0, 0)) if FULL else (3, (35, 5, 0))
    measured = {name: tuple(map(round, rates)) for name, rates in measure(traces).items()}
    stated = {row[1]: tuple(map(int, row.groups()[1:])) for row in ROW.finditer(GUIDE.read_text())}
    assert stated.keys() == measured.keys()
    for name, rates in measured.items():
        off = [abs(one - other) for one, other in zip(rates, stated[name], strict=True)]
        assert all(map(le, off, near)), table(measured)


def table(measured: dict[str, tuple[int, ...]]) -> str:
    assert len(Rates._fields) == 3
    rows = (" | ".join(f"{share} %" for share in rates) for rates in measured.values())
    return "\n".join(f"| `{name}` | … | {row} |" for name, row in zip(measured, rows, strict=True))
