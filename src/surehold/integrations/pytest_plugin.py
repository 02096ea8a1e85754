"""The pytest plugin: tests whose model calls are answered from recordings.

``@pytest.mark.surehold("runs/research-7.surehold")`` names the recording, relative to the test's
file; without a name it is ``recordings/MODULE/TEST.jsonl`` there. ``--surehold-record=new`` records
what is missing, ``all`` everything anew, and ``none``, the default, nothing: a request that was not
recorded fails the test, with the nearest recorded one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from surehold.errors import NotFoundError, ShapeError, UsageError

_MARK = "surehold"
_LONGEST = 100
"""Letters of a test's name in that of its recording."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--surehold-record``."""
    parser.getgroup("surehold").addoption(
        "--surehold-record",
        choices=("none", "new", "all"),
        default="none",
        help="none: answer model calls from recordings only; new: record what is missing;"
        " all: record everything anew",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers",
        "surehold(recording=None, *, urls=(), loose=False, storage=None): answer model calls from"
        " a recording: a file beside the test, or the id of a run",
    )


def recording_path(item: pytest.Item, named: str | None) -> Path:
    """The file of a test's recording."""
    here = item.path.parent
    if named is not None:
        return here / named
    owner = item.cls.__qualname__ + "." if isinstance(item, pytest.Function) and item.cls else ""
    whole = f"{owner}{item.name}"
    name = re.sub(r"[^\w.\-\[\]]+", "-", whole)[:_LONGEST]
    if name != whole:  # another test may have the rest in common
        name += "-" + hashlib.sha256(whole.encode()).hexdigest()[:8]
    return here / "recordings" / item.path.stem / f"{name}.jsonl"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Answer the model calls of a marked test."""
    mark = item.get_closest_marker(_MARK)
    if mark is None:
        yield
        return
    try:
        with playing_for(item, mark):
            yield
        return
    except (NotFoundError, ShapeError) as error:
        told = f"{error.message} ({error.hint})" if error.hint else error.message
        if isinstance(error, ShapeError) and item.config.getoption("--surehold-record") == "none":
            told += "\n  is the change meant? --surehold-record=new records what is missing"
    pytest.fail(told, pytrace=False)  # a traceback of the plugin helps nobody


def playing_for(item: pytest.Item, mark: pytest.Mark) -> Any:
    """The context in which a marked test is called."""
    from surehold.integrations.recorder import is_file, record_in_file, replay

    named, options = _read(mark)
    storage = options.pop("storage", None)
    mode = item.config.getoption("--surehold-record")
    if named is not None and not is_file(named):
        if mode != "none":
            raise UsageError(
                f"{item.name}: run {named!r} is replayed, not recorded by a test",
                hint="name a file such as 'recordings/mine.jsonl' to record",
            )
        return replay(named, storage=storage, **options)
    return record_in_file(recording_path(item, named), mode, where=item.name, **options)


def _read(mark: pytest.Mark) -> tuple[str | None, dict[str, Any]]:
    if len(mark.args) > 1 or set(mark.kwargs) - {"recording", "urls", "loose", "storage"}:
        raise UsageError(
            f"the mark surehold has {mark.args!r} and {mark.kwargs!r}",
            hint='@pytest.mark.surehold("recordings/mine.jsonl", urls=[...], loose=True)',
        )
    options = dict(mark.kwargs)
    named = mark.args[0] if mark.args else options.pop("recording", None)
    return (None if named is None else str(named)), options
