"""What people know from AgenticFleet's workflow checkpoints: its snippets, and the eight tests that
its summary lists, by their names.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.builders.fleets import manager, team
from tests.cli.console.consoles import WORKFLOW, ids_in, pipe

from surehold import FilesystemStorage, Fleet, MemoryStorage, create_checkpoint_storage
from surehold.agents.fleet.workflow_file import read_workflow
from surehold.agents.models import model as models
from surehold.errors import NotFoundError, UsageError
from surehold.integrations.checkpoint_files import import_checkpoint_files

BLOCK = """
checkpointing:
  enabled: true                      # Enable/disable checkpointing
  storage_type: file                 # Options: file, memory
  storage_path: ./checkpoints        # Path for file storage
  cleanup_after_days: 30             # For future Phase 3
  auto_resume_on_failure: false      # For future Phase 2
"""


@pytest.fixture
def workflow_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "workflow.yaml"
    path.write_text(BLOCK)
    return path


def test_checkpoint_storage_creation_file(workflow_yaml: Path) -> None:
    storage = create_checkpoint_storage(read_workflow(workflow_yaml))
    assert isinstance(storage, FilesystemStorage)
    storage.close()


def test_checkpoint_storage_creation_memory(workflow_yaml: Path) -> None:
    workflow_yaml.write_text(BLOCK.replace("file  ", "memory"))
    assert isinstance(create_checkpoint_storage(read_workflow(workflow_yaml)), MemoryStorage)


def test_checkpoint_storage_disabled(workflow_yaml: Path) -> None:
    workflow_yaml.write_text(BLOCK.replace("enabled: true", "enabled: false"))
    assert create_checkpoint_storage(read_workflow(workflow_yaml)) is None


def test_create_checkpoint_storage_as_the_seed_calls_it(workflow_yaml: Path) -> None:
    for given in ((), (workflow_yaml,), (str(workflow_yaml),)):
        storage = create_checkpoint_storage(*given)
        assert isinstance(storage, FilesystemStorage)
        storage.close()
    with pytest.raises(UsageError, match="settings are a int"):
        create_checkpoint_storage(7)  # type: ignore[arg-type]


CONTEXT = {
    "available_agents": {"researcher": "finds", "coder": "codes", "analyst": "looks"},
    "user_query": "Analyze sales data",
}


@pytest.mark.parametrize("context", [CONTEXT, {"user_query": "Analyze sales data"}, {}])
async def test_existing_checkpoint_files_are_listed_and_resumed(
    tmp_path: Path, context: dict[str, object]
) -> None:
    old = tmp_path / "checkpoints"
    old.mkdir()
    ids = [f"a1b2c3d4-5e6f-7890-abcd-ef123456789{n}" for n in range(3)]
    for number, checkpoint_id in enumerate(ids, 1):
        saved = {
            "checkpoint_id": checkpoint_id,
            "workflow_id": "workflow_abc123",
            "timestamp": f"2025-10-13T14:3{number}:45+00:00",
            "current_round": number,
            "stall_count": 0,
            "last_response": f"round {number} is done",
            "context": context,
            "metadata": {"status": "in_progress"},
        }
        (old / f"{checkpoint_id}.json").write_text(json.dumps(saved))
    store = f"sqlite:///{tmp_path}/runs.db"
    import_checkpoint_files(old, store)
    async with Fleet(manager(2), team(), store) as workflow:
        listed = await workflow.list_checkpoints("workflow_abc123")
        assert [one["checkpoint_id"] for one in listed] == ids[::-1]
        assert [one["current_round"] for one in listed] == [3, 2, 1]
        assert listed[0]["timestamp"] == "2025-10-13T14:33:45+00:00"
        assert listed[0]["status"] == "in_progress"
        assert await workflow.restore_from_checkpoint(ids[2])
        assert (workflow.current_round, workflow.last_response) == (3, "round 3 is done")
        result = await workflow.run("Continue the analysis", resume_from_checkpoint=ids[2])
        assert (result.status, result.run_id) == ("completed", "workflow_abc123")
        assert result.rounds == 5
        assert any("round 3 is done" in entry["content"] for entry in result.state["history"])
        forked = await workflow.run("Continue", resume_from_checkpoint=ids[0])
        assert forked.forked_from == "workflow_abc123" and forked.status == "completed"


async def test_workflow_checkpoint_creation(tmp_path: Path) -> None:
    storage = FilesystemStorage(tmp_path / "checkpoints")
    workflow = Fleet(manager(3), team(), storage)
    workflow.set_workflow_id("workflow_abc123")
    await workflow.run("Analyze sales data")
    checkpoint_id = await workflow.create_checkpoint({"status": "in_progress", "note": "mine"})
    assert checkpoint_id is not None
    saved = json.loads(await workflow.export_checkpoint(checkpoint_id))
    assert [*saved] == [
        *("checkpoint_id", "workflow_id", "timestamp", "current_round", "stall_count"),
        *("last_response", "context", "metadata"),
    ]
    assert (saved["checkpoint_id"], saved["workflow_id"]) == (checkpoint_id, "workflow_abc123")
    assert (saved["current_round"], saved["metadata"]["note"]) == (3, "mine")
    await workflow.close()
    storage.close()


async def test_workflow_checkpoint_restoration(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/checkpoints"
    async with Fleet(manager(3), team(), store) as workflow:
        await workflow.run("Analyze sales data")
        checkpoint_id = await workflow.create_checkpoint()
        before = (workflow.current_round, workflow.stall_count, workflow.last_response)
        context = workflow.context
    async with Fleet(manager(3), team(), store) as workflow:
        assert await workflow.restore_from_checkpoint(checkpoint_id or "") is True
        assert (workflow.current_round, workflow.stall_count, workflow.last_response) == before
        assert (workflow.context, workflow.current_checkpoint_id) == (context, checkpoint_id)


async def test_workflow_checkpoint_restoration_missing(tmp_path: Path) -> None:
    async with Fleet(manager(1), team(), f"file://{tmp_path}/checkpoints") as workflow:
        with pytest.raises(NotFoundError):
            await workflow.restore_from_checkpoint("nonexistent")
        assert (workflow.current_round, workflow.state) == (0, None)


async def test_workflow_list_checkpoints(tmp_path: Path) -> None:
    async with Fleet(manager(2), team(), f"file://{tmp_path}/checkpoints") as workflow:
        for name in ("workflow_1", "workflow_2"):
            await workflow.set_workflow_id(name)
            await workflow.run("Go")
        listed = await workflow.list_checkpoints()
        assert {one["workflow_id"] for one in listed} == {"workflow_1", "workflow_2"}
        assert [one["timestamp"] for one in listed] == sorted(
            (one["timestamp"] for one in listed), reverse=True
        )
        only = await workflow.list_checkpoints("workflow_1")
        assert {one["workflow_id"] for one in only} == {"workflow_1"}
        assert {"checkpoint_id", "workflow_id", "timestamp", "current_round", "metadata"} <= {
            *only[0]
        }


async def test_workflow_no_checkpoint_storage() -> None:
    async with Fleet(manager(1), team()) as workflow:
        assert await workflow.create_checkpoint({"status": "in_progress"}) is None
        assert await workflow.list_checkpoints() == []
        with pytest.raises(UsageError):
            await workflow.run("Continue", resume_from_checkpoint="abc")


async def test_the_snippets(workflow_yaml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_factories", {"test": lambda name, **settings: manager(2)})
    monkeypatch.setenv("SUREHOLD_MODEL", "test:any")
    workflow = Fleet.from_yaml(workflow_yaml)

    result = await workflow.run("Analyze sales data")
    # Checkpoints created automatically at each round

    saved = await workflow.list_checkpoints(result.run_id)
    assert [one["current_round"] for one in saved] == [2, 2, 2, 1, 0, 0]

    result = await workflow.run(
        "Continue analysis", resume_from_checkpoint=saved[3]["checkpoint_id"]
    )
    assert result.status == "completed"
    await workflow.close()


def test_the_transcripts(tmp_path: Path) -> None:
    (tmp_path / "workflow.yaml").write_text(WORKFLOW)
    out = pipe(tmp_path, "Do the broken thing", "checkpoints", code=1)
    assert re.search(r"^Available Checkpoints \(4\)$", out, re.MULTILINE)
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d +1 +running$", out, re.MULTILINE)
    (tmp_path / "mended").touch()
    id = ids_in(out)[0]
    out = pipe(tmp_path, f"resume {id}", "Continue the analysis")
    assert "completed in 3 rounds" in out


def test_what_a_failure_costs_is_measured_and_not_claimed() -> None:
    example = Path(__file__).parents[2] / "examples" / "failure_cost.py"
    done = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, timeout=500, check=True
    )
    costs = [int(text) for text in re.findall(r"(\d+) calls", done.stdout)]
    whole_3, over_3, resumed_3, whole_8, over_8, resumed_8 = costs
    assert (resumed_3, resumed_8) == (whole_3, whole_8)  # nothing is paid for twice
    assert over_3 > whole_3 and over_8 > whole_8
    saved = [int(text) for text in re.findall(r"costs (\d+)% fewer calls", done.stdout)]
    assert saved[0] >= 40 and saved[1] >= 70
