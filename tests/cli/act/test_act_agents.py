"""`surehold resume` of agents, by where they are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Result, call

from surehold import CheckpointManager
from surehold.storage.base import RecordQuery

PROGRAM = """
import asyncio
import sys
from pathlib import Path

from surehold import (
    AutonomousConfig, BaseAutonomousAgent, Reply, SQLiteStorage, StateManager, ToolCall, tool,
)
from surehold.testing.scripted import ScriptedModel


@tool(approval=True)
def pay(amount: int) -> str:
    with Path("paid").open("a") as file:
        print(amount, file=file)
    return f"paid {amount}"


def calling(name, **arguments):
    def script(messages):
        if Path("away").exists() and messages[-1]["role"] == "tool":
            raise ConnectionError("away")
        if messages[-1]["role"] == "tool":
            return f"said: {messages[-1]['content']}"
        return Reply(tool_calls=(ToolCall("c", name, arguments),))

    return ScriptedModel(script)


class Boss(BaseAutonomousAgent):
    def __init__(self, limit=20):
        payer = BaseAutonomousAgent(
            AutonomousConfig(planning_enabled=False),
            agent_id="payer",
            tools=[pay],
            model=calling("pay", amount=5),
        )
        super().__init__(
            AutonomousConfig(planning_enabled=False, max_cycles=limit),
            state_manager=StateManager(SQLiteStorage("app.db")),
            agent_id="boss",
            tools=[payer.as_tool()],
            model=calling("payer", task="pay it"),
        )


def build():
    return Boss()


def build_short():
    return Boss(limit=1)


class Called(Boss):
    def __call__(self):
        raise AssertionError("it is no function that makes one")


class Drawn(Boss):
    graph = {"a": ["b"]}


boss = build()
called, drawn = Called(), Drawn()
nothing = 3

if __name__ == "__main__":
    print(asyncio.run(boss.run("go")).run_id)
"""


@pytest.fixture
def run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run that waits for what an agent inside it asks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "boss_app.py").write_text(PROGRAM)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "boss_app", raising=False)
    program = [sys.executable, "boss_app.py"]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def on_app(*words: str) -> Result:
    return call("-s", "sqlite:///app.db", *words)


def paid() -> str:
    return Path("paid").read_text() if Path("paid").exists() else ""


def test_an_agents_run_is_resumed_by_the_entry_point_that_it_recorded(run_id: str) -> None:
    dry = on_app("resume", run_id, "--dry-run")
    assert "would import boss_app:boss" in dry.err and "waits for an answer" in dry.err
    parked = on_app("resume", run_id, "--yes")
    assert (parked.code, paid()) == (20, "")
    (row,) = on_app("pending", run_id, "--json").json()["pending"]
    assert row["id"] == f"{row['run_id']}/cycle@1[pay.0]" and f"waits: {row['id']}" in parked.err
    assert f"surehold answer {run_id} VALUE" in parked.err
    assert on_app("answer", run_id, "true").code == 0
    ended = on_app("resume", run_id, "--yes")
    assert (ended.code, paid()) == (0, "5\n"), ended.err
    assert ended.out.startswith(f"{run_id} completed at step ")
    again = on_app("resume", run_id, "--yes", "--json")
    assert (again.json()["status"], paid()) == ("completed", "5\n")


@pytest.mark.parametrize("whole", [True, False])
def test_what_an_agent_inside_asks_is_answered_by_its_id(run_id: str, whole: bool) -> None:
    (row,) = on_app("pending", run_id, "--json").json()["pending"]
    own = row["id"].removeprefix(f"{row['run_id']}/")
    wrong = on_app("answer", run_id, "true", "--id", own)
    assert wrong.code == 4 and f"waits for nothing named {own}" in wrong.err
    words = (run_id, row["id"]) if whole else (row["run_id"], own)
    assert on_app("answer", words[0], "true", "--id", words[1]).code == 0
    assert (on_app("resume", run_id, "--yes").code, paid()) == (0, "5\n")


@pytest.mark.parametrize("name", ["boss", "build", "Boss", "called", "drawn"])
def test_an_agent_is_found_as_a_variable_or_by_what_makes_it(run_id: str, name: str) -> None:
    on_app("approve", run_id)
    ended = on_app("resume", run_id, "--entry", f"boss_app:{name}")
    assert (ended.code, paid()) == (0, "5\n"), ended.err


def test_an_agents_run_that_does_not_complete_says_why(run_id: str) -> None:
    on_app("approve", run_id)
    Path("away").touch()
    failed = on_app("resume", run_id, "--entry", "boss_app:build")
    assert failed.code == 1 and "ConnectionError: away" in failed.err
    Path("away").unlink()
    limited = on_app("resume", run_id, "--entry", "boss_app:build_short")
    assert limited.code == 9 and "max_cycles_reached" in limited.err
    assert on_app("resume", run_id, "--entry", "boss_app:build").code == 0


def test_an_answer_to_an_agent_that_does_not_fit_is_refused_at_once(run_id: str) -> None:
    edited = '{"approved": true, "arguments": {"amount": "fifty"}}'
    for value in ("no", edited):
        wrong = on_app("answer", run_id, value)
        assert wrong.code == 2 and "true, false, or {approved, arguments, reason}" in wrong.err
    assert len(on_app("pending", run_id, "--json").json()["pending"]) == 1


def test_the_run_to_go_on_with_is_the_outermost(run_id: str) -> None:
    assert f"to continue: surehold resume {run_id}" in on_app("approve", run_id).err


def test_what_is_no_graph_and_no_agent_is_refused(run_id: str) -> None:
    wrong = on_app("resume", run_id, "--entry", "boss_app:nothing")
    assert wrong.code == 2 and "boss_app:nothing is not a graph, agent or workflow" in wrong.err


def test_a_run_inside_another_is_resumed_with_that(run_id: str) -> None:
    rows = on_app("pending", run_id, "--json").json()["pending"]
    (inner,) = {row["run_id"] for row in rows}
    assert inner != run_id
    wrong = on_app("resume", inner, "--entry", "boss_app:boss")
    assert wrong.code == 2 and f"is part of run {run_id!r}" in wrong.err
    assert f"surehold resume {run_id}" in wrong.err


def test_an_agent_does_not_go_on_with_the_run_of_another(run_id: str) -> None:
    Path("other_app.py").write_text(
        "from surehold import BaseAutonomousAgent\nother = BaseAutonomousAgent(agent_id='other')\n"
    )
    wrong = on_app("resume", run_id, "--entry", "other_app:other")
    assert wrong.code == 2 and "is of agent 'boss', not of 'other'" in wrong.err


def test_an_agents_run_is_taken_back_to_a_step(run_id: str) -> None:
    on_app("approve", run_id)
    on_app("resume", run_id, "--yes")
    back = on_app("resume", f"{run_id}@0", "--yes")
    assert back.code == 0, back.err
    assert "rewound from step" in back.err and paid() == "5\n"


def test_an_agents_run_goes_on_from_the_very_checkpoint_that_is_named(run_id: str) -> None:
    on_app("approve", run_id)
    on_app("resume", run_id, "--yes")
    *_, later, first = on_app("log", run_id, "--all", "--json").json()["checkpoints"]
    assert later["step"] == first["step"] == 0
    named = first["checkpoint_id"]
    again = on_app("resume", named, "--yes")
    assert again.code == 0, again.err
    with CheckpointManager("sqlite:///app.db") as manager:
        headers = manager.storage.headers(RecordQuery(run_id=run_id, scope=""))
        assert next(one.parent for one in headers if one.kind == "recovery") == named
