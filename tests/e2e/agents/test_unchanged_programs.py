"""Unchanged programs of real client libraries and frameworks, killed at their calls.

The server kills the program when a call comes, in the middle of its stream, or after its answer.
Started again by `surehold exec --restart`, it completes by itself: with the answers that counted,
and with at most one request more for each kill.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.agents import programs
from tests.model_server import ModelServer, model_server
from tests.servers import node_modules

from surehold import CheckpointManager
from surehold.storage.base import RecordQuery

HERE = Path(programs.__file__)
NODE = "node"
"""A program that is not Python, which the proxy records."""
NAMES = [
    *programs.NAMES,
    pytest.param(
        NODE,
        marks=pytest.mark.skipif(
            not (node_modules() / "openai").is_dir(), reason="make build/node/ready: needs npm"
        ),
    ),
]
LONGEST = 7200
"""Seconds on a busy machine: each kill starts an interpreter and its packages again."""
PHASES = ("asked", "midway", "answered")
TOOLS = ("openai_agents", "pydantic_ai", "smolagents")


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with model_server() as made:
        yield made


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def use_tools(server: ModelServer, name: str) -> None:
    """Let the model call a tool in all but its last answer."""

    def tools(body: dict[str, Any]) -> Any:
        answered = json.dumps(body).count("is an alga")
        if answered < programs.CALLS - 1:
            return "look_up", {"name": f"kelp {answered}"}
        return ("final_answer", {"answer": "done"}) if name == "smolagents" else None

    if name in TOOLS:
        server.tools = tools


def command_of(name: str) -> list[str]:
    if name == NODE:
        return ["node", str(HERE.parent / "agent.cjs")]
    return [sys.executable, str(HERE), name]


def environ(server: ModelServer, storage: str) -> dict[str, str]:
    return {
        **os.environ,
        "MODEL": server.url,
        "SUREHOLD_STORAGE": storage,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NODE_PATH": str(node_modules()),
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": "sk-secret",
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_API_KEY": "sk-secret",
    }


def start(server: ModelServer, storage: str, name: str, restart: int) -> subprocess.Popen[str]:
    command = command_of(name)
    options = ["--restart", str(restart), "--backoff", "0", "--json"]
    return subprocess.Popen(
        [sys.executable, "-m", "surehold", "exec", "--run", "mine", *options, "--", *command],
        env=environ(server, storage),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(launcher: subprocess.Popen[str]) -> tuple[str, dict[str, Any]]:
    """The output of the program's starts, and the report of `exec`."""
    out, err = launcher.communicate(timeout=3000)
    assert launcher.returncode == 0, err
    at = out.rfind("\n{\n") + 1  # the report is the last document
    return out[:at], json.loads(out[at:])


def execute(
    server: ModelServer, folder: Path, name: str, calls: Collection[int]
) -> tuple[str, dict[str, Any], int]:
    """The output of the program's starts, the report of `exec`, and the number of kills.

    The program is killed the first time that it makes one of these calls.
    """
    launcher = start(server, f"sqlite:///{folder}/runs.db", name, len(calls) + 1)
    kills, seen = [], set[str]()

    def kill() -> None:
        kills.append(server.count)
        for child in children_of(launcher.pid):
            os.kill(child, signal.SIGKILL)

    def at(number: int, phase: str) -> None:
        body = json.dumps(server.requests[number - 1], sort_keys=True)
        if phase == "asked" and body not in seen:
            seen.add(body)
            if len(seen) in calls:
                server.kill[number, PHASES[len(seen) % len(PHASES)]] = kill
        ModelServer.at(server, number, phase)

    server.at = at  # type: ignore[method-assign]
    return *finish(launcher), len(kills)


def check(server: ModelServer, folder: Path, name: str, calls: Collection[int]) -> None:
    use_tools(server, name)
    output, told, kills = execute(server, folder, name, calls)
    assert kills == len(calls)
    assert told["starts"] in (kills, kills + 1)  # the last kill may come when it has ended
    assert told["recorded"] == programs.CALLS
    assert server.count <= programs.CALLS + kills
    asked = server.count
    command = [sys.executable, "-m", "surehold", "replay", "mine", "--json", "--"]
    replayed = subprocess.run(
        [*command, *command_of(name)],
        env=environ(server, f"sqlite:///{folder}/runs.db"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert replayed.returncode == 0, replayed.stderr
    whole = replayed.stdout[: replayed.stdout.rfind("\n{\n") + 1]
    assert whole and output.endswith(whole)  # what the last start printed
    assert server.count == asked
    kept = b"".join(path.read_bytes() for path in folder.iterdir())
    with CheckpointManager(f"sqlite:///{folder}/runs.db") as manager:
        reader, run = manager.reader, manager.reader.known("mine")
        for record in reader.records("mine", 1, run.seq):
            kept += reader.sealer.open(record)  # without compression
    assert b'"request":' in kept
    assert b"sk-secret" not in kept and b"SECRET-COOKIE" not in kept
    print(f"{name}: {kills} kills, {server.count} requests for {programs.CALLS} calls")


@pytest.mark.parametrize("name", NAMES)
def test_a_program_that_is_killed_resumes(server: ModelServer, tmp_path: Path, name: str) -> None:
    check(server, tmp_path, name, (2, 9, 14, 16))


@pytest.mark.long
@pytest.mark.timeout(LONGEST)
@pytest.mark.parametrize("name", NAMES)
def test_a_program_that_is_killed_at_every_call_resumes(
    server: ModelServer, tmp_path: Path, name: str
) -> None:
    check(server, tmp_path, name, range(1, programs.CALLS + 1))


def recorded_calls(manager: CheckpointManager) -> int:
    """The number of calls that the run has recorded by now."""
    query = RecordQuery(run_id="mine", kind="effect", notes=True)
    return sum(1 for _ in manager.storage.headers(query))


@pytest.mark.timeout(LONGEST)
@pytest.mark.parametrize("times", [5, pytest.param(100, marks=pytest.mark.long)], ids=["5", "100"])
def test_calls_of_a_gather_that_is_killed_are_not_repeated_if_recorded(
    server: ModelServer, tmp_path: Path, times: int
) -> None:
    """Fifty calls whose answers come in any order; killed when a number of them was recorded."""
    chance = random.Random(7)
    asking: list[threading.Event] = []  # the calls that wait for their answers
    held = True

    def hold() -> float:
        if not held:
            return chance.random() / 20
        answer = threading.Event()
        asking.append(answer)
        answer.wait()
        return 0.0

    server.delay = hold
    for number in range(times):
        storage = f"sqlite:///{tmp_path}/{number}.db"
        asking.clear()
        asked, at, held = server.count, chance.randrange(1, 50), True
        program = start(server, storage, "gathered", restart=0)
        with CheckpointManager(storage) as manager:
            while len(asking) < 50:
                wait_for(program)
            for answer in chance.sample(asking, at):
                answer.set()
            while recorded_calls(manager) < at:
                wait_for(program)
            for child in children_of(program.pid):
                os.kill(child, signal.SIGKILL)
            program.communicate(timeout=300)
            assert (recorded_calls(manager), server.count - asked) == (at, 50)
        held = False
        for answer in asking:
            answer.set()
        out, told = finish(start(server, storage, "gathered", restart=0))
        assert told["recorded"] == 50
        # What was recorded before the kill was not asked for again.
        assert (told["replayed"], server.count - asked) == (at, 50 + 50 - at)
        assert len({*out.split()[1::3]}) == 50
    print(f"{times} kills of 50 calls at once: none that was recorded was made again")


def wait_for(program: subprocess.Popen[str]) -> None:
    """Wait a little for the program, which is at work."""
    assert program.poll() is None, program.communicate()[1]
    time.sleep(0.01)
