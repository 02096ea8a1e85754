"""A run beyond the default limits of imports: its export says so, and it can be imported."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from surehold import CheckpointManager, SQLiteStorage, State
from surehold.engine.transfer import UNLIMITED
from surehold.errors import DataError


def test_an_export_that_imports_refuse_by_default_says_how_to_import_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SQLiteStorage(tmp_path / "r.db", compress="gzip") as storage:
        manager = CheckpointManager(storage)
        manager.save_checkpoint(State.new({"blob": "x" * 3_000_000}, run_id="big"))
        manager.save_checkpoint(State.new({"blob": "x"}, run_id="small"))
        with caplog.at_level(logging.WARNING):
            manager.export_run("small", tmp_path / "small.surehold")
            assert not caplog.text
            manager.export_run("big", tmp_path / "big.surehold")
        assert "larger than imports allow by default (ratio)" in caplog.text
        assert "surehold import --trust big.surehold" in caplog.text
        with pytest.raises(DataError, match="times its size") as refused:
            manager.import_run(tmp_path / "big.surehold", "copy")
        assert "--trust big.surehold" in (refused.value.hint or "")
        manager.import_run(tmp_path / "big.surehold", "copy", limits=UNLIMITED)
        assert len(manager.resume_from_latest("copy")["blob"]) == 3_000_000


def test_an_export_warns_of_small_records_that_together_unpack_to_too_much(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SQLiteStorage(tmp_path / "r.db", compress="gzip") as storage:
        manager = CheckpointManager(storage)
        state = State.new({"blob": ""}, run_id="run")
        for step in range(1, 6):
            state = state.set("blob", str(step) * 900_000).at(step=step)
            manager.save_checkpoint(state)
        with caplog.at_level(logging.WARNING):
            manager.export_run("run", tmp_path / "run.surehold")
        assert "larger than imports allow by default (ratio)" in caplog.text
        with pytest.raises(DataError, match="times its size"):
            manager.import_run(tmp_path / "run.surehold", "copy")


def test_an_export_judges_the_records_that_it_writes_not_those_that_it_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SQLiteStorage(tmp_path / "r.db", compress=False) as storage:
        manager = CheckpointManager(storage)
        manager.save_checkpoint(State.new({"blob": "x" * 3_000_000}, run_id="big"))
        with caplog.at_level(logging.WARNING):
            manager.export_run("big", tmp_path / "plain.surehold")
            assert not caplog.text
            manager.export_run("big", tmp_path / "sealed.surehold", encryption_key="6b" * 32)
        assert "sealed.surehold is larger than imports allow by default (ratio)" in caplog.text
