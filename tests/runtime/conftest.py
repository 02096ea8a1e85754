"""Stores to run graphs on."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["memory", "file", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store, of each medium."""
    if request.param == "memory":
        from surehold import MemoryStorage, register_checkpoint_store

        register_checkpoint_store("scratch", MemoryStorage())
        return "scratch"
    return {"file": f"file://{tmp_path}/runs", "sqlite": f"sqlite:///{tmp_path}/runs.db"}[
        request.param
    ]


@pytest.fixture
def db(tmp_path: Path) -> str:
    """The address of an empty SQLite store."""
    return f"sqlite:///{tmp_path}/runs.db"
