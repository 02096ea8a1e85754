"""SIGINT and SIGTERM: the first lets the node that is being executed finish, the second not."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.runtime.graph import Control

__all__ = ["on_signals", "signals_to"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def on_signals(heard: Callable[[int], None], wanted: bool) -> Iterator[bool]:
    """Have *heard* called for each signal, where that can be; put back what was there.

    Gives whether signals are heard.
    """
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield False
        return
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in _SIGNALS:
        loop.add_signal_handler(number, heard, number)
    try:
        yield True
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextmanager
def signals_to(control: Control, wanted: bool) -> Iterator[None]:
    """Have the signals ask *control* to stop."""
    with on_signals(lambda number: control.ask(), wanted) as heard:
        if heard:
            control.heeds_signals = True
        yield
