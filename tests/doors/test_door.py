"""The door of a run: written, kept, and never guessed from the keys of a user's state."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.builders.agents import call, turns
from tests.builders.fleets import manager as fleet_manager
from tests.builders.fleets import team

import surehold
from surehold import (
    Agent,
    AgentState,
    CheckpointManager,
    Fleet,
    MemoryStorage,
    ResilientCheckpointManager,
    State,
    StateGraph,
    step,
    workflow,
)
from surehold.core.policy import Rules
from surehold.core.records import MANAGER, Door, Header, derived_door
from surehold.errors import UsageError
from surehold.storage.base import RecordQuery, RunQuery, Storage
from surehold.testing.scripted import ScriptedModel

TRAPS = [
    *("workflow", "version", "arguments", "result", "now", "form", "round", "path", "shape"),
    *("entry_point", "fingerprint", "langgraph", "agent_framework", "door", "extra", "each"),
]
"""Words that versions of this library have used for themselves."""

Keys = dict[str, Any]
Execute = Callable[[Storage, Keys, list[Any]], Any]
"""Begins the run "r", which fails while *fails* is not empty, or continues it."""


def _work(fails: list[Any]) -> None:
    if fails:
        raise ConnectionError(fails.pop())


def loop(storage: Storage, keys: Keys, fails: list[Any]) -> Any:
    with surehold.run("r", storage=storage, name="workflow") as run:
        run.state.update(keys)
        run.checkpoint()
        _work(fails)
        return {key: run.state[key] for key in keys}


def function(storage: Storage, keys: Keys, fails: list[Any]) -> Any:
    @step(in_doubt="retry")
    def work() -> None:
        _work(fails)

    @workflow(name="works")
    def works(given: Keys) -> Keys:
        work()
        return given

    return works.run(keys, run_id="r", storage=storage).value


def graph(storage: Storage, keys: Keys, fails: list[Any]) -> Any:
    made = StateGraph("line", storage=storage)
    made.add_node("a", lambda state: None)
    made.add_node("b", lambda state: _work(fails))
    made.add_edge("a", "b")
    made.set_entry_point("a")
    made.set_exit_point("b")
    final = asyncio.run(made.run(keys, run_id="r")).state
    return {key: final[key] for key in keys}


def agent(storage: Storage, keys: Keys, fails: list[Any]) -> Any:
    def look(query: str) -> str:
        """Look."""
        return query

    def script(messages: Any) -> Any:
        _work(fails if len(messages) > 2 else [])
        return told(messages)

    told = turns(call("look", query="a"), "done", plan="none")
    made = Agent(
        "a", model=ScriptedModel(script), tools=[look], storage=storage, report=lambda line: None
    )
    result = asyncio.run(made.run("task", run_id="r"))
    if not result.completed:
        raise ConnectionError(result.error)
    return keys


def fleet(storage: Storage, keys: Keys, fails: list[Any]) -> Any:
    async def speak(instruction: str) -> str:
        _work(fails)
        return "done"

    async def body() -> None:
        crew = dict.fromkeys(team(), speak)
        async with Fleet(fleet_manager(2), crew, storage=storage) as made:
            await made.run("task", run_id="r")

    asyncio.run(body())
    return keys


DOORS: dict[str, Execute] = {
    "loop": loop,
    "function": function,
    "graph": graph,
    "agent": agent,
    "fleet": fleet,
}


def begun(execute: Execute, keys: Keys | None = None) -> MemoryStorage:
    """A storage with the run "r", which has failed once."""
    storage = MemoryStorage()
    with pytest.raises(Exception, match="once"):
        execute(storage, keys or {}, ["once"])
    return storage


def checkpoints(storage: Storage, run_id: str = "r") -> list[Header]:
    return [*storage.headers(RecordQuery(run_id=run_id, scope=""))]


def doors(storage: Storage, run_id: str = "r") -> set[str]:
    return {one.door.kind if one.door else "none" for one in checkpoints(storage, run_id)}


user_keys = st.dictionaries(
    st.sampled_from(TRAPS), st.integers() | st.text(max_size=5) | st.just({"next": 1}), max_size=8
)


@pytest.mark.parametrize("kind", DOORS)
@settings(max_examples=12, deadline=None)
@given(keys=user_keys)
def test_no_key_of_a_users_state_changes_how_a_run_is_resumed(kind: str, keys: Keys) -> None:
    execute = DOORS[kind]
    storage = begun(execute, keys)
    assert doors(storage) == {kind}
    assert execute(storage, keys, []) == keys
    (run,) = storage.runs(RunQuery(run_id="r"))
    assert (run.status, run.door) == ("completed", kind)


@pytest.mark.parametrize("kind", ["loop", "agent"])
@settings(max_examples=12, deadline=None)
@given(keys=user_keys)
def test_no_key_that_is_saved_by_hand_changes_how_a_run_is_resumed(kind: str, keys: Keys) -> None:
    storage = begun(DOORS[kind])
    by_hand = CheckpointManager(storage)
    state = by_hand.resume_from_latest("r")
    if isinstance(state, AgentState):
        state.extra.update(keys)
    else:
        assert state is not None
        state = state.merge(keys)
    by_hand.save_checkpoint(state)
    assert doors(storage) == {kind}
    DOORS[kind](storage, {}, [])
    assert [run.status for run in storage.runs(RunQuery(run_id="r"))] == ["completed"]


@given(keys=user_keys)
@settings(max_examples=20, deadline=None)
def test_a_run_that_is_saved_by_hand_is_continued_by_a_loop(keys: Keys) -> None:
    storage = MemoryStorage()
    by_hand = CheckpointManager(storage)
    by_hand.save_checkpoint(State.new(keys, run_id="r", name="workflow").at(step=3))
    assert doors(storage) == {"manager"}
    with surehold.run("r", storage=storage) as run:
        assert (run.state, run.step) == (keys, 3)
        run.checkpoint(more=1)
    assert checkpoints(storage)[0].door == Door("loop")


@pytest.mark.parametrize("kind", [*DOORS, "manager"])
@pytest.mark.parametrize("other", DOORS)
def test_a_door_refuses_the_runs_of_the_others(kind: str, other: str) -> None:
    if kind == other or (kind, other) == ("manager", "loop"):
        return
    if kind == "manager":
        storage = MemoryStorage()
        CheckpointManager(storage).save_checkpoint(State.new({"n": 1}, run_id="r"))
    else:
        storage = begun(DOORS[kind])
    before = len(checkpoints(storage))
    with pytest.raises(surehold.errors.SureholdError, match=r"'r'|not of 'a'") as refused:
        DOORS[other](storage, {}, [])
    assert refused.value.hint
    assert len(checkpoints(storage)) == before


@pytest.mark.parametrize("wanted", DOORS)
def test_the_error_says_whose_run_it_is_and_what_resumes_it(wanted: str) -> None:
    Door(wanted).check(wanted, "r")
    with pytest.raises(
        UsageError, match=r"run 'r' is of framework thread 'chat', not of an? "
    ) as e:
        Door("thread").check(wanted, "r", "chat")
    assert "resume it with the framework" in e.value.hint


@pytest.mark.parametrize("kind", DOORS)
def test_a_fork_takes_the_door_over(kind: str) -> None:
    storage = begun(DOORS[kind])
    newest = checkpoints(storage)[0]
    CheckpointManager(storage).fork_from_checkpoint(newest.id, "copy")
    assert checkpoints(storage, "copy")[0].door == newest.door


@pytest.mark.parametrize("kind", DOORS)
def test_prune_export_import_and_encryption_keep_the_door(kind: str, tmp_path: Path) -> None:
    storage = begun(DOORS[kind])
    DOORS[kind](storage, {}, [])
    key = os.urandom(32)
    pruned = Rules(keep_last=1)
    with CheckpointManager(storage, encryption_key=key, retention=pruned) as manager:
        assert manager.encrypt_runs("r", scratch=tmp_path / "scratch") == ["r"]
        assert doors(storage) == {kind}
        assert doors(storage) == {kind}
        manager.cleanup_old_checkpoints("r")
        assert doors(storage) == {kind}
        manager.export_run("r", tmp_path / "r.surehold")
    copy = MemoryStorage()
    with CheckpointManager(copy, encryption_key=key) as manager:
        manager.import_run(tmp_path / "r.surehold")
        assert doors(copy) == {kind}
        assert all(manager.verify("r"))


def test_the_state_of_a_function_is_its_arguments_and_its_result() -> None:
    storage = begun(function, {"n": 1})
    manager = CheckpointManager(storage)
    state = manager.resume_from_latest("r")
    assert isinstance(state, State) and state.to_dict() == {"arguments": {"given": {"n": 1}}}
    function(storage, {"n": 1}, [])
    state = manager.resume_from_latest("r")
    assert isinstance(state, State) and {*state} == {"arguments", "result"}


def _without_doors(storage: MemoryStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the journal write headers that name no door, as older versions did."""
    from surehold.engine.journal import append

    monkeypatch.setattr(append, "Header", lambda **facts: Header(**{**facts, "door": None}))


@pytest.mark.parametrize("kind", ["graph", "agent", "fleet"])
def test_a_journal_that_names_no_door_is_resumed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        _without_doors(MemoryStorage(), older)
        storage = begun(DOORS[kind])
    assert doors(storage) == {"none"}
    with pytest.raises(UsageError, match=f"is of {kind}"):
        loop(storage, {}, [])
    DOORS[kind](storage, {}, [])
    assert checkpoints(storage)[0].door is not None


def test_a_function_of_an_older_journal_is_resumed() -> None:
    """Older versions kept name, version and entry point in and beside the state."""
    from surehold.core.state import Lineage, Place
    from surehold.engine.runs import draft_at

    storage = MemoryStorage()
    manager = CheckpointManager(storage)
    values = {"workflow": "works", "version": 1, "arguments": {"given": {}}}
    place = Place(run_id="r", name="works", step=0, kind="routine", status="running")
    draft = draft_at(place, values, Lineage(), extra={"entry_point": "app:works"}, schema=0)
    with pytest.MonkeyPatch.context() as older:
        _without_doors(storage, older)
        manager.save_draft(draft, force=True)
    with pytest.raises(UsageError, match="is of workflow 'works', not of a loop"):
        loop(storage, {}, [])
    assert function(storage, {}, []) == {}
    assert checkpoints(storage)[0].door == Door("function", 1, "app:works")


DERIVED = [
    (("", {}), MANAGER),
    (("agent", {}), MANAGER),
    (("", {"error": "x"}), MANAGER),
    (("", {"entry_point": ""}), Door("function")),
    (("", {"entry_point": "a:b"}), Door("function", entry_point="a:b")),
    (("", {"now": {}, "entry_point": "a:b"}), Door("graph", entry_point="a:b")),
    (("", {"now": {}, "shape": {"nodes": ["answer", "plan", "replan", "round"]}}), Door("fleet")),
    (("agent", {"now": {}}), Door("agent")),
    (("", {"langgraph": {}}), Door("thread")),
    (("", {"agent_framework": {}}), Door("thread")),
]


@pytest.mark.parametrize(("facts", "door"), DERIVED)
def test_the_door_of_an_older_journal_is_derived(facts: tuple[Any, ...], door: Door) -> None:
    assert derived_door(*facts) == door


def test_an_entry_point_that_is_not_known_here_stays() -> None:
    known = Door("graph", entry_point="app:graph")
    assert Door("graph").after(known) == known
    assert Door("graph", entry_point="new:graph").after(known).entry_point == "new:graph"
    assert Door("loop").after(known) == Door("loop")
    assert msgspec.json.encode(Door("loop")) == b'["loop",0,""]'


def test_a_resilient_manager_saves_by_hand(tmp_path: Path) -> None:
    storage = MemoryStorage()
    with ResilientCheckpointManager("r", storage) as made:
        made.create_checkpoint("routine")
    (run,) = storage.runs(RunQuery())
    assert run.door == "manager"
