"""Backpressure: a graph runs at most one step ahead of what is stored.

With LangGraph's default durability, checkpoints are saved in the background while the graph runs,
without a bound: with fast nodes a crash costs dozens of steps. But the graph asks the saver for the
next channel version at the end of each step, and each checkpoint holds the versions of its step.
So a request for the version after one that is still being saved waits until it is stored.
"""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from surehold.core.values import remember
from surehold.engine.commit import in_event_loop

_REMEMBERED = 4096
_LONGEST_WAIT = 10.0
_LONGEST_WAIT_OF_A_LOOP = 1.0
"""Seconds. A save that takes longer fails by itself, and its error is raised there."""
_SOON = 0.05
_DIGITS = 12


def next_version(current: str | int | float | None) -> str:
    """Make a version greater than *current* that no other branch has.

    >>> next_version(None)[:13], next_version("00000007.5")[:9]
    ('000000000001.', '00000008.')
    """
    number, digits = current, _DIGITS
    if isinstance(current, str):
        head = current.partition(".")[0]
        number, digits = int(head), len(head)
    return f"{int(number or 0) + 1:0{digits}d}.{secrets.token_hex(4)}"


class _Chain:
    """Versions issued one after another, none of them stored yet."""

    __slots__ = ("expected", "last")

    def __init__(self, expected: bool) -> None:
        self.expected = expected
        """True if one of them will be saved, as the version before them was."""
        self.last: _Given | None = None
        """The last one whose save began; None with durability="exit", or after a failure."""


class _Given:
    """A version that was issued."""

    __slots__ = ("chain", "stored")

    def __init__(self, chain: _Chain) -> None:
        self.chain = chain
        self.stored = False


class Backpressure:
    """Tracks versions that are not stored yet, and delays the steps after them.

    *flush* sends the saves that a running event loop has queued, and returns True if the loop may
    wait for them. A waiting loop does nothing else, but for no longer than one commit, and that
    commit holds the saves of its other runs as well.
    """

    def __init__(self, flush: Callable[[], bool]) -> None:
        self._flush = flush
        self._changed = threading.Condition()
        self._given: OrderedDict[str, _Given] = OrderedDict()

    def after(self, current: str | int | float | None) -> str:
        """Return the version after *current*, once *current* itself is stored."""
        with self._changed:
            known = self._given.get(current) if isinstance(current, str) else None
            if known is not None and not known.stored:
                self._wait_for_a_beginning(known)
                if known.chain.last is not None:
                    self._wait(known, known.chain.last)
            if known is not None and not known.stored:
                chain = known.chain
            else:
                chain = _Chain(expected=known is not None)
            version = next_version(current)
            remember(self._given, version, _Given(chain), most=_REMEMBERED)
            return version

    def _wait_for_a_beginning(self, known: _Given) -> None:
        """Wait a moment for the save to begin: another thread begins it."""
        chain = known.chain
        if chain.expected and chain.last is None and not in_event_loop():
            self._changed.wait_for(lambda: chain.last is not None or known.stored, _SOON)
            chain.expected = chain.last is not None  # else the run is saved only at its end

    def _wait(self, known: _Given, last: _Given) -> None:
        if not in_event_loop():
            self._changed.wait_for(lambda: known.stored or known.chain.last is None, _LONGEST_WAIT)
            return
        # Saves that have not begun wait for this very loop.
        if self._flush():
            self._changed.wait_for(
                lambda: last.stored or known.chain.last is None, _LONGEST_WAIT_OF_A_LOOP
            )

    @contextmanager
    def saving(self, versions: Iterable[Any]) -> Iterator[Callable[[], None]]:
        """Cover the save of a checkpoint with these versions; yield the "stored" callback."""
        with self._changed:
            own = [self._given[one] for one in versions if one in self._given]
            for given in own:
                given.chain.last = given
            self._changed.notify_all()

        def stored() -> None:
            with self._changed:
                for given in own:
                    given.stored = True
                self._changed.notify_all()

        try:
            yield stored
        except BaseException:
            # LangGraph saves nothing more of this run: no step may wait for it.
            with self._changed:
                for given in own:
                    given.chain.last, given.chain.expected = None, False
                self._changed.notify_all()
            raise
        finally:
            stored()
