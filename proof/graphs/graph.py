"""A graph made by chance from a seed, the same in every process of a trial."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, NamedTuple

from proof.graphs.outside import Outside
from surehold import (
    ChainNode,
    CheckpointConfig,
    GraphConfig,
    ParallelNode,
    Rules,
    State,
    StateGraph,
    StateManager,
    effect,
    interrupt,
)

__all__ = ["KEY", "RUN", "Settings", "build", "settings_of"]

RUN = "run"
KEY = "5a" * 32
_POLICIES = ("ask", "ask", "retry", "probe", "fail")
_BLOCKS = ("work", "loop", "nested", "parallel", "collect", "chain", "question")


class Settings(NamedTuple):
    """The settings of a trial."""

    medium: str
    interval: int
    keep: int | None
    encrypted: bool
    lease: float

    def address(self, directory: str) -> str:
        """The address of the storage in *directory*."""
        return f"{self.medium}{directory}/runs"

    def manager(self, directory: str) -> StateManager:
        """A manager of the trial's storage."""
        return StateManager(
            self.address(directory),
            encryption_key=KEY if self.encrypted else None,
            retention=Rules(keep_last=self.keep) if self.keep else None,
        )


def settings_of(seed: int) -> Settings:
    """The settings that belong to a seed."""
    chance = random.Random(f"settings {seed}")
    return Settings(
        medium=chance.choice(("sqlite:///", "sqlite:///", "file:")),
        interval=chance.choice((1, 2, 5)),
        keep=chance.choice((None, 1, 3)),
        encrypted=chance.random() < 0.3,
        lease=0.5,
    )


class _Calls:
    """The calls of one process; *forgetful* ones are not recorded, for the control."""

    def __init__(self, seed: int, start: int, outside: Outside, *, forgetful: bool) -> None:
        self._chance = random.Random(f"calls {seed}")
        self._pause = random.Random(f"pauses {seed} {start}")
        self._start = start
        self._outside = outside
        self._forgetful = forgetful

    def plan(self, *, may_fail: bool) -> Callable[[int], Any]:
        """Plan a call by chance; gives the function that makes it with a number."""
        policy = self._chance.choice(_POLICIES)
        name = f"{policy}{self._chance.randrange(3)}"
        flaky = self._chance.random() < 0.15 and may_fail
        return lambda number: self._make(name, policy, number, flaky=flaky)

    async def _make(self, name: str, policy: str, number: int, *, flaky: bool) -> int:
        outside, start = self._outside, self._start
        keys: list[str] = []

        async def call(number: int, idempotency_key: str) -> int:
            keys.append(idempotency_key)
            outside.write("call", start, policy, idempotency_key)
            await asyncio.sleep(self._pause.choice((0, 0.001, 0.004, 0.01)))
            if flaky and not outside.has("raised", idempotency_key):
                outside.write("raised", start, policy, idempotency_key)
                raise ConnectionError("no reply")
            value = number * 7 + 1
            outside.write("done", start, policy, idempotency_key, value)
            return value

        def probe(key: str) -> int | None:
            value = outside.done(key)
            return None if value is None else int(value)

        if self._forgetful:
            value = await call(number, f"{name} {number}")
        elif policy == "probe":
            value = await effect(name, call, number, probe=probe)
        else:
            value = await effect(name, call, number, in_doubt=policy)  # type: ignore[arg-type]
        if keys:
            outside.write("kept", start, policy, keys[-1], value)
        return value


def build(
    seed: int,
    start: int,
    outside: Outside,
    manager: StateManager | None,
    settings: Settings,
    *,
    forgetful: bool = False,
) -> StateGraph:
    """The graph of a seed, for one process."""
    chance = random.Random(f"graph {seed}")
    calls = _Calls(seed, start, outside, forgetful=forgetful)
    checkpoint = CheckpointConfig(
        interval=settings.interval, preserve=True, lease_seconds=settings.lease
    )
    config = GraphConfig(name="random", checkpoint=checkpoint, signals=True)
    graph = StateGraph(config, manager=manager)
    names = [f"n{number}" for number in range(chance.randint(3, 6))]
    for number, name in enumerate(names):
        kind = chance.choice(_BLOCKS)
        graph.add_node(name, _node(kind, name, calls, chance))
        if kind == "loop":
            rounds = chance.randint(2, 3)
            graph.add_edge(name, name, _less_than(f"{name}.rounds", rounds))
        if number:
            graph.add_edge(names[number - 1], name)
    graph.set_entry_point(names[0])
    graph.set_exit_point(names[-1])
    return graph


def _less_than(key: str, rounds: int) -> Callable[[State], bool]:
    return lambda state: bool(state[key] < rounds)


def _node(kind: str, name: str, calls: _Calls, chance: random.Random) -> Any:
    # Where failures are collected, one that happens once would change the final state.
    made = [calls.plan(may_fail=kind != "collect") for _ in range(chance.randint(1, 3))]

    async def work(state: State) -> State:
        for number, call in enumerate(made):
            state = state.append("log", await call(number))
        return state

    async def loop(state: State) -> State:
        key = f"{name}.rounds"
        state = await work(state)
        return state.set(key, state.get(key, 0) + 1)

    async def item(number: int) -> int:
        return int(await made[number % len(made)](number))

    async def broken_item(number: int) -> int:
        value = await item(number)
        if number == 1:
            raise ValueError("item 1 is never done")
        return value

    async def link(number: int, state: State) -> State:
        return state.append("log", await made[number % len(made)](number))

    async def question(state: State) -> State:
        state = await work(state)
        return state.append("log", await interrupt(f"{name}?"))

    if kind == "parallel":
        return ParallelNode([0, 1, 2, 3], item, into=f"{name}.items", max_workers=2)
    if kind == "collect":

        def together(done: Any, state: State) -> State:
            return state.append("log", [done.results, sorted(done.errors)])

        return ParallelNode([0, 1, 2], broken_item, together, max_workers=3, fail_fast=False)
    if kind == "chain":
        return ChainNode([0, 1, 2], link)
    if kind == "nested":
        inner = StateGraph(GraphConfig(name=f"{name}-inner"))
        inner.add_node("first", work)
        inner.add_node("second", loop)
        inner.add_edge("first", "second")
        inner.set_entry_point("first")
        inner.set_exit_point("second")
        return inner
    return {"work": work, "loop": loop, "question": question}[kind]
