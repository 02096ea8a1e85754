"""With all defaults, a job that is killed again and again finishes without a person.

Only an effect that was in flight is asked about, and none is made twice. Each start is a new
process; its output, which outlives it, says which calls were made.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.media import FULL, times
from tests.crash.processes import child_environment

from surehold import answer, pending

KILLS = times(6, 200, "SUREHOLD_KILLS")
README = Path(__file__).parents[2] / "README.md"
PUBLISHED = "8 pages are online"
LONGEST = 0.6
"""Seconds from the first line of a program to its kill, at most."""

pytestmark = pytest.mark.timeout(7_200 if FULL else 600)


def readme() -> str:
    """The first program of the README, faster, with a run id from the command line."""
    whole = README.read_text("utf-8")
    text = whole[whole.index("import time\n") : whole.index("EOT\n```")]
    for old, new in (
        ("import time\n", "import sys, time\nprint('begun', flush=True)\n"),
        ("time.sleep(0.5)", "time.sleep(0.03)"),
        ('"nightly-2026-11-16"', "sys.argv[1]"),
        (
            "-> str:\n    return f",
            "-> str:\n    print('made publish', flush=True); time.sleep(0.2)\n    return f",
        ),
        ('print("paid for"', 'print("made"'),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


LOOP = """
import sys, time
print('begun', flush=True)
import surehold

def work(number):
    print("made", number, flush=True)
    time.sleep(0.02)
    return number

with surehold.run(sys.argv[1]) as run:
    for number in run.each(range(50)):
        run.state["sum"] = run.state.get("sum", 0) + run.call(work, number)
assert run.state == {"sum": 1225} and run.completed
"""


@pytest.mark.parametrize("which", ["readme", "loop"])
def test_a_killed_job_finishes_unattended(
    which: str, tmp_path: Path, finding: Callable[..., None]
) -> None:
    program = tmp_path / "job.py"
    program.write_text(readme() if which == "readme" else LOOP)
    address = f"sqlite:///{tmp_path}/runs.db"
    items = [f"page-{n}" for n in range(1, 9)] if which == "readme" else [*map(str, range(50))]
    chance, kills, runs, asked, repeated = random.Random(which), 0, 0, 0, 0
    while kills < KILLS:
        run_id, made, before = f"run-{runs}", Counter[str](), kills
        while True:
            code, lines = start(program, run_id, address, chance if kills < KILLS else None)
            made.update(line.split()[1] for line in lines if line.startswith("made"))
            if code == -9:
                kills += 1
            elif code == 0:
                break
            else:
                (waiting,) = pending(run_id, storage=address)
                assert (waiting.kind, waiting.name) == ("effect", "publish")
                asked += 1
                if made["publish"]:
                    answer(run_id, waiting.id, PUBLISHED, storage=address)
                else:
                    answer(run_id, waiting.id, repeat=True, storage=address)
        runs += 1
        assert pending(run_id, storage=address) == []
        assert made.pop("publish", 0) == (which == "readme"), "an effect was repeated"
        assert set(made) == set(items)
        assert made.total() - len(items) <= kills - before, "a recorded call was repeated"
        repeated += made.total() - len(items)
    name = "the README's first program" if which == "readme" else "a loop of 50 items"
    finding(
        f"kill -9 of {name}, all defaults",
        kills,
        f"{runs} runs finished, {asked} effects in flight asked about, 0 repeated,"
        f" {repeated} calls in flight repeated",
    )
    assert asked == 0 or which == "readme"


def start(
    program: Path, run_id: str, address: str, chance: random.Random | None
) -> tuple[int, list[str]]:
    """Start the program, and kill it at a moment by *chance*; its exit code and its lines."""
    env = {**child_environment(), "SUREHOLD_STORAGE": address}
    command = [sys.executable, str(program), run_id]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as job:
        assert job.stdout is not None and job.stderr is not None
        assert job.stdout.readline() == "begun\n"
        if chance is not None:
            try:
                job.wait(chance.uniform(0.1, LONGEST + 0.4))
            except subprocess.TimeoutExpired:
                job.kill()
        lines, errors = job.stdout.read().splitlines(), job.stderr.read()
        code = job.wait()
    assert code in (0, -9) or "waits" in errors, errors
    return code, lines
