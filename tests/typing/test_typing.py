"""A type checker finds the mistakes in a user's program, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("program.py")
PYRIGHT = ROOT / "build/typing/node_modules/.bin/pyright"


def wrong() -> set[int]:
    lines = PROGRAM.read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


def test_mypy_finds_what_is_wrong_in_a_program_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), PROGRAM]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = re.findall(r"program\.py:(\d+): error", found.stdout)
    assert {int(line) for line in lines} == wrong(), found.stdout


def test_pyright_finds_what_is_wrong_in_a_program_and_nothing_else() -> None:
    if not PYRIGHT.exists():
        pytest.skip("pyright is not installed: make types")
    command = [PYRIGHT, "--outputjson", "--pythonpath", sys.executable, PROGRAM]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    errors = json.loads(found.stdout)["generalDiagnostics"]
    assert {one["range"]["start"]["line"] + 1 for one in errors} == wrong(), found.stdout
