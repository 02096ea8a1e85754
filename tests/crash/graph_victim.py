"""A graph that is killed at every append in turn; run as a program, it prints what it found.

It forks, so that a kill costs milliseconds, and has no threads of its own when it does. What nodes
and effects do is counted in a file that they append to themselves.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.crash.media import open_medium, options_of

from surehold import (
    ChainNode,
    CheckpointConfig,
    GraphConfig,
    ParallelNode,
    State,
    StateGraph,
    StateManager,
    effect,
)
from surehold.doors.resume import read_progress
from surehold.errors import ConflictError
from surehold.storage.base import Batch

RUN = "victim"


class Killer:
    """Kills its own process at an append: as it begins, or when it has ended."""

    def __init__(self, storage: Any, number: int, when: str) -> None:
        self.count = 0
        append = storage.append

        def killing(batches: Sequence[Batch]) -> list[ConflictError | None]:
            self.count += 1
            if self.count == number and when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            result: list[ConflictError | None] = append(batches)
            if self.count == number and when == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        storage.append = killing


class World:
    """What nodes do to the outside, one line each."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def note(self, *words: object) -> None:
        line = " ".join(map(str, words)) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line.encode())
        os.close(file)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def has(self, word: str) -> str | None:
        return next((line for line in self.lines() if word in line.split()), None)


def build(store: Any, medium: str, world: World, interval: int) -> StateGraph:
    async def pay(amount: int, idempotency_key: str) -> str:
        world.note("effect", "pay", idempotency_key)
        return f"paid {amount}"

    async def think(prompt: str, idempotency_key: str) -> dict[str, Any]:
        world.note("effect", "think", idempotency_key)
        return {"text": prompt.upper(), "tokens": 7}

    async def once(name: str, value: int) -> str:
        def probe(key: str) -> str | None:
            return f"paid {value}" if world.has(key) else None

        return await effect(name, pay, value, probe=probe)

    async def start(state: State) -> dict[str, Any]:
        world.note("node", "start", state.step + 1)
        return {"n": 0, "log": ["started"]}

    async def work(state: State) -> State:
        paid = await once("pay", state["n"])
        thought = await effect("think", think, f"t{state['n']}", in_doubt="retry")
        world.note("node", "work", state.step + 1)
        return state.set("n", state["n"] + 1).append("log", paid, thought["text"])

    def even(state: State) -> State:
        world.note("node", "even", state.step + 1)
        return state.append("log", "even")

    def odd(state: State) -> State:
        world.note("node", "odd", state.step + 1)
        return state.append("log", "odd")

    async def item(number: int) -> int:
        await once("item", number)
        world.note("item", number)
        return number * number

    async def inner(state: State) -> dict[str, Any]:
        paid = await once("inner", state["n"])
        world.note("node", "inner", state.step + 1)
        return {"inner": [*state.get("inner", []), paid]}

    async def link(word: str, state: State) -> State:
        world.note("link", word)
        return state.append("log", word)

    def end(state: State) -> None:
        world.note("node", "end", state.step + 1)

    nested = StateGraph(GraphConfig(name="nested"))
    nested.add_node("inner", inner)
    nested.add_node("out", lambda state: None)
    nested.add_edge("inner", "inner", lambda state: len(state["inner"]) < 2)
    nested.add_edge("inner", "out")
    nested.set_entry_point("inner")
    nested.set_exit_point("out")

    config = CheckpointConfig(interval=interval, preserve=True)
    manager = StateManager(store, **options_of(medium))
    graph = StateGraph(GraphConfig(name="victim", checkpoint=config), manager=manager)
    for node in (start, work, even, odd, end):
        graph.add_node(node.__name__, node)
    graph.add_node("fan", ParallelNode([1, 2, 3, 4], item, into="squares", max_workers=2))
    graph.add_node("sub", nested)
    graph.add_node("chain", ChainNode(["a", "b", "c"], link))
    graph.add_edge("start", "work")
    graph.add_edge("work", "even", lambda state: state["n"] == 2)
    graph.add_edge("work", "odd", lambda state: state["n"] < 4)
    graph.add_edge("work", "fan")
    graph.add_edge("even", "work")
    graph.add_edge("odd", "work")
    graph.add_edge("fan", "sub")
    graph.add_edge("sub", "chain")
    graph.add_edge("chain", "end")
    graph.set_entry_point("start")
    graph.set_exit_point("end")
    return graph


def execute(
    medium: str, base: Path, world: World, interval: int, number: int, when: str
) -> dict[str, Any]:
    """Start the run, or go on with it; gives its end and how many appends it took."""
    storage = open_medium(medium, base)
    killer = Killer(storage, number, when)

    async def main() -> dict[str, Any]:
        graph = build(storage, medium, world, interval)
        final = await graph.execute(State.new({}, run_id=RUN))
        reader = graph.manager.reader
        run = reader.run(RUN)
        assert run is not None
        newest = reader.newest(run)
        assert newest is not None
        problems = [text for one in await graph.manager.verify(RUN) for text in one.problems]
        await graph.manager.close()
        return {
            "state": final.to_dict(),
            "step": final.step,
            "status": final.status,
            "path": read_progress(reader.load(newest)).path,
            "problems": problems,
        }

    end = asyncio.run(main())
    storage.close()
    return {**end, "appends": killer.count}


def in_a_child(
    out: Path, work: Callable[..., dict[str, Any]], *args: Any
) -> tuple[int, dict[str, Any] | None]:
    """Do *work* in a forked process: its exit status and, if it came to its end, what it gave."""
    out.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            out.write_text(json.dumps(work(*args)))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(70)
    _, status = os.waitpid(child, 0)
    return status, json.loads(out.read_text()) if out.exists() else None


def round_of(base: Path, medium: str, interval: int, number: int, when: str) -> dict[str, Any]:
    """Kill at one append, resume, and tell what happened."""
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir(parents=True)
    world = World(base / "world")
    status, first = in_a_child(base / "out", execute, medium, base, world, interval, number, when)
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    end = first
    if killed:
        status, end = in_a_child(base / "out", execute, medium, base, world, interval, 0, "never")
    return {"killed": killed, "status": status, "end": end, "counts": Counter(world.lines())}


def main() -> None:
    base, medium, interval, when = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
    stride = int(sys.argv[5])
    whole = round_of(base, medium, interval, 0, "never")
    rounds = [
        round_of(base, medium, interval, number, when)
        for number in range(1, whole["end"]["appends"] + 1, stride)
    ]
    print(json.dumps({"whole": whole, "rounds": rounds}))


if __name__ == "__main__":
    main()
