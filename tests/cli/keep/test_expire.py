"""`surehold expire`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.cli.conftest import call

from surehold import SQLiteStorage
from surehold.testing.journal import FakeClock, JournalWriter


def fill(path: Path) -> str:
    """Two runs of 40 days ago, one of them pinned."""
    with SQLiteStorage(path) as storage:
        for run_id in ("kept", "gone"):
            clock = FakeClock(datetime.now(UTC) - timedelta(days=40))
            writer = JournalWriter(run_id, name="nightly", clock=clock)
            writer.save(storage, status="completed")
            if run_id == "kept":
                pin = {"target": 1, "on": True}
                writer.save(storage, frame="note", kind="pin", metadata=pin)
    return f"sqlite:///{path}"


def test_expire_shows_first_asks_and_removes(tmp_path: Path) -> None:
    url = fill(tmp_path / "runs.db")
    rule = ("expire", "-s", url, "--older", "1h", "--name", "nightly")
    shown = call(*rule, "-n", "--json").json()
    assert [one["run_id"] for one in shown["runs"]] == ["gone"] and shown["kept"] == {"pin": 1}
    assert "1 run would be removed" in call(*rule, "-n").out
    assert call(*rule).code == 6
    assert call(*rule, typed="n\n").code == 6
    done = call(*rule, "--yes")
    assert done.code == 0 and "1 run removed" in done.out and "kept: 1 pin" in done.out
    assert [run["run_id"] for run in call("runs", "-s", url, "--json").json()["runs"]] == ["kept"]
    assert call(*rule, "--yes", "--json").json()["runs"] == []


def test_expire_needs_a_rule_and_takes_that_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fill(tmp_path / "runs.db")
    refused = call("expire", "-s", url)
    assert refused.code == 2 and "surehold expire --older 30d" in refused.err
    assert call("expire", "-s", url, "--status", "failed").code == 2
    running = call("expire", "-s", url, "--older", "1d", "--status", "running")
    assert running.code == 2 and "do not expire" in running.err
    monkeypatch.chdir(tmp_path)
    settings = tmp_path / "surehold.toml"
    settings.write_text('[expire]\nolder = "30d"\nkeep-last = 1\n')
    assert call("expire", "-s", url, "-n", "--json").json()["runs"] == []
    settings.write_text('[expire]\nolder = "soon"\n')
    wrong = call("expire", "-s", url, "-n")
    assert wrong.code == 2 and "surehold.toml" in wrong.err
