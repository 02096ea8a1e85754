"""Versions of channels, and a run that does not get further ahead of what is stored than a step.

With LangGraph's default durability checkpoints are saved in the background while the graph goes
on, and nothing bounds how far: with fast nodes a crash costs dozens of steps. But the graph asks
for the next version at the end of each step, and the versions that a checkpoint holds tell which
step it is of. So whoever asks for the version after one that is still being saved waits until
that is done.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Pace", "next_version"]

_REMEMBERED = 4096
_LONGEST_WAIT = 10.0
_LONGEST_WAIT_OF_A_LOOP = 1.0
"""Seconds. A save that takes longer is the storage's trouble, and will be told of by itself."""
_SOON = 0.05
_DIGITS = 12


def next_version(current: str | int | float | None) -> str:
    """A version that is greater than *current* and that no other branch has.

    >>> next_version(None)[:13], next_version("00000007.5")[:9]
    ('000000000001.', '00000008.')
    """
    number, digits = current, _DIGITS
    if isinstance(current, str):
        head = current.partition(".")[0]
        number, digits = int(head), len(head)
    return f"{int(number or 0) + 1:0{digits}d}.{secrets.token_hex(4)}"


class _Chain:
    """Versions that were given out one after another, none of them stored yet."""

    __slots__ = ("expected", "last")

    def __init__(self, expected: bool) -> None:
        self.expected = expected
        """Whether one will be saved, as the version before them was."""
        self.last: _Given | None = None
        """The last that came to be saved. None does with durability="exit", or after a failure."""


class _Given:
    """A version that was given out."""

    __slots__ = ("chain", "stored")

    def __init__(self, chain: _Chain) -> None:
        self.chain = chain
        self.stored = False


class Pace:
    """Knows which versions are not stored yet, and lets those wait who would go on from them.

    *flush* sends off what a running event loop has asked to be saved, and says whether that can
    be waited for in the loop. While a loop waits nothing else happens in it, but neither does it
    take longer than one commit, and what its other runs have asked for is in that commit.
    """

    def __init__(self, flush: Callable[[], bool]) -> None:
        self._flush = flush
        self._changed = threading.Condition()
        self._given: OrderedDict[str, _Given] = OrderedDict()

    def after(self, current: str | int | float | None) -> str:
        """The version after *current*; waits while *current* itself is being saved."""
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
            self._given[version] = _Given(chain)
            if len(self._given) > _REMEMBERED:
                self._given.popitem(last=False)
            return version

    def _wait_for_a_beginning(self, known: _Given) -> None:
        """A save is begun by another thread, which may not have come to it yet."""
        chain = known.chain
        if chain.expected and chain.last is None and not _in_event_loop():
            self._changed.wait_for(lambda: chain.last is not None or known.stored, _SOON)
            chain.expected = chain.last is not None  # if not, the run is saved only at its end

    def _wait(self, known: _Given, last: _Given) -> None:
        if not _in_event_loop():
            self._changed.wait_for(lambda: known.stored or known.chain.last is None, _LONGEST_WAIT)
            return
        # What is not being saved yet waits for this very loop.
        if self._flush():
            self._changed.wait_for(
                lambda: last.stored or known.chain.last is None, _LONGEST_WAIT_OF_A_LOOP
            )

    @contextmanager
    def saving(self, versions: Iterable[Any]) -> Iterator[Callable[[], None]]:
        """While a checkpoint with these new versions is saved; gives what to call when it is."""
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
            # LangGraph will save nothing further of this run: nobody must wait for that.
            with self._changed:
                for given in own:
                    given.chain.last, given.chain.expected = None, False
                self._changed.notify_all()
            raise
        finally:
            stored()


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
