"""Workflows that a command or a worker resumes by run id and entry point."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast import StateManager, answer
from holdfast.errors import Interrupted, UsageError
from holdfast.runtime.resume import load_resumable


@holdfast.workflow
def publish(title: str) -> str:
    return f"{title}, {holdfast.wait_for('approval')}"


@holdfast.workflow
async def publish_async(title: str) -> str:
    return f"{title}, {await holdfast.wait_for('approval')}"


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
    with pytest.raises(Interrupted):
        runs.resume_sync("r")
    with pytest.raises(UsageError, match="after its last recorded call"):
        runs.resume_sync("r", checkpoint_id=plan.checkpoint_id)
    answer("r", "approval", "Ann", storage=db)
    assert runs.explain_resume("r").questions == ()
    ended = runs.resume_sync("r")
    assert (ended.status, ended.step) == ("completed", 1)
    asyncio.run(manager.close())
