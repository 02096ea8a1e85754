"""What waits for a person: tools that need approval, plans under review, and time running out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.builders.fleets import calls, last_of, ledger, manager, rounds_done
from tests.builders.graphs import Heard

import surehold
from surehold import CheckpointManager
from surehold.agents.fleet.fleet import Fleet, FleetResult
from surehold.agents.fleet.participants import ModelParticipant
from surehold.agents.fleet.settings import ApprovalSettings, PlanReview
from surehold.agents.models.model import Message, Reply, ToolCall
from surehold.agents.tools.approval import TIMED_OUT, Approval, ApprovalRequest
from surehold.agents.tools.definition import read_tool, tool
from surehold.doors.resume.inside import TOOL_FAILED
from surehold.errors import StepError, UsageError
from surehold.testing.scripted import ScriptedModel

ASK = ApprovalSettings(require_approval_for=("code_execution",), trusted_operations=("safe",))


class Shell:
    """A tool that remembers what it was called with."""

    def __init__(self) -> None:
        self.called: list[Any] = []

    def run(self, command: str, times: int = 1) -> str:
        """Runs a command."""
        self.called.append((command, times))
        if command == "boom":
            raise ValueError("it went off")
        return f"ran {command} x{times}"


def coder(shell: Shell, log: Path | None = None) -> ModelParticipant:
    """A participant that calls the tool once a turn, and then tells what it said."""

    def script(messages: Sequence[Message]) -> Reply | str:
        if messages[-1]["role"] == "tool":
            return f"the tool said: {messages[-1]['content']}"
        command = messages[-1]["content"].splitlines()[-1]
        return Reply(tool_calls=(ToolCall("c1", "run", {"command": command}),))

    return ModelParticipant(
        ScriptedModel(script, log=log),
        description="runs",
        tools=[shell.run],
        operations={"run": "code_execution"},
    )


def judge(done: int, messages: Sequence[Message]) -> str:
    return ledger("coder", ("ls", "pwd", "date")[done % 3], satisfied=done >= 2)


def fleet_of(shell: Shell, store: str | None, log: Path | None = None, **more: Any) -> Fleet:
    more.setdefault("approvals", ASK)
    return Fleet(manager(2, judge=judge, log=log), {"coder": coder(shell, log)}, store, **more)


async def parked(call: Any) -> FleetResult:
    result: FleetResult = await call
    assert result.status == "waiting" and result.waiting
    return result


async def test_a_tool_that_needs_approval_parks_the_run(store: str, tmp_path: Path) -> None:
    shell, log = Shell(), tmp_path / "calls"
    async with fleet_of(shell, store, log) as fleet:
        signal = await parked(fleet.run("Go"))
        (request,) = await fleet.pending(signal.run_id)
        assert (request.operation_type, request.operation) == ("code_execution", "run")
        assert (request.agent_name, request.details) == ("coder", {"command": "ls"})
        assert (request.expires_at - request.asked_at).total_seconds() == 300
        assert shell.called == [] and fleet.state.status == "waiting"
    async with fleet_of(shell, store, log) as fleet:  # another process, another day
        await parked(
            fleet.run(resume_from_checkpoint=(await fleet.list_checkpoints())[0]["checkpoint_id"])
        )
        assert [one.asked_at for one in await fleet.pending()] == [request.asked_at]
        await parked(fleet.answer(signal.run_id, True))
        assert shell.called == [("ls", 1)]
        result = await fleet.answer(signal.run_id, Approval(True, reason="fine"))
        assert (result.status, result.rounds, await fleet.pending()) == ("completed", 2, [])
        assert shell.called == [("ls", 1), ("pwd", 1)]
        assert fleet.state["approvals"] == [
            {**said, "approved": True, "arguments": None, "reason": reason}
            for said in [{"agent_name": "coder", "operation": "run"}]
            for reason in ("", "fine")
        ]
    assert calls(log) == 2 + 2 * 3 + 2


async def test_it_can_be_edited_or_rejected(db: str) -> None:
    shell = Shell()
    async with fleet_of(shell, db) as fleet:
        signal = await parked(fleet.run("Go"))
        edited = Approval(True, {"command": "ls -l", "times": 2})
        await parked(fleet.answer(signal.run_id, edited))
        assert shell.called == [("ls -l", 2)]
        await fleet.answer(signal.run_id, Approval(False, reason="too risky"))
        assert len(shell.called) == 1
        assert "refused: too risky" in fleet.state["history"][-1]["content"]


async def test_an_answer_can_be_left_by_any_program(db: str) -> None:
    shell = Shell()
    async with fleet_of(shell, db) as fleet:
        signal = await parked(fleet.run("Go"))
        (request,) = await fleet.pending()
        await asyncio.to_thread(
            surehold.answer, signal.run_id, request.request_id, False, storage=db
        )
        await parked(fleet.run(resume_from_checkpoint=fleet.current_checkpoint_id))
        assert shell.called == [] and fleet.current_round == 1


async def test_trusted_tools_and_other_operations_do_not_wait(db: str) -> None:
    shell = Shell()
    trusting = ApprovalSettings(
        require_approval_for=("code_execution",), trusted_operations=("run",)
    )
    for settings in (
        trusting,
        ApprovalSettings(require_approval_for=("file_operations",)),
        ApprovalSettings(enabled=False),
        None,
    ):
        async with fleet_of(shell, db, approvals=settings) as fleet:
            assert (await fleet.run("Go")).status == "completed"
    assert len(shell.called) == 8


async def test_a_tool_may_ask_by_itself(db: str) -> None:
    shell = Shell()

    @tool(approval=True)
    def run(command: str) -> str:
        """Runs a command."""
        return shell.run(command)

    participant = coder(shell)
    participant.tools["run"] = read_tool(run)
    async with Fleet(manager(2, judge=judge), {"coder": participant}, db) as fleet:
        await parked(fleet.run("Go"))
        assert shell.called == [] and len(await fleet.pending()) == 1


async def test_a_handler_asks_at_once(store: str) -> None:
    shell = Shell()
    asked: list[ApprovalRequest] = []

    async def handler(request: ApprovalRequest) -> bool:
        asked.append(request)
        return len(asked) == 1

    async with fleet_of(shell, store, approval_handler=handler) as fleet:
        assert (await fleet.run("Go")).status == "completed"
    assert [one.details["command"] for one in asked] == ["ls", "pwd"]
    assert shell.called == [("ls", 1)]


async def test_approvals_work_without_storage() -> None:
    shell = Shell()

    async def handler(request: ApprovalRequest) -> Approval:
        return Approval(True, {"command": "echo"})

    async with fleet_of(shell, None, approval_handler=handler) as fleet:
        assert (await fleet.run("Go")).status == "completed"
    assert shell.called == [("echo", 1)] * 2
    async with fleet_of(shell, None) as fleet:
        signal = await parked(fleet.run("Go"))
        await parked(fleet.answer(signal.run_id, True))
        assert (await fleet.answer(signal.run_id, True)).status == "completed"


SHORT = ApprovalSettings(require_approval_for=("code_execution",), approval_timeout_seconds=0.05)


async def never(request: ApprovalRequest) -> bool:
    await asyncio.sleep(60)
    return True


async def test_when_the_time_is_over_the_run_stays_parked(db: str) -> None:
    shell = Shell()
    async with fleet_of(shell, db, approvals=SHORT, approval_handler=never) as fleet:
        signal = await parked(fleet.run("Go"))
        (request,) = await fleet.pending()
        assert request.expires_at < datetime.now(UTC) and not request.reject_when_expired
        await parked(fleet.run(resume_from_checkpoint=fleet.current_checkpoint_id))
    async with fleet_of(shell, db, approvals=SHORT) as fleet:
        await parked(fleet.answer(signal.run_id, True))
    assert shell.called == [("ls", 1)]


REJECTING = ApprovalSettings(
    require_approval_for=("code_execution",),
    approval_timeout_seconds=0.05,
    auto_reject_on_timeout=True,
)


async def test_when_the_time_is_over_it_is_rejected_if_so_configured(db: str) -> None:
    shell = Shell()
    async with fleet_of(shell, db, approvals=REJECTING, approval_handler=never) as fleet:
        assert (await fleet.run("Go")).status == "completed"
        assert [one["reason"] for one in fleet.state["approvals"]] == [TIMED_OUT] * 2
    assert shell.called == []


async def test_a_parked_run_is_rejected_when_it_is_resumed_too_late(db: str) -> None:
    shell = Shell()
    async with fleet_of(shell, db, approvals=REJECTING) as fleet:
        signal = await parked(fleet.run("Go"))
        await asyncio.sleep(0.06)
        await parked(fleet.answer(signal.run_id, True))  # too late to be approved
        assert shell.called == [] and fleet.state["approvals"][0]["reason"] == TIMED_OUT
        await asyncio.sleep(0.06)
        assert (await fleet.run("", fleet.current_checkpoint_id)).status == "completed"


async def test_an_answer_needs_a_question(db: str) -> None:
    async with fleet_of(Shell(), db) as fleet:
        signal = await parked(fleet.run("Go"))
        with pytest.raises(UsageError, match="waits for: round@2"):
            await fleet.answer(signal.run_id, True, request_id="other")


async def test_a_tool_that_fails_is_told_to_the_model(db: str) -> None:
    shell = Shell()
    model = manager(1, judge=lambda done, m: ledger("coder", "boom", satisfied=done > 0))
    async with Fleet(model, {"coder": coder(shell)}, db) as fleet:
        await fleet.run("Go")
        said = fleet.state["history"][-1]["content"]
    assert said == "the tool said: error: ValueError: it went off"


class Outcome(msgspec.Struct):
    value: msgspec.Raw = msgspec.Raw()


async def test_a_tool_that_failed_is_recorded_as_failed(db: str) -> None:
    """So that a restore may call it again, as in an agent."""
    model = manager(1, judge=lambda done, m: ledger("coder", "boom", satisfied=done > 0))
    async with Fleet(model, {"coder": coder(Shell())}, db) as fleet:
        result = await fleet.run("Go")
    with CheckpointManager(db) as stored:
        texts = [
            bytes(msgspec.json.decode(stored.reader.sealer.open(one), type=Outcome).value)
            for one in stored.storage.read(result.run_id)
            if one.header.kind == "effect"
        ]
    assert sum(text.startswith(TOOL_FAILED) for text in texts) == 1


async def test_a_tool_is_called_once_though_the_round_fails_after_it(db: str) -> None:
    shell = Shell()
    fail = [True]

    def script(messages: Sequence[Message]) -> Reply | str:
        if messages[-1]["role"] == "tool":
            if fail.pop() if fail else False:
                raise ConnectionError("no network")
            return "done"
        return Reply(tool_calls=(ToolCall("c1", "run", {"command": "pay"}),))

    crew = {"coder": ModelParticipant(ScriptedModel(script), tools=[shell.run])}
    model = manager(1, judge=lambda done, m: ledger("coder", "pay", satisfied=done > 0))
    async with Fleet(model, crew, db) as fleet:
        with pytest.raises(StepError):
            await fleet.run("Go")
        await fleet.run(resume_from_checkpoint=fleet.current_checkpoint_id)
    assert shell.called == [("pay", 1)]


async def test_a_tool_nobody_has_is_told_to_the_model(db: str) -> None:
    def script(messages: Sequence[Message]) -> Reply | str:
        if messages[-1]["role"] == "tool":
            return str(messages[-1]["content"])
        return Reply(tool_calls=(ToolCall("c1", "fly", {}),))

    crew = {"coder": ModelParticipant(ScriptedModel(script), tools=[Shell().run])}
    model = manager(1, judge=lambda done, m: ledger("coder", "go", satisfied=done > 0))
    async with Fleet(model, crew, db) as fleet:
        await fleet.run("Go")
        assert "there is no tool 'fly'; there are: run" in last_of(fleet, "coder")


async def test_a_participant_that_never_answers_is_stopped(db: str) -> None:
    shell = Shell()

    def script(messages: Sequence[Message]) -> Reply:
        return Reply(tool_calls=(ToolCall("c1", "run", {"command": "again"}),))

    crew = {"coder": ModelParticipant(ScriptedModel(script), tools=[shell.run])}
    model = manager(1, judge=lambda done, m: ledger("coder", "go", satisfied=done > 0))
    async with Fleet(model, crew, db) as fleet:
        await fleet.run("Go")
    assert len(shell.called) == 16


async def test_an_async_tool_gets_its_idempotency_key(db: str) -> None:
    keys: list[str] = []

    async def run(command: str, idempotency_key: str) -> dict[str, str]:
        keys.append(idempotency_key)
        return {"did": command}

    shell = Shell()
    participant = coder(shell)
    participant.tools["run"] = read_tool(run)
    assert "idempotency_key" not in participant.tools["run"].spec.parameters["properties"]
    model = manager(1, judge=judge)
    async with Fleet(model, {"coder": participant}, db) as fleet:
        await fleet.run("Go")
        assert last_of(fleet, "coder") == 'the tool said: {"did":"pwd"}'
    assert len({*keys}) == 2


async def test_tool_calls_are_told_to_those_who_watch(
    db: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    with caplog.at_level("INFO", "surehold.fleet"):
        async with fleet_of(Shell(), db, approvals=None, observer=heard) as fleet:
            await fleet.run("Go")
    assert heard.of("fleet.tool")[0]["arguments"] == {"command": "ls"}
    assert "tool run of coder" in caplog.text


# Plans

REVIEW = PlanReview(require_human_approval=True)


def planner(log: Path | None = None) -> ScriptedModel:
    """A manager whose plans are numbered."""

    def script(messages: Sequence[Message]) -> str:
        text = messages[-1]["content"]
        if "Judge" in text:
            return ledger(
                "coder",
                messages[1]["content"].partition("Plan:\n")[2],
                satisfied=rounds_done(messages) > 0,
            )
        if "Write a better one" in text:
            return f"a better plan, because {text.partition('because: ')[2].splitlines()[0]}"
        return "first plan" if "The team:" in text else "something"

    return ScriptedModel(script, log=log)


def reviewed(store: str, log: Path | None = None, **more: Any) -> Fleet:
    async def coder(instruction: str) -> str:
        return f"did: {instruction}"

    return Fleet(planner(log), {"coder": coder}, store, plan_review=REVIEW, **more)


async def test_a_plan_is_put_up_for_review_and_approved(store: str, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    async with reviewed(store, log) as fleet:
        signal = await parked(fleet.run("Go"))
        (request,) = await fleet.pending()
        assert (request.operation_type, request.operation) == ("plan_review", "plan")
        assert request.details == {"task": "Go", "facts": "something", "plan": "first plan"}
        before = calls(log)
        assert (await fleet.answer(signal.run_id, True)).status == "completed"
        assert last_of(fleet, "coder") == "did: first plan"
    assert (before, calls(log)) == (2, 2 + 2 + 1)


async def test_a_plan_can_be_edited(db: str) -> None:
    async with reviewed(db) as fleet:
        signal = await parked(fleet.run("Go"))
        await fleet.answer(signal.run_id, Approval(True, {"plan": "my own plan"}))
        assert (fleet.state["plan"], last_of(fleet, "coder")) == ("my own plan", "did: my own plan")


async def test_a_plan_rejected_with_a_reason_is_revised_and_shown_again(db: str) -> None:
    async with reviewed(db) as fleet:
        signal = await parked(fleet.run("Go"))
        await parked(fleet.answer(signal.run_id, Approval(False, reason="too long")))
        (request,) = await fleet.pending()
        assert request.details["plan"] == "a better plan, because too long"
        await fleet.answer(signal.run_id, True)
        assert [one["approved"] for one in fleet.state["approvals"]] == [False, True]


@pytest.mark.parametrize("how", ["rejected", "late"])
async def test_a_plan_that_nobody_wants_ends_the_run(how: str, db: str) -> None:
    approvals = REJECTING if how == "late" else ASK
    async with reviewed(db, approvals=approvals) as fleet:
        signal = await parked(fleet.run("Go"))
        if how == "late":
            await asyncio.sleep(0.06)
        result = await fleet.answer(signal.run_id, False)
    assert (result.answer, result.rounds) == ("The plan was not approved.", 0)


async def test_time_running_out_rejects_at_every_door_of_a_resume(db: str) -> None:
    shell = Shell()
    settings = msgspec.structs.replace(
        ASK, approval_timeout_seconds=0.01, auto_reject_on_timeout=True
    )

    def judge(done: int, messages: Sequence[Message]) -> str:
        return ledger("coder", "ls", satisfied=done >= 1)

    crew = {"coder": coder(shell)}
    async with Fleet(manager(1, judge=judge), crew, db, approvals=settings) as fleet:
        first = await fleet.run("Go")
        assert first.status == "waiting"
        await asyncio.sleep(0.02)
        result = await fleet.graph.resume(str(first.run_id))  # as `surehold resume` and workers do
        assert (result.status, shell.called) == ("completed", [])
        assert TIMED_OUT in str(result.state["history"])
