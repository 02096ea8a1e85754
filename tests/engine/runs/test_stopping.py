"""Signals, and leases that are lost: real processes, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from tests.builders.graphs import Heard, line

from surehold import State
from surehold.errors import ConflictError, Drained

PROGRAM = """
import asyncio, os, sys, time
from surehold import *
from surehold.errors import *

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

async def first(state):
    return {"first": True}

async def slow(state):
    try:
        say("begun")
        for _ in range(SLOW):
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        say("cancelled")
        raise
    say("finished")
    return {"slow": True}

def last(state):
    say("last")

def build(store):
    graph = StateGraph(GraphConfig(checkpoint=CheckpointConfig(
        store=store, interval=INTERVAL, preserve=True, lease_seconds=LEASE)))
    for node in (first, slow, last):
        graph.add_node(node.__name__, node)
    graph.add_edge("first", "slow"); graph.add_edge("slow", "last")
    graph.set_entry_point("first"); graph.set_exit_point("last")
    return graph

if __name__ == "__main__":
    try:
        with build(sys.argv[1]) as graph:
            graph.execute_sync(State.new({}, run_id="r"))
    except Drained as drained:
        say("drained", drained.node, drained.saved)
    except ConflictError as error:
        say("conflict", error.message)
"""


class Program:
    """The program above, running on a store."""

    def __init__(self, store: str, *, slow: int, interval: int = 1, lease: float = 30) -> None:
        code = PROGRAM.replace("SLOW", str(slow)).replace("INTERVAL", str(interval))
        code = code.replace("LEASE", str(lease))
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(code), store],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        for line_ in self.process.stdout:
            self.lines.append(line_.strip())
            if line_.startswith(word):
                return
        raise AssertionError(f"no {word!r}: {self.lines}")

    def end(self) -> list[str]:
        assert self.process.stdout is not None
        rest = self.process.stdout.read()
        self.process.wait(500)
        self.lines += rest.splitlines()
        return self.lines


@pytest.fixture(params=["file", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store that processes can share."""
    return {"file": f"file://{tmp_path}/runs", "sqlite": f"sqlite:///{tmp_path}/runs.db"}[
        request.param
    ]


@pytest.fixture
def started() -> Any:
    """Starts programs, and ends those that are still there."""
    programs: list[Program] = []

    def start(*args: Any, **kwargs: Any) -> Program:
        programs.append(Program(*args, **kwargs))
        return programs[-1]

    yield start
    for program in programs:
        if program.process.poll() is None:
            program.process.kill()
            program.process.wait()
        if program.process.stdout is not None:
            program.process.stdout.close()


def graph_on(store: str, **config: Any) -> Any:
    """The program's graph, quick, in this process."""
    executed: list[str] = []

    def first(state: State) -> dict[str, bool]:
        executed.append("first")
        return {"first": True}

    def slow(state: State) -> dict[str, bool]:
        executed.append("slow")
        return {"slow": True}

    def last(state: State) -> None:
        executed.append("last")

    return line(first, slow, last, store=store, interval=1, preserve=True, **config), executed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("interval", [1, 9])
async def test_a_signal_lets_the_node_finish_and_saves(
    db: str, started: Any, number: int, interval: int
) -> None:
    program = started(db, slow=30, interval=interval)
    await asyncio.to_thread(program.wait_for, "begun")
    program.process.send_signal(number)
    lines = await asyncio.to_thread(program.end)
    said = "surehold: stopping run r after slow; a second signal breaks it off"
    assert lines == ["begun", said, "finished", "drained last True"]
    assert program.process.returncode == 0
    graph, executed = graph_on(db)
    async with graph:
        newest = await graph.manager.latest("r")
        assert (newest.step, newest.kind, newest.status) == (2, "interrupt", "interrupted")
        final = await graph.resume("r")
        assert executed == ["last"] and final.to_dict() == {"first": True, "slow": True}


async def test_a_second_signal_saves_at_once(db: str, started: Any) -> None:
    program = started(db, slow=6000, interval=9)
    await asyncio.to_thread(program.wait_for, "begun")
    program.process.send_signal(signal.SIGTERM)
    program.process.send_signal(signal.SIGINT)
    lines = await asyncio.to_thread(program.end)
    assert [lines[0], *lines[2:]] == ["begun", "cancelled", "drained slow True"]
    graph, executed = graph_on(db)
    async with graph:
        newest = await graph.manager.latest("r")
        assert (newest.step, newest.kind, newest.status) == (1, "interrupt", "interrupted")
        await graph.resume("r")
        assert executed == ["slow", "last"]


async def test_a_nested_graph_stops_after_its_own_node(db: str) -> None:
    executed: list[str] = []

    def stop(state: State) -> None:
        executed.append("stop")
        os.kill(os.getpid(), signal.SIGTERM)

    async def pause(state: State) -> None:
        executed.append("pause")
        await asyncio.sleep(0.05)

    def after(state: State) -> None:
        executed.append("after")

    inner = line(stop, pause, after)
    async with line(
        inner, lambda state: None, store=db, interval=1, preserve=True, signals=True
    ) as graph:
        with pytest.raises(Drained) as caught:
            await graph.execute(State.new({}, run_id="r"))
        assert caught.value.run_id == "r" and executed == ["stop"]
        assert (await graph.resume("r")).status == "completed"
    assert executed == ["stop", "pause", "after"]


async def test_without_checkpoints_a_stop_says_that_nothing_was_saved() -> None:
    async def stop(state: State) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.05)

    with pytest.raises(Drained, match="nothing was saved"):
        await line(stop, lambda state: None, signals=True).execute({})


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    line(lambda state: None).execute_sync({})
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert before == after


async def test_a_program_with_its_own_loop_keeps_its_handlers() -> None:
    seen: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, seen.append, 1)
    try:
        await line(lambda state: os.kill(os.getpid(), signal.SIGTERM), lambda state: None).execute()
        await asyncio.sleep(0.05)
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
    assert seen == [1]


async def test_after_sigkill_it_resumes_at_once(store: str, started: Any) -> None:
    program = started(store, slow=6000)
    await asyncio.to_thread(program.wait_for, "begun")
    program.process.kill()
    await asyncio.to_thread(program.end)
    graph, executed = graph_on(store)
    async with graph:
        await graph.resume("r")
    assert executed == ["slow", "last"]


async def test_a_paused_process_that_wakes_after_a_takeover_appends_nothing(
    store: str, started: Any
) -> None:
    program = started(store, slow=6000, lease=0.5)
    await asyncio.to_thread(program.wait_for, "begun")
    program.process.send_signal(signal.SIGSTOP)
    graph, executed = graph_on(store)
    async with graph:
        deadline = time.monotonic() + 500
        while True:
            try:
                await graph.resume("r")
                break
            except ConflictError:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
        run = graph.manager.reader.run("r")
        program.process.send_signal(signal.SIGCONT)
        lines = await asyncio.to_thread(program.end)
        assert lines[:2] == ["begun", "cancelled"]
        assert lines[2].startswith("conflict run 'r' was taken over")
        assert graph.manager.reader.run("r") == run
        assert all(await graph.manager.verify("r"))
    assert executed == ["slow", "last"]


async def test_a_lost_lease_cancels_the_node_but_not_the_caller(db: str) -> None:
    cancelled: list[bool] = []
    heard = Heard()

    async def waits(state: State) -> None:
        storage = graph.manager.storage
        lease = storage.lease_of("r")
        storage.release_lease(lease)
        storage.take_lease("r", lease.owner, now=time.time(), ttl=60)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async with line(
        waits, lambda state: None, store=db, interval=1, lease_seconds=0.3, observer=heard
    ) as graph:
        with pytest.raises(ConflictError, match="taken over"):
            await graph.execute(State.new({}, run_id="r"))
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
    assert cancelled == [True] and "lease.lost" in heard.types()
    assert "run.failed" not in heard.types()
