"""Addresses of every storage medium."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["memory", "file", "sqlite"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return {
        "memory": "memory://",
        "file": f"file://{tmp_path}/files",
        "sqlite": f"sqlite:///{tmp_path}/threads.db",
    }[request.param]
