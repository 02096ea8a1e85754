"""What fails is told as what it was, whatever its text; no secret of it is in the journal."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.builders.agents import build, call, manager_in
from tests.builders.fleets import manager as chairing
from tests.builders.fleets import team
from tests.builders.graphs import line

from surehold import (
    CheckpointConfig,
    Fleet,
    GraphConfig,
    HookManager,
    MemoryStorage,
    RedactionHook,
    State,
    StateGraph,
    StateManager,
    effect,
    pending,
    process_chain,
    process_conditional,
    process_parallel,
)
from surehold.agents.fleet.participants import ModelParticipant
from surehold.agents.tools.definition import tool
from surehold.engine.runs.effects.effect_call import CallPolicy, effect_by
from surehold.errors import RunError, StepError
from surehold.testing.scripted import ScriptedModel

SECRET = "postgresql://me:hunter2@db/ is away"
REDACTED = "postgresql://me:[redacted:url_password]@db/ is away"


class Mute(Exception):
    """It cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("str is broken")

    __repr__ = __str__


class Broken(RedactionHook):
    """It fails on the one secret that it should replace."""

    def redact(self, state: Any) -> Any:
        if "hunter2" in repr(state):
            raise ValueError("hunter2 is at fault")
        return state


class Lost(BaseException):
    """The end of the process, as far as the code of a node can tell."""


def journal(manager: StateManager, run_id: str = "r") -> bytes:
    """All that is recorded of a run."""
    reader = manager.reader
    run = reader.run(run_id)
    assert run is not None
    return b"".join(reader.sealer.open(one) for one in reader.records(run_id, 1, run.seq))


def kept(manager: StateManager, run_id: str = "r") -> tuple[str, str]:
    """The status of the newest checkpoint, and what it tells of the failure."""
    reader = manager.reader
    run = reader.run(run_id)
    assert run is not None
    newest = reader.newest(run)
    assert newest is not None
    return newest.status, reader.load(newest).extra["now"].get("error", "")


async def failing(node: Any, hooks: HookManager | None = None) -> tuple[StepError, StateManager]:
    manager = StateManager(MemoryStorage(), hook_manager=hooks)
    graph = line(node, lambda state: None, interval=1, preserve=True).over(manager)
    with pytest.raises(StepError) as caught:
        await graph.execute(State.new({}, run_id="r"))
    return caught.value, manager


async def test_a_node_that_fails_without_words_is_a_failed_step() -> None:
    def node(state: State) -> None:
        raise Mute

    error, manager = await failing(node)
    assert isinstance(error.__cause__, Mute) and ": Mute" in error.message
    assert kept(manager) == ("failed", "Mute")


async def test_a_decision_that_fails_without_words_is_a_failed_step() -> None:
    def undecided(state: State) -> bool:
        raise Mute

    manager = StateManager(MemoryStorage())
    graph = StateGraph(GraphConfig(checkpoint=CheckpointConfig(interval=1)), manager=manager)
    graph.add_node("first", lambda state: None)
    graph.add_node("last", lambda state: None)
    graph.add_edge("first", "last", undecided)
    graph.set_entry_point("first")
    graph.set_exit_point("last")
    with pytest.raises(StepError, match="failed: Mute") as caught:
        await graph.execute(State.new({}, run_id="r"))
    assert isinstance(caught.value.__cause__, Mute)
    assert kept(manager)[0] == "failed"


async def test_parts_of_a_node_that_fail_without_words_are_told_by_their_class() -> None:
    def fail(*given: Any) -> None:
        raise Mute

    with pytest.raises(StepError, match="item 0 of the chain failed: Mute"):
        await process_chain([1], 0, fail)
    with pytest.raises(StepError, match="item 0 failed: Mute"):
        await process_parallel([1], fail)
    with pytest.raises(RunError, match="2 x Mute"):
        await process_parallel([1, 2], fail, fail_fast=False)
    with pytest.raises(StepError, match="route 'a' failed: Mute"):
        await process_conditional({}, lambda state: "a", {"a": fail})


async def effect_behind(name: str, fn: Any) -> Any:
    return await effect_by(CallPolicy(name=name, in_doubt="retry"), fn)


@pytest.mark.parametrize("call", [effect, effect_behind])
@pytest.mark.parametrize(
    "error",
    [Mute(), ValueError("half \ud800 of a pair"), OSError(SECRET), OSError("x" * 3_000_000)],
)
async def test_an_effect_that_failed_has_ended_whatever_its_text_is(
    call: Any, error: Exception
) -> None:
    def fail() -> None:
        raise error

    async def node(state: State) -> None:
        await call("pay", fail)

    raised, manager = await failing(node)
    assert raised.__cause__ is error
    assert pending("r", storage=manager.storage) == []
    stored = journal(manager)
    assert b"hunter2" not in stored and len(stored) < 10_000


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (LookupError("no  such: thing — ü\n"), LookupError("no  such: thing — ü\n")),
        (ValueError(), ValueError()),
        (ValueError("half \ud800"), ValueError("half ?")),
        (OSError(SECRET), OSError(REDACTED)),
        (OSError("x" * 3_000), OSError("x" * 990 + "…")),
        (Mute(), Mute()),
    ],
)
async def test_what_an_effect_failed_with_is_raised_again_by_its_recorded_text(
    error: Exception, again: Exception, tmp_path: Path
) -> None:
    seen: list[Exception] = []
    lost = [True]

    def fail() -> None:
        raise error

    async def node(state: State) -> None:
        try:
            await effect("pay", fail)
        except Exception as told:
            seen.append(told)
        if lost.pop():
            raise Lost

    async with StateManager(f"sqlite:///{tmp_path}/runs.db") as manager:
        graph = line(node, lambda state: None, interval=1).over(manager)
        with pytest.raises(Lost):
            await graph.execute(State.new({}, run_id="r"))
        lost.append(False)
        await graph.resume("r")
    assert seen[0] is error
    assert type(seen[1]) is type(again) and seen[1].args == again.args


async def test_secrets_that_a_hook_knows_are_not_in_the_notes_of_effects() -> None:
    hooks = HookManager()
    hooks.register_hook(RedactionHook({"ticket": "TCK-[0-9]+"}))

    def fail() -> None:
        raise ValueError("see TCK-77")

    async def node(state: State) -> None:
        await effect("pay", fail)

    _, manager = await failing(node, hooks)
    assert b"TCK-77" not in journal(manager) and b"[redacted:ticket]" in journal(manager)


async def test_a_hook_that_cannot_redact_does_not_hide_what_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hooks = HookManager()
    hooks.register("pre_checkpoint_save", Broken().redact)

    def fail() -> None:
        raise KeyError("hunter2")

    async def node(state: State) -> None:
        await effect("pay", fail)

    with caplog.at_level(logging.WARNING, "surehold.checkpoint"):
        error, manager = await failing(node, hooks)
    assert isinstance(error.__cause__, KeyError)
    assert kept(manager) == ("failed", "KeyError") and b"hunter2" not in journal(manager)
    assert "ValueError" in caplog.text


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(SECRET), f"OSError: {REDACTED}"),
        (Mute(), "Mute"),
        (ValueError("half \ud800"), "ValueError: half ?"),
    ],
)
@pytest.mark.parametrize("where", ["model", "tool"])
async def test_what_an_agent_or_its_tool_failed_with_is_kept_without_secrets(
    where: str, error: Exception, told: str, tmp_path: Path
) -> None:
    @tool
    def act(x: str) -> str:
        """Act."""
        raise error

    def script(messages: Any) -> Any:
        if where == "model":
            raise error
        asked = any(one["role"] == "assistant" for one in messages)
        return "done" if asked else call("act", x="1")

    manager = manager_in(tmp_path)
    agent = build(script, manager, tools=[act])
    result = await agent.run("go")
    if where == "model":
        assert (result.status, result.error) == ("failed", told)
        assert kept(manager, result.run_id) == ("failed", told)
    else:
        assert result.status == "completed"
        assert agent.state.conversation_history[2]["content"] == f"error: {told}"
    assert b"hunter2" not in journal(manager, result.run_id)


async def test_a_model_is_told_more_of_a_failure_than_is_kept_of_others(tmp_path: Path) -> None:
    def act(x: str) -> str:
        """Act."""
        raise ValueError("y" * 3_000)

    script = [call("act", x="1"), "done"]
    agent = build(
        lambda messages: script[sum(one["role"] == "assistant" for one in messages)],
        manager_in(tmp_path),
        tools=[act],
    )
    await agent.run("go")
    said = agent.state.conversation_history[2]["content"]
    assert said == f"error: ValueError: {'y' * 3_000}"


@pytest.mark.parametrize(
    ("error", "told"), [(OSError(SECRET), f"OSError: {REDACTED}"), (Mute(), "Mute")]
)
async def test_what_a_tool_of_a_participant_failed_with_is_told_without_secrets(
    error: Exception, told: str, tmp_path: Path
) -> None:
    heard: list[str] = []

    def act(x: str) -> str:
        """Act."""
        raise error

    def script(messages: Any) -> Any:
        if messages[-1]["role"] != "tool":
            return call("act", x="1")
        heard.append(messages[-1]["content"])
        return "done"

    crew = {**team(), "researcher": ModelParticipant(ScriptedModel(script), tools=[act])}
    async with Fleet(chairing(1), crew, f"sqlite:///{tmp_path}/runs.db") as fleet:
        await fleet.run("Go")
    assert heard == [f"error: {told}"]
