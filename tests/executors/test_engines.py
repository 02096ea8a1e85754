"""The executors over Ray and Temporal where neither is there: what they refuse, and how."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from surehold import SQLiteStorage
from surehold.errors import MissingExtraError, UsageError
from surehold.executors import RayExecutor, TemporalExecutor, TemporalWorker

SERVES = "tests.executors.counting"


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "temporalio", "temporalio.client"):
        monkeypatch.setitem(sys.modules, name, None)


def test_ray_that_is_not_installed_is_a_pip_line(absent: None, tmp_path: Path) -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'surehold\[ray\]'"):
        RayExecutor(f"sqlite:///{tmp_path}/runs.db", SERVES)


def test_temporal_that_is_not_installed_is_a_pip_line(absent: None, tmp_path: Path) -> None:
    line = r"pip install 'surehold\[temporal\]'"
    with pytest.raises(MissingExtraError, match=line):
        TemporalExecutor()
    with pytest.raises(MissingExtraError, match=line):
        TemporalWorker(f"sqlite:///{tmp_path}/runs.db", SERVES)


def test_one_actor_is_too_few(absent: None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="actors is 1"):
        RayExecutor(f"sqlite:///{tmp_path}/runs.db", SERVES, actors=1)


def test_an_open_storage_cannot_cross_to_actors(absent: None, tmp_path: Path) -> None:
    with (
        SQLiteStorage(tmp_path / "runs.db") as storage,
        pytest.raises(UsageError, match="storage is a SQLiteStorage"),
    ):
        RayExecutor(storage, SERVES)  # type: ignore[arg-type]
