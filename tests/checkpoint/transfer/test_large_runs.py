"""A run beyond the default limits of imports: its export says so, and it can be imported."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from holdfast import CheckpointManager, SQLiteStorage, State
from holdfast.checkpoint.transfer import UNLIMITED
from holdfast.errors import DataError


def test_an_export_that_imports_refuse_by_default_says_how_to_import_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SQLiteStorage(tmp_path / "r.db", compress="gzip") as storage:
        manager = CheckpointManager(storage)
        manager.save_checkpoint(State.new({"blob": "x" * 3_000_000}, run_id="big"))
        manager.save_checkpoint(State.new({"blob": "x"}, run_id="small"))
        with caplog.at_level(logging.WARNING):
            manager.export_run("small", tmp_path / "small.holdfast")
            assert not caplog.text
            manager.export_run("big", tmp_path / "big.holdfast")
        assert "larger than imports allow by default (ratio)" in caplog.text
        assert "holdfast import --trust big.holdfast" in caplog.text
        with pytest.raises(DataError, match="times its size") as refused:
            manager.import_run(tmp_path / "big.holdfast", "copy")
        assert "--trust big.holdfast" in (refused.value.hint or "")
        manager.import_run(tmp_path / "big.holdfast", "copy", limits=UNLIMITED)
        assert len(manager.resume_from_latest("copy")["blob"]) == 3_000_000
