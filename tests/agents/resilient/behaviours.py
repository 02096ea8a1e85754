"""Labelled behaviours of agents, sound and faulty, generated from a seed.

Each behaviour is a generator that changes an `Agent` and yields once per cycle. A faulty one
yields ``True`` from the cycle on with which its fault has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from surehold.agents.resilient.drift import AgentHistory
from surehold.agents.resilient.providers import Captured
from surehold.core.policy import DriftMonitor, DriftReport, default_detectors
from surehold.core.values import encode

CYCLES = 120
TRACES = 20
WITHIN = 60


@dataclass
class Agent:
    """The parts of an agent that the seeds' manager captures, and the facts of its last cycle."""

    current_task: dict[str, Any] = field(default_factory=dict)
    mailbox: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    seconds: float = 60.0
    failed: bool = False
    uncaptured: bool = False
    damage: str = ""

    def work(self, progress: float, action: str) -> None:
        self.current_task.update(id="report", progress_percentage=progress, action=action)


Behaviour = Callable[[Agent, Random], Iterator[bool]]


def between(chance: Random, low: float, high: float) -> float:
    return low + (high - low) * chance.random()


def whole(chance: Random, low: int, high: int) -> int:
    return low + int(chance.random() * (high - low + 1))


def advancing(agent: Agent, chance: Random, low: int, high: int) -> Iterator[bool]:
    """Progress that advances every *low* to *high* cycles."""
    progress, due = 0.0, whole(chance, low, high)
    for cycle in range(CYCLES):
        if cycle >= due:
            progress += 0.5
            due = cycle + whole(chance, low, high)
        agent.work(progress, f"page {cycle}")
        agent.seconds = 60 * between(chance, 0.8, 1.2)
        yield False


def steady(agent: Agent, chance: Random) -> Iterator[bool]:
    return advancing(agent, chance, 1, 1)


def slow_progress(agent: Agent, chance: Random) -> Iterator[bool]:
    return advancing(agent, chance, 3, 9)


def very_slow_progress(agent: Agent, chance: Random) -> Iterator[bool]:
    every = whole(chance, 10, 25)
    return advancing(agent, chance, every, every + 4)


def optional_key(agent: Agent, chance: Random) -> Iterator[bool]:
    for _ in steady(agent, chance):
        if chance.random() < 0.9:
            agent.memory["scratch"] = "x"
        else:
            agent.memory.pop("scratch", None)
        yield False


def slow_network(agent: Agent, chance: Random) -> Iterator[bool]:
    start, length = whole(chance, 20, 80), whole(chance, 2, 12)
    for cycle, _ in enumerate(steady(agent, chance)):
        if start <= cycle < start + length:
            agent.seconds *= 4
        yield False


def uneven_durations(agent: Agent, chance: Random) -> Iterator[bool]:
    for _ in steady(agent, chance):
        agent.seconds = 60 * between(chance, 0.3, 1.7)
        yield False


def occasional_errors(agent: Agent, chance: Random) -> Iterator[bool]:
    for _ in steady(agent, chance):
        agent.failed = chance.random() < 0.1
        yield False


def short_outage(agent: Agent, chance: Random) -> Iterator[bool]:
    start, length = whole(chance, 10, 80), whole(chance, 2, 5)
    for cycle, _ in enumerate(steady(agent, chance)):
        agent.failed = start <= cycle < start + length
        yield False


def idle_polling(agent: Agent, chance: Random) -> Iterator[bool]:
    for cycle in range(CYCLES):
        agent.current_task["action"] = "poll mailbox"
        agent.mailbox.update(unread=[], last_poll=cycle)
        yield False


def waiting(agent: Agent, chance: Random) -> Iterator[bool]:
    start, length = whole(chance, 5, 40), whole(chance, 20, 70)
    for cycle, _ in enumerate(steady(agent, chance)):
        is_waiting = start <= cycle < start + length
        agent.current_task["status"] = "waiting" if is_waiting else "running"
        if is_waiting:
            agent.work(start / 2, "wait for approval")
        yield False


def many_tasks(agent: Agent, chance: Random) -> Iterator[bool]:
    task = 0
    while True:
        task += 1
        steps = whole(chance, 3, 15)
        for step in range(steps):
            agent.current_task.update(
                id=task, action="work", progress_percentage=100 * step / steps
            )
            yield False


def recurring(agent: Agent, chance: Random) -> Iterator[bool]:
    """One task again and again, whose completion no cycle sees."""
    files = whole(chance, 5, 30)
    for cycle in range(CYCLES):
        done = cycle % files
        agent.work(100 * done / files, f"file {done}")
        yield False


def one_action(agent: Agent, chance: Random) -> Iterator[bool]:
    """The same action for every message, and no figure for progress."""
    for cycle in range(CYCLES):
        agent.current_task.update(id="mail", action="answer message")
        agent.memory.setdefault("answered", []).append(cycle)
        yield False


def growing_results(agent: Agent, chance: Random) -> Iterator[bool]:
    for cycle, _ in enumerate(steady(agent, chance)):
        agent.memory[f"result {cycle}"] = "x" * whole(chance, 1_000, 20_000)
        yield False


def bursts_of_mail(agent: Agent, chance: Random) -> Iterator[bool]:
    unread = 0
    for _ in steady(agent, chance):
        unread = max(unread - whole(chance, 2, 6), 0)
        if chance.random() < 0.1:
            unread += whole(chance, 5, 30)
        agent.mailbox["unread"] = ["m"] * unread
        yield False


def replanning(agent: Agent, chance: Random) -> Iterator[bool]:
    progress = 20.0
    for cycle in range(CYCLES):
        progress += 0.5
        if chance.random() < 0.03:
            progress *= between(chance, 0.85, 0.95)
        agent.work(progress, f"page {cycle}")
        yield False


def faulty(fault: Callable[[Agent, Random, int, float], None]) -> Behaviour:
    """Steady progress; from some cycle on *fault* changes every cycle, weakly or strongly."""

    def behaviour(agent: Agent, chance: Random) -> Iterator[bool]:
        start, strength = whole(chance, 20, 40), chance.random()
        for cycle, _ in enumerate(steady(agent, chance)):
            begun = cycle >= start
            if begun:
                fault(agent, chance, cycle - start, strength)
            yield begun

    return behaviour


def stuck(agent: Agent, chance: Random, cycle: int, strength: float) -> None:
    agent.current_task["progress_percentage"] = 9.0 + (cycle % 20 == 19) * strength * cycle / 20
    agent.memory["noise"] = cycle


def repeating(agent: Agent, chance: Random, cycle: int, strength: float) -> None:
    agent.work(9.0, "search kelp")


def alternating(agent: Agent, chance: Random, cycle: int, strength: float) -> None:
    agent.work(9.0, ("open page", "close page")[cycle % 2])


def failing(agent: Agent, chance: Random, cycle: int, strength: float) -> None:
    agent.failed = chance.random() < 0.6 + 0.4 * strength


def losing(agent: Agent, chance: Random, cycle: int, strength: float) -> None:
    agent.work(9.0 * (1 - (0.4 + 0.6 * strength) * min(cycle / 20, 1)), f"page {cycle}")


def slowing(agent: Agent, chance: Random, cycle: int, strength: float) -> None:
    agent.seconds *= 2 + 4 * strength


def overrun(agent: Agent, chance: Random, cycle: int, strength: float) -> None:
    unread = agent.mailbox.setdefault("unread", [])
    unread += ["m"] * whole(chance, 0, 2 + int(6 * strength))


def leaking(agent: Agent, chance: Random, cycle: int, strength: float) -> None:
    agent.memory[f"leak {cycle}"] = "x" * int(30_000 + 300_000 * strength)


def other_type(agent: Agent, chance: Random, cycle: int, strength: float) -> None:
    agent.current_task["action"] = ["a", "list"]


def unreadable(agent: Agent, chance: Random, cycle: int, strength: float) -> None:
    agent.uncaptured = True


def damaged(agent: Agent, chance: Random, cycle: int, strength: float) -> None:
    agent.damage = "record 3 does not match its digest"


SOUND: tuple[Behaviour, ...] = (
    steady,
    slow_progress,
    very_slow_progress,
    optional_key,
    slow_network,
    uneven_durations,
    occasional_errors,
    short_outage,
    idle_polling,
    waiting,
    many_tasks,
    recurring,
    one_action,
    growing_results,
    bursts_of_mail,
    replanning,
)

FAULTY: dict[str, tuple[str, tuple[Behaviour, ...]]] = {
    "stalled": ("restore", (faulty(stuck),)),
    "reversed": ("restore", (faulty(losing),)),
    "errors": ("restore", (faulty(failing),)),
    "repetition": ("restore", (faulty(repeating), faulty(alternating))),
    "uncaptured": ("restore", (faulty(unreadable),)),
    "slowing": ("warn", (faulty(slowing),)),
    "own schema": ("warn", (faulty(other_type),)),
    "backlog": ("warn", (faulty(overrun),)),
    "memory": ("warn", (faulty(leaking),)),
    "corruption": ("warn", (faulty(damaged),)),
}
"""By detector: the level it must reach, and the behaviours that are its to find."""


class Rates(NamedTuple):
    """Shares of traces, in per cent."""

    detected: float
    warned: float
    """Sound traces with a warning or more."""
    restored: float
    """Sound traces for which a restore was advised."""


def watch(behaviour: Behaviour, seed: int) -> Iterator[tuple[bool, DriftReport]]:
    """Run one behaviour for `CYCLES` cycles; yields whether the fault has begun, and the report."""
    agent, chance, now = Agent(), Random(seed), [0.0]
    history = AgentHistory(DriftMonitor(default_detectors()), lambda: now[0])
    cycles = behaviour(agent, chance)
    for _ in range(CYCLES):
        begun = next(cycles, None)
        if begun is None:
            return
        now[0] += agent.seconds
        parts = {"current_task": agent.current_task, "mailbox": agent.mailbox}
        texts = {name: encode(part) for name, part in parts.items()}
        missing = {"memory": "OSError: gone"} if agent.uncaptured else {}
        if not missing:
            texts["memory"] = encode(agent.memory)
        facts = {"failed": True} if agent.failed else {}
        history.observe(Captured(texts, missing), agent.damage, facts)
        yield begun, history.monitor.look()


def measure(traces: int = TRACES) -> dict[str, Rates]:
    """Detection and false-alarm rates of each default detector."""
    warned = dict.fromkeys(FAULTY, 0)
    restored = dict.fromkeys(FAULTY, 0)
    for behaviour in SOUND:
        for seed in range(traces):
            seen = {
                (one.detector, one.level)
                for _, report in watch(behaviour, seed)
                for one in report.findings
            }
            for detector in FAULTY:
                warned[detector] += bool(seen & {(detector, "warn"), (detector, "restore")})
                restored[detector] += (detector, "restore") in seen
    sound = len(SOUND) * traces / 100
    rates = {}
    for detector, (level, behaviours) in FAULTY.items():
        found = sum(
            _is_found(behaviour, seed, detector, level)
            for behaviour in behaviours
            for seed in range(traces)
        )
        share = 100 * found / (len(behaviours) * traces)
        rates[detector] = Rates(share, warned[detector] / sound, restored[detector] / sound)
    return rates


def _is_found(behaviour: Behaviour, seed: int, detector: str, level: str) -> bool:
    """Return whether the detector reaches *level* within `WITHIN` cycles, and not before."""
    since = 0
    for begun, report in watch(behaviour, seed):
        found = any((one.detector, one.level) == (detector, level) for one in report.findings)
        if found or since > WITHIN:
            return found and begun
        since += begun
    return False
