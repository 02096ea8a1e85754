"""Code without a storage argument uses the storage that the command would use."""

from __future__ import annotations

from pathlib import Path

import pytest

import surehold
from surehold.config import FILE_NAME, Config, read_config
from surehold.errors import NotFoundError, UsageError
from surehold.storage.base import RunQuery
from surehold.storage.registry import configured_storage, default_address


@pytest.fixture
def below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory two levels below a settings file."""
    (tmp_path / FILE_NAME).write_text('storage = "sqlite:///runs.db"\n')
    directory = tmp_path / "a" / "b"
    directory.mkdir(parents=True)
    monkeypatch.chdir(directory)
    monkeypatch.delenv("SUREHOLD_STORAGE", raising=False)
    return directory


def runs_in(path: Path) -> list[str]:
    with surehold.open_storage(f"sqlite:///{path}") as storage:
        return [run.run_id for run in storage.runs(RunQuery())]


def test_a_run_uses_the_storage_of_the_settings_file(below: Path) -> None:
    with surehold.run("nightly-2026-11-16") as run:
        run.checkpoint(done=1)
    assert runs_in(below.parents[1] / "runs.db") == ["nightly-2026-11-16"]
    assert not (below / ".surehold").exists()


def test_a_manager_uses_the_storage_of_the_settings_file(below: Path) -> None:
    with surehold.CheckpointManager() as manager:
        manager.save_checkpoint(surehold.State.new(run_id="by-hand-2026-11-16"))
    assert runs_in(below.parents[1] / "runs.db") == ["by-hand-2026-11-16"]


def test_a_workflow_uses_the_storage_of_the_settings_file(below: Path) -> None:
    @surehold.workflow
    def double(number: int) -> int:
        return 2 * number

    assert double.run(4, run_id="double-2026-11-16").value == 8
    assert runs_in(below.parents[1] / "runs.db") == ["double-2026-11-16"]


async def test_a_graph_with_store_none_uses_the_storage_of_the_settings_file(below: Path) -> None:
    kept = surehold.CheckpointConfig(store=None, interval=1, preserve=True)
    async with surehold.StateGraph(surehold.GraphConfig("report", checkpoint=kept)) as graph:
        graph.add_node("write", lambda state: state.set("text", "kelp"))
        graph.set_entry_point("write")
        graph.set_exit_point("write")
        state = await graph.execute(surehold.State.new())
    assert runs_in(below.parents[1] / "runs.db") == [state.run_id]


async def test_an_agents_manager_uses_the_storage_of_the_settings_file(below: Path) -> None:
    async with surehold.StateManager() as manager:
        await manager.save_checkpoint(surehold.AgentState(agent_id="researcher"))
    assert len(runs_in(below.parents[1] / "runs.db")) == 1


def test_the_environment_wins_over_the_file(below: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREHOLD_STORAGE", "sqlite:///env.db")
    with surehold.run("nightly-2026-11-16") as run:
        run.checkpoint(done=1)
    assert runs_in(below / "env.db") == ["nightly-2026-11-16"]
    (below / FILE_NAME).write_text("not toml")
    assert default_address() == "sqlite:///env.db", "the file is not even read"


def test_an_argument_wins_over_both(below: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUREHOLD_STORAGE", "sqlite:///env.db")
    with surehold.run("nightly-2026-11-16", storage="sqlite:///given.db") as run:
        run.checkpoint(done=1)
    assert runs_in(below / "given.db") == ["nightly-2026-11-16"]
    assert not (below / "env.db").exists()


def test_a_file_without_a_storage_leaves_the_default(below: Path) -> None:
    (below / FILE_NAME).write_text("[retention]\nkeep-last = 3\n")
    assert default_address() == "sqlite:///.surehold/surehold.db"


def test_an_error_names_the_file_that_has_the_address(below: Path) -> None:
    file = below.parents[1] / FILE_NAME
    file.write_text('storage = "nowhere"\n')
    with pytest.raises(NotFoundError) as caught:
        surehold.open_storage()
    assert str(file) in "".join(caught.value.__notes__)


@pytest.mark.parametrize("text", ["storage = 3\n", "store = 'x'\n", "storage = \n", "\x00"])
def test_a_wrong_file_is_refused_before_anything_is_written(below: Path, text: str) -> None:
    (below / FILE_NAME).write_text(text)
    with pytest.raises(UsageError, match=FILE_NAME):
        surehold.CheckpointManager()
    assert sorted(path.name for path in below.iterdir()) == [FILE_NAME]


def test_relative_addresses_start_at_the_file(tmp_path: Path) -> None:
    def address(storage: str) -> str:
        config = Config(tmp_path / "with space" / FILE_NAME, storage)
        return configured_storage({}, tmp_path, config)[0]

    place = str(tmp_path / "with%20space")
    assert address("file:runs") == f"file:{place}/runs"
    assert address("resilient:sqlite:///a.db|file:b") == (
        f"resilient:sqlite:///{place}/a.db|file:{place}/b"
    )
    assert address("postgresql://host/db") == "postgresql://host/db"


def test_no_file_is_an_empty_configuration(tmp_path: Path) -> None:
    assert read_config(tmp_path) == Config()
