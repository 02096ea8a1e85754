"""Ctrl-C in the middle: nothing is lost, and the same command again finishes the work."""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import call

from holdfast import CheckpointManager, State, StateManager
from holdfast.storage.base import RunQuery
from holdfast.storage.registry import open_storage

RUNS = 200


@pytest.fixture
def many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A storage with many runs, whose older states are all new as a whole."""
    monkeypatch.chdir(tmp_path)
    address = "sqlite:///many.db"

    async def make() -> None:
        async with StateManager(address) as manager:
            for step in range(1, 5):
                await asyncio.gather(
                    *(
                        manager.save_checkpoint(
                            State.new({"text": secrets.token_hex(3000)}, run_id=f"run-{n:03}").at(
                                step=step
                            )
                        )
                        for n in range(RUNS)
                    )
                )

    asyncio.run(make())
    return address


def interrupt(words: list[str], begun: Callable[[], bool]) -> tuple[int, str]:
    """Start a command, send it SIGINT once *begun* says so; gives its exit code and stderr."""
    command = [sys.executable, "-m", "holdfast", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        until = time.monotonic() + 500
        while not begun():
            assert child.poll() is None, "it ended before it could be interrupted"
            assert time.monotonic() < until
            time.sleep(0.001)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=500)
    return child.returncode, err


def count(address: str) -> int:
    with open_storage(address) as storage:
        return sum(1 for _ in storage.runs(RunQuery()))


def check(address: str) -> None:
    """Everything that is there is sound, and can be loaded."""
    assert call("-s", address, "verify", "--read-data").code == 0


def test_copy(many: str) -> None:
    target = "file:copy"
    path = Path("copy")
    code, err = interrupt(
        ["-s", many, "copy", "--to", target], lambda: len(list(path.rglob("*.jsonl"))) > 3
    )
    assert (code, err) == (130, "interrupted\n")
    done = count(target)
    assert 0 < done < RUNS
    check(target)
    again = call("-s", many, "copy", "--to", target, "--json").json()
    assert sum(row["records"] == 0 for row in again["runs"]) >= done - 1
    assert count(target) == count(many) == RUNS
    check(target)
    check(many)


def test_import(many: str) -> None:
    files = Path("files")
    files.mkdir()
    with CheckpointManager(many) as manager:
        for n in range(RUNS):
            manager.export_run(f"run-{n:03}", files / f"{n:03}.holdfast")
    target = "file:taken"
    path = Path("taken")
    names = sorted(map(str, files.iterdir()))
    words = ["-s", target, "import", *names]
    code, err = interrupt(words, lambda: len(list(path.rglob("*.jsonl"))) > 3)
    assert (code, err) == (130, "interrupted\n")
    done = count(target)
    assert 0 < done < RUNS
    check(target)
    again = call(*words, "--skip-existing", "--jsonl")
    assert again.code == 0
    assert len(again.lines()) == RUNS - done
    assert count(target) == RUNS
    check(target)


def test_prune(many: str) -> None:
    assert call("-s", many, "copy", "--to", "file:pruned", "--json").code == 0
    many = "file:pruned"
    assert call("-s", many, "forget", "--keep-last", "1", "--yes", "--json").code == 0
    planned = call("-s", many, "prune", "-n", "--json").json()
    assert len(planned["runs"]) == RUNS
    before = {path: path.stat().st_size for path in Path("pruned").rglob("*.jsonl")}

    def begun() -> bool:
        return sum(path.stat().st_size < size for path, size in before.items()) > 3

    code, err = interrupt(["-s", many, "prune", "--yes"], begun)
    assert (code, err) == (130, "interrupted\n")
    left = call("-s", many, "prune", "-n", "--json").json()
    assert 0 < len(left["runs"]) < RUNS
    check(many)
    assert call("-s", many, "prune", "--yes", "--json").code == 0
    assert call("-s", many, "prune", "-n", "--json").json()["runs"] == []
    check(many)
    assert count(many) == RUNS
    assert len(call("-s", many, "cat", "run-007:state.text").out) == 6001
