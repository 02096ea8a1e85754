"""Autonomous agents that take part in a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.builders.fleets import calls, last_of, ledger, manager

import surehold
from surehold import Approval, HookManager, RedactionHook
from surehold.agents.fleet.fleet import Fleet
from surehold.agents.models.model import Message, Reply, ToolCall
from surehold.agents.tools.approval import ApprovalRequest
from surehold.agents.tools.definition import tool
from surehold.compat import AutonomousConfig, BaseAutonomousAgent
from surehold.errors import StepError
from surehold.testing.scripted import ScriptedModel


def judge(done: int, messages: Sequence[Message]) -> str:
    return ledger("coder", f"do part {done + 1}", satisfied=done >= 2)


class Job:
    """An agent that calls a tool, and then tells what it said; it can be told to fail."""

    def __init__(self, log: Path, *, approval: bool = False, **more: Any) -> None:
        self.fails = 0
        self.called: list[str] = []

        @tool(approval=approval)
        def shell(command: str) -> str:
            """Runs a command."""
            self.called.append(command)
            return f"ran {command}"

        def script(messages: Sequence[Message]) -> Reply | str:
            if messages[-1]["role"] == "tool":
                if self.fails:
                    self.fails -= 1
                    raise ConnectionError("no network")
                return f"the tool {messages[-1]['content']}"
            return Reply(tool_calls=(ToolCall("1", "shell", {"command": "ls"}),))

        self.agent = BaseAutonomousAgent(
            AutonomousConfig(planning_enabled=False, error_handling_enabled=False),
            agent_id="worker",
            tools=[shell],
            instructions="runs commands",
            model=ScriptedModel(script, log=log, price=1.0),
            **more,
        )


async def test_an_agent_takes_part_with_a_run_of_its_own_in_each_round(
    store: str, tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    job = Job(log)
    async with Fleet(manager(2, judge=judge, log=log), {"coder": job.agent}, store) as fleet:
        result = await fleet.run("Go")
        assert (result.status, result.rounds) == ("completed", 2)
        assert fleet.context["available_agents"] == {"coder": "runs commands"}
        assert "ran ls" in str(last_of(fleet, "coder"))
        inner = [one for one in await _runs(fleet) if one.run_id != result.run_id]
        assert len(inner) == 2 and all(one.status == "completed" for one in inner)
        assert all(one.run_id.startswith(f"{result.run_id}.") for one in inner)
    assert job.called == ["ls", "ls"]
    assert result.usage["calls"] == calls(log)


async def _runs(fleet: Fleet) -> Any:
    from surehold.storage.base import RunQuery

    return [*fleet.graph.manager.storage.runs(RunQuery())]


async def test_an_agent_that_failed_goes_on_inside_its_round(db: str, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    job = Job(log)
    job.fails = 1
    async with Fleet(manager(2, judge=judge, log=log), {"coder": job.agent}, db) as fleet:
        with pytest.raises(StepError):
            await fleet.run("Go")
        result = await fleet.run(resume_from_checkpoint=fleet.current_checkpoint_id)
    assert (result.status, job.called) == ("completed", ["ls", "ls"])
    assert calls(log) == 2 + 3 + 2 * 2 + 1


async def test_an_agents_tool_that_needs_approval_parks_the_fleet(db: str, tmp_path: Path) -> None:
    job = Job(tmp_path / "calls", approval=True)
    async with Fleet(manager(2, judge=judge), {"coder": job.agent}, db) as fleet:
        assert (await fleet.run("Go")).status == "waiting"
        (request,) = await fleet.pending()
        assert (request.operation, request.details) == ("shell", {"command": "ls"})
        assert (await fleet.answer(request.workflow_id, True)).status == "waiting"
        assert (job.called, fleet.current_round) == (["ls"], 1)
        (request,) = await fleet.pending()
        result = await fleet.answer(request.workflow_id, False)
        assert (result.status, job.called) == ("completed", ["ls"])


async def test_a_handler_answers_for_an_agent_too(db: str, tmp_path: Path) -> None:
    job = Job(tmp_path / "calls", approval=True)

    async def handler(request: ApprovalRequest) -> bool:
        return True

    crew = {"coder": job.agent}
    async with Fleet(manager(2, judge=judge), crew, db, approval_handler=handler) as fleet:
        assert (await fleet.run("Go")).status == "completed"
    assert job.called == ["ls", "ls"]


@pytest.mark.parametrize("asks", [True, False])
async def test_an_agent_with_a_storage_of_its_own_is_answered_in_that(
    db: str, tmp_path: Path, asks: bool
) -> None:
    job = Job(tmp_path / "calls", approval=True, storage=f"file:{tmp_path}/own")

    async def handler(request: ApprovalRequest) -> bool:
        return True

    crew = {"coder": job.agent}
    how = {"approval_handler": handler} if asks else {}
    async with Fleet(manager(2, judge=judge), crew, db, **how) as fleet:
        result = await fleet.run("Go")
        while result.status == "waiting":
            (request,) = await fleet.pending(result.run_id)
            assert request.request_id == result.waiting[0].id
            result = await fleet.answer(result.run_id, True)
    assert (result.status, job.called) == ("completed", ["ls", "ls"])
    await job.agent.close()


async def test_an_answer_to_an_agent_is_stored_without_its_secrets(tmp_path: Path) -> None:
    job = Job(tmp_path / "calls", approval=True)
    hooks, secret = HookManager(), "sk-abcdefghijklmnopqrstuvwxyz0123456789ABCD"
    hooks.register_hook(RedactionHook())
    store = tmp_path / "store"
    crew, where = {"coder": job.agent}, f"file:{store}"
    async with Fleet(manager(1, judge=judge), crew, where, hook_manager=hooks) as fleet:
        result = await fleet.run("Go")
        await fleet.answer(result.run_id, Approval(False, reason=f"not with {secret}"))
        assert surehold.pending(result.run_id, storage=fleet.graph.manager.storage)
    assert not [one for one in store.rglob("*.jsonl") if secret in one.read_text()]
