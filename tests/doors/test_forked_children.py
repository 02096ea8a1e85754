"""A child of a fork writes nothing into the run that its parent holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

import surehold
from surehold.errors import ConflictError

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def refused_in_child(*writes: Callable[[], Any]) -> bool:
    """True if each of *writes* is refused in a forked child."""
    child = os.fork()
    if not child:
        refused = 0
        try:
            for write in writes:
                try:
                    write()
                except ConflictError as error:
                    refused += "was forked from" in error.message
        finally:
            os._exit(refused)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(writes)


def test_a_loop(db: str) -> None:
    with surehold.run("r", storage=db) as run:
        run.checkpoint(a=1)
        assert refused_in_child(
            lambda: run.checkpoint(b=2),
            lambda: run.call(len, "abc"),
            lambda: run.effect("pay", len, "abc"),
            lambda: run.__exit__(None, None, None),
        )
        run.checkpoint(c=run.call(len, "abc"))
    assert (run.status, run.state) == ("completed", {"a": 1, "c": 3})


def test_a_workflow(db: str) -> None:
    seen = []

    @surehold.step
    def length(text: str) -> int:
        return len(text)

    @surehold.workflow(storage=db)
    def job() -> int:
        first = length("abc")
        seen.append(refused_in_child(lambda: length("abcd")))
        return first + length("abcde")

    result = job.run(run_id="r")
    assert (result.status, result.returned, seen) == ("completed", 8, [True])
