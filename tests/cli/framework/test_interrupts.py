"""Ctrl-C in the middle: nothing is lost, and the same command again finishes the work."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import call

from surehold import CheckpointManager, State, StateManager
from surehold.storage.base import RunQuery
from surehold.storage.registry import open_storage

RUNS = 20


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


INTERRUPTED = """
import os, signal, sys
from surehold.__main__ import main

files = 0

def watch(event, words):
    global files
    if event == "os.rename" and str(words[1]).endswith(".jsonl"):
        files += 1
        if files == 5:
            os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(watch)
sys.exit(main())
"""


def interrupt(*words: str) -> tuple[int, str]:
    """Run a command that gets SIGINT as it writes its fifth file; its exit code and stderr."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, *words], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


def count(address: str) -> int:
    with open_storage(address) as storage:
        return sum(1 for _ in storage.runs(RunQuery()))


def check(address: str) -> None:
    """Everything that is there is sound, and can be loaded."""
    assert call("-s", address, "verify", "--read-data").code == 0


def test_copy(many: str) -> None:
    target = "file:copy"
    assert interrupt("-s", many, "copy", "--to", target) == (130, "interrupted\n")
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
            manager.export_run(f"run-{n:03}", files / f"{n:03}.surehold")
    target = "file:taken"
    names = sorted(map(str, files.iterdir()))
    words = ["-s", target, "import", *names]
    assert interrupt(*words) == (130, "interrupted\n")
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
    assert interrupt("-s", many, "prune", "--yes") == (130, "interrupted\n")
    left = call("-s", many, "prune", "-n", "--json").json()
    assert 0 < len(left["runs"]) < RUNS
    check(many)
    assert call("-s", many, "prune", "--yes", "--json").code == 0
    assert call("-s", many, "prune", "-n", "--json").json()["runs"] == []
    check(many)
    assert count(many) == RUNS
    assert len(call("-s", many, "cat", "run-007:state.text").out) == 6001
