"""With all defaults, a job that is killed again and again finishes without a person.

Only an effect that was in flight is asked about, and none is made twice. Each start is a process
of its own; its output, which outlives it, says which calls were made.
"""

from __future__ import annotations

import os
import random
import runpy
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.media import FULL, times
from tests.crash.processes import ForkServer

from surehold import answer, pending

KILLS = times(6, 200, "SUREHOLD_KILLS")
README = Path(__file__).parents[2] / "README.md"
PUBLISHED = "8 pages are online"
LONGEST = 0.6
"""Seconds from the start of a program to its kill, at most."""

pytestmark = pytest.mark.timeout(7_200 if FULL else 600)


def readme() -> str:
    """The first program of the README, faster, with a run id from the command line."""
    whole = README.read_text("utf-8")
    text = whole[whole.index("import time\n") : whole.index("EOT\n```")]
    for old, new in (
        ("import time\n", "import sys, time\n"),
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
    which: str, tmp_path: Path, server: ForkServer, finding: Callable[..., None]
) -> None:
    program = tmp_path / "job.py"
    program.write_text(readme() if which == "readme" else LOOP)
    address = f"sqlite:///{tmp_path}/runs.db"
    items = [f"page-{n}" for n in range(1, 9)] if which == "readme" else [*map(str, range(50))]
    chance, kills, runs, asked, repeated = random.Random(which), 0, 0, 0, 0
    while kills < KILLS:
        run_id, made, before = f"run-{runs}", Counter[str](), kills
        while True:
            code, lines = start(server, program, run_id, address, chance if kills < KILLS else None)
            # A kill in the middle of a print leaves "made" alone.
            told = [line.split() for line in lines if line.startswith("made")]
            made.update(words[1] for words in told if len(words) == 2)
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
    server: ForkServer, program: Path, run_id: str, address: str, chance: random.Random | None
) -> tuple[int, list[str]]:
    """Start the program, and kill it at a moment by *chance*; its exit code and its lines."""
    said = program.with_name("said")
    target = f"{__name__}:execute"
    with server.start(target, str(program), run_id, address, str(said)) as job:
        assert job.hear(1) == [["begun"]]
        if chance is not None:
            time.sleep(chance.uniform(0, LONGEST))
            os.kill(job.pid, signal.SIGKILL)  # unless it has ended
        (*crashed,) = job.hear_all()
        code = job.wait()
    lines = said.read_text().splitlines()
    said.unlink()
    assert code in (0, -9) or any(" waits: " in line for line in lines), (lines, crashed)
    return code, lines


def execute(tell: Callable[..., None], program: str, run_id: str, address: str, said: str) -> None:
    """Execute the program as ``python program run_id`` would, its output in a file."""
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ["SUREHOLD_STORAGE"] = address
    sys.argv = [program, run_id]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tell("begun")
    runpy.run_path(program, run_name="__main__")
    sys.stdout.flush()
