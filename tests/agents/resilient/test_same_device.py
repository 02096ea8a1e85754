"""A second copy of every record is meant to be on the same disk, and is not warned of."""

from __future__ import annotations

from pathlib import Path

import pytest

from surehold import ResilientCheckpointManager


@pytest.mark.parametrize(("option", "warned"), [("?redundancy=1", False), ("", True)])
def test_only_a_fallback_on_the_same_disk_is_warned_of(
    option: str, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fallbacks = [f"file:{tmp_path}/copy"] if warned else None
    address = f"sqlite:///{tmp_path}/runs.db{option}"
    with ResilientCheckpointManager("agent", address, fallbacks=fallbacks) as manager:
        manager.memory["n"] = 1
        manager.create_checkpoint("routine")
    assert ("on the same disk" in caplog.text) is warned
