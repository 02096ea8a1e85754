"""`surehold check` judges new code by the open runs; `surehold bisect` finds a bad step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import surehold

OLD = """\
import surehold

@surehold.step
def fetch(page):
    print("fetched", page)
    return page

@surehold.step
def pay(page):
    if page == "c":
        raise KeyboardInterrupt
    return page

@surehold.workflow
def nightly(pages: list[str]) -> str:
    for page in pages:
        fetch(page)
        pay(page)
    return "done"
"""
CHANGES: dict[str, tuple[str, str, str, str]] = {
    "the same": ("", "", "resumes", "the next call is"),
    "a new call at the end": ('return "done"', 'fetch("z"); return "done"', "resumes", "pay"),
    "another result": ('return "done"', 'return "over"', "resumes", "pay"),
    "other body of a step": ("return page", "return page.upper()", "resumes", "pay"),
    "another argument": ("fetch(page)\n", 'fetch(page + "!")\n', "cannot", "other arguments"),
    "a new call at the beginning": (
        "    for page",
        '    pay("first")\n    for page',
        "cannot",
        "pay",
    ),
    "a step that is gone": ("        fetch(page)\n", "", "cannot", "fetch"),
    "another order": (
        "        fetch(page)\n        pay(page)",
        "        pay(page)\n        fetch(page)",
        "cannot",
        "",
    ),
    "a person is asked now": (
        "@surehold.step\ndef pay",
        '@surehold.step(in_doubt="ask")\ndef pay',
        "resumes",
        "pay",
    ),
    "code that raises": ("    for page", "    1 / 0\n    for page", "cannot", "ZeroDivisionError"),
}


def shell(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "surehold", *words],
        cwd=folder,
        env={**os.environ, "SUREHOLD_STORAGE": f"sqlite:///{folder}/runs.db"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_planted_changes_of_the_code_are_judged(tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(OLD)
    begin = "import old; old.nightly.run(list('abcd'), run_id='n1', storage='sqlite:///runs.db')"
    begun = subprocess.run([sys.executable, "-c", begin], cwd=tmp_path, check=False)
    assert begun.returncode != 0
    before = shell(tmp_path, "log", "n1", "--json").stdout
    judged = {}
    for number, (old, new, outcome, detail) in enumerate(CHANGES.values()):
        assert old in OLD
        (tmp_path / f"new{number}.py").write_text(OLD.replace(old, new) if old else OLD)
        judged[f"new{number}:nightly"] = outcome, detail
    done = shell(tmp_path, "check", *judged, "--json")
    assert done.returncode == 8, done.stderr
    found = json.loads(done.stdout[done.stdout.index("{\n") :])["runs"]
    told = {name: (one["outcome"], one["detail"]) for name, one in zip(judged, found, strict=True)}
    wrong = {
        change: told[name]
        for change, (name, (outcome, detail)) in zip(CHANGES, judged.items(), strict=True)
        if told[name][0] != outcome or detail not in told[name][1]
    }
    assert wrong == {}
    assert shell(tmp_path, "log", "n1", "--json").stdout == before
    same = shell(tmp_path, "check", "old:nightly")
    assert same.returncode == 0 and "resumes" in same.stdout
    assert "fetched d" not in done.stdout + same.stdout


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    with surehold.run("long", storage=f"sqlite:///{tmp_path}/runs.db") as run:
        for step in range(1, 201):
            run.checkpoint(total=step)
    return tmp_path


def test_bisect_finds_the_first_bad_step_with_few_loads(counted: Path) -> None:
    done = shell(counted, "bisect", "long", "--bad", "total >= 137", "--json")
    told = json.loads(done.stdout)
    assert (told["step"], told["of"]) == (137, 201) and told["loads"] <= 8
    test = "python3 -c 'import json, sys; sys.exit(json.load(sys.stdin)[\"total\"] > 90)'"
    done = shell(counted, "bisect", "long", "--test", test)
    assert "long@91 is the first bad" in done.stdout
    none = shell(counted, "bisect", "long", "--bad", "total < 0")
    assert none.returncode == 4 and "is bad" in none.stderr
    assert shell(counted, "bisect", "long", "--bad", "total <").returncode == 2
    wrong = shell(counted, "bisect", "long", "--bad", "totl >= 137")
    assert wrong.returncode == 2 and "'totl' is not defined" in wrong.stderr
