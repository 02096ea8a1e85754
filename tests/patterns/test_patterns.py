"""The programs of docs/patterns/, killed before and after every record that they write."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.media import FULL
from tests.patterns.killing import Play, Where, check_every_kill

from surehold import answer, pending
from surehold.errors import NotFoundError

PAGES = sorted((Path(__file__).parents[2] / "docs" / "patterns").glob("*.md"))
FILE = re.compile(r'^```python title="(?P<name>[\w.]+)"\n(?P<text>.*?)^```$', re.M | re.S)
ENDS = ("waiting", "completed", "no trip", "Oslo 1", "Rome 2", "run 'trip-7' refused")
"""The beginnings of lines that a program prints about its run, outside of recorded calls."""
AT_ONCE = {"fan-out": 4}
COMMAND = re.compile(r"^\$ (?:python|surehold) (.+)$", re.M)


def told(directory: Path) -> None:
    """Settle what is in doubt: a call that printed its line has happened."""
    storage = f"sqlite:///{directory}/.surehold/surehold.db"
    try:
        waiting = pending(storage=storage)
    except NotFoundError:  # killed before there was a run
        return
    for one in waiting:
        if one.kind == "effect":
            answer(one.run_id, one.id, repeat=True, storage=storage)


def plays(page: Path) -> Play:
    """The programs and commands of a page."""
    text = page.read_text("utf-8")
    files = {found["name"]: found["text"] for found in FILE.finditer(text)}
    ends = [line for line in text.splitlines() if line.startswith(ENDS)]
    return Play(
        files,
        [line.split() for line in COMMAND.findall(text)],
        ends,
        AT_ONCE.get(page.stem, 1),
        told,
    )


WITH_PROGRAMS = [page for page in PAGES if plays(page).files]


@pytest.mark.parametrize("where", ["before", "after"] if FULL else ["before"])
@pytest.mark.parametrize("page", WITH_PROGRAMS, ids=[page.stem for page in WITH_PROGRAMS])
def test_a_pattern_killed_at_its_records_ends_alike(
    page: Path, where: Where, tmp_path: Path, finding: Callable[..., None]
) -> None:
    def make_directory(name: str) -> Path:
        made = tmp_path / name
        made.mkdir()
        return made

    kills = check_every_kill(plays(page), make_directory, where, None if FULL else 12)
    finding(f"docs/patterns/{page.name}", kills, f"killed {where} a record: ended alike")
