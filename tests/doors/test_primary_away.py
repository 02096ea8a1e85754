"""A run on a copy goes on at every door after its primary was lost, however long ago it saved."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.doors.test_lease_ended import DOORS, Door, Frozen

from surehold import CheckpointManager, FilesystemStorage, ResilientStorage, SQLiteStorage


@pytest.mark.parametrize("medium", ["sqlite", "file"])
@pytest.mark.parametrize("door", DOORS)
def test_a_run_continues_on_the_copy_an_hour_after_its_primary_was_lost(
    door: Door, medium: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "primary"
    place.mkdir()
    primary = SQLiteStorage(place / "runs.db") if medium == "sqlite" else FilesystemStorage(place)
    with ResilientStorage(primary, FilesystemStorage(tmp_path / "copy")) as storage:
        work = Frozen(monkeypatch, lambda: shutil.rmtree(place))
        door(storage, work)
        assert work.done == ["a", "b"]
    place.mkdir(exist_ok=True)
    again = SQLiteStorage(place / "runs.db") if medium == "sqlite" else FilesystemStorage(place)
    with ResilientStorage(again, FilesystemStorage(tmp_path / "copy")) as storage:
        assert storage.sync() == []
        assert all(CheckpointManager(storage).verify())
        door(storage, work)
        assert work.done == ["a", "b"], "nothing that was recorded is repeated"
