"""Calls around a fork, for functions that their own modules keep.

Python holds what `os.register_at_fork` was given until the very end. A function holds its module,
and all that can be reached from it would outlive the garbage collection of an exit, go through it
twice, and make every exit slower. So Python is given a call that only knows where the function is.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from weakref import ref


def register_at_fork(
    *,
    before: Callable[[], None] | None = None,
    after_in_parent: Callable[[], None] | None = None,
    after_in_child: Callable[[], None] | None = None,
) -> None:
    """Call these functions of a module around every fork, where there are forks."""
    given = {
        "before": before,
        "after_in_parent": after_in_parent,
        "after_in_child": after_in_child,
    }
    for function in given.values():
        if function is not None and "<locals>" in function.__qualname__:
            raise TypeError(f"no module keeps {function.__qualname__}: it would never be called")
    calls = {when: _call(ref(function)) for when, function in given.items() if function}
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**calls)


def _call(known: ref[Callable[[], None]]) -> Callable[[], None]:
    def call() -> None:
        if (function := known()) is not None:
            function()

    return call
