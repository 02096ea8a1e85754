"""The self-tests that are shipped: they pass here, fail where a promise is broken, and tidy up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from surehold import CheckpointManager, State
from surehold.errors import MissingExtraError

WITHOUT_PYTEST = "import sys; sys.modules['pytest'] = None; sys.modules['_pytest'] = None\n"


def call(
    module: str, *arguments: str, cwd: Path, before: str = "", **environment: str
) -> tuple[int, str]:
    """The exit code and the output of ``python -m``, with some code run *before* it."""
    code = (
        f"{before}\nimport runpy, sys\nsys.argv[1:] = {list(arguments)!r}\n"
        f"runpy.run_module('surehold.testing.{module}', run_name='__main__', alter_sys=True)"
    )
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


# unit


def test_unit_holds_a_medium_to_the_contract(tmp_path: Path) -> None:
    code, output = call("unit", "memory", cwd=tmp_path)
    assert code == 0, output
    assert set(verdicts(output)) == {"PASS"}
    assert "PASS memory: append stores in order and byte for byte" in output
    assert "SKIP memory: " in output
    assert list(tmp_path.iterdir()) == []


def test_unit_says_which_promise_a_medium_breaks(tmp_path: Path) -> None:
    broken = (
        "from surehold.storage.memory.storage import MemoryStorage\n"
        "MemoryStorage.find = lambda self, id_prefix: []"
    )
    code, output = call("unit", "memory", cwd=tmp_path, before=broken)
    assert code == 1
    assert "FAIL memory: " in output and "PASS memory: " in output


def test_unit_says_what_it_needs(tmp_path: Path) -> None:
    code, output = call("unit", cwd=tmp_path, before=WITHOUT_PYTEST)
    assert code == 2
    assert "pip install 'surehold[testing]'" in output


def test_the_rest_of_the_package_needs_no_pytest(tmp_path: Path) -> None:
    code, output = call(
        "validation",
        "memory://",
        cwd=tmp_path,
        before=f"{WITHOUT_PYTEST}import surehold.testing, surehold.testing.integration",
    )
    assert code == 0, output


def test_the_contract_without_pytest_is_a_missing_extra() -> None:
    code = f"{WITHOUT_PYTEST}import surehold.testing\nsurehold.testing.StorageContract"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert MissingExtraError.__name__ in done.stderr


# integration


def test_integration_goes_from_end_to_end_however_late_a_signal_comes(tmp_path: Path) -> None:
    late = (
        "import subprocess, time\n"
        "send = subprocess.Popen.send_signal\n"
        "subprocess.Popen.send_signal = lambda self, n: (time.sleep(0.2), send(self, n))\n"
    )
    code, output = call("integration", cwd=tmp_path, before=late)
    assert code == 0, output
    assert verdicts(output).count("PASS") == 14
    assert list(tmp_path.iterdir()) == []


def test_integration_fails_where_a_process_does_not_go_on(tmp_path: Path) -> None:
    forgetful = (
        "from surehold.doors.loop.definition import Run\n"
        "Run._restore = lambda self, manager: setattr(self, 'attempt', 1)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(forgetful)
    code, output = call("integration", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert code == 1
    assert "FAIL sqlite: a loop that is killed resumes at the next step" in output


# validation


@pytest.mark.parametrize("address", ["sqlite:///runs.db", "file:runs?compress=zstd"])
def test_validation_passes_beside_a_storage_and_leaves_it_alone(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with CheckpointManager(address) as manager:
        manager.save_checkpoint(State.new({"n": 1}, run_id="mine"))
    before = sorted(path.name for path in tmp_path.rglob("*"))
    code, output = call("validation", address, "--rounds", "3", "--seed", "1", cwd=tmp_path)
    assert code == 0, output
    assert verdicts(output) == ["PASS"] * 6
    assert "3 times SIGKILL" in output and " 0 lost" in output
    assert "no false state" in output and "with room again it continues" in output
    assert "A power cut, which was not tried: " in output
    assert sorted(path.name for path in tmp_path.rglob("*")) == before
    with CheckpointManager(address) as manager:
        assert [run.run_id for run in manager.list_checkpoints()] == ["mine"]


def test_validation_says_what_memory_does_not_guarantee(tmp_path: Path) -> None:
    code, output = call("validation", "memory://", cwd=tmp_path)
    assert code == 0
    assert "SKIP it survives being killed: memory ends with its process" in output
    assert "A power cut, which was not tried: all is lost." in output


def test_validation_notices_a_storage_that_acknowledges_what_it_does_not_keep(
    tmp_path: Path,
) -> None:
    lying = (
        "import itertools\n"
        "from surehold.storage.sqlite.storage import SQLiteStorage\n"
        "real, calls = SQLiteStorage.append, itertools.count()\n"
        "def append(self, batches):\n"
        "    return real(self, batches) if next(calls) < 3 else [None] * len(batches)\n"
        "SQLiteStorage.append = append\n"
    )
    (tmp_path / "sitecustomize.py").write_text(lying)
    code, output = call(
        "validation",
        "sqlite:///runs.db",
        *("--rounds", "3", "--seed", "1"),
        cwd=tmp_path,
        PYTHONPATH=str(tmp_path),
    )
    assert code == 1
    assert "FAIL it survives being killed: step" in output
    assert "was acknowledged" in output


def test_validation_notices_that_damage_goes_unnoticed(tmp_path: Path) -> None:
    trusting = (
        "import surehold.core.records.record as record\n"
        "record.digest_of = lambda data: '0' * 32\n"
        "import surehold.storage.base\n"
    )
    code, output = call("validation", "file:runs", "--seed", "1", cwd=tmp_path, before=trusting)
    assert code == 1
    assert "FAIL damage is noticed" in output


def test_validation_refuses_what_is_no_storage(tmp_path: Path) -> None:
    code, output = call("validation", "runs.db", cwd=tmp_path)
    assert code == 2
    assert "write sqlite:///runs.db" in output


def test_validation_says_in_a_line_that_nothing_can_be_written_there(tmp_path: Path) -> None:
    code, output = call("validation", "sqlite:////proc/x.db", cwd=tmp_path)
    assert code == 2 and output.count("\n") == 1
    assert output.startswith("no scratch area can be made in /proc: ")


def test_validation_tries_the_default_storage_if_none_is_given(tmp_path: Path) -> None:
    code, output = call("validation", "--rounds", "1", cwd=tmp_path, SUREHOLD_STORAGE="memory://")
    assert code == 0 and output.startswith("memory://")


def test_a_storage_that_cannot_be_reached_is_told_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "surehold.testing.validation", "postgres://127.0.0.1:1/none"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and len(done.stderr.splitlines()) == 1
