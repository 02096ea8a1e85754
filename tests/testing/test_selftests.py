"""The self-tests that are shipped: they pass here, fail where a promise is broken, and tidy up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from surehold import CheckpointManager, State
from surehold.errors import MissingExtraError

WITHOUT_PYTEST = "import sys; sys.modules['pytest'] = None; sys.modules['_pytest'] = None\n"


def selftest(
    address: str | None, *arguments: str, cwd: Path, before: str = "", **environment: str
) -> tuple[int, str]:
    """The exit code and the output of ``surehold selftest``, with some code run *before* it."""
    words = [*(["-s", address] if address else []), "selftest", "--rounds", "1", *arguments]
    code = f"{before}\nfrom surehold.__main__ import main\nraise SystemExit(main({words!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=500,
        check=False,
    )
    return done.returncode, done.stdout


def verdicts(output: str) -> list[str]:
    return [line.split()[0] for line in output.splitlines() if line[:5] in ("PASS ", "FAIL ")]


# The contract


def test_a_medium_is_held_to_the_contract(tmp_path: Path) -> None:
    code, output = selftest("memory://", "--contract", "memory", cwd=tmp_path)
    assert code == 0, output
    assert set(verdicts(output)) == {"PASS"}
    assert "PASS memory: append stores in order and byte for byte" in output
    assert "SKIP memory: " in output
    assert list(tmp_path.iterdir()) == []


def test_a_medium_that_breaks_its_contract_is_named_with_the_promise(tmp_path: Path) -> None:
    broken = (
        "from surehold.storage.memory.storage import MemoryStorage\n"
        "MemoryStorage.find = lambda self, id_prefix: []"
    )
    code, output = selftest("memory://", "--contract", "memory", cwd=tmp_path, before=broken)
    assert code == 1
    assert "FAIL memory: " in output and "PASS memory: " in output


def test_an_unknown_medium_is_refused(tmp_path: Path) -> None:
    code, output = selftest("memory://", "--contract", "disk", cwd=tmp_path)
    assert code == 2
    assert "say memory, file, sqlite or all" in output


def test_only_the_contract_needs_pytest(tmp_path: Path) -> None:
    code, output = selftest("memory://", cwd=tmp_path, before=WITHOUT_PYTEST)
    assert code == 0, output
    code, output = selftest(
        "memory://", "--contract", "memory", cwd=tmp_path, before=WITHOUT_PYTEST
    )
    assert code != 0
    assert "pip install 'surehold[testing]'" in output


def test_the_contract_without_pytest_is_a_missing_extra() -> None:
    code = f"{WITHOUT_PYTEST}import surehold.testing\nsurehold.testing.StorageContract"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert MissingExtraError.__name__ in done.stderr


# The storage in its place

LATE = (
    "import subprocess, time\n"
    "send = subprocess.Popen.send_signal\n"
    "subprocess.Popen.send_signal = lambda self, n: (time.sleep(0.2), send(self, n))\n"
)
"""Signals come late, as on a busy machine."""


@pytest.mark.parametrize("address", ["sqlite:///runs.db", "file:runs?compress=zstd"])
def test_a_storage_passes_however_late_a_signal_comes_and_is_left_alone(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with CheckpointManager(address) as manager:
        manager.save_checkpoint(State.new({"n": 1}, run_id="mine"))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    code, output = selftest(address, "--rounds", "3", "--seed", "1", cwd=tmp_path, before=LATE)
    assert code == 0, output
    assert verdicts(output) == ["PASS"] * 11
    assert "3 times SIGKILL" in output and " 0 lost" in output
    assert "PASS a graph that is killed resumes, and repeats no recorded effect" in output
    assert "no false state" in output and "with room again it continues" in output
    assert "SKIP a power cut: not tried; " in output
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    with CheckpointManager(address) as manager:
        assert [run.run_id for run in manager.list_checkpoints()] == ["mine"]


def test_a_process_that_does_not_resume_fails(tmp_path: Path) -> None:
    forgetful = (
        "from surehold.doors.loop.definition import Run\n"
        "Run._restore = lambda self, manager: setattr(self, 'attempt', 1)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(forgetful)
    code, output = selftest("sqlite:///runs.db", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert code == 1
    assert "FAIL a loop that is killed resumes at the next step" in output


def test_what_memory_does_not_guarantee_is_skipped(tmp_path: Path) -> None:
    code, output = selftest("memory://", cwd=tmp_path)
    assert code == 0
    assert "SKIP acknowledged saves survive kills: memory ends with its process" in output
    assert "SKIP a power cut: not tried; all is lost" in output


def test_a_document_holds_the_same_verdicts(tmp_path: Path) -> None:
    code, output = selftest("memory://", "--json", cwd=tmp_path)
    document = json.loads(output)
    assert (code, document["passed"]) == (0, True)
    assert {
        "verdict": "PASS",
        "promise": "one of two writers wins",
        "detail": "the second writer must load again",
    } in document["promises"]


def test_a_storage_that_acknowledges_what_it_does_not_keep_fails(tmp_path: Path) -> None:
    lying = (
        "import itertools\n"
        "from surehold.storage.sqlite.storage import SQLiteStorage\n"
        "real, calls = SQLiteStorage.append, itertools.count()\n"
        "def append(self, batches):\n"
        "    return real(self, batches) if next(calls) < 3 else [None] * len(batches)\n"
        "SQLiteStorage.append = append\n"
    )
    (tmp_path / "sitecustomize.py").write_text(lying)
    code, output = selftest(
        "sqlite:///runs.db",
        *("--rounds", "3", "--seed", "1"),
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path),
    )
    assert code == 1
    assert "FAIL acknowledged saves survive kills: step" in output
    assert "was acknowledged" in output


def test_damage_that_goes_unnoticed_fails(tmp_path: Path) -> None:
    trusting = (
        "import surehold.core.records.record as record\n"
        "record.digest_of = lambda data: '0' * 32\n"
        "import surehold.storage.base\n"
    )
    code, output = selftest("file:runs", "--seed", "1", cwd=tmp_path, before=trusting)
    assert code == 1
    assert "FAIL damage is noticed" in output


def test_what_is_no_storage_is_refused(tmp_path: Path) -> None:
    code, output = selftest("runs.db", cwd=tmp_path)
    assert code == 2
    assert "sqlite:///runs.db" in output


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    code, output = selftest("sqlite:////proc/x.db", cwd=tmp_path)
    assert code == 2
    assert "no scratch area can be made in /proc: " in output
    assert "Traceback" not in output


def test_the_default_storage_is_tried_if_none_is_given(tmp_path: Path) -> None:
    code, output = selftest(None, cwd=tmp_path, SUREHOLD_STORAGE="memory://")
    assert code == 0 and output.startswith("memory://")


def test_a_storage_that_cannot_be_reached_is_told_once(tmp_path: Path) -> None:
    code, output = selftest("postgres://127.0.0.1:1/none", cwd=tmp_path)
    assert code not in (0, 1)
    assert "Traceback" not in output and "PASS" not in output
