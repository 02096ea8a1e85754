"""Workflows that a command or a worker resumes by run id and entry point."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cli.conftest import call

import surehold
from surehold import CheckpointManager, StateManager, answer
from surehold.doors.resume import load_resumable
from surehold.errors import UsageError


@surehold.workflow
def publish(title: str) -> str:
    return f"{title}, {surehold.wait_for('approval')}"


@surehold.workflow
async def publish_async(title: str) -> str:
    return f"{title}, {await surehold.wait_for('approval')}"


@pytest.mark.parametrize("name", ["publish", "publish_async"])
def test_a_workflow_is_resumed_by_its_entry_point(tmp_path: Path, name: str) -> None:
    db = f"sqlite:///{tmp_path}/runs.db"
    workflow = globals()[name]
    assert workflow.entry_point == f"{__name__}:{name}"
    made = workflow.run("Kelp", run_id="r", storage=db, wait=False)
    if name == "publish_async":
        asyncio.run(made)
    manager = StateManager(db)
    runs = load_resumable(workflow.entry_point).over(manager)
    plan = runs.explain_resume("r")
    assert (plan.status, plan.next) == ("waiting", name)
    assert [one.name for one in plan.questions] == ["approval"]
    assert runs.resume_sync("r").status == "waiting"
    with pytest.raises(UsageError, match="after its last recorded call"):
        runs.resume_sync("r", checkpoint_id=plan.checkpoint_id)
    answer("r", "approval", "Ann", storage=db)
    assert runs.explain_resume("r").questions == ()
    ended = runs.resume_sync("r")
    assert (ended.status, ended.step) == ("completed", 1)
    asyncio.run(manager.close())


@surehold.step
def fetch(page: str) -> str:
    if page == "c":
        raise ConnectionError("no route")
    return page.upper()


@surehold.workflow
def gather_pages(pages: list[str]) -> str:
    return "".join(fetch(page) for page in pages)


def test_a_resume_of_a_workflow_is_explained_by_its_recorded_calls(tmp_path: Path) -> None:
    db = f"sqlite:///{tmp_path}/runs.db"
    with pytest.raises(ConnectionError):
        gather_pages.run(["a", "b", "c"], run_id="r", storage=db)
    manager = StateManager(db)
    plan = load_resumable(gather_pages.entry_point).over(manager).explain_resume("r")
    assert plan.reused == ("fetch@1", "fetch@2") and plan.next == "gather_pages"
    assert str(plan).splitlines()[:3] == [
        "run r would call gather_pages again and continue after 2 recorded calls",
        "it had failed: ConnectionError: no route",
        "reused: fetch@1, fetch@2",
    ]
    assert plan.tell(now=True).startswith(
        "run r calls gather_pages again and continues after 2 recorded calls\n"
    )
    with pytest.raises(UsageError, match="not of workflow 'publish'"):
        load_resumable(publish.entry_point).over(manager).explain_resume("r")
    asyncio.run(manager.close())


def test_a_dry_run_of_a_workflow_imports_nothing_and_names_what_it_waits_for(
    tmp_path: Path,
) -> None:
    db = f"sqlite:///{tmp_path}/runs.db"
    publish.run("Kelp", run_id="r", storage=db, wait=False)
    dry = call("-s", db, "resume", "r", "--dry-run", "--entry", "no_such_module:publish")
    assert dry.code == 0 and "would import no_such_module:publish" in dry.err
    assert "run r would call publish again and continue after 0 recorded calls" in dry.err
    assert "waits for the event approval: approval@1" in dry.err
    answer("r", "approval", "Ann", storage=db)
    publish.resume("r", storage=db)
    dry = call("-s", db, "resume", "r", "--dry-run")
    assert "run r is completed at step 1: nothing would run" in dry.err


calls: list[str] = []


@surehold.step(in_doubt="retry")
def visit(page: str) -> str:
    calls.append(page)
    return page.upper()


@surehold.workflow
def tour(pages: list[str]) -> str:
    first = [visit(page) for page in pages]
    who = surehold.wait_for("guide")
    return "".join([*first, visit(str(who))])


@pytest.mark.parametrize("medium", ["sqlite", "file"])
def test_a_fork_continues_from_the_point_where_it_was_forked(tmp_path: Path, medium: str) -> None:
    calls.clear()
    db = f"sqlite:///{tmp_path}/runs.db" if medium == "sqlite" else f"file://{tmp_path}/runs"
    assert tour.run(["a", "b"], run_id="r", storage=db, wait=False).status == "waiting"
    with CheckpointManager(db) as manager:
        waiting = manager.latest("r")
        assert waiting is not None
        manager.fork_from_checkpoint(waiting.checkpoint_id, "early")
    answer("r", "guide", "c", storage=db)
    assert tour.resume("r", storage=db).value == "ABC"
    assert calls == ["a", "b", "c"]
    forked = tour.result("early", storage=db)
    assert (forked.status, [one.name for one in forked.waiting]) == ("interrupted", ["guide"])
    answer("early", "guide", "d", storage=db)
    done = tour.resume("early", storage=db)
    assert (done.value, calls) == ("ABD", ["a", "b", "c", "d"])
    assert done.saved.calls == 2
    with CheckpointManager(db) as manager:
        begun = manager.list_checkpoints("r")[-1]
        manager.fork_from_checkpoint(begun.checkpoint_id, "anew")
        newest = manager.latest("r")
        assert newest is not None and newest.status == "completed"
        manager.fork_from_checkpoint(newest.checkpoint_id, "whole")
    assert tour.resume("whole", storage=db).value == "ABC"
    assert calls == ["a", "b", "c", "d"]
    answered = tour.resume("anew", storage=db, wait=False)
    assert (answered.status, calls[4:]) == ("waiting", ["a", "b"])


@pytest.mark.parametrize("completed", [False, True])
def test_a_fork_with_other_arguments_begins_anew(tmp_path: Path, completed: bool) -> None:
    calls.clear()
    db = f"sqlite:///{tmp_path}/runs.db"
    tour.run(["a", "b"], run_id="r", storage=db, wait=False)
    if completed:
        answer("r", "guide", "c", storage=db)
        tour.resume("r", storage=db)
    calls.clear()
    given = ("--as", "other", "--set", 'arguments={"pages": ["x"]}')
    assert call("-s", db, "fork", "r", *given).code == 0
    forked = tour.result("other", storage=db)
    assert (forked.status, forked.step, forked.waiting) == ("interrupted", 0, ())
    assert tour.resume("other", storage=db, wait=False).status == "waiting"
    answer("other", "guide", "y", storage=db)
    assert (tour.resume("other", storage=db).value, calls) == ("XY", ["x", "y"])
