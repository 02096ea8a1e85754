"""SIGINT and SIGTERM while a run is executed."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_signals(heard: Callable[[int], None], wanted: bool) -> Iterator[None]:
    """Call *heard* for each signal, and restore the previous handlers at the end.

    Only the main thread receives signals; elsewhere this does nothing. *heard* runs between two
    bytecodes of the main thread, so a node that blocks the event loop does not delay it.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()

    def handle(number: int, frame: FrameType | None) -> None:
        heard(number)
        loop.call_soon_threadsafe(_wake)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _wake() -> None:
    """Do nothing: the event loop has woken up, which is all that was wanted."""
